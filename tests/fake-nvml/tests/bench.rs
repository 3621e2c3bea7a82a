//! A copy of the library in a temporary directory, and its scenario.

#![expect(clippy::unwrap_used, reason = "a test's own tools may panic")]

use fake_nvml::scenario::{Clock, FakeGpu, Scenario};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for a condition, far longer than needed.
const DEADLINE: Duration = Duration::from_secs(20);
/// Wall clock at scenario second 0 in these tests.
pub(crate) const ORIGIN_US: u64 = 1_700_000_000_000_000;

/// The copy.
pub(crate) struct Bench {
    directory: TempDir,
}

impl Bench {
    /// A copy with this scenario.
    pub(crate) fn new(scenario: &Scenario) -> Bench {
        let test = std::env::current_exe().unwrap();
        let places = test.ancestors().skip(1).take(2).map(|at| at.join("libfake_nvml.so"));
        let built = places.filter(|path| path.exists()).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
        let bench = Bench { directory: TempDir::new().unwrap() };
        std::fs::copy(built.expect("cargo builds the library with its tests"), bench.library()).unwrap();
        bench.write(scenario);
        bench
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("libnvidia-ml.so.1")
    }

    /// Replaces the scenario.
    pub(crate) fn write(&self, scenario: &Scenario) {
        self.write_text(&serde_json::to_string(scenario).unwrap());
    }

    /// Replaces the scenario file with any text.
    pub(crate) fn write_text(&self, text: &str) {
        let next = self.directory.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.directory.path().join("scenario.json")).unwrap();
    }

    /// The calls of C functions with this prefix, in order, in a scenario with `log_calls`.
    pub(crate) fn calls(&self, beginning: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.directory.path().join("calls.log")).unwrap_or_default();
        let functions = text.lines().filter_map(|line| line.split(' ').next());
        functions.filter(|function| function.starts_with(beginning)).map(str::to_owned).collect()
    }

    /// Loads the copy with the real wrapper.
    pub(crate) fn load(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(self.library().as_os_str()).init()
    }
}

/// A scenario of these GPUs in which time stands still at `second`.
pub(crate) fn still(gpus: Vec<FakeGpu>, second: f64) -> Scenario {
    let clock = Clock { frozen_at_s: Some(second), origin_us: Some(ORIGIN_US), ..Clock::default() };
    Scenario { gpus, clock, ..Scenario::default() }
}

/// A GPU of this model.
pub(crate) fn fake_gpu(model: &str) -> FakeGpu {
    FakeGpu { model: model.into(), ..FakeGpu::default() }
}

/// Waits until a condition is true.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}
