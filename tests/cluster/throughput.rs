//! Pods a second through a real kube-scheduler and a real API server, with many Nodes that exist only as objects: the
//! extender beside a pass-through extender, which decodes and encodes the same messages, binds each pod with one call and
//! writes the same two events. Both use the same client of the API server. They take turns, and the ratio counts.

use crate::audit;
use crate::placed::{Placed, SETTLED, container, spec};
use crate::seats::{HostExtender, HostScheduler, kubeconfig};
use apiserver::client::ApiClient;
use apiserver::connect;
use apiserver::writes::{ApiServer, EventType, ObjectEvent};
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::routing::post;
use jiff::Timestamp;
use lab::eventually::eventually;
use model::id::{NodeName, PodRef, PodUid};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

const PAIRS: usize = 5;
const GPUS: usize = 8;
const GPU_MIB: u64 = 81_920;
/// Objects in one call of kubectl.
const CHUNK: usize = 500;
/// Events that the pass-through writes at once: as many as the extender.
const EVENTS_AT_ONCE: usize = 8;
/// The marks: the median of the pairs, and the lowest.
const MEDIAN: f64 = 0.95;
const LOWEST: f64 = 0.88;
/// Longest time until a thousand pods are bound by either.
const BOUND: Duration = Duration::from_secs(600);

#[test]
#[ignore = "takes 30 minutes and a cluster: tests/run --long"]
fn pods_are_bound_nearly_as_fast_as_by_an_extender_that_decides_nothing() {
    let placed = Placed::control_plane("extender-rate");
    let mut known = 0;
    let mut missed = Vec::new();
    for (nodes, pods) in [(1_000, 1_000), (5_000, 500)] {
        add_nodes(&placed, known..nodes);
        known = nodes;
        let mut ratios = Vec::new();
        for pair in 1..=PAIRS {
            let ours = {
                let extender = HostExtender::start(&placed, None);
                extender.wait_until_leads();
                rate(&placed, extender.address, pods)
            };
            let passed = {
                let pass_through = PassThrough::start(&placed);
                rate(&placed, pass_through.address, pods)
            };
            let ratio = ours / passed;
            println!(
                "{nodes} nodes, {pods} pods, pair {pair}: {ours:.1} pods/s, pass-through {passed:.1}, ratio {ratio:.3}"
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        let (lowest, median) = (ratios[0], ratios[PAIRS / 2]);
        println!("{nodes} nodes, {pods} pods: median {median:.3} (at least {MEDIAN}), lowest {lowest:.3} ({LOWEST})");
        if median < MEDIAN || lowest < LOWEST {
            missed.push((nodes, ratios));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// Nodes as their agents and kubelets would write them.
fn add_nodes(placed: &Placed, numbers: std::ops::Range<usize>) {
    let node = |number: usize| {
        let gpu = |index: usize| {
            json!({
                "id": format!("GPU-{number:08x}-0000-4000-8000-{index:012x}"), "index": index, "count": 10,
                "devmem": GPU_MIB, "devcore": 100, "type": "NVIDIA-NVIDIA H100", "numa": index / 4, "mode": "hami-core",
                "health": true,
            })
        };
        let register = Value::from((0..GPUS).map(gpu).collect::<Vec<_>>()).to_string();
        let amounts = json!({ "cpu": "64", "memory": "512Gi", "pods": "1000", "nvidia.com/gpu": "80" });
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": format!("object-{number}"), "labels": { "kubernetes.io/hostname": format!("object-{number}") },
                "annotations": { "hami.io/node-nvidia-register": register },
            },
            "status": {
                "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })
    };
    create(placed, numbers.map(node).collect());
}

fn create(placed: &Placed, items: Vec<Value>) {
    for items in items.chunks(CHUNK) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        let _ = placed.admin.run_with(&["create", "-n", &placed.space.name, "-f", "-"], &list).ok();
    }
}

/// Pods a second from the moment when kube-scheduler may begin until the last event is written.
fn rate(placed: &Placed, extender: SocketAddr, pods: usize) -> f64 {
    let scheduler = HostScheduler::start_unbounded(placed, extender);
    let pod = |name: String| {
        let mut spec = spec(&[container("main", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000 }))]);
        // No kubelet reports these Nodes, so they keep the taint that each Node has at first.
        spec["tolerations"] = json!([{ "operator": "Exists" }]);
        spec["nodeSelector"] = Value::Null;
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
    };
    create(placed, vec![pod("first".to_owned())]);
    eventually("the first pod to be bound", BOUND, || placed.pods()[0]["spec"]["nodeName"].as_str().map(|_| ()));
    scheduler.signal("-STOP");
    create(placed, (0..pods).map(|number| pod(format!("pod-{number}"))).collect());
    let from = audit::end(&placed.cluster);
    let begun = Timestamp::now();
    scheduler.signal("-CONT");
    let ended = eventually("all pods bound and all events written", BOUND, || {
        std::thread::sleep(Duration::from_secs(1));
        let writes = audit::writes_of_extenders(&placed.cluster, from);
        let of = |what: &str| writes.iter().filter(|write| write.resource() == what).count();
        let last = writes.iter().filter(|write| write.resource() != "leases").map(audit::Write::ended).max();
        (of("pods") >= pods && of("events") >= 2 * pods).then_some(last?)
    });
    drop(scheduler);
    let path = format!("/api/v1/namespaces/{}/pods", placed.space.name);
    let _ = placed.admin.run(&["delete", "--raw", &path]).ok();
    eventually("the end of all pods", SETTLED, || placed.pods().is_empty().then_some(()));
    let took = ended.duration_since(begun).as_secs_f64();
    pods as f64 / took
}

/// An extender that finds every node fit and equal.
struct PassThrough {
    address: SocketAddr,
    _runtime: Runtime,
    _dir: TempDir,
}

/// What its answers need.
struct Writer {
    client: ApiClient,
    events: ApiServer,
    permits: Arc<Semaphore>,
}

impl PassThrough {
    fn start(placed: &Placed) -> PassThrough {
        let dir = tempfile::tempdir().expect("a directory");
        let path = kubeconfig(placed, dir.path());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        runtime.spawn(async move {
            let connection = connect(Some(&path)).await.expect("a connection");
            let writer = Arc::new(Writer {
                client: ApiClient::new(connection.clone()),
                events: ApiServer::new(connection, NodeName::parse("pass-through").expect("a name")),
                permits: Arc::new(Semaphore::new(EVENTS_AT_ONCE)),
            });
            let (filter, bind) = (Arc::clone(&writer), writer);
            let router = axum::Router::new()
                .route("/filter", post(move |body: Bytes| async move { as_json(&filter.filter(&body)) }))
                .route("/prioritize", post(|body: Bytes| async move { as_json(&prioritize(&body)) }))
                .route("/bind", post(move |body: Bytes| async move { as_json(&bind.bind(&body).await) }))
                .layer(DefaultBodyLimit::max(32 << 20));
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, router).await.expect("it serves");
        });
        PassThrough { address, _runtime: runtime, _dir: dir }
    }
}

fn as_json(answer: &Value) -> ([(HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, "application/json")], answer.to_string())
}

fn decoded(body: &[u8]) -> Value {
    serde_json::from_slice(body).expect("a question of kube-scheduler")
}

fn prioritize(body: &[u8]) -> Value {
    let question = decoded(body);
    let names = question["NodeNames"].as_array().into_iter().flatten();
    names.map(|name| json!({ "Host": name, "Score": 0 })).collect()
}

impl Writer {
    fn filter(&self, body: &[u8]) -> Value {
        let mut question = decoded(body);
        let metadata = &question["Pod"]["metadata"];
        let text = |key: &str| metadata[key].as_str().expect("a text");
        let pod = PodRef { namespace: text("namespace").into(), name: text("name").into() };
        let uid = PodUid::parse(text("uid")).expect("a UID");
        let note = format!("{} nodes fit", question["NodeNames"].as_array().map_or(0, Vec::len));
        self.event((uid, pod), "FilteringSucceed", "Filtering", note);
        json!({ "Nodes": null, "NodeNames": question["NodeNames"].take(), "FailedNodes": {}, "Error": "" })
    }

    async fn bind(&self, body: &[u8]) -> Value {
        let question = decoded(body);
        let text = |key: &str| question[key].as_str().expect("a text").to_owned();
        let (name, namespace, uid, node) = (text("PodName"), text("PodNamespace"), text("PodUID"), text("Node"));
        let claim = "GPU-00000000-0000-4000-8000-000000000000,NVIDIA,4000,0:;";
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {
                "name": name, "namespace": namespace, "uid": uid,
                "annotations": {
                    "hami.io/vgpu-devices-allocated": claim, "hami.io/vgpu-devices-to-allocate": claim,
                    "hami.io/vgpu-node": node, "hami.io/vgpu-time": "0", "hami.io/bind-time": "0",
                    "hami.io/bind-phase": "allocating", "gpu-steward.io/epoch": "1",
                },
            },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let pod = PodRef { namespace: namespace.into(), name: name.into() };
        let to = NodeName::parse(&node).expect("a name");
        if let Err(error) = self.client.bind_pod(&pod, &to, &binding).await {
            return json!({ "Error": error.to_string() });
        }
        let uid = PodUid::parse(&uid).expect("a UID");
        self.event((uid, pod), "BindingSucceed", "Binding", format!("bound to {node}: {claim}"));
        json!({ "Error": "" })
    }

    /// Writes an event beside the answer.
    fn event(&self, (uid, pod): (PodUid, PodRef), reason: &'static str, action: &'static str, note: String) {
        let (events, permits) = (self.events.clone(), Arc::clone(&self.permits));
        let at = Timestamp::now().to_string();
        tokio::spawn(async move {
            let _permit = permits.acquire_owned().await.expect("it is never closed");
            let event = ObjectEvent { weight: EventType::Normal, reason, action, note, at };
            events.pod_event(&uid, &pod, &event).await.expect("the event is written");
        });
    }
}
