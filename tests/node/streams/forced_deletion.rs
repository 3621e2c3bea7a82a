//! A pod that is deleted by force: the API server has lost it, and its containers run on.

use super::agent_process::{NODE, bare_node, reporting_from};
use super::stream_extender::{SOON, StreamExtender, pod};
use crate::kubelet::Kubelet;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::pods::Pods;
use serde_json::json;
use std::path::Path;

/// A pod number that no other test uses: other tests may run at the same time.
const NUMBER: u32 = 0xf0cd;

#[test]
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
