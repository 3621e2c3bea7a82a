//! The built extender in a cluster with objects that no agent and no kubelet would write: such objects are bounded, reported
//! and counted, while the other nodes take pods.

use crate::bad_questions::anon_mib;
use crate::extender::{CLAIM, Extender, SOON, node, pod, stored};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};

/// The reason why a pod does not fit `n1`; `None` if it fits. The pod always fits `n2`.
fn refused(extender: &Extender, asks: &Value) -> Option<String> {
    let answer = extender.filter(asks, &["n1", "n2"]);
    let fits = |name: &str| answer["NodeNames"].as_array().is_some_and(|names| names.contains(&json!(name)));
    assert!(fits("n2"), "{answer}");
    let all = [&answer["FailedNodes"]["n1"], &answer["FailedAndUnresolvableNodes"]["n1"]];
    let why = all.into_iter().find_map(|why| why.as_str().map(str::to_owned));
    assert_eq!(why.is_none(), fits("n1"), "{answer}");
    why
}

fn started(server: &FakeApiServer) -> (Extender, Value) {
    node(server, "n1", 1);
    node(server, "n2", 1);
    let extender = Extender::led(server);
    let asks = pod(server, 1, 3000);
    assert_eq!(refused(&extender, &asks), None);
    (extender, asks)
}

#[test]
fn a_register_that_is_too_large_or_has_odd_numbers_closes_its_node() {
    let server = FakeApiServer::start();
    let (extender, asks) = started(&server);
    let gpu = |change: &dyn Fn(&mut Value)| {
        let mut gpu = json!({
            "id": "GPU-n1-0", "index": 0, "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA-NVIDIA H100", "numa": 0,
            "mode": "hami-core", "health": true,
        });
        change(&mut gpu);
        json!([gpu]).to_string()
    };
    let many = |count: usize| {
        let one = |n: usize| json!({ "id": format!("GPU-{n}"), "index": n, "count": 1, "devmem": 1, "devcore": 1, "type": "x" });
        Value::from((0..count).map(one).collect::<Vec<_>>()).to_string()
    };
    let registers = [
        "x".repeat(1 << 20),
        "[".repeat(1 << 20),
        many(20_000),
        many(300),
        gpu(&|gpu| gpu["count"] = (-1).into()),
        gpu(&|gpu| gpu["devmem"] = json!(1e30)),
        gpu(&|gpu| gpu["devmem"] = u64::MAX.into()),
        gpu(&|gpu| gpu["devcore"] = (-100).into()),
        gpu(&|gpu| gpu["id"] = "x".repeat(100_000).into()),
        gpu(&|_| {})[..100].to_owned(),
    ];
    for register in registers {
        let shown: String = register.chars().take(80).collect();
        let annotations = json!({ "hami.io/node-nvidia-register": register });
        server.put("nodes", json!({ "metadata": { "name": "n1", "uid": "uid-n1", "annotations": annotations } }));
        let why = eventually(&format!("n1 closed with {shown}"), SOON, || refused(&extender, &asks));
        assert_eq!(why, "NodeUnfitPod: NodeClosed", "{shown}");
        node(&server, "n1", 1);
        eventually(&format!("n1 open after {shown}"), SOON, || refused(&extender, &asks).is_none().then_some(()));
    }
    assert!(anon_mib(&extender) < 150, "{} MiB", anon_mib(&extender));
}

#[test]
fn a_pod_that_is_too_large_closes_its_node_until_it_is_gone() {
    let server = FakeApiServer::start();
    let (extender, asks) = started(&server);
    let placed = |change: &dyn Fn(&mut Value)| {
        let mut pod = asks.clone();
        let metadata = json!({ "name": "odd", "namespace": "ml", "uid": "cccccccc-0000-4000-8000-000000000001" });
        pod["metadata"] = metadata;
        pod["spec"]["nodeName"] = "n1".into();
        pod["status"]["phase"] = "Running".into();
        change(&mut pod);
        pod
    };
    let claimed = |claim: String| {
        placed(&|pod| pod["metadata"]["annotations"] = json!({ CLAIM: claim, "hami.io/vgpu-node": "n1" }))
    };
    let many = placed(&|pod| {
        let one = pod["spec"]["containers"][0].clone();
        pod["spec"]["containers"] = (0..10_000)
            .map(|n| {
                let mut container = one.clone();
                container["name"] = format!("c{n}").into();
                container
            })
            .collect();
    });
    let odd = [
        many,
        claimed("x".repeat(1 << 20)),
        claimed("GPU-n1-0,NVIDIA,1,0:".repeat(50_000)),
        claimed("GPU-n1-0,NVIDIA,-5,0:;".to_owned()),
        claimed("GPU-n1-0,NVIDIA,99999999999999999999,0:;".to_owned()),
        placed(&|pod| pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": "-1" } })),
        placed(&|pod| pod["metadata"]["name"] = "x".repeat(1 << 20).into()),
    ];
    for (place, mut pod) in odd.into_iter().enumerate() {
        let name = format!("odd-{place}");
        let long = pod["metadata"]["name"].as_str().is_some_and(|name| name.len() > 100);
        if !long {
            pod["metadata"]["name"] = name.clone().into();
        }
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        server.put("pods", pod);
        let why = eventually(&format!("n1 closed by pod {place}"), SOON, || refused(&extender, &asks));
        assert_eq!(why, "NodeUnfitPod: NodeClosed", "{place}");
        server.remove("pods", "ml", &name);
        eventually(&format!("n1 open after pod {place}"), SOON, || refused(&extender, &asks).is_none().then_some(()));
    }
    assert!(anon_mib(&extender) < 150, "{} MiB", anon_mib(&extender));
}

/// The names of the GPUs are longer than those of NVIDIA's drivers, so the filter underestimates the length of the claim.
#[test]
fn a_claim_that_no_reader_would_keep_is_not_written_and_holds_nothing() {
    let server = FakeApiServer::start();
    let name = "n".repeat(88);
    node(&server, &name, 40);
    let extender = Extender::led(&server);
    let mut many = pod(&server, 1, 1);
    let limits = json!({ "nvidia.com/gpu": "40", "nvidia.com/gpumem": "1" });
    let container = |name: &str| json!({ "name": name, "resources": { "limits": limits } });
    many["spec"]["containers"] = json!([container("one"), container("other")]);
    server.put("pods", many.clone());
    assert_eq!(extender.filter(&many, &[name.as_str()])["NodeNames"], json!([name]));
    let why = extender.bind(&many, &name);
    assert!(why.contains("bytes long, and the annotations of a pod have room for 7168"), "{why}");
    assert_eq!(stored(&server, &many)["spec"]["nodeName"], Value::Null);
    assert!(server.requests().iter().all(|asked| !asked.path.ends_with("/binding")));
    assert_eq!(extender.metric("gpu_steward_extender_claims{state=\"assumed\"}"), 0);
}

#[test]
fn a_watch_that_sends_no_json_is_begun_again() {
    let server = FakeApiServer::start();
    let (extender, asks) = started(&server);
    for bytes in [
        &b"{\"type\":\"MODIFIED\",\"object\":{\n"[..],
        b"\xff\xfe\x00\n",
        b"[]\n",
        b"{\"type\":\"EXPLODED\",\"object\":{}}\n",
        &[&b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\""[..], &vec![b'x'; 12 << 20], b"\"}}}\n"]
            .concat(),
    ] {
        server.raw_bytes(bytes);
        // The extender still sees later changes.
        server.remove("nodes", "", "n1");
        eventually("n1 gone", SOON, || refused(&extender, &asks));
        node(&server, "n1", 1);
        eventually("n1 again", SOON, || refused(&extender, &asks).is_none().then_some(()));
    }
    assert!(extender.leads());
}
