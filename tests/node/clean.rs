//! Tests what the agent writes on its Node, and how that is removed: when the last GPU is gone, and with
//! `gpu-steward clean-node`. Entries of other programs stay.

use crate::driver::fake;
use crate::program::BINARY;
use lab::agent::Agent;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::scenario::{FakeGpu, FakeLink, LinkPath, Scenario, fake_gpus};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

/// The agent reads its Node every 10 s, and looks for GPUs that come or go as often.
const SOON: Duration = Duration::from_secs(60);
const REGISTER: &str = "hami.io/node-nvidia-register";
const HANDSHAKE: &str = "hami.io/node-handshake";
const ASSUMED: &str = "hami.io/node-nvidia-assume";
const LINKS: &str = "hami.io/node-nvidia-score";
const GPU_STATIC: &str = "ai.centaurus.io/gpu-static";

/// A Node with entries of an administrator and of NVIDIA's GPU operator.
fn node(name: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {
            "name": name, "uid": format!("uid-{name}"),
            "labels": { "team": "ml", "nvidia.com/gpu.present": "true" },
            "annotations": { "hami.io/device-cordon": "GPU-x", "note": "mine" },
            "managedFields": [{ "manager": "gpu-operator", "fieldsV1": {
                "f:metadata": { "f:labels": { "f:nvidia.com/gpu.present": {} } },
            } }],
        },
    })
}

fn written(server: &FakeApiServer, name: &str) -> Option<Value> {
    let seen = server.object("nodes", "", name)?;
    let set = |key: &str| seen["metadata"]["annotations"][key].is_string();
    let all = [REGISTER, HANDSHAKE, LINKS, GPU_STATIC].into_iter().all(set);
    (all && seen["metadata"]["labels"]["nvidia.com/gpu.count"] == "2").then_some(seen)
}

/// Whether the Node is as it was before any agent ran.
fn clean(server: &FakeApiServer, name: &str) -> bool {
    let seen = server.object("nodes", "", name).expect("the Node");
    let same = |part: &str| seen["metadata"][part] == node(name)["metadata"][part];
    same("labels") && same("annotations")
}

fn agent(server: &FakeApiServer, library: &std::path::Path) -> Agent {
    let agent =
        Agent::in_cluster(BINARY, server, "n1").switch("--workload-profiles=on").with("--nvml-library", library);
    agent.with("--health-quiet-period", "1s").launch()
}

#[test]
fn when_the_last_gpu_is_gone_the_agent_cleans_its_node_and_writes_it_again_when_gpus_return() {
    let server = FakeApiServer::start();
    server.put("nodes", node("n1"));
    let two = Scenario { gpus: vec![fake_gpus("H100", 2)], ..Scenario::default() };
    let (_directory, driver) = fake(&two);
    let _agent = agent(&server, driver.library());
    eventually("the agent's entries on its Node", SOON, || written(&server, "n1"));
    driver.write(&Scenario { gpus: Vec::new(), ..two.clone() }).unwrap();
    eventually("the Node as it was", SOON, || clean(&server, "n1").then_some(()));
    driver.write(&two).unwrap();
    eventually("the agent's entries on its Node again", SOON, || written(&server, "n1"));
}

#[test]
fn the_agent_writes_how_well_its_gpus_are_connected_and_again_when_somebody_has_removed_it() {
    let server = FakeApiServer::start();
    server.put("nodes", node("n1"));
    // Two NVLinks from each of the GPUs to the other one, behind one PCIe switch.
    let linked =
        |peer: u32| FakeGpu { links: vec![FakeLink { peer, path: LinkPath::Pix, nvlinks: 2 }], ..fake_gpus("H100", 1) };
    let (_directory, driver) = fake(&Scenario { gpus: vec![linked(1), linked(0)], ..Scenario::default() });
    let _agent = agent(&server, driver.library());
    let [one, other] = [0, 1].map(|place: u32| format!("GPU-5eed0000-0000-4000-8000-{place:012x}"));
    // 100 for each NVLink, and 50 for the switch.
    let pair = |one: &str, other: &str| json!({ "uuid": one, "score": { (other): 250 } });
    let expected = json!([pair(&one, &other), pair(&other, &one)]);
    let seen = || {
        let node = server.object("nodes", "", "n1")?;
        let text = node["metadata"]["annotations"][LINKS].as_str()?;
        let scores: Value = serde_json::from_str(text).expect("JSON");
        (scores == expected).then_some(node)
    };
    let mut without = eventually("the connections", SOON, seen);
    without["metadata"]["annotations"].as_object_mut().unwrap().remove(LINKS);
    server.put("nodes", without);
    eventually("the connections again", SOON, seen);
}

#[test]
fn an_agent_without_profile_annotations_removes_those_of_an_earlier_agent_and_leaves_alnairs() {
    let server = FakeApiServer::start();
    let mut before = node("n1");
    before["metadata"]["annotations"]["ai.centaurus.io/physical-gpu-count"] = "2".into();
    before["metadata"]["annotations"]["ai.centaurus.io/GPU-7-job-type"] = "DLT".into();
    server.put("nodes", before);
    let (_directory, driver) = fake(&Scenario { gpus: vec![fake_gpus("H100", 2)], ..Scenario::default() });
    let texts = |shown: bool| {
        eventually("what the Node says about its GPUs", SOON, || {
            let annotations = server.object("nodes", "", "n1")?["metadata"]["annotations"].clone();
            let is_done = annotations[REGISTER].is_string() && annotations[GPU_STATIC].is_string() == shown;
            is_done.then_some(annotations)
        })
    };
    let running = agent(&server, driver.library());
    let facts = texts(true)[GPU_STATIC].clone();
    let expected = "{'count': '2', 'model': 'NVIDIA H100 80GB HBM3', 'mem_size': '80GB', 'pcie_gen_width': ";
    assert!(facts.as_str().is_some_and(|text| text.starts_with(expected)), "{facts}");
    assert!(running.terminate().status.success());
    for flag in ["--profile-annotations=off", "--workload-profiles=off"] {
        let silent = Agent::in_cluster(BINARY, &server, "n1").with("--nvml-library", driver.library());
        let silent = silent.switch(flag).launch();
        let annotations = texts(false);
        let foreign = ["ai.centaurus.io/physical-gpu-count", "ai.centaurus.io/GPU-7-job-type"];
        assert!(foreign.iter().all(|key| annotations[*key].is_string()), "{flag}: {annotations}");
        assert!(silent.terminate().status.success());
        let running = agent(&server, driver.library());
        texts(true);
        assert!(running.terminate().status.success());
    }
}

#[test]
fn an_agent_that_writes_no_handshake_removes_that_of_an_earlier_agent() {
    let server = FakeApiServer::start();
    let (_directory, driver) = fake(&Scenario { gpus: vec![fake_gpus("H100", 2)], ..Scenario::default() });
    for (handshake, left) in [("1795256472", false), ("Requesting_2026-11-21 10:21:47", true)] {
        let mut before = node("n1");
        before["metadata"]["annotations"][HANDSHAKE] = handshake.into();
        server.put("nodes", before);
        let silent = Agent::in_cluster(BINARY, &server, "n1").with("--nvml-library", driver.library());
        let silent = silent.switch("--handshake=false").launch();
        let annotations = eventually("the register", SOON, || {
            let annotations = server.object("nodes", "", "n1")?["metadata"]["annotations"].clone();
            annotations[REGISTER].is_string().then_some(annotations)
        });
        assert_eq!(annotations[HANDSHAKE].is_string(), left, "{annotations}");
        let ended = silent.terminate();
        assert!(ended.status.success(), "{}", ended.log);
    }
}

#[test]
fn clean_node_removes_what_agents_wrote_and_nothing_else() {
    let server = FakeApiServer::start();
    server.put("nodes", node("n1"));
    let (_directory, driver) = fake(&Scenario { gpus: vec![fake_gpus("H100", 2)], ..Scenario::default() });
    let running = agent(&server, driver.library());
    eventually("the agent's entries on its Node", SOON, || written(&server, "n1"));
    let ended = running.terminate();
    assert!(ended.status.success(), "{}", ended.log);

    // On the first Node, HAMi's scheduler has overwritten the agent's handshake. The second Node belongs to HAMi's own device
    // plugin.
    let mut requesting = server.object("nodes", "", "n1").unwrap();
    requesting["metadata"]["annotations"][HANDSHAKE] = "Requesting_2026-11-21 10:21:47".into();
    for entry in requesting["metadata"]["managedFields"].as_array_mut().unwrap() {
        if let Some(owned) = entry["fieldsV1"]["f:metadata"]["f:annotations"].as_object_mut() {
            owned.remove(&format!("f:{HANDSHAKE}"));
        }
    }
    server.put("nodes", requesting.clone());
    let mut hamis = node("n2");
    hamis["metadata"]["annotations"] = json!({ REGISTER: "[]", HANDSHAKE: "Reported_2026-11-21 10:21:47" });
    hamis["metadata"]["managedFields"] = json!([{ "manager": "device-plugin", "fieldsV1": {
        "f:metadata": { "f:annotations": { (format!("f:{REGISTER}")): {}, (format!("f:{HANDSHAKE}")): {} } },
    } }]);
    server.put("nodes", hamis.clone());
    // The extender has written on the third one.
    let mut assumed = node("n4");
    assumed["metadata"]["annotations"][ASSUMED] = r#"{"devices":[]}"#.into();
    assumed["metadata"]["managedFields"].as_array_mut().unwrap().push(json!({
        "manager": "gpu-steward-extender", "fieldsV1": { "f:metadata": { "f:annotations": { (format!("f:{ASSUMED}")): {} } } },
    }));
    server.put("nodes", assumed);

    let home = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(home.path());
    let run = |which: &str| {
        let output =
            Command::new(BINARY).args(["clean-node", which, "--kubeconfig"]).arg(&kubeconfig).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, log) = run("n1");
    assert!(code == Some(0) && clean(&server, "n1"), "{code:?} {log}");
    // An agent's account has the right to get its Node, but not to list Nodes.
    assert!(!server.requests().iter().any(|request| request.path == "/api/v1/nodes"));
    let (code, log) = run("n1");
    assert!(code == Some(0) && log.contains("nodes=0"), "nothing is left to do: {code:?} {log}");

    let (code, log) = run("n4");
    assert!(code == Some(0) && !clean(&server, "n4"), "an agent's account may not remove it: {code:?} {log}");
    server.put("nodes", requesting);
    let (code, log) = run("--all");
    assert!(code == Some(0) && clean(&server, "n1") && clean(&server, "n4"), "{code:?} {log}");
    let left = server.object("nodes", "", "n2").unwrap();
    assert_eq!(left["metadata"]["annotations"], hamis["metadata"]["annotations"], "the annotations of HAMi stay");

    let (code, log) = run("n3");
    assert!(code == Some(69) && log.contains("there is no Node n3"), "{code:?} {log}");
    let output = Agent::in_cluster(BINARY, &server, "n1").switch("--clean-node").run();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("warning: ") && log.contains("gpu-steward clean-node"), "{log}");
}
