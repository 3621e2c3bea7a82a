//! GPUs through a driver library: NVIDIA's own without a driver, and the fake one with eight cards.

use crate::program::BINARY;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use lab::scenario::{Card, FakeNvml, Program, Quantity, Replay, Scenario, cards, process};
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
    let busy = Card { processes: vec![process(mine, 7 << 30, 63.0)], ..cards("H100", 1) };
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
    let values = [(Quantity::PowerWatts, Program::Replay(replay).into())].into();
    Scenario { gpus: vec![Card { values, ..cards("A100", 8) }], ..Scenario::default() }
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
