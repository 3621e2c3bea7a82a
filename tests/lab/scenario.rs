//! The fake NVML library in the directory of a test. `tests/fake-nvml/README.md` describes the scenario file.

pub use fake_nvml::code::Code;
pub use fake_nvml::scenario::{
    CallFault, Churn, Clock, FakeGpu, FakeLink, FakeProcess, LinkPath, List, MigDetail, MigSlot, ProcessList,
    ProcessSamples, ReadingKind, Scenario, SickLink, Which, XidEvent,
};
pub use fake_nvml::value::{Program, Replay, Then, Value};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};

/// The file that stands for `/dev/nvidiactl`.
const DEVICE: &str = "nvidiactl";

/// A copy of the library, with its own scenario file in the same directory.
#[derive(Clone, Debug)]
pub struct FakeNvml {
    library: PathBuf,
}

impl FakeNvml {
    /// Copies the library into a directory. Until [`FakeNvml::write`] there is one idle H100.
    ///
    /// # Errors
    /// If the library was not built (`cargo build -p fake-nvml`), or the copy cannot be written.
    pub fn install(directory: &Path) -> io::Result<FakeNvml> {
        let built = built_library()?;
        let library = directory.join("libnvidia-ml.so.1");
        std::fs::copy(built, &library)?;
        std::fs::write(directory.join(DEVICE), "")?;
        Ok(FakeNvml { library })
    }

    /// Whether a process has the library's device file open, which is the case during a session, as with the real library.
    #[must_use]
    pub fn is_open_in(&self, pid: u32) -> bool {
        let device = self.library.with_file_name(DEVICE);
        let device = device.canonicalize().unwrap_or(device);
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|path| path == device)
    }

    /// The path of the copy, for `--nvml-library`.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Replaces the scenario in one step. Calls more than 2 ms later use the new scenario.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, scenario: &Scenario) -> io::Result<()> {
        self.write_text(&serde_json::to_vec_pretty(scenario)?)
    }

    /// Replaces the scenario file with any text, which may be invalid.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_text(&self, text: &[u8]) -> io::Result<()> {
        let next = self.library.with_file_name("scenario.json.next");
        std::fs::write(&next, text)?;
        std::fs::rename(next, self.library.with_file_name("scenario.json"))
    }

    /// The calls of C functions with these prefixes, in order, since `log_calls` was set in the scenario.
    #[must_use]
    pub fn called(&self, beginnings: &[&str]) -> Vec<String> {
        let log = std::fs::read_to_string(self.library.with_file_name("calls.log")).unwrap_or_default();
        let functions = log.lines().filter_map(|line| line.split(' ').next());
        functions
            .filter(|function| beginnings.iter().any(|beginning| function.starts_with(beginning)))
            .map(str::to_owned)
            .collect()
    }

    /// How often a C function (or `field:N`) was called for the GPU at this position since `log_calls` was set in the
    /// scenario.
    #[must_use]
    pub fn calls(&self, function: &str, index: u32) -> usize {
        let log = std::fs::read_to_string(self.library.with_file_name("calls.log")).unwrap_or_default();
        let line = format!("{function} {index}");
        log.lines().filter(|one| *one == line).count()
    }
}

/// `libfake_nvml.so` beside the running test (`target/debug/deps`), or one directory up.
fn built_library() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let directories = test.ancestors().skip(1).take(2);
    let paths: Vec<PathBuf> =
        directories.flat_map(|at| ["", "deps"].map(|deps| at.join(deps).join("libfake_nvml.so"))).collect();
    // Some copies may be stale, because cargo writes only the copy for the target that it builds. Take the newest copy.
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    paths.iter().filter(|path| path.exists()).max_by_key(|path| changed(path)).cloned().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("libfake_nvml.so is in none of {paths:?}; cargo build -p fake-nvml"),
        )
    })
}

/// `count` GPUs of a model.
#[must_use]
pub fn fake_gpus(model: &str, count: u32) -> FakeGpu {
    FakeGpu { model: model.to_owned(), count, ..FakeGpu::default() }
}

/// Busy GPUs, each with these processes. Every reading has a fixed value, because a benchmark counts the library's CPU
/// time as the agent's, and the library should not compute readings from the processes.
#[must_use]
pub fn busy(pids: &[Vec<u32>]) -> serde_json::Value {
    let values = json!({
        "memory_used_bytes": 14_u64 << 30, "utilization_percent": 60, "memory_copy_percent": 20, "encoder_percent": 0,
        "decoder_percent": 0, "power_watts": 400, "temperature_celsius": 55, "temperature_memory_celsius": 60,
        "clock_sm_mhz": 1900, "clock_memory_mhz": 2600, "throttle_reasons": 0, "gpm_sm_percent": 50,
        "gpm_graphics_percent": 60, "gpm_sm_occupancy_percent": 30, "gpm_tensor_percent": 20, "gpm_dram_percent": 20,
        "gpm_fp64_percent": 0, "gpm_fp32_percent": 5, "gpm_fp16_percent": 5,
    });
    let process = |pid: &u32| json!({"pid": pid, "memory": 1_u64 << 30, "sm": 5});
    let gpu = |pids: &Vec<u32>| {
        let processes: Vec<_> = pids.iter().map(process).collect();
        json!({"model": "H100", "processes": processes, "values": values})
    };
    json!({"gpus": pids.iter().map(gpu).collect::<Vec<_>>()})
}

/// The same GPUs, each divided into `instances` MIG instances of the smallest profile, which share its processes
/// evenly.
#[must_use]
pub fn busy_instances(pids: &[Vec<u32>], instances: usize) -> serde_json::Value {
    let mut scenario = busy(pids);
    for gpu in scenario["gpus"].as_array_mut().into_iter().flatten() {
        gpu["mig"] = json!(vec!["1g.10gb"; instances]);
        for (number, process) in gpu["processes"].as_array_mut().into_iter().flatten().enumerate() {
            process["mig"] = json!(number % instances.max(1));
        }
    }
    scenario
}

/// A process that holds memory and uses a percentage of the SM time.
#[must_use]
pub fn process(pid: u32, memory: u64, sm_percent: f64) -> FakeProcess {
    #[expect(clippy::cast_precision_loss, reason = "bytes of a GPU are far below 2^53")]
    let memory = Value::Constant(memory as f64);
    FakeProcess { pid, memory: Some(memory), sm: Value::Constant(sm_percent), ..FakeProcess::default() }
}
