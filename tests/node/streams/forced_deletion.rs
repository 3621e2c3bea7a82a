//! A pod that is deleted by force: the API server has lost it, and its containers run on.

use super::agent_process::{NODE, bare_node, reporting_from};
use super::stream_extender::{SOON, StreamExtender, pod, uid};
use crate::kubelet::Kubelet;
use lab::agent::Agent;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::pods::Pods;
use serde_json::json;
use std::fs;
use std::path::Path;

/// Pod numbers that no other test uses: other tests may run at the same time.
const NUMBER: u32 = 0xf0cd;

#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_that_is_deleted_by_force_keeps_its_gpu_until_its_containers_are_gone() {
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let uid = Pods::uid(NUMBER);
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let (recipe, root) = reporting_from(&server, &extender.streams.to_string());
    let agent = recipe.with("--gpus", "simulated=H100:1").start();
    let _kubelet = Kubelet::registers(&root);
    let mut first = pod(&server, 90, 60_000);
    server.remove("pods", "ml", "train-90");
    (first["metadata"]["uid"], first["metadata"]["name"]) = (json!(uid), json!("train-force"));
    server.put("pods", first.clone());
    eventually("an open node", SOON, || extender.fits(&first, NODE).ok());
    assert_eq!(extender.bind(&first, NODE), "");
    pods.add(NUMBER, 1, &["sleep", "1000"]).unwrap();
    let mut runs = server.object("pods", "ml", "train-force").unwrap();
    let running = json!({ "running": { "startedAt": "2026-11-21T10:00:01Z" } });
    runs["status"] = json!({ "phase": "Running", "containerStatuses": [{ "name": "main", "state": running }] });
    server.put("pods", runs);
    eventually("the container", SOON, || agent.get("/api/v1/pods").text().contains(&*uid).then_some(()));
    // A message that was on its way may be older than the container.
    let messages = || extender.metric("gpu_steward_extender_stream_messages_total");
    let before = messages();
    eventually("two reports with the container", SOON, || (messages() >= before + 2).then_some(()));
    server.remove("pods", "ml", "train-force");
    let second = pod(&server, 91, 60_000);
    let claims = || extender.metric("gpu_steward_extender_claims{state=\"started\"}");
    // One report because the agent has seen the deletion, and a heartbeat ten seconds later.
    let before = messages();
    eventually("two reports after the deletion", SOON, || (messages() >= before + 2).then_some(()));
    assert_eq!(claims(), 1, "the container runs on");
    assert!(extender.fits(&second, NODE).is_err());
    assert!(pods.remove_last());
    eventually("room for the second pod", SOON, || extender.fits(&second, NODE).ok());
}

/// What an agent leaves in its state directory that has started this container with this GPU.
fn has_started(state: &Path, uid: &str, gpu: &str) {
    let folder = state.join("pods").join(uid).join("main");
    let device = json!({ "index": 0, "uuid": gpu, "node_index": 0, "model": "H100", "memory_bytes": 60_000_u64 << 20 });
    let pod = json!({ "uid": uid, "namespace": "ml", "name": "train-force" });
    let limits = json!({ "version": 1, "pod": pod, "container": "main", "devices": [device] });
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("limits.json"), limits.to_string()).unwrap();
    fs::write(state.join("started"), format!("\n{uid}")).unwrap();
}

/// The pod was deleted by force before an upgrade of the chart, which restarts agents and extenders: the leader never saw the pod,
/// and none of its containers has used a GPU yet.
#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_that_was_deleted_by_force_keeps_its_gpu_when_agents_restart_under_a_new_leader() {
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let folder = tempfile::tempdir().unwrap();
    let (state, root) = (folder.path().join("state"), folder.path().join("kubelet"));
    let start = || {
        let (recipe, _) = reporting_from(&server, &extender.streams.to_string());
        let recipe = recipe.with("--gpus", "simulated=H100:1").with("--state-dir", &state);
        recipe.with("--kubelet-root", &root).start()
    };
    let end = |agent: Agent| assert!(agent.terminate().status.success());
    let kubelet = Kubelet::start(&root);
    // Without a checkpoint of the kubelet the agent removes nothing.
    let checkpoint = json!({ "Data": { "PodDeviceEntries": [], "RegisteredDevices": {} }, "Checksum": 0 });
    fs::write(root.join("device-plugins/kubelet_internal_checkpoint"), checkpoint.to_string()).unwrap();
    let first = start();
    kubelet.plugin();
    let gpu = first.get("/api/v1/gpus").json()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
    end(first);
    let held = pods.add(NUMBER + 1, 1, &["sleep", "1000"]).unwrap().uid.clone();
    has_started(&state, &held, &gpu);
    let second = pod(&server, 92, 60_000);
    // The second time, the agent before has removed the files of pods that are gone.
    let keeps = || {
        let gone = state.join("pods").join(uid(93));
        fs::create_dir_all(&gone).unwrap();
        let agent = start();
        eventually("the removal of other files", SOON, || (!gone.exists()).then_some(()));
        eventually("a GPU in use", SOON, || {
            extender.fits(&second, NODE).err()?.to_string().contains("CardInUse").then_some(())
        });
        eventually("the container", SOON, || agent.get("/api/v1/pods").text().contains(&*held).then_some(()));
        agent
    };
    end(keeps());
    let _agent = keeps();
    assert!(pods.remove_last());
    eventually("room for the second pod", SOON, || extender.fits(&second, NODE).ok());
    // A sweep a minute.
    eventually("the removal of its files", 2 * SOON, || (!state.join("pods").join(&held).exists()).then_some(()));
}
