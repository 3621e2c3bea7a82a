//! The built extender with a fake API server: it places and binds pods, one of several extenders leads, and it finds out the
//! outcome of requests that the API server does not answer.

use crate::program::BINARY;
use lab::api_server::{FakeApiServer, LostBinding};
use lab::eventually::eventually;
use lab::extender::ExtenderProcess;
use lab::http;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::ops::Deref;
use std::time::Duration;

pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const CLAIM: &str = "hami.io/vgpu-devices-allocated";

/// A running extender with a fake API server.
pub(crate) struct Extender(ExtenderProcess);

impl Extender {
    pub(crate) fn start(server: &FakeApiServer) -> Extender {
        Extender::start_with(BINARY, server, &[])
    }

    /// Starts an extender with its Lease in this namespace.
    pub(crate) fn of(server: &FakeApiServer, namespace: &str) -> Extender {
        Extender::start_in(BINARY, server, namespace, &[])
    }

    /// Starts this program with these additional flags.
    pub(crate) fn start_with(binary: &str, server: &FakeApiServer, more: &[&str]) -> Extender {
        Extender::start_in(binary, server, "gpu", more)
    }

    /// Starts an extender with these variables, which describe its pod to the process.
    pub(crate) fn in_pod(server: &FakeApiServer, variables: &[(&str, &str)]) -> Extender {
        Extender::start_as(BINARY, server, variables, ("gpu", &[]))
    }

    fn start_in(binary: &str, server: &FakeApiServer, namespace: &str, more: &[&str]) -> Extender {
        Extender::start_as(binary, server, &[], (namespace, more))
    }

    fn start_as(
        binary: &str,
        server: &FakeApiServer,
        variables: &[(&str, &str)],
        (namespace, more): (&str, &[&str]),
    ) -> Extender {
        Extender(ExtenderProcess::start_in(binary, variables, |dir| {
            let mut flags: Vec<OsString> = [
                "--extender-listen",
                "127.0.0.1:0",
                "-v",
                "5",
                "--retry-period",
                "200ms",
                "--lease-namespace",
                namespace,
            ]
            .map(OsString::from)
            .into();
            flags.extend(["--kubeconfig".into(), server.kubeconfig(dir).into()]);
            flags.extend(more.iter().map(OsString::from));
            flags
        }))
    }

    pub(crate) fn led(server: &FakeApiServer) -> Extender {
        let extender = Extender::start(server);
        extender.wait_until_leads();
        extender
    }

    /// Stops it, and lets another one lead at once.
    pub(crate) fn stop(mut self) {
        self.0.terminate();
    }
}

impl Deref for Extender {
    type Target = ExtenderProcess;

    fn deref(&self) -> &ExtenderProcess {
        &self.0
    }
}

/// A Node with this many GPUs of 80 GiB.
pub(crate) fn node(server: &FakeApiServer, name: &str, gpus: usize) {
    let gpu = |index: usize| {
        json!({
            "id": format!("GPU-{name}-{index}"), "index": index, "count": 10, "devmem": 81920, "devcore": 100,
            "type": "NVIDIA-NVIDIA H100", "numa": 0, "mode": "hami-core", "health": true,
        })
    };
    let register = Value::from((0..gpus).map(gpu).collect::<Vec<_>>()).to_string();
    let annotations = json!({ "hami.io/node-nvidia-register": register });
    server.put(
        "nodes",
        json!({ "metadata": { "name": name, "uid": format!("uid-{name}"), "annotations": annotations } }),
    );
}

/// A pod without a node that requests a GPU with this memory.
pub(crate) fn pod(server: &FakeApiServer, number: u32, mib: u32) -> Value {
    let name = format!("train-{number}");
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string() });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ml", "uid": format!("{number:08x}-0000-4000-8000-000000000001"),
            "creationTimestamp": "2026-11-21T10:00:00Z",
        },
        "spec": { "containers": [{ "name": "main", "image": "x", "resources": { "limits": limits, "requests": limits } }] },
        "status": { "phase": "Pending" },
    });
    server.put("pods", pod.clone());
    pod
}

pub(crate) fn stored(server: &FakeApiServer, pod: &Value) -> Value {
    server.object("pods", "ml", pod["metadata"]["name"].as_str().unwrap()).unwrap()
}

pub(crate) fn events(server: &FakeApiServer, reason: &str) -> Vec<String> {
    let events = server.objects("events").into_iter().filter(|event| event["reason"] == reason);
    events.map(|event| event["note"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_pod_gets_node_and_claim_in_one_call_and_two_events() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 2);
    let extender = Extender::led(&server);
    let (first, second) = (pod(&server, 1, 3000), pod(&server, 2, 90_000));
    let answer = extender.filter(&first, &["n1", "n2", "n3"]);
    assert_eq!((&answer["NodeNames"], &answer["Error"]), (&json!(["n1", "n2"]), &json!("")));
    assert_eq!(answer["FailedAndUnresolvableNodes"], json!({ "n3": "NodeUnfitPod: NodeUnregistered" }));
    let question = json!({ "Pod": first, "Nodes": null, "NodeNames": ["n1", "n2"] });
    let scores = extender.ask("prioritize", &question).json();
    assert_eq!(scores.as_array().unwrap().len(), 2, "{scores}");
    assert_eq!(extender.bind(&first, "n2"), "");
    let bound = stored(&server, &first);
    assert_eq!(bound["spec"]["nodeName"], "n2");
    let claim = bound["metadata"]["annotations"][CLAIM].as_str().unwrap();
    assert!(claim.starts_with("GPU-n2-") && claim.contains(",NVIDIA,3000,0:;"), "{claim}");
    assert_eq!(bound["metadata"]["annotations"]["gpu-steward.io/epoch"], "1");
    assert_eq!(bound["metadata"]["annotations"]["gpu-steward.io/lease"], "gpu/gpu-steward-extender");
    let writes = server.requests().into_iter().filter(|asked| asked.path.contains("/pods/") && asked.method != "GET");
    assert_eq!(writes.map(|asked| asked.path).collect::<Vec<_>>(), ["/api/v1/namespaces/ml/pods/train-1/binding"]);
    assert_eq!(extender.bind(&first, "n2"), "", "a repeated call is a success");
    // The second pod fits no node, even if other pods end.
    let answer = extender.filter(&second, &["n1", "n2"]);
    let refused = json!({ "n1": "CardInsufficientMemory", "n2": "CardInsufficientMemory" });
    assert_eq!((&answer["NodeNames"], &answer["FailedNodes"]), (&Value::Null, &Value::Null));
    assert_eq!(answer["FailedAndUnresolvableNodes"], refused);
    extender.filter(&second, &["n1", "n2"]);
    let note = eventually("the event of the refused pod", SOON, || events(&server, "FilteringFailed").pop());
    assert!(
        note.contains("CardInsufficientMemory on 3 GPUs of 2 nodes") && note.contains("requests 90000 MiB"),
        "{note}"
    );
    eventually("the events of the bound pod", SOON, || {
        (events(&server, "FilteringSucceed").len() == 1 && events(&server, "BindingSucceed").len() == 1).then_some(())
    });
    assert_eq!(events(&server, "FilteringFailed").len(), 1, "a second refusal within a minute writes no second event");
    let decisions = extender.get("/api/v1/decisions?pod=ml/train-2").json();
    assert_eq!(decisions["decisions"].as_array().unwrap().len(), 2, "{decisions}");
    let asks = &decisions["decisions"][0]["detail"]["asks"][0];
    assert_eq!((&asks["memory_bytes"], &asks["memory_ratio"]), (&json!(90_000_u64 << 20), &Value::Null), "{asks}");
    for (query, status, words) in [
        ("pod=ml/train-7", 404, "none is about \"ml/train-7\": name the pod as NAMESPACE/NAME"),
        ("pod=train-2", 404, "name the pod as NAMESPACE/NAME"),
        ("pods=ml/train-2", 400, "query key \"pods\" is not known: use pod"),
    ] {
        let answer = extender.get(&format!("/api/v1/decisions?{query}"));
        assert_eq!(answer.status, status, "{query}");
        assert!(answer.text().contains(words), "{query}: {}", answer.text());
    }
    assert_eq!(extender.get("/api/v1/decisions?pod=ml%2Ftrain-2").status, 200);
    let metrics = extender.get("/metrics").text();
    for line in ["gpu_steward_extender_leads 1", "gpu_steward_extender_answer_seconds_count{verb=\"filter\"} 3"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

/// A pod without a node, with these limits only.
fn with_limits(server: &FakeApiServer, number: u32, limits: &Value) -> Value {
    let mut asks = pod(server, number, 1);
    asks["spec"]["containers"][0]["resources"] = json!({ "limits": limits, "requests": limits });
    server.put("pods", asks.clone());
    stored(server, &asks)
}

/// kube-scheduler asks the extender about each pod that names one of the resources, and lets it bind the pod.
#[test]
fn a_pod_that_names_a_resource_of_gpus_and_requests_none_is_bound_without_a_claim() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let all = [
        json!({ "nvidia.com/gpumem": "3000" }),
        json!({ "nvidia.com/gpu": "0" }),
        json!({ "nvidia.com/gpucores": "30", "nvidia.com/priority": "1" }),
    ];
    for (number, limits) in (1..).zip(&all) {
        let plain = with_limits(&server, number, limits);
        let why = extender.bind(&plain, "n1");
        assert!(why.contains("no recent filter call"), "{limits}: {why}");
        assert_eq!(extender.filter(&plain, &["n1", "n2"])["NodeNames"], json!(["n1", "n2"]), "{limits}");
        // The first request is lost, and the answer to the second one.
        server.lose_bindings(&[LostBinding::Request, LostBinding::Answer]);
        assert_eq!(extender.bind(&plain, "n1"), "", "{limits}: {}", extender.log());
        let bound = stored(&server, &plain);
        assert_eq!((&bound["spec"]["nodeName"], &bound["metadata"]["annotations"]), (&json!("n1"), &Value::Null));
        eventually("a bound pod to be forgotten", SOON, || {
            extender.bind(&plain, "n1").contains("no recent filter call").then_some(())
        });
    }
    // These pods hold nothing, so the node takes a pod that requests its whole GPU.
    let whole = pod(&server, 8, 81_920);
    assert_eq!(extender.filter(&whole, &["n1"])["NodeNames"], json!(["n1"]));
    assert_eq!(extender.bind(&whole, "n1"), "");
    assert_eq!(extender.metric("gpu_steward_extender_nodes{state=\"closed\"}"), 0);
}

#[test]
fn a_pod_without_gpus_that_has_changed_is_bound_and_one_that_is_gone_is_not() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let limits = json!({ "nvidia.com/gpumem": "3000" });
    let mut changed = with_limits(&server, 1, &limits);
    extender.filter(&changed, &["n1"]);
    changed["metadata"]["labels"] = json!({ "team": "vision" });
    server.put("pods", changed.clone());
    assert_eq!(extender.bind(&changed, "n1"), "");
    let bindings = server.requests().into_iter().filter(|asked| asked.path.ends_with("/pods/train-1/binding"));
    assert_eq!(bindings.count(), 2, "the first one names the version of the filter call and is refused");
    // Kubernetes forbids such a change. However it happened, the pod must not be bound with its earlier request.
    let mut asks = with_limits(&server, 2, &limits);
    extender.filter(&asks, &["n1"]);
    asks["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1".into();
    server.put("pods", asks.clone());
    let why = extender.bind(&asks, "n1");
    assert!(why.contains("the pod was changed after the filter"), "{why}");
    assert_eq!(stored(&server, &asks)["spec"]["nodeName"], Value::Null);
    let gone = with_limits(&server, 3, &limits);
    extender.filter(&gone, &["n1"]);
    server.remove("pods", "ml", "train-3");
    let why = extender.bind(&gone, "n1");
    // The reason depends on whether a read or the watch shows the deletion first.
    assert!(why.contains("the pod is gone") || why.contains("no recent filter call"), "{why}");
}

#[test]
fn two_pods_that_fit_alone_never_share_a_gpu_that_is_too_small() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let (first, second) = (pod(&server, 1, 50_000), pod(&server, 2, 50_000));
    for pod in [&first, &second] {
        assert_eq!(extender.filter(pod, &["n1"])["NodeNames"], json!(["n1"]), "nothing is claimed yet");
    }
    assert_eq!(extender.bind(&first, "n1"), "");
    let why = extender.bind(&second, "n1");
    assert!(why.contains("no longer fits: CardInsufficientMemory"), "{why}");
    assert_eq!(stored(&server, &second)["spec"]["nodeName"], Value::Null);
    // It would fit if the other pod ended, so kube-scheduler may preempt.
    let answer = extender.filter(&second, &["n1"]);
    assert_eq!(answer["FailedNodes"], json!({ "n1": "CardInsufficientMemory" }));
    assert_eq!(answer["FailedAndUnresolvableNodes"], Value::Null);
    server.remove("pods", "ml", "train-1");
    eventually("the GPU of the pod that is gone", SOON, || {
        (extender.filter(&second, &["n1"])["NodeNames"] == json!(["n1"])).then_some(())
    });
    assert_eq!(extender.bind(&second, "n1"), "");
}

#[test]
fn a_binding_without_an_answer_is_written_again_until_its_outcome_is_known() {
    for lost in [LostBinding::Request, LostBinding::Answer] {
        let server = FakeApiServer::start();
        node(&server, "n1", 1);
        let extender = Extender::led(&server);
        let first = pod(&server, 1, 3000);
        extender.filter(&first, &["n1"]);
        server.lose_bindings(&[lost, lost]);
        assert_eq!(extender.bind(&first, "n1"), "", "{lost:?}: {}", extender.log());
        let bound = stored(&server, &first);
        assert_eq!(bound["spec"]["nodeName"], "n1");
        assert!(bound["metadata"]["annotations"][CLAIM].is_string());
    }
}

#[test]
fn a_pod_that_somebody_else_has_bound_is_no_success_and_holds_nothing_here() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let mut first = pod(&server, 1, 50_000);
    extender.filter(&first, &["n1"]);
    // The watch shows the pod bound to another node, while this binding is still pending.
    server.lose_bindings(&[LostBinding::Request]);
    first["spec"]["nodeName"] = "n9".into();
    server.put("pods", first.clone());
    let why = extender.bind(&first, "n1");
    // The reason depends on whether the watch or a read shows the other node first.
    let known = ["n9", "must be scheduled again", "bound without this claim"];
    assert!(known.iter().any(|words| why.contains(words)), "{why}");
    let second = pod(&server, 2, 50_000);
    eventually("the GPU to be free", SOON, || {
        (extender.filter(&second, &["n1"])["NodeNames"] == json!(["n1"])).then_some(())
    });
    assert_eq!(extender.bind(&second, "n1"), "");
}

#[test]
fn one_extender_leads_and_another_takes_over_with_all_claims() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let leader = Extender::led(&server);
    let follower = Extender::start(&server);
    let first = pod(&server, 1, 50_000);
    leader.filter(&first, &["n1"]);
    assert_eq!(leader.bind(&first, "n1"), "");
    let named = eventually("a follower that names the leader", SOON, || {
        let answer = follower.ask("filter", &json!({ "Pod": first, "NodeNames": ["n1"] }));
        assert_eq!(answer.status, 503, "{}", answer.text());
        answer.text().contains(" leads.").then(|| answer.text())
    });
    let lease = server.object("leases", "gpu", "gpu-steward-extender").unwrap();
    let identity = lease["spec"]["holderIdentity"].as_str().unwrap();
    assert!(named.contains(identity), "{named}");
    // Only the leader has decided anything.
    assert_eq!(leader.get("/api/v1/decisions").json()["kept"], 2);
    let asked = follower.get("/api/v1/decisions");
    assert!(asked.status == 503 && asked.text().contains(identity), "{}", asked.text());
    // A clean stop releases the Lease.
    leader.signal("-TERM");
    eventually("the follower to lead", SOON, || follower.leads().then_some(()));
    let second = pod(&server, 2, 50_000);
    assert_eq!(follower.filter(&second, &["n1"])["FailedNodes"], json!({ "n1": "CardInsufficientMemory" }));
    let third = pod(&server, 3, 20_000);
    follower.filter(&third, &["n1"]);
    assert_eq!(follower.bind(&third, "n1"), "");
    assert_eq!(stored(&server, &third)["metadata"]["annotations"]["gpu-steward.io/epoch"], "2");
    let lease = server.object("leases", "gpu", "gpu-steward-extender").unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    // After a leader is killed, the next one takes over once the Lease has expired.
    let next = Extender::start(&server);
    follower.signal("-KILL");
    eventually("the next extender to lead", SOON, || next.leads().then_some(()));
    assert_eq!(next.filter(&second, &["n1"])["FailedNodes"], json!({ "n1": "CardInsufficientMemory" }));
}

#[test]
fn a_paused_leader_writes_nothing_once_another_leads() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let first = pod(&server, 1, 50_000);
    let paused = Extender::led(&server);
    paused.filter(&first, &["n1"]);
    let other = Extender::start(&server);
    paused.signal("-STOP");
    eventually("the other extender to lead", SOON, || other.leads().then_some(()));
    let second = pod(&server, 2, 50_000);
    other.filter(&second, &["n1"]);
    assert_eq!(other.bind(&second, "n1"), "");
    paused.signal("-CONT");
    let metadata = &first["metadata"];
    let question = json!({
        "PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": "n1",
    });
    assert_eq!(paused.ask("bind", &question).status, 503);
    assert_eq!(stored(&server, &first)["spec"]["nodeName"], Value::Null);
}

#[test]
fn what_is_no_question_has_a_clear_answer() {
    let server = FakeApiServer::start();
    let extender = Extender::led(&server);
    let json = [("Content-Type", "application/json")];
    for (method, path, headers, body, status, words) in [
        ("GET", "/filter", &json[..], "", 405, "POST"),
        ("POST", "/filter", &[("Content-Type", "text/plain")], "{}", 415, "application/json"),
        ("POST", "/filter", &json, "{", 400, "ExtenderArgs"),
        ("POST", "/filter", &json, "{}", 400, "has no Pod"),
        ("POST", "/bind", &json, "{}", 400, "ExtenderBindingArgs"),
        ("POST", "/preempt", &json, "[]", 400, "ExtenderPreemptionArgs"),
        ("POST", "/permit", &json, "{}", 404, "/prioritize"),
        ("POST", "/healthz", &json, "{}", 405, "GET"),
        ("GET", "/healthz", &[], "", 200, "ok"),
        ("GET", "/readyz", &[], "", 200, "ready"),
    ] {
        let answer = http::request(extender.address, method, path, headers, body.as_bytes()).unwrap();
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.text());
        assert!(answer.text().contains(words), "{method} {path}: {}", answer.text());
    }
    let huge = vec![b' '; (64 << 10) + 1];
    assert_eq!(http::request(extender.address, "POST", "/bind", &json, &huge).unwrap().status, 413);
    let plain = json!({ "metadata": { "name": "web", "namespace": "ml", "uid": "1".repeat(32) }, "spec": { "containers": [] } });
    assert_eq!(extender.filter(&plain, &["n1", "n2"])["NodeNames"], json!(["n1", "n2"]), "it requests no GPU");
    let foreign = [("Host", "rebound.example"), ("Content-Type", "application/json")];
    assert_eq!(http::request(extender.address, "POST", "/filter", &foreign, b"{}").unwrap().status, 403);
}

#[test]
fn a_marked_pod_is_evicted_by_the_leader() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let mut marked = pod(&server, 1, 3000);
    marked["metadata"]["annotations"] = json!({ "gpu-steward.io/evict": "its GPU is gone" });
    marked["spec"]["nodeName"] = "n1".into();
    server.put("pods", marked);
    eventually("the eviction", SOON, || server.object("pods", "ml", "train-1").is_none().then_some(()));
    eventually("the reason in the log", SOON, || extender.log().contains("its GPU is gone").then_some(()));
    let asked = server.requests();
    assert!(asked.iter().any(|asked| asked.path.ends_with("/pods/train-1/eviction")));
    assert!(asked.iter().all(|asked| asked.method != "DELETE"));
}

#[test]
fn evictions_that_do_not_make_room_are_taken_out_of_the_answer() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let there: Vec<Value> = (1..=2).map(|number| pod(&server, number, 40_000)).collect();
    for pod in &there {
        extender.filter(pod, &["n1"]);
        assert_eq!(extender.bind(pod, "n1"), "");
    }
    let asks = |mib| pod(&server, 9, mib);
    let victims = json!({ "n1": { "Pods": [{ "UID": there[0]["metadata"]["uid"] }], "NumPDBViolations": 0 } });
    for (mib, helps) in [(30_000, true), (60_000, false)] {
        let question = json!({ "Pod": asks(mib), "NodeNameToMetaVictims": victims });
        let answer = extender.ask("preempt", &question).json();
        assert_eq!(answer["NodeNameToMetaVictims"] == victims, helps, "{mib}: {answer}");
    }
}
