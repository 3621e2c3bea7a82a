//! `--gpus simulated`: cards for people who have none, with a label that nobody overlooks.

use crate::program::BINARY;
use lab::agent::{Agent, START};
use lab::eventually::eventually;

#[test]
fn made_up_cards_are_served_and_marked() {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=L40S:8").launch();
    let document = eventually("eight cards with readings", START, || {
        let document = agent.get("/api/v1/gpus").json();
        let gpus = document["gpus"].as_array()?;
        (gpus.len() == 8 && gpus.iter().all(|gpu| gpu["power_watts"].get("value").is_some())).then_some(document)
    });
    assert_eq!(document["view"]["simulated"], true);
    assert_eq!(document["gpus"][0]["model"], "NVIDIA L40S (simulated)");
    agent.logs("simulated");
    let metrics = agent.get("/metrics").text();
    assert!(metrics.contains("(simulated)"), "the metrics say it too");
}

#[test]
fn made_up_cards_are_used_by_processes_that_live() {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=H100:1").launch();
    let list = eventually("processes", START, || {
        let document = agent.get("/api/v1/gpus").json();
        let list = document["gpus"][0]["processes"]["value"].as_array()?.clone();
        (!list.is_empty()).then_some(list)
    });
    for process in list {
        assert!(process["memory_used_bytes"]["value"].as_u64() > Some(0), "{process}");
        assert!(process["command"].as_str().is_some_and(|command| !command.is_empty()), "{process}");
    }
}

#[test]
fn an_unknown_model_is_refused_with_those_that_are_known() {
    let output = Agent::standalone(BINARY).with("--gpus", "simulated=RTX").run();
    assert!(!output.status.success());
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("RTX") && log.contains("H100, H200, A100"), "{log}");
}
