//! The machine that is checked: a real one, or one with the fake NVML library and a fake `nvidia-smi`.

use crate::Outcome;
use crate::cuda::Pattern;
use crate::fake::FakeMachine;
use lab::agent::{Agent, Recipe};
use nvml_wrapper::Nvml;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The memory that the load holds, in MiB.
pub(crate) const LOAD_MIB: u64 = 1024;
/// The length of one measurement on a real GPU. Nothing averages over more than a few seconds.
const REAL: Duration = Duration::from_secs(20);
/// The length of one measurement on the fake library.
const FAKE: Duration = Duration::from_secs(3);

/// Where the check runs.
#[derive(Debug)]
pub(crate) struct Machine {
    binary: String,
    nvidia_smi: PathBuf,
    fake: Option<FakeMachine>,
    /// The length of one measurement.
    pub(crate) length: Duration,
}

/// The anonymous memory of this process, in MiB.
fn anonymous_mib() -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// A process that uses the first GPU until this value is dropped.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    child: Child,
    machine: &'a Machine,
}

impl Machine {
    /// This machine, with its driver.
    pub(crate) fn real(binary: String) -> Outcome<Machine> {
        // `/dev/nvidiactl` shows nothing: as root, NVIDIA's library makes that file even without a driver.
        if !std::path::Path::new("/proc/driver/nvidia/version").exists() {
            return Err("no NVIDIA driver is loaded here (/proc/driver/nvidia/version)".into());
        }
        Ok(Machine { binary, nvidia_smi: "nvidia-smi".into(), fake: None, length: REAL })
    }

    /// A machine with the fake library.
    pub(crate) fn fake(binary: String, fake: FakeMachine) -> Machine {
        Machine { binary, nvidia_smi: fake.nvidia_smi(), fake: Some(fake), length: FAKE }
    }

    /// The version of the program.
    pub(crate) fn version(&self) -> Outcome<String> {
        let output = Command::new(&self.binary).arg("--version").output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// How the agent is started.
    pub(crate) fn recipe(&self) -> Recipe {
        let recipe = Agent::standalone(&self.binary);
        match &self.fake {
            Some(fake) => recipe.with("--nvml-library", fake.library()),
            None => recipe,
        }
    }

    /// Starts the agent.
    pub(crate) fn agent(&self) -> Agent {
        self.recipe().start()
    }

    /// Opens the NVML library.
    pub(crate) fn nvml(&self) -> Outcome<Nvml> {
        let library = self.fake.as_ref().map_or("libnvidia-ml.so.1".as_ref(), |fake| fake.library().as_os_str());
        Ok(Nvml::builder().lib_path(library).init()?)
    }

    /// The anonymous memory, in MiB, that the NVML library takes in a process which opens it and finds the first GPU.
    pub(crate) fn library_mib(&self) -> Outcome<f64> {
        let before = anonymous_mib()?;
        let nvml = self.nvml()?;
        let gpu = nvml.device_by_index(0)?;
        let _ = gpu.memory_info()?;
        Ok(anonymous_mib()? - before)
    }

    /// Runs `nvidia-smi` with a query. Returns the fields of each line.
    pub(crate) fn nvidia_smi(&self, query: &str) -> Outcome<Vec<Vec<String>>> {
        let output = Command::new(&self.nvidia_smi).args([query, "--format=csv,noheader,nounits"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(format!("nvidia-smi {query}: {text}{}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(text.lines().map(|line| line.split(',').map(|cell| cell.trim().to_owned()).collect()).collect())
    }

    /// Starts a process that uses the GPU, and waits until its first kernel has run.
    pub(crate) fn load(&self, pattern: Pattern) -> Outcome<Load<'_>> {
        let mut child = Command::new(std::env::current_exe()?)
            .env("GPU_CHECK", "load")
            .env("GPU_CHECK_PATTERN", if self.fake.is_some() { "none" } else { pattern.word() })
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let load = Load { child, machine: self };
        if line.trim() != "ready" {
            return Err(format!("the load did not start: {line}").into());
        }
        if let Some(fake) = &self.fake {
            fake.busy(load.pid(), pattern)?;
        }
        Ok(load)
    }
}

impl Load<'_> {
    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(fake) = &self.machine.fake {
            fake.idle().expect("the scenario is written");
        }
    }
}
