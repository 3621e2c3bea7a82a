//! The built extender: how the annotations that agents and operators write on a Node change its decisions.

use crate::extender::{CLAIM, Extender, SOON, events, node, pod, stored};
use crate::program::BINARY;
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

const ASSUMED: &str = "hami.io/node-nvidia-assume";

/// The number of writes to the Node of this name.
fn writes(server: &FakeApiServer, node: &str) -> usize {
    let path = format!("/api/v1/nodes/{node}");
    server.requests().iter().filter(|request| request.method == "PATCH" && request.path == path).count()
}

/// Waits until a Node says this of its GPUs.
fn says(server: &FakeApiServer, name: &str, expected: &Value) {
    eventually(&format!("{name}: {expected}"), SOON, || {
        let node = server.object("nodes", "", name).expect("the Node");
        let text = node["metadata"]["annotations"][ASSUMED].as_str();
        let shown = text.map_or(Value::Null, |text| serde_json::from_str(text).expect("JSON"));
        (shown == *expected).then_some(())
    });
}

#[test]
fn with_assume_annotation_a_node_says_what_is_taken_of_its_gpus() {
    let server = FakeApiServer::start();
    node(&server, "n1", 2);
    node(&server, "n2", 1);
    let taken = |name: &str, used: u32| {
        let gpu = json!({ "id": format!("GPU-{name}-0"), "used": used, "usedmem": 3000 * used, "usedcores": 0 });
        json!({ "devices": [gpu] })
    };
    let binds = |extender: &Extender, number: u32, on: &str| {
        let asks = pod(&server, number, 3000);
        extender.filter(&asks, &[on]);
        assert_eq!(extender.bind(&asks, on), "");
        asks
    };
    let silent = Extender::led(&server);
    let first = binds(&silent, 1, "n1");
    silent.stop();
    assert_eq!(writes(&server, "n1"), 0, "it is off by default");
    let extender = Extender::start_with(BINARY, &server, &["--assume-annotation"]);
    extender.wait_until_leads();
    says(&server, "n1", &taken("n1", 1));
    binds(&extender, 2, "n2");
    says(&server, "n2", &taken("n2", 1));
    assert_eq!((writes(&server, "n1"), writes(&server, "n2")), (1, 1));
    server.remove("pods", "ml", first["metadata"]["name"].as_str().unwrap());
    says(&server, "n1", &Value::Null);
    extender.stop();
    // The next leader finds what the Nodes say, and writes only what is new. It looks at n2 before it writes on n1 a second time.
    let next = Extender::start_with(BINARY, &server, &["--assume-annotation"]);
    next.wait_until_leads();
    for (number, gone) in [(3, false), (4, true)] {
        let name = binds(&next, number, "n1")["metadata"]["name"].as_str().unwrap().to_owned();
        says(&server, "n1", &taken("n1", 1));
        if !gone {
            server.remove("pods", "ml", &name);
            says(&server, "n1", &Value::Null);
        }
    }
    assert_eq!((writes(&server, "n1"), writes(&server, "n2")), (5, 1));
}
