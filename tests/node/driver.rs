//! Tests GPUs through a driver library: NVIDIA's own library without a driver, and the fake library with eight GPUs.

use crate::program::BINARY;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use lab::scenario::{
    CallFault, Code, FakeGpu, FakeNvml, Program, ReadingKind, Replay, Scenario, Which, fake_gpus, process,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The GPUs of `/api/v1/gpus` once it shows this many GPUs with readings.
pub(crate) fn gpus(agent: &Agent, count: usize) -> Vec<Value> {
    eventually(&format!("{count} GPUs with readings"), START, || {
        let document = agent.get("/api/v1/gpus").json();
        let gpus = document["gpus"].as_array()?.clone();
        let read = gpus.iter().all(|gpu| gpu["memory_used_bytes"].get("age_seconds").is_some());
        (gpus.len() == count && read).then_some(gpus)
    })
}

/// A directory with the fake library and this scenario.
pub(crate) fn fake(scenario: &Scenario) -> (TempDir, FakeNvml) {
    let directory = TempDir::new().expect("a temporary directory");
    let fake = FakeNvml::install(directory.path()).expect("the fake library was built with these tests");
    fake.write(scenario).expect("the scenario is written");
    (directory, fake)
}

/// The device file that NVIDIA's library creates as root even without a driver. The test removes it at the end if it did
/// not exist before.
struct DeviceFile {
    existed: bool,
}

impl DeviceFile {
    const PATH: &str = "/dev/nvidiactl";

    fn before_the_library_loads() -> DeviceFile {
        DeviceFile { existed: Path::new(DeviceFile::PATH).exists() }
    }
}

impl Drop for DeviceFile {
    fn drop(&mut self) {
        if !self.existed {
            // Without root the library could not make the file, so an error is ignored.
            let _ = std::fs::remove_file(DeviceFile::PATH);
        }
    }
}

#[test]
#[ignore = "needs libnvidia-ml1: tests/run"]
fn nvidias_own_library_without_a_driver_gives_advice_and_the_agent_goes_on() {
    let library = std::env::var_os("GPU_STEWARD_REAL_NVML").map(PathBuf::from);
    let library = library.expect("GPU_STEWARD_REAL_NVML names NVIDIA's libnvidia-ml.so.1");
    assert!(library.exists(), "{} is not there", library.display());
    assert!(!Path::new("/proc/driver/nvidia/version").exists(), "this is for a machine without the driver");
    let _traces = DeviceFile::before_the_library_loads();
    let agent = Agent::standalone(BINARY).with("--nvml-library", &library).launch();
    agent.logs("modprobe nvidia");
    let log = agent.log();
    let line = log.lines().find(|line| line.contains("modprobe nvidia")).expect("the line that was waited for");
    assert!(line.contains("could not initialise NVML") && line.contains(&*library.to_string_lossy()), "{line}");
    assert!(agent.get("/api/v1/gpus").json()["gpus"].as_array().is_some_and(Vec::is_empty));
    let ended = agent.terminate();
    assert!(ended.status.success(), "{}", ended.log);
}

#[test]
fn eight_gpus_of_the_driver_are_served_with_their_processes() {
    let mine = std::process::id();
    let busy = FakeGpu { processes: vec![process(mine, 7 << 30, 63.0)], ..fake_gpus("H100", 1) };
    let (_directory, fake) = fake(&Scenario { gpus: vec![busy, fake_gpus("H100", 7)], ..Scenario::default() });
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).launch();
    let gpus = gpus(&agent, 8);
    assert_eq!(gpus[0]["model"], "NVIDIA H100 80GB HBM3");
    assert_eq!(gpus[0]["memory_total_bytes"]["value"], 81_559_u64 << 20);
    assert_eq!(gpus[0]["memory_used_bytes"]["value"], 7_u64 << 30);
    assert_eq!(agent.get("/api/v1/gpus").json()["view"]["simulated"], false, "GPUs of a library are not simulated");
    let found = eventually("this process on the first GPU", START, || {
        let document = agent.get("/api/v1/gpus").json();
        let list = document["gpus"][0]["processes"]["value"].as_array()?.clone();
        list.into_iter().find(|process| process["pid"] == mine && process["sm_ratio"]["value"] == 0.63)
    });
    assert_eq!(found["memory_used_bytes"]["value"], 7_u64 << 30, "{found}");
}

/// Eight GPUs whose power comes from a recording.
pub(crate) fn replayed() -> Scenario {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/traces/helios-two-tenants.csv");
    let replay = Replay { speed: 600.0, ..Replay::of(recording, "vc6YE") };
    let values = [(ReadingKind::PowerWatts, Program::Replay(replay).into())].into();
    Scenario { gpus: vec![FakeGpu { values, ..fake_gpus("A100", 8) }], ..Scenario::default() }
}

#[test]
fn eight_replayed_gpus_show_the_recorded_power() {
    let (_directory, fake) = fake(&replayed());
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).launch();
    assert_eq!(gpus(&agent, 8).len(), 8);
    let mut seen = Vec::new();
    eventually("three recorded numbers", START, || {
        let watts = agent.get("/api/v1/gpus").json()["gpus"][7]["power_watts"]["value"].as_f64()?;
        assert!((100.0..=200.0).contains(&watts), "{watts} is not in the recording");
        if seen.last() != Some(&watts) {
            seen.push(watts);
        }
        (seen.len() >= 3).then_some(())
    });
}

/// For each GPU the incidents that keep it from new containers, and whether the agent says when it becomes fit again.
fn conditions(agent: &Agent) -> Vec<(Vec<String>, bool)> {
    let document = agent.get("/api/v1/gpus").json();
    let word = |incident: &Value| incident["incident"].as_str().expect("a word").to_owned();
    let gpus = document["gpus"].as_array().expect("a list").iter();
    gpus.map(|gpu| {
        let incidents = gpu["incidents"].as_array().expect("a list").iter().map(word).collect();
        (incidents, gpu["fit_in_seconds"].is_number())
    })
    .collect()
}

/// Promise 11 in docs/specification.md: a call of some seconds costs readings, and no capacity.
#[test]
fn a_driver_call_of_some_seconds_makes_no_gpu_unfit() {
    let well = Scenario { gpus: vec![fake_gpus("H100", 5)], ..Scenario::default() };
    let (_directory, fake) = fake(&well);
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    gpus(&agent, 5);
    let slow =
        CallFault { call: "nvmlDeviceGetCount_v2".into(), latency_ms: 8000, times: Some(1), ..CallFault::default() };
    fake.write(&Scenario { faults: vec![slow], ..well }).expect("the scenario is written");
    let none_is_unfit = || assert_eq!(conditions(&agent), vec![(Vec::new(), false); 5]);
    eventually("readings that are absent", START, || {
        none_is_unfit();
        let document = agent.get("/api/v1/gpus").json();
        let gpus = document["gpus"].as_array()?;
        gpus.iter().all(|gpu| gpu["power_watts"]["absent"] == "call_stalls").then_some(())
    });
    assert_eq!(agent.get("/readyz").status, 200);
    eventually("readings", START, || {
        none_is_unfit();
        let document = agent.get("/api/v1/gpus").json();
        document["gpus"][4]["power_watts"].get("value").map(|_| ())
    });
    none_is_unfit();
}

/// Promise 33 in docs/specification.md.
#[test]
fn a_gpu_whose_calls_all_fail_is_silent_and_the_others_stay_healthy() {
    let (_directory, fake) = fake(&Scenario { gpus: vec![fake_gpus("H100", 5)], ..Scenario::default() });
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    gpus(&agent, 5);
    let errors = ["UNKNOWN", "NO_PERMISSION", "TIMEOUT", "GPU_NOT_FOUND"];
    let fails = |(gpu, error): (u32, &str)| CallFault {
        call: "*".into(),
        gpu: Some(Which::Place(gpu)),
        error: Code::named(error),
        ..CallFault::default()
    };
    let faults = (0..).zip(errors).map(fails).collect();
    let bad = Scenario { gpus: vec![fake_gpus("H100", 5)], faults, ..Scenario::default() };
    fake.write(&bad).expect("the scenario is written");
    let silent = (vec!["silent".to_owned()], false);
    let found = eventually("four silent GPUs", START, || {
        Some(conditions(&agent)).filter(|found| found[..4].iter().all(|gpu| *gpu == silent))
    });
    assert_eq!(found[4], (Vec::new(), false));
    let gpus = agent.get("/api/v1/gpus").json();
    for (place, advice) in [(0, "GSP"), (1, "device cgroup"), (2, "GSP"), (3, "GSP")] {
        let gpu = &gpus["gpus"][place];
        assert_eq!(gpu["health"], "unhealthy");
        assert!(gpu["incidents"][0]["advice"].as_str().is_some_and(|text| text.contains(advice)), "{gpu}");
    }
}

/// Promise 13 in docs/specification.md.
#[test]
fn the_program_ends_after_a_driver_update_and_waits_for_a_driver_that_never_fitted() {
    let old = Scenario { gpus: vec![fake_gpus("H100", 1)], ..Scenario::default() };
    let (_directory, fake) = fake(&old);
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    gpus(&agent, 1);
    let unfit = Scenario { driver_epoch: 1, init_error: Code::named("LIB_RM_VERSION_MISMATCH"), ..old.clone() };
    fake.write(&unfit).expect("the scenario is written");
    let ended = agent.wait();
    assert_eq!(ended.status.code(), Some(75), "{}", ended.log);
    assert!(ended.log.contains("was updated under this process") && ended.log.contains("stopped"), "{}", ended.log);
    // Until the kernel module is loaded again, the library on disk does not match it either. So the next agent must wait
    // and not end again.
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    agent.logs("different driver versions");
    fake.write(&Scenario { init_error: None, ..unfit }).expect("the scenario is written");
    gpus(&agent, 1);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
}
