//! The built extender: which GPUs it holds for pods that are not bound yet, or that another scheduler has bound, and when it
//! releases them: gated pods, gangs, Volcano's pods, and a pod that the kubelet refuses.

use crate::extender::{CLAIM, Extender, SOON, events, node, pod, stored};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};

/// All memory of a GPU of these tests, in MiB.
const WHOLE: u32 = 81_920;

fn fitting(extender: &Extender, pod: &Value, nodes: &[&str]) -> Value {
    extender.filter(pod, nodes)["NodeNames"].clone()
}

fn pending(extender: &Extender) -> u64 {
    extender.metric("gpu_steward_extender_pending_pods{state=\"expected\"}")
}

fn refused(extender: &Extender) -> u64 {
    extender.metric("gpu_steward_extender_pending_pods{state=\"refused\"}")
}

fn bound(extender: &Extender) -> u64 {
    extender.metric("gpu_steward_extender_claims{state=\"bound\"}")
}

/// Waits until the extender has seen a newer version of the pod, by its claims.
fn until_bound(extender: &Extender, claims: u64) {
    eventually(&format!("{claims} claims"), SOON, || (bound(extender) == claims).then_some(()));
}

#[test]
fn a_pod_that_lost_a_race_for_cpu_releases_its_gpu_at_once() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let (first, second) = (pod(&server, 1, WHOLE), pod(&server, 2, WHOLE));
    assert_eq!(fitting(&extender, &first, &["n1"]), json!(["n1"]));
    assert_eq!(extender.bind(&first, "n1"), "");
    until_bound(&extender, 1);
    assert_eq!(extender.filter(&second, &["n1"])["FailedNodes"], json!({ "n1": "CardInsufficientMemory" }));
    // The default scheduler has given the CPU to another pod in the meantime. The failed pod stays until it is deleted.
    let mut refused = stored(&server, &first);
    refused["status"] = json!({
        "phase": "Failed", "reason": "OutOfcpu",
        "message": "Pod was rejected: Node didn't have enough resource: cpu, requested: 8000, used: 30000, capacity: 32000",
    });
    server.put("pods", refused);
    until_bound(&extender, 0);
    // No `eventually` here: the claim is gone as soon as the extender sees the new phase.
    assert_eq!(fitting(&extender, &second, &["n1"]), json!(["n1"]));
    assert_eq!(extender.bind(&second, "n1"), "");
    let claim = stored(&server, &second)["metadata"]["annotations"][CLAIM].clone();
    assert_eq!(claim, format!("GPU-n1-0,NVIDIA,{WHOLE},0:;"));
}

#[test]
fn pods_that_no_node_fits_are_counted_until_they_fit_or_are_gone() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let held = pod(&server, 1, WHOLE);
    assert_eq!(fitting(&extender, &held, &["n1"]), json!(["n1"]));
    assert_eq!(extender.bind(&held, "n1"), "");
    let waiting: Vec<Value> = (2..=7).map(|number| pod(&server, number, WHOLE)).collect();
    for _ in 0..2 {
        assert!(waiting.iter().all(|pod| fitting(&extender, pod, &["n1"]) == Value::Null));
    }
    assert_eq!((pending(&extender), refused(&extender)), (0, 6), "each pod once");
    server.remove("pods", "ml", "train-7");
    eventually("a pod that is gone not to be counted", SOON, || (refused(&extender) == 5).then_some(()));
    server.remove("pods", "ml", "train-1");
    until_bound(&extender, 0);
    assert_eq!(fitting(&extender, &waiting[0], &["n1"]), json!(["n1"]));
    assert_eq!((pending(&extender), refused(&extender)), (1, 4));
    assert_eq!(extender.bind(&waiting[0], "n1"), "");
    assert_eq!((pending(&extender), refused(&extender)), (0, 4));
}

#[test]
fn a_gated_pod_holds_nothing_until_its_gates_are_removed() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let mut gated = pod(&server, 1, WHOLE);
    gated["spec"]["schedulingGates"] = json!([{ "name": "kueue.x-k8s.io/admission" }]);
    server.put("pods", gated.clone());
    // kube-scheduler does not ask about such a pod. If a caller asks anyway, no node fits, and nothing is held.
    let answer = extender.filter(&gated, &["n1"]);
    assert_eq!(answer["NodeNames"], Value::Null);
    let why = answer["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap().to_owned();
    assert!(why.contains("the pod has scheduling gates"), "{why}");
    assert_eq!((pending(&extender), refused(&extender), bound(&extender)), (0, 1, 0));
    eventually("an event of the gated pod", SOON, || {
        events(&server, "FilteringFailed").into_iter().find(|note| note.contains("has scheduling gates"))
    });
    let why = extender.bind(&gated, "n1");
    assert!(why.contains("must be scheduled again"), "{why}");
    assert_eq!(stored(&server, &gated)["spec"]["nodeName"], Value::Null);
    // In the meantime another pod gets the GPU, and ends.
    let other = pod(&server, 2, WHOLE);
    assert_eq!(fitting(&extender, &other, &["n1"]), json!(["n1"]));
    assert_eq!(extender.bind(&other, "n1"), "");
    until_bound(&extender, 1);
    server.remove("pods", "ml", "train-2");
    until_bound(&extender, 0);
    // Kueue admits the workload.
    gated["spec"]["schedulingGates"] = json!([]);
    server.put("pods", gated.clone());
    assert_eq!(fitting(&extender, &gated, &["n1"]), json!(["n1"]));
    assert_eq!((pending(&extender), refused(&extender)), (1, 0));
    assert_eq!(extender.bind(&gated, "n1"), "");
    eventually("the event of the bound pod", SOON, || events(&server, "BindingSucceed").get(1).cloned());
}

#[test]
fn members_of_a_gang_hold_their_places_until_bind_next_filter_or_deletion() {
    let server = FakeApiServer::start();
    let nodes = ["n1", "n2", "n3"];
    nodes.iter().for_each(|name| node(&server, name, 1));
    let extender = Extender::led(&server);
    let gang: Vec<Value> = (1..=3)
        .map(|number| {
            let mut member = pod(&server, number, WHOLE);
            member["metadata"]["labels"] = json!({ "scheduling.x-k8s.io/pod-group": "train" });
            server.put("pods", member.clone());
            member
        })
        .collect();
    // kube-scheduler lets the members wait for each other (Permit). Each member gets one node, on which it is expected, and no
    // member fits the node of another.
    let mut places: Vec<&str> = Vec::new();
    for member in &gang {
        let answer = fitting(&extender, member, &nodes);
        let place = nodes.into_iter().find(|name| answer == json!([name]));
        let place =
            place.filter(|place| !places.contains(place)).unwrap_or_else(|| panic!("{answer} after {places:?}"));
        places.push(place);
    }
    let mut more = pod(&server, 9, WHOLE);
    more["metadata"]["labels"] = json!({ "scheduling.x-k8s.io/pod-group": "train" });
    assert_eq!(fitting(&extender, &more, &nodes), Value::Null, "there are as many GPUs as members that have passed");
    assert_eq!(pending(&extender), 3);
    // Half of the gang is bound, then the third member is deleted, and its hold is released.
    for (member, place) in gang.iter().zip(&places).take(2) {
        assert_eq!(extender.bind(member, place), "");
    }
    assert_eq!(pending(&extender), 1);
    server.remove("pods", "ml", "train-3");
    eventually("the hold of a member that is gone", SOON, || (pending(&extender) == 0).then_some(()));
    // The next filter call of a pod replaces its hold: there is never more than one.
    let late = pod(&server, 4, WHOLE);
    assert_eq!(fitting(&extender, &late, &nodes), json!([places[2]]), "only that node is left");
    assert_eq!(pending(&extender), 1);
    assert_eq!(fitting(&extender, &late, &[places[0]]), Value::Null);
    assert_eq!(pending(&extender), 0, "no node fits it any more, so nothing is held");
    // The gang is abandoned: its bound members are deleted, and their GPUs are free.
    until_bound(&extender, 2);
    ["train-1", "train-2"].iter().for_each(|name| server.remove("pods", "ml", name));
    until_bound(&extender, 0);
    assert_eq!(fitting(&extender, &late, &nodes), json!(nodes));
    eventually("two events of bound members", SOON, || events(&server, "BindingSucceed").get(1).cloned());
    eventually("an event of each member that was filtered", SOON, || {
        events(&server, "FilteringSucceed").get(3).cloned()
    });
}

#[test]
fn a_pod_that_volcano_has_bound_closes_its_node_until_the_agent_names_its_gpus() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 1);
    let extender = Extender::led(&server);
    let mut volcano = pod(&server, 1, 60_000);
    volcano["spec"]["schedulerName"] = "volcano".into();
    volcano["metadata"]["annotations"] = json!({
        "scheduling.k8s.io/group-name": "podgroup-1", "volcano.sh/queue-name": "default", "volcano.sh/task-spec": "worker",
    });
    server.put("pods", volcano.clone());
    let asks = pod(&server, 2, 50_000);
    assert_eq!(fitting(&extender, &asks, &["n1", "n2"]), json!(["n1", "n2"]), "a pod without a node holds nothing");
    volcano["spec"]["nodeName"] = "n1".into();
    server.put("pods", volcano.clone());
    let refused = eventually("n1 to be closed", SOON, || {
        let answer = extender.filter(&asks, &["n1", "n2"]);
        (answer["NodeNames"] == json!(["n2"])).then(|| answer["FailedNodes"]["n1"].clone())
    });
    assert_eq!(refused, "NodeUnfitPod: NodeClosed");
    let note = eventually("the event on the Node", SOON, || events(&server, "GPUsClosed").pop());
    assert!(note.contains("the pod ml/train-1 ") && note.contains("it is not known which"), "{note}");
    // The agent names the GPU that the kubelet gave it.
    volcano["metadata"]["annotations"][CLAIM] = "GPU-n1-0,NVIDIA,60000,0:;".into();
    volcano["metadata"]["annotations"]["hami.io/vgpu-node"] = "n1".into();
    volcano["metadata"]["annotations"]["gpu-steward.io/placed-by"] = "agent".into();
    server.put("pods", volcano.clone());
    eventually("n1 to be open and the GPU to be taken", SOON, || {
        (extender.filter(&asks, &["n1"])["FailedNodes"] == json!({ "n1": "CardInsufficientMemory" })).then_some(())
    });
    eventually("the event on the Node", SOON, || events(&server, "GPUsOpen").pop());
    // The pod has ended, but stays at the API server.
    volcano["status"]["phase"] = "Succeeded".into();
    server.put("pods", volcano);
    eventually("the GPU to be free", SOON, || (fitting(&extender, &asks, &["n1"]) == json!(["n1"])).then_some(()));
}
