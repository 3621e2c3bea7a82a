//! The built extender: a new leader that runs in a pod reads no list of all pods. It marks its own pod, and starts to decide
//! once its pod watch has shown the mark.

use crate::extender::{Extender, SOON, node, pod};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};

const UID: &str = "e0000000-0000-4000-8000-000000000001";

fn lists_of(server: &FakeApiServer, plural: &str) -> usize {
    let path = format!("/api/v1/{plural}");
    server.requests().iter().filter(|asked| asked.path == path && !asked.is_watch()).count()
}

fn own_pod(server: &FakeApiServer) -> Value {
    server.object("pods", "gpu", "extender-b").unwrap()
}

/// Starts two extenders, lets the first one bind a pod, and stops it. Returns the second one when it leads, and how many
/// lists of pods and of Nodes it has read to take over.
fn second_leader(server: &FakeApiServer, uid: &str) -> (Extender, [usize; 2]) {
    node(server, "n1", 1);
    server.put(
        "pods",
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "extender-b", "namespace": "gpu", "uid": UID },
            "spec": { "containers": [{ "name": "extender", "image": "x" }], "nodeName": "n2" },
            "status": { "phase": "Running" },
        }),
    );
    let first = Extender::led(server);
    let second = Extender::in_pod(server, &[("POD_NAME", "extender-b"), ("POD_NAMESPACE", "gpu"), ("POD_UID", uid)]);
    eventually("the second extender to be ready", SOON, || (second.get("/readyz").status == 200).then_some(()));
    let claimed = pod(server, 1, 50_000);
    first.filter(&claimed, &["n1"]);
    assert_eq!(first.bind(&claimed, "n1"), "");
    let before = ["pods", "nodes"].map(|plural| lists_of(server, plural));
    drop(first);
    second.wait_until_leads();
    let more = ["pods", "nodes"].map(|plural| lists_of(server, plural));
    (second, [more[0] - before[0], more[1] - before[1]])
}

#[test]
fn a_new_leader_that_sees_its_mark_reads_no_list_of_pods() {
    let server = FakeApiServer::start();
    let (leader, lists) = second_leader(&server, UID);
    assert_eq!(lists, [0, 1]);
    assert!(own_pod(&server)["metadata"]["annotations"]["gpu-steward.io/leads"].is_string());
    let next = pod(&server, 2, 50_000);
    let answer = leader.filter(&next, &["n1"]);
    assert!(answer["FailedNodes"]["n1"].is_string(), "it does not know the claim of the first leader: {answer}");
}

#[test]
fn a_new_leader_that_cannot_mark_its_pod_reads_all_pods_anew() {
    let server = FakeApiServer::start();
    // The pod of that name now has another UID.
    let (leader, lists) = second_leader(&server, "e0000000-0000-4000-8000-000000000002");
    assert_eq!(lists, [1, 1]);
    assert_eq!(own_pod(&server)["metadata"]["annotations"], Value::Null);
    let next = pod(&server, 2, 50_000);
    let answer = leader.filter(&next, &["n1"]);
    assert!(answer["FailedNodes"]["n1"].is_string(), "{answer}");
}
