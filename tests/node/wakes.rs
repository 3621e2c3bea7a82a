//! The built extender: pods that no node fitted are written when there is room, and kube-scheduler then tries them again.

use crate::extender::{Extender, SOON, node, pod, stored};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::time::Duration;

const WAKE: &str = "gpu-steward.io/wake";
/// More than the extender takes to wake a pod.
const WHILE: Duration = Duration::from_secs(2);

/// A pod of the scheduler with this name.
fn waiting(server: &FakeApiServer, number: u32, scheduler: &str) -> Value {
    let mut pod = pod(server, number, 50_000);
    pod["spec"]["schedulerName"] = scheduler.into();
    server.put("pods", pod.clone());
    server.object("pods", "ml", &format!("train-{number}")).unwrap_or(pod)
}

/// The mark on a pod that was woken.
fn mark(server: &FakeApiServer, pod: &Value) -> Option<String> {
    stored(server, pod)["metadata"]["annotations"][WAKE].as_str().map(str::to_owned)
}

fn is_refused(extender: &Extender, pod: &Value) -> bool {
    extender.filter(pod, &["n1"])["NodeNames"].as_array().is_none_or(Vec::is_empty)
}

#[test]
fn room_for_one_pod_wakes_one_of_those_that_were_refused() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let holder = waiting(&server, 1, "gpu-steward");
    extender.filter(&holder, &["n1"]);
    assert_eq!(extender.bind(&holder, "n1"), "");
    let refused = [waiting(&server, 2, "gpu-steward"), waiting(&server, 3, "gpu-steward")];
    assert!(refused.iter().all(|pod| is_refused(&extender, pod)));
    std::thread::sleep(WHILE);
    assert!(refused.iter().all(|pod| mark(&server, pod).is_none()), "there is no room");
    server.remove("pods", "ml", "train-1");
    let woken = eventually("a pod to be woken", SOON, || refused.iter().find(|pod| mark(&server, pod).is_some()));
    let value = mark(&server, woken).unwrap();
    assert!(
        value.split_once('/').is_some_and(|(epoch, number)| epoch.parse::<u64>().is_ok() && number == "1"),
        "{value}"
    );
    // kube-scheduler asks about the new version.
    let next = stored(&server, woken);
    assert!(!is_refused(&extender, &next));
    assert_eq!(extender.bind(&next, "n1"), "");
    let outcomes =
        ["passed", "unanswered"].map(|outcome| format!("gpu_steward_extender_wakes_total{{outcome=\"{outcome}\"}}"));
    let known: u64 = outcomes.iter().map(|outcome| extender.metric(outcome)).sum();
    assert!(known > 0, "a slow machine may have asked late");
}

#[test]
fn a_new_leader_wakes_pods_of_its_scheduler_alone() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let own = waiting(&server, 1, "gpu-steward");
    let other = waiting(&server, 2, "volcano");
    let mut gated = waiting(&server, 3, "gpu-steward");
    gated["spec"]["schedulingGates"] = json!([{ "name": "example.com/queue" }]);
    server.put("pods", gated.clone());
    let _extender = Extender::led(&server);
    eventually("the pod to be woken", SOON, || mark(&server, &own));
    std::thread::sleep(WHILE);
    assert_eq!((mark(&server, &other), mark(&server, &gated)), (None, None));
}
