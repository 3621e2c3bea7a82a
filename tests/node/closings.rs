//! The built extender: which nodes take no new pods because it is unknown which of their GPUs are in use, and how the
//! extender reports these nodes.

use crate::extender::{CLAIM, Extender, SOON, events, node, pod, stored};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The reason why the pod does not fit `n1`; `None` if it fits.
fn refused(extender: &Extender, pod: &Value) -> Option<String> {
    let answer = extender.filter(pod, &["n1"]);
    if answer["NodeNames"] == json!(["n1"]) {
        return None;
    }
    let all = [&answer["FailedNodes"]["n1"], &answer["FailedAndUnresolvableNodes"]["n1"]];
    all.into_iter().find_map(|why| why.as_str().map(str::to_owned))
}

/// Waits until `n1` is closed, with an event on the Node, or open again.
fn becomes_closed(server: &FakeApiServer, extender: &Extender, (asks, closed, words): (&Value, bool, &str)) {
    eventually(&format!("n1 closed: {closed}, {words}"), SOON, || {
        (refused(extender, asks).as_deref() == closed.then_some("NodeUnfitPod: NodeClosed")).then_some(())
    });
    let reason = if closed { "GPUsClosed" } else { "GPUsOpen" };
    eventually(&format!("an event {reason} with {words}"), SOON, || {
        events(server, reason).into_iter().find(|note| note.contains(words))
    });
}

#[test]
fn a_pod_that_cannot_be_read_closes_its_node_and_is_told() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let asks = pod(&server, 1, 3000);
    assert_eq!(refused(&extender, &asks), None);
    let uid = "bbbbbbbb-0000-4000-8000-000000000001";
    let mut bad = json!({
        "metadata": { "name": "odd", "namespace": "ml", "uid": uid }, "spec": { "nodeName": "n1", "containers": 7 },
    });
    server.put("pods", bad.clone());
    becomes_closed(&server, &extender, (&asks, true, "cannot be read; it may hold GPUs"));
    let decisions = extender.get("/api/v1/decisions?pod=ml/train-1").text();
    assert!(decisions.contains("the pod ml/odd "), "the decision says which pod it is: {decisions}");
    let metrics = extender.get("/metrics").text();
    for line in [
        "gpu_steward_extender_unreadable_objects_total{kind=\"pods\"} 1",
        "gpu_steward_extender_nodes{state=\"closed\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // The pod can be read again, and requests no GPU.
    bad["spec"]["containers"] = json!([]);
    server.put("pods", bad.clone());
    becomes_closed(&server, &extender, (&asks, false, "takes GPU pods again"));
    // The pod becomes unreadable again, and is deleted.
    bad["spec"]["containers"] = json!(7);
    server.put("pods", bad);
    becomes_closed(&server, &extender, (&asks, true, "cannot be read"));
    server.remove("pods", "ml", "odd");
    becomes_closed(&server, &extender, (&asks, false, "takes GPU pods again"));
    // An unreadable pod that is on no node closes no node.
    let lost = json!({ "metadata": { "name": "lost", "namespace": "ml", "uid": uid }, "spec": 7 });
    server.put("pods", lost);
    eventually("the pod that cannot be read is counted", SOON, || {
        let line = "gpu_steward_extender_unreadable_objects_total{kind=\"pods\"} 3";
        extender.get("/metrics").text().contains(line).then_some(())
    });
    assert_eq!(refused(&extender, &asks), None);
}

#[test]
fn a_pod_that_holds_gpus_without_a_claim_closes_its_node_until_the_agent_names_them() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let asks = pod(&server, 1, 50_000);
    // `nodeName` was set by hand, another scheduler placed the pod, or it is a static pod.
    let mut by_hand = pod(&server, 2, 60_000);
    by_hand["spec"]["nodeName"] = "n1".into();
    server.put("pods", by_hand.clone());
    becomes_closed(&server, &extender, (&asks, true, "it is not known which"));
    let annotations = json!({
        CLAIM: "GPU-n1-0,NVIDIA,60000,0:;", "hami.io/vgpu-node": "n1", "gpu-steward.io/placed-by": "agent",
    });
    by_hand["metadata"]["annotations"] = annotations;
    server.put("pods", by_hand.clone());
    eventually("the node to be open", SOON, || {
        (refused(&extender, &asks).as_deref() == Some("CardInsufficientMemory")).then_some(())
    });
    // A claim of a later format cannot be read, so its GPUs are not known either.
    by_hand["metadata"]["annotations"]["gpu-steward.io/claim-version"] = "9".into();
    server.put("pods", by_hand.clone());
    eventually("the node to be closed", SOON, || {
        (refused(&extender, &asks).as_deref() == Some("NodeUnfitPod: NodeClosed")).then_some(())
    });
    by_hand["metadata"]["annotations"]["gpu-steward.io/claim-version"] = "9/1".into();
    server.put("pods", by_hand);
    eventually("the node to be open", SOON, || {
        (refused(&extender, &asks).as_deref() == Some("CardInsufficientMemory")).then_some(())
    });
}

#[test]
fn claims_on_gpus_that_are_gone_stay_visible_and_hold_nothing_elsewhere() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let (first, asks) = (pod(&server, 1, 60_000), pod(&server, 2, 60_000));
    extender.filter(&first, &["n1"]);
    assert_eq!(extender.bind(&first, "n1"), "");
    assert_eq!(refused(&extender, &asks).as_deref(), Some("CardInsufficientMemory"));
    // The claimed GPU is replaced by another GPU.
    let gpu = json!([{
        "id": "GPU-other", "index": 0, "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA-NVIDIA H100", "numa": 0,
        "mode": "hami-core", "health": true,
    }]);
    let annotations = json!({ "hami.io/node-nvidia-register": gpu.to_string() });
    server.put("nodes", json!({ "metadata": { "name": "n1", "uid": "uid-n1", "annotations": annotations } }));
    eventually("the new GPU to be free", SOON, || refused(&extender, &asks).is_none().then_some(()));
    let text = extender.get("/metrics/hami").text();
    let claimed = text.lines().find(|line| line.starts_with("hami_vgpu_memory_allocated_bytes{"));
    assert!(claimed.is_some_and(|line| line.contains("GPU-n1-0") && line.contains("train-1")), "{text}");
    assert_eq!(extender.bind(&asks, "n1"), "");
    let bound = stored(&server, &asks);
    assert_eq!(bound["metadata"]["annotations"][CLAIM], "GPU-other,NVIDIA,60000,0:;");
}

/// HAMi 2.5 to 2.9 with dynamic MIG name a part of a GPU by its template and position.
#[test]
fn a_claim_on_a_part_of_a_gpu_holds_the_gpu_and_one_on_a_gpu_that_nobody_knows_closes_the_node() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let asks = pod(&server, 1, 50_000);
    let mut hamis = pod(&server, 2, 60_000);
    hamis["spec"]["nodeName"] = "n1".into();
    let mut claims = |claim: &str| {
        hamis["metadata"]["annotations"] = json!({ CLAIM: claim, "hami.io/vgpu-node": "n1" });
        server.put("pods", hamis.clone());
    };
    claims("GPU-n1-0[3-1],NVIDIA,60000,0:;,,0,0:;");
    eventually("the GPU to be held", SOON, || {
        (refused(&extender, &asks).as_deref() == Some("CardInsufficientMemory")).then_some(())
    });
    claims("GPU-gone,NVIDIA,60000,0:;");
    becomes_closed(&server, &extender, (&asks, true, "the pod ml/train-2 on this node claims GPU-gone"));
    let decisions = extender.get("/api/v1/decisions?pod=ml/train-1").text();
    assert!(decisions.contains("the pod ml/train-2 on this node claims GPU-gone"), "{decisions}");
    server.remove("pods", "ml", "train-2");
    becomes_closed(&server, &extender, (&asks, false, "takes GPU pods again"));
    assert_eq!(refused(&extender, &asks), None);
}

#[test]
fn another_scheduler_on_the_same_node_is_seen_and_told() {
    let server = FakeApiServer::start();
    node(&server, "n1", 2);
    let extender = Extender::led(&server);
    let hamis = |number: u32, seconds: &str| {
        let mut pod = pod(&server, number, 1000);
        pod["spec"]["nodeName"] = "n1".into();
        pod["metadata"]["annotations"] =
            json!({ CLAIM: "GPU-n1-0,NVIDIA,1000,0:;", "hami.io/vgpu-node": "n1", "hami.io/vgpu-time": seconds });
        server.put("pods", pod);
    };
    // This pod was placed before this scheduler was installed.
    hamis(8, "1795256507");
    let (first, asks) = (pod(&server, 1, 3000), pod(&server, 2, 3000));
    extender.filter(&first, &["n1"]);
    assert_eq!(extender.bind(&first, "n1"), "");
    assert_eq!(refused(&extender, &asks), None);
    hamis(9, "4000000000");
    becomes_closed(&server, &extender, (&asks, true, "another GPU scheduler has placed the pod ml/train-9 on"));
    server.remove("pods", "ml", "train-9");
    becomes_closed(&server, &extender, (&asks, false, "takes GPU pods again"));
}

#[test]
fn another_installation_on_the_same_node_is_seen_and_told() {
    let server = FakeApiServer::start();
    node(&server, "n1", 2);
    let (one, other) = (Extender::led(&server), Extender::of(&server, "other"));
    other.wait_until_leads();
    let (first, second, asks) = (pod(&server, 1, 3000), pod(&server, 2, 3000), pod(&server, 3, 3000));
    one.filter(&first, &["n1"]);
    assert_eq!(one.bind(&first, "n1"), "");
    // The times on claims are whole seconds, and the claim of the second installation must be later.
    let first_at = stored(&server, &first)["metadata"]["annotations"]["hami.io/vgpu-time"].clone();
    eventually("the next second", SOON, || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        (first_at.as_str().unwrap().parse::<u64>().unwrap() < now).then_some(())
    });
    other.filter(&second, &["n1"]);
    assert_eq!(other.bind(&second, "n1"), "");
    let words = "extenders with another Lease, other/gpu-steward-extender, have placed the pod ml/train-2 on";
    becomes_closed(&server, &one, (&asks, true, words));
    assert_eq!(refused(&other, &asks), None, "by its claims it has replaced the first installation");
    server.remove("pods", "ml", "train-2");
    becomes_closed(&server, &one, (&asks, false, "takes GPU pods again"));
    // The node also opens when this extender's own pods are gone, even if those of the other extender stay.
    let third = pod(&server, 4, 3000);
    other.filter(&third, &["n1"]);
    assert_eq!(other.bind(&third, "n1"), "");
    becomes_closed(&server, &one, (&asks, true, "extenders with another Lease"));
    server.remove("pods", "ml", "train-1");
    eventually("n1 to be open for the extender that no longer has pods there", SOON, || {
        refused(&one, &asks).is_none().then_some(())
    });
}
