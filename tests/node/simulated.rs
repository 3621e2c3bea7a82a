//! Tests `--gpus simulated`: simulated GPUs for machines without a GPU, clearly marked as such.

use crate::program::BINARY;
use lab::agent::{Agent, START};
use lab::eventually::eventually;

#[test]
fn simulated_gpus_are_served_and_marked() {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=L40S:8").launch();
    let document = eventually("eight GPUs with readings", START, || {
        let document = agent.get("/api/v1/gpus").json();
        let gpus = document["gpus"].as_array()?;
        (gpus.len() == 8 && gpus.iter().all(|gpu| gpu["power_watts"].get("value").is_some())).then_some(document)
    });
    assert_eq!(document["view"]["simulated"], true);
    assert_eq!(document["gpus"][0]["model"], "NVIDIA L40S (simulated)");
    agent.logs("simulated");
    let metrics = agent.get("/metrics").text();
    assert!(metrics.contains("(simulated)"), "the metrics are marked too");
}

#[test]
fn simulated_gpus_are_used_by_processes_that_exist() {
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
#[ignore = "needs root: tests/run"]
fn simulated_uuids_depend_on_the_node_and_the_agent_uses_no_simulated_gpu() {
    let uuids = |host: &str, node: &str| {
        let recipe = Agent::standalone(BINARY).with("--gpus", "simulated=H100:2").with("--node-name", node);
        let recipe = recipe.within(&format!("exec unshare --uts sh -c 'hostname {host} && exec \"$@\"' sh \"$@\""));
        let agent = recipe.launch();
        eventually("two GPUs", START, || {
            let gpus = agent.get("/api/v1/gpus").json()["gpus"].as_array()?.clone();
            let list = gpus.first()?["processes"]["value"].as_array()?.clone();
            assert!(list.iter().all(|process| process["pid"] != agent.pid()), "{list:?}");
            (gpus.len() == 2).then(|| gpus.iter().map(|gpu| gpu["uuid"].to_string()).collect::<Vec<_>>())
        })
    };
    let first = uuids("agent-x7k2p", "gpu-node-1");
    assert_eq!(uuids("agent-b91zz", "gpu-node-1"), first, "as a new pod of a DaemonSet");
    assert!(uuids("agent-x7k2p", "gpu-node-2").iter().all(|uuid| !first.contains(uuid)));
}

#[test]
fn an_unknown_model_is_refused_with_the_list_of_known_models() {
    let output = Agent::standalone(BINARY).with("--gpus", "simulated=RTX").run();
    assert!(!output.status.success());
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("RTX") && log.contains("H100, H200, A100"), "{log}");
}
