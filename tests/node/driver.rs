//! GPUs through a driver library: NVIDIA's own without a driver, and the fake one with eight cards.

use crate::program::BINARY;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use lab::scenario::{
    CallFault, Code, FakeGpu, FakeNvml, Program, ReadingKind, Replay, Scenario, Which, cards, process,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// `/api/v1/gpus` once it shows so many cards with readings.
pub(crate) fn gpus(agent: &Agent, count: usize) -> Vec<Value> {
    eventually(&format!("{count} cards with readings"), START, || {
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

/// The file that NVIDIA's library makes as root, whether there is a driver or not; taken away if it was not there before.
struct DeviceFile {
    was_there: bool,
}

impl DeviceFile {
    const PATH: &str = "/dev/nvidiactl";

    fn before_the_library_makes_it() -> DeviceFile {
        DeviceFile { was_there: Path::new(DeviceFile::PATH).exists() }
    }
}

impl Drop for DeviceFile {
    fn drop(&mut self) {
        if !self.was_there {
            // Without root the library could not make it either.
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
    let _traces = DeviceFile::before_the_library_makes_it();
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
fn eight_cards_of_the_driver_are_served_with_their_processes() {
    let mine = std::process::id();
    let busy = FakeGpu { processes: vec![process(mine, 7 << 30, 63.0)], ..cards("H100", 1) };
    let (_directory, fake) = fake(&Scenario { gpus: vec![busy, cards("H100", 7)], ..Scenario::default() });
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).launch();
    let gpus = gpus(&agent, 8);
    assert_eq!(gpus[0]["model"], "NVIDIA H100 80GB HBM3");
    assert_eq!(gpus[0]["memory_total_bytes"]["value"], 81_559_u64 << 20);
    assert_eq!(gpus[0]["memory_used_bytes"]["value"], 7_u64 << 30);
    assert_eq!(agent.get("/api/v1/gpus").json()["view"]["simulated"], false, "a library is a library");
    let told = eventually("this process on the first card", START, || {
        let document = agent.get("/api/v1/gpus").json();
        let list = document["gpus"][0]["processes"]["value"].as_array()?.clone();
        list.into_iter().find(|process| process["pid"] == mine && process["sm_ratio"]["value"] == 0.63)
    });
    assert_eq!(told["memory_used_bytes"]["value"], 7_u64 << 30, "{told}");
}

/// Eight cards that take the power of a recording.
pub(crate) fn replayed() -> Scenario {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/traces/helios-two-tenants.csv");
    let replay = Replay { speed: 600.0, ..Replay::of(recording, "vc6YE") };
    let values = [(ReadingKind::PowerWatts, Program::Replay(replay).into())].into();
    Scenario { gpus: vec![FakeGpu { values, ..cards("A100", 8) }], ..Scenario::default() }
}

#[test]
fn eight_replayed_cards_show_what_was_recorded() {
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

/// Each GPU's words for why it gets no new containers, and whether it tells when it will get some.
fn judged(agent: &Agent) -> Vec<(Vec<String>, bool)> {
    let document = agent.get("/api/v1/gpus").json();
    let word = |incident: &Value| incident["incident"].as_str().expect("a word").to_owned();
    let gpus = document["gpus"].as_array().expect("a list").iter();
    gpus.map(|gpu| {
        let incidents = gpu["incidents"].as_array().expect("a list").iter().map(word).collect();
        (incidents, gpu["fit_in_seconds"].is_number())
    })
    .collect()
}

/// Promise 11 in docs/specification.md: a call of some seconds takes readings and no capacity.
#[test]
fn a_call_of_some_seconds_condemns_no_gpu() {
    let well = Scenario { gpus: vec![cards("H100", 5)], ..Scenario::default() };
    let (_directory, fake) = fake(&well);
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    gpus(&agent, 5);
    let slow =
        CallFault { call: "nvmlDeviceGetCount_v2".into(), latency_ms: 8000, times: Some(1), ..CallFault::default() };
    fake.write(&Scenario { faults: vec![slow], ..well }).expect("the scenario is written");
    let fit = || assert_eq!(judged(&agent), vec![(Vec::new(), false); 5]);
    eventually("readings that are absent", START, || {
        fit();
        let document = agent.get("/api/v1/gpus").json();
        let gpus = document["gpus"].as_array()?;
        gpus.iter().all(|gpu| gpu["power_watts"]["absent"] == "call_stalls").then_some(())
    });
    assert_eq!(agent.get("/readyz").status, 200);
    eventually("readings", START, || {
        fit();
        let document = agent.get("/api/v1/gpus").json();
        document["gpus"][4]["power_watts"].get("value").map(|_| ())
    });
    fit();
}

/// Promise 33 in docs/specification.md.
#[test]
fn a_gpu_of_which_every_call_fails_is_silent_and_its_neighbours_are_well() {
    let (_directory, fake) = fake(&Scenario { gpus: vec![cards("H100", 5)], ..Scenario::default() });
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
    let bad = Scenario { gpus: vec![cards("H100", 5)], faults, ..Scenario::default() };
    fake.write(&bad).expect("the scenario is written");
    let silent = (vec!["silent".to_owned()], false);
    let told = eventually("four that are silent", START, || {
        Some(judged(&agent)).filter(|told| told[..4].iter().all(|told| *told == silent))
    });
    assert_eq!(told[4], (Vec::new(), false));
    let gpus = agent.get("/api/v1/gpus").json();
    for (place, advice) in [(0, "GSP"), (1, "device cgroup"), (2, "GSP"), (3, "GSP")] {
        let gpu = &gpus["gpus"][place];
        assert_eq!(gpu["health"], "unhealthy");
        assert!(gpu["incidents"][0]["advice"].as_str().is_some_and(|text| text.contains(advice)), "{gpu}");
    }
}

/// Promise 13 in docs/specification.md.
#[test]
fn an_updated_driver_ends_the_program_and_one_that_never_fitted_is_waited_for() {
    let old = Scenario { gpus: vec![cards("H100", 1)], ..Scenario::default() };
    let (_directory, fake) = fake(&old);
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    gpus(&agent, 1);
    let unfit = Scenario { driver_epoch: 1, init_error: Code::named("LIB_RM_VERSION_MISMATCH"), ..old.clone() };
    fake.write(&unfit).expect("the scenario is written");
    let ended = agent.wait();
    assert_eq!(ended.status.code(), Some(75), "{}", ended.log);
    assert!(ended.log.contains("was updated under this process") && ended.log.contains("stopped"), "{}", ended.log);
    // The library on disk does not fit either, until the module is loaded anew: no use in ending again.
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    agent.logs("different driver versions");
    fake.write(&Scenario { init_error: None, ..unfit }).expect("the scenario is written");
    gpus(&agent, 1);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
}
