//! Tests eight GPUs, simulated or replayed: every interface of the agent shows the same eight.

use crate::driver::{fake, gpus, replayed};
use crate::program::BINARY;
use lab::agent::Agent;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

fn uuids(list: &Value) -> BTreeSet<String> {
    let gpus = list.as_array().into_iter().flatten();
    gpus.filter_map(|gpu| gpu["uuid"].as_str().map(str::to_owned)).collect()
}

fn stdout_of(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Checks the API, the metrics, `usage` and `top`: all show the same GPUs, and all agree on whether the GPUs are
/// simulated.
fn are_the_same_everywhere(agent: &Agent, simulated: bool) {
    let _read = gpus(agent, 8);
    let document = agent.get("/api/v1/gpus").json();
    let eight = uuids(&document["gpus"]);
    assert_eq!((eight.len(), &document["view"]["simulated"]), (8, &simulated.into()));

    let metrics = agent.get("/metrics").text();
    for name in ["gpu_steward_gpu_power_watts{", "DCGM_FI_DEV_POWER_USAGE{"] {
        let series: Vec<&str> = metrics.lines().filter(|line| line.starts_with(name)).collect();
        assert_eq!(series.len(), 8, "{name} in {metrics}");
        assert!(eight.iter().all(|uuid| series.iter().any(|line| line.contains(uuid))), "{series:?}");
    }
    assert_eq!(metrics.lines().any(|line| line == "gpu_steward_gpus_simulated 1"), simulated);

    let usage = json(&stdout_of(&["usage", "-o", "json", "--usage-socket", agent.usage_socket.to_str().unwrap()]));
    assert_eq!((uuids(&usage["gpus"]), &usage["simulated"]), (eight.clone(), &simulated.into()));

    let url = format!("http://{}", agent.metrics);
    let top = json(&stdout_of(&["top", "--once", "-o", "json", "--url", &url]));
    assert_eq!((uuids(&top["gpus"]["gpus"]), &top["gpus"]["view"]["simulated"]), (eight, &simulated.into()));
    let frame = stdout_of(&["top", "--once", "--url", &url]);
    assert!(frame.contains("8 GPUs") && frame.contains("SIMULATED GPUs") == simulated, "{frame}");
}

/// Promise 9 in docs/specification.md.
#[test]
fn eight_simulated_gpus_are_the_same_everywhere_and_marked() {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=H100:8").launch();
    are_the_same_everywhere(&agent, true);
}

#[test]
fn eight_replayed_gpus_are_the_same_everywhere() {
    let (_directory, fake) = fake(&replayed());
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).launch();
    are_the_same_everywhere(&agent, false);
}
