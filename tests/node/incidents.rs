//! Tests that incidents of a GPU survive a restart of the agent in the same boot, until the GPU is reset or an operator
//! clears them.

use crate::driver::fake;
use crate::program::BINARY;
use lab::agent::{Agent, Recipe, START};
use lab::eventually::eventually;
use lab::http;
use lab::scenario::{FakeGpu, ReadingKind, Scenario, Value as Number, Which, XidEvent, fake_gpus};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Two GPUs of a driver that reports no recovery action, like drivers before R565. The fake driver's energy counter is
/// constant, so a restart of the agent does not look like a reset of the GPU.
fn driver_without_advice() -> Scenario {
    let energy = [(ReadingKind::EnergyMillijoules, Number::Constant(5e6))].into();
    let gpu = FakeGpu { values: energy, not_supported: vec!["field:230".into()], ..fake_gpus("A100", 2) };
    Scenario { gpus: vec![gpu], ..Scenario::default() }
}

fn xid(code: u64) -> XidEvent {
    XidEvent { id: 1, gpu: Which::Place(1), code, event: 8, at_s: 0.0, mig: None }
}

/// A request to the admin port with the operator's token, which only a reader of the state directory has.
pub(crate) fn operate(agent: &Agent, state: &Path, method: &str, path: &str) -> http::HttpResponse {
    let addresses = std::fs::read_to_string(state.join("addresses.json")).expect("the addresses");
    let addresses: Value = serde_json::from_str(&addresses).expect("JSON");
    let token = format!("Bearer {}", addresses["operator_token"].as_str().expect("a token"));
    let admin = agent.admin.expect("an admin port");
    http::request(admin, method, path, &[("Authorization", &token)], b"").expect("an answer")
}

fn recipe(library: &Path, state: &Path) -> Recipe {
    let recipe = Agent::standalone(BINARY).with("--nvml-library", library).with("--state-dir", state);
    recipe.with("--health-quiet-period", "1s")
}

/// The second GPU, once `is` is true for it.
fn second(agent: &Agent, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(what, START, || {
        let document = agent.get("/api/v1/gpus").json();
        let gpus = document["gpus"].as_array()?;
        (gpus.len() == 2 && is(&gpus[1])).then(|| gpus[1].clone())
    })
}

fn unfit(gpu: &Value) -> bool {
    gpu["incidents"][0]["incident"] == "xid_95" && gpu["awaits_reset"] == true
}

fn healthy(gpu: &Value) -> bool {
    gpu["health"] == "healthy" && gpu["incidents"].as_array().is_some_and(Vec::is_empty)
}

#[test]
fn a_gpu_that_needs_a_reset_stays_unfit_over_a_restart_until_an_operator_clears_it() {
    let (_directory, driver) = fake(&Scenario { xids: vec![xid(95)], ..driver_without_advice() });
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("incidents.json");
    let of_earlier_releases = state.path().join("tallies.json");
    std::fs::write(&of_earlier_releases, "{}").unwrap();
    let start = || recipe(driver.library(), state.path()).launch();
    let clear = |which: &str| {
        let mut command = Command::new(BINARY);
        let output = command.args(["clear-incident", which, "--state-dir"]).arg(state.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let agent = start();
    let gpu = second(&agent, "the error", unfit);
    assert!(
        gpu["incidents"][0]["advice"].as_str().is_some_and(|advice| advice.contains("gpu-steward clear-incident")),
        "{gpu}"
    );
    assert!(gpu["fit_in_seconds"].is_null(), "{gpu}");
    eventually("the file", START, || file.exists().then_some(()));
    assert!(!of_earlier_releases.exists(), "the agent keeps no GPU time of pods");
    agent.signal(libc::SIGKILL);
    let _ = agent.wait();
    driver.write(&driver_without_advice()).unwrap();

    let agent = start();
    agent.logs("the GPU had these incidents before the agent started");
    let uuid = second(&agent, "the same after a restart", |gpu| {
        unfit(gpu) && gpu["temperature_celsius"].get("value").is_some()
    });
    let uuid = uuid["uuid"].as_str().expect("a UUID");
    let (code, log) = clear("GPU-of-nobody");
    assert!(code == Some(69) && log.contains("404"), "{code:?} {log}");
    let (code, log) = clear(uuid);
    assert!(code == Some(0) && log.contains(&format!("{uuid}: cleared")), "{code:?} {log}");
    second(&agent, "no incident", healthy);
    eventually("no file", START, || (!file.exists()).then_some(()));
    for (path, status) in [("/incidents/all", 404), ("/incidents/a%20b", 400)] {
        assert_eq!(operate(&agent, state.path(), "DELETE", path).status, status, "{path}");
        assert_eq!(agent.admin("DELETE", path, "").status, 401, "not for every user of the host");
    }
    drop(agent);
    second(&start(), "healthy after a restart", healthy);
    let (code, log) = clear("all");
    assert!(code == Some(69) && log.contains("no agent answers"), "{code:?} {log}");
}

#[test]
fn a_smaller_energy_counter_shows_that_the_gpu_was_reset() {
    let (_directory, driver) = fake(&Scenario { xids: vec![xid(95)], ..driver_without_advice() });
    let state = tempfile::tempdir().expect("a directory");
    let agent = recipe(driver.library(), state.path()).launch();
    second(&agent, "the error", unfit);
    let mut again = Scenario { xids: vec![xid(95)], ..driver_without_advice() };
    again.gpus[0].values.insert(ReadingKind::EnergyMillijoules, Number::Constant(100.0));
    driver.write(&again).unwrap();
    second(&agent, "that it was reset", healthy);
}

#[test]
fn an_unreadable_incidents_file_is_put_aside_and_one_of_another_boot_is_ignored() {
    let (_directory, driver) = fake(&driver_without_advice());
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("incidents.json");
    let start = || recipe(driver.library(), state.path()).launch();
    std::fs::write(&file, b"\0\0\0\0").unwrap();
    let agent = start();
    agent.logs("it is put aside as");
    second(&agent, "the GPU", healthy);
    assert_eq!(std::fs::read(state.path().join("incidents.json.unreadable")).unwrap(), b"\0\0\0\0");
    let uuid = second(&agent, "the GPU", healthy)["uuid"].as_str().expect("a UUID").to_owned();
    drop(agent);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = |boot: &str| {
        format!(
            r#"{{"version":1,"boot":"{boot}","gpus":[{{"uuid":"{uuid}","last_ns":1,"incidents":[{{"incident":"xid_95","since_ns":1}}],"awaits_reset":{{}}}}]}}"#
        )
    };
    std::fs::write(&file, text("6f1b8a0e-2c5d-4f3a-9b7c-0123456789ab")).unwrap();
    second(&start(), "the GPU", healthy);
    std::fs::write(&file, text(boot.trim())).unwrap();
    second(&start(), "the incident", unfit);
}
