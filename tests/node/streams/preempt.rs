//! Preemption with an agent that reports the processes of the evicted pod: no second pod is evicted while they end.

use super::stream_client::{StreamClient, change, full};
use super::stream_extender::{SOON, StreamExtender, agent_token, node, pod, trusted, uid};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use proto::stream::{Phase, Stage};
use serde_json::{Value, json};

/// The nodes on which the extender lets kube-scheduler evict these pods for a pod.
fn offered(extender: &StreamExtender, pod: &Value, victims: &[(&str, u32)]) -> Vec<String> {
    let victims: serde_json::Map<String, Value> = victims
        .iter()
        .map(|(node, victim)| ((*node).to_owned(), json!({ "Pods": [{ "UID": uid(*victim) }], "NumPDBViolations": 0 })))
        .collect();
    let answer = extender.ask("preempt", &json!({ "Pod": pod, "NodeNameToMetaVictims": victims })).json();
    let offered = answer["NodeNameToMetaVictims"].as_object().cloned().unwrap_or_default();
    offered.into_iter().map(|(node, _)| node).collect()
}

#[test]
fn while_the_processes_of_an_evicted_pod_end_no_other_pod_is_evicted() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 2);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let token = agent_token(&server, "n1", 1);
    let stream = eventually("a stream", SOON, || StreamClient::open(extender.streams, &trusted, &token).ok());
    stream.send(full("n1", Phase::Serving, &[]));
    for (number, name) in [(20, "n1"), (21, "n2")] {
        let held = pod(&server, number, 60_000);
        eventually("an open node", SOON, || extender.fits(&held, name).ok());
        assert_eq!(extender.bind(&held, name), "");
    }
    stream.send(change("n1", Phase::Serving, &[(&uid(20), Stage::Started, 2)], &[]));
    let started = "gpu_steward_extender_claims{state=\"started\"}";
    eventually("a started pod", SOON, || (extender.metric(started) == 1).then_some(()));

    let mut urgent = pod(&server, 22, 60_000);
    assert_eq!(offered(&extender, &urgent, &[("n1", 20), ("n2", 21)]), ["n1", "n2"]);
    // kube-scheduler evicts the pod on n1. The pod is gone from the API server, and its processes still run.
    urgent["status"]["nominatedNodeName"] = "n1".into();
    server.put("pods", urgent.clone());
    assert_eq!(offered(&extender, &urgent, &[("n2", 21)]), [""; 0], "before the watch has shown the end of the victim");
    server.remove("pods", "ml", "train-20");
    let refused = json!({ "n1": "CardInsufficientMemory", "n2": "CardInsufficientMemory" });
    let decided = "/api/v1/decisions?pod=ml/train-22";
    for _ in 0..20 {
        let answer = extender.filter(&urgent, &["n1", "n2"]);
        assert_eq!((&answer["FailedNodes"], &answer["FailedAndUnresolvableNodes"]), (&refused, &Value::Null));
        assert_eq!(offered(&extender, &urgent, &[("n2", 21)]), [""; 0]);
    }
    assert!(extender.get(decided).text().contains("no eviction: pods on n1 are ending"));
    // A pod for which nothing was evicted may evict.
    assert_eq!(offered(&extender, &pod(&server, 23, 60_000), &[("n2", 21)]), ["n2"]);
    stream.send(change("n1", Phase::Serving, &[], &[&uid(20)]));
    eventually("room on n1", SOON, || extender.fits(&urgent, "n1").ok());
    assert_eq!(offered(&extender, &urgent, &[("n2", 21)]), [""; 0], "there is room without an eviction");
    assert_eq!(extender.bind(&urgent, "n1"), "");
}

/// kube-scheduler preempts on another node at once if the nominated node is unresolvable.
#[test]
fn the_nominated_node_is_never_unresolvable() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 2);
    let extender = StreamExtender::led(&server);
    let mut asks = pod(&server, 20, 90_000);
    let both = json!({ "n1": "CardInsufficientMemory", "n2": "CardInsufficientMemory" });
    assert_eq!(extender.filter(&asks, &["n1", "n2"])["FailedAndUnresolvableNodes"], both);
    asks["status"]["nominatedNodeName"] = "n1".into();
    let answer = extender.filter(&asks, &["n1", "n2"]);
    assert_eq!(answer["FailedNodes"], json!({ "n1": "CardInsufficientMemory" }));
    assert_eq!(answer["FailedAndUnresolvableNodes"], json!({ "n2": "CardInsufficientMemory" }));
}
