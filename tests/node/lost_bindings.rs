//! The built extender: bindings whose answers were lost. Each binding names the version of its pod, so the extender can find
//! out, or make sure, that the API server never carries it out.

use crate::extender::{CLAIM, Extender, SOON, events, node, pod, stored};
use lab::api_server::{FakeApiServer, LostBinding};
use lab::eventually::eventually;
use serde_json::{Value, json};

/// The writes to pods so far: method and path.
fn writes(server: &FakeApiServer) -> Vec<(String, String)> {
    let all = server.requests().into_iter().filter(|asked| asked.path.contains("/pods/") && asked.method != "GET");
    all.map(|asked| (asked.method, asked.path)).collect()
}

#[test]
fn an_order_of_an_earlier_term_without_room_is_given_up_at_once() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 1);
    let paused = Extender::led(&server);
    let other = Extender::start(&server);
    pod(&server, 1, 50_000);
    let first = server.object("pods", "ml", "train-1").unwrap();
    let second = pod(&server, 2, 50_000);
    paused.filter(&first, &["n1", "n2"]);
    server.lose_bindings(&[LostBinding::Request; 1000]);
    let why = paused.bind(&first, "n1");
    assert!(why.contains("has not answered yet"), "{why}");
    paused.signal("-STOP");
    eventually("the other extender to lead", SOON, || other.leads().then_some(()));
    server.answer_bindings();
    other.filter(&second, &["n1"]);
    assert_eq!(other.bind(&second, "n1"), "", "no other extender knows about the binding of the paused one");
    drop(other);
    paused.signal("-CONT");
    eventually("the first extender to lead again", SOON, || paused.leads().then_some(()));
    eventually("the pod to be free for another node", SOON, || {
        (paused.filter(&first, &["n1", "n2"])["NodeNames"] == json!(["n2"])).then_some(())
    });
    // The mark names the pod version of the lost bindings, so the API server no longer carries them out.
    let marked = stored(&server, &first);
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(marked["metadata"]["annotations"]["gpu-steward.io/fence"], version);
    assert_ne!(marked["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let marks =
        writes(&server).into_iter().filter(|(method, path)| method == "PATCH" && path.ends_with("/pods/train-1"));
    assert_eq!(marks.count(), 1);
    let told = eventually("the event of the pod", SOON, || events(&server, "BindingFailed").pop());
    assert!(told.contains("other pods have the GPUs by now"), "{told}");
    paused.filter(&marked, &["n1", "n2"]);
    assert_eq!(paused.bind(&marked, "n2"), "");
}

#[test]
fn a_pod_that_has_changed_since_its_filter_call_is_bound_in_its_new_version() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    pod(&server, 1, 3000);
    let mut first = server.object("pods", "ml", "train-1").unwrap();
    extender.filter(&first, &["n1"]);
    first["metadata"]["labels"] = json!({ "team": "vision" });
    server.put("pods", first.clone());
    assert_eq!(extender.bind(&first, "n1"), "");
    let bound = stored(&server, &first);
    assert_eq!((&bound["spec"]["nodeName"], &bound["metadata"]["labels"]["team"]), (&json!("n1"), &json!("vision")));
    let bindings = vec![("POST".to_owned(), "/api/v1/namespaces/ml/pods/train-1/binding".to_owned()); 2];
    assert_eq!(writes(&server), bindings, "the first binding is refused");
}

/// The GPUs were chosen for the pod's earlier constraints.
#[test]
fn a_pod_whose_conditions_have_changed_since_its_filter_call_is_placed_again() {
    let server = FakeApiServer::start();
    node(&server, "n1", 2);
    let extender = Extender::led(&server);
    pod(&server, 1, 3000);
    let mut first = server.object("pods", "ml", "train-1").unwrap();
    extender.filter(&first, &["n1"]);
    first["metadata"]["annotations"] = json!({ "nvidia.com/nouse-gpuuuid": "GPU-n1-0" });
    server.put("pods", first.clone());
    let why = extender.bind(&first, "n1");
    assert!(why.contains("the pod was changed after the filter: it is placed again"), "{why}");
    let unbound = stored(&server, &first);
    assert_eq!(
        (&unbound["spec"]["nodeName"], &unbound["metadata"]["annotations"][CLAIM]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(extender.metric("gpu_steward_extender_claims{state=\"assumed\"}"), 0, "its GPU is free again");
    extender.filter(&unbound, &["n1"]);
    assert_eq!(extender.bind(&unbound, "n1"), "");
    assert_eq!(stored(&server, &first)["metadata"]["annotations"][CLAIM], "GPU-n1-1,NVIDIA,3000,0:;");
}

#[test]
fn an_order_for_a_node_that_was_closed_meanwhile_is_given_up() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    pod(&server, 1, 50_000);
    let mut first = server.object("pods", "ml", "train-1").unwrap();
    extender.filter(&first, &["n1"]);
    server.lose_bindings(&[LostBinding::Request; 1000]);
    assert!(extender.bind(&first, "n1").contains("has not answered yet"));
    // The node no longer takes new pods, so the binding is not written again.
    let mut by_hand = pod(&server, 2, 1000);
    by_hand["spec"]["nodeName"] = "n1".into();
    server.put("pods", by_hand);
    eventually("the binding to be given up", SOON, || {
        let answer = extender.filter(&first, &["n1"]);
        (answer["NodeNames"] == Value::Null && events(&server, "BindingFailed").len() == 1).then_some(())
    });
    assert_eq!(extender.metric("gpu_steward_extender_claims{state=\"assumed\"}"), 0);
    server.answer_bindings();
    server.remove("pods", "ml", "train-2");
    first = stored(&server, &first);
    eventually("the node to be open", SOON, || {
        (extender.filter(&first, &["n1"])["NodeNames"] == json!(["n1"])).then_some(())
    });
    assert_eq!(extender.bind(&first, "n1"), "");
}
