//! The built extender: what the event of a pod that no node fits says to its owner.

use crate::extender::{CLAIM, Extender, SOON, events, node, pod};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};

/// The event of this reason with these words.
fn told(server: &FakeApiServer, reason: &str, words: &str) -> String {
    eventually(&format!("an event {reason} with {words}"), SOON, || {
        events(server, reason).into_iter().find(|note| note.contains(words))
    })
}

#[test]
fn the_owner_of_a_pod_is_told_what_to_write() {
    let server = FakeApiServer::start();
    node(&server, "n1", 2);
    let extender = Extender::led(&server);
    let changed = |number: u32, change: &dyn Fn(&mut Value)| {
        let mut asks = pod(&server, number, 1000);
        change(&mut asks);
        server.put("pods", asks.clone());
        extender.filter(&asks, &["n1"])
    };
    changed(1, &|pod| pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "3Gi".into());
    told(&server, "FilteringFailed", "nvidia.com/gpumem counts whole MiB: write 3072 instead of \"3Gi\"");
    changed(2, &|pod| {
        pod["metadata"]["annotations"] = json!({ "nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputyp": "T4" });
    });
    let note =
        told(&server, "FilteringFailed", "the pod accepts only a100 (nvidia.com/use-gputype); these nodes have ");
    assert!(note.contains("nvidia h100"), "{note}");
    let words = "annotation nvidia.com/nouse-gputyp is not known: did you mean nvidia.com/nouse-gputype?";
    assert!(note.contains(words), "{note}");
    changed(3, &|pod| pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "4".into());
    let note = told(&server, "FilteringFailed", "requests 4 GPUs of one node");
    assert!(note.contains("NodeInsufficientDevice on 1 node; ") && note.ends_with("n1, has 2"), "{note}");
    // A pod that fits is told of its misspelt key too.
    let fits = changed(4, &|pod| pod["metadata"]["annotations"] = json!({ "nvidia.com/use-gputyp": "A100" }));
    assert_eq!(fits["NodeNames"], json!(["n1"]));
    told(&server, "FilteringSucceed", "did you mean nvidia.com/use-gputype?");
}

#[test]
fn a_pod_is_told_who_holds_a_gpu_in_its_namespace_only() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    for (number, namespace) in [(1, "ml"), (2, "web")] {
        let mut held = pod(&server, number, 1000);
        server.remove("pods", "ml", &format!("train-{number}"));
        held["metadata"]["namespace"] = namespace.into();
        held["metadata"]["annotations"] = json!({ CLAIM: "GPU-n1-0,NVIDIA,1000,0:;", "hami.io/vgpu-node": "n1" });
        held["metadata"]["uid"] = format!("{number:08x}-0000-4000-8000-000000000002").into();
        held["spec"]["nodeName"] = "n1".into();
        server.put("pods", held);
    }
    let claims = "gpu_steward_extender_claims{state=\"bound\"}";
    eventually("two claims", SOON, || (extender.metric(claims) == 2).then_some(()));
    let mut alone = pod(&server, 3, 1000);
    alone["metadata"]["annotations"] = json!({ "hami.io/gpu-scheduler-policy": "mutex" });
    server.put("pods", alone.clone());
    assert_eq!(extender.filter(&alone, &["n1"])["FailedNodes"], json!({ "n1": "ExclusiveDeviceAllocateConflict" }));
    let note = told(&server, "FilteringFailed", "the GPU policy mutex needs a GPU that no other pod uses");
    assert!(note.ends_with("n1 GPU 0 is held by ml/train-1 (1000 MiB) and a pod of another namespace"), "{note}");
}
