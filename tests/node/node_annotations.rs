//! The built extender: how the annotations that agents and operators write on a Node change its decisions.

use crate::extender::{CLAIM, Extender, SOON, events, node, pod, stored};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};

/// Sets an annotation of the Node `n1`.
fn annotate(server: &FakeApiServer, key: &str, value: &str) {
    let mut object =
        server.objects("nodes").into_iter().find(|node| node["metadata"]["name"] == "n1").expect("the Node");
    object["metadata"]["annotations"][key] = value.into();
    server.put("nodes", object);
}

/// Waits until the pod is refused on `n1` for this reason, or, without a reason, until it fits.
fn becomes(extender: &Extender, pod: &Value, reason: Option<&str>) {
    eventually(&format!("the answer {reason:?}"), SOON, || {
        let answer = extender.filter(pod, &["n1"]);
        let reasons = [&answer["FailedNodes"]["n1"], &answer["FailedAndUnresolvableNodes"]["n1"]];
        (reasons.into_iter().find_map(Value::as_str) == reason).then_some(())
    });
}

#[test]
fn a_cordoned_gpu_gets_no_pod_and_a_cordon_that_cannot_be_read_closes_its_node() {
    let server = FakeApiServer::start();
    node(&server, "n1", 2);
    let extender = Extender::led(&server);
    let asks = [pod(&server, 1, 3000), pod(&server, 2, 3000)];
    for (cordon, reason) in [
        ("GPU-n1-0, GPU-n1-1", Some("CardCordoned")),
        ("GPU-elsewhere", None),
        ("GPU-n1-0,not a UUID", Some("NodeUnfitPod: NodeClosed")),
        ("", None),
    ] {
        annotate(&server, "hami.io/device-cordon", cordon);
        becomes(&extender, &asks[0], reason);
    }
    annotate(&server, "hami.io/device-cordon", "GPU-n1-0");
    let mut both = pod(&server, 3, 3000);
    both["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2".into();
    eventually("a pod for two GPUs to be refused", SOON, || {
        extender.filter(&both, &["n1"])["NodeNames"].is_null().then_some(())
    });
    // Without the annotation, the second of two pods would spread to the other GPU.
    for pod in &asks {
        extender.filter(pod, &["n1"]);
        assert_eq!(extender.bind(pod, "n1"), "");
        let claim = stored(&server, pod)["metadata"]["annotations"][CLAIM].clone();
        assert_eq!(claim, "GPU-n1-1,NVIDIA,3000,0:;");
    }
    assert!(events(&server, "GPUsClosed").iter().any(|note| note.contains("hami.io/device-cordon")));
}

#[test]
fn a_topology_aware_pod_gets_the_gpus_with_the_best_links() {
    let server = FakeApiServer::start();
    node(&server, "n1", 4);
    let extender = Extender::led(&server);
    let gpu = |number: usize| format!("GPU-n1-{number}");
    let linked = |one: usize, other: usize| if one + other == 4 && one != other { 310 } else { 20 };
    let entry = |one: usize| {
        let others = (0..4).filter(|other| *other != one).map(|other| (gpu(other), linked(one, other).into()));
        json!({ "uuid": gpu(one), "score": others.collect::<serde_json::Map<String, Value>>() })
    };
    let links = Value::from((0..4).map(entry).collect::<Vec<_>>()).to_string();
    let claim_of = |number: u32| {
        let mut asks = pod(&server, number, 3000);
        let limits = json!({ "nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000" });
        asks["spec"]["containers"][0]["resources"] = json!({ "limits": limits, "requests": limits });
        asks["metadata"]["annotations"] = json!({ "hami.io/gpu-scheduler-policy": "topology-aware" });
        server.put("pods", asks.clone());
        becomes(&extender, &asks, None);
        assert_eq!(extender.bind(&asks, "n1"), "");
        let claim = stored(&server, &asks)["metadata"]["annotations"][CLAIM].as_str().expect("a claim").to_owned();
        let shares =
            claim.split([':', ';']).filter_map(|share| share.split(',').next().filter(|uuid| !uuid.is_empty()));
        let mut gpus: Vec<String> = shares.map(str::to_owned).collect();
        gpus.sort();
        gpus
    };
    let best = [gpu(1), gpu(3)];
    for number in 1..=3 {
        let claim = claim_of(number);
        assert!(claim.len() == 2 && claim != best, "without links: {claim:?}");
    }
    annotate(&server, "hami.io/node-nvidia-score", &links);
    let mut number = 3;
    eventually("the GPUs with the best link", SOON, || {
        number += 1;
        (claim_of(number) == best).then_some(())
    });
    assert_eq!(claim_of(number + 1), best, "and again");
}
