//! Pods per second through a real kube-scheduler and a real API server, with many Nodes that exist only as objects: the
//! extender compared with a pass-through extender, which decodes and encodes the same messages, names every node, binds each
//! pod with one call and writes no event. Both use the same client of the API server. They take turns, and the ratio counts.

use crate::audit;
use crate::placed::{Placed, SETTLED, container, spec};
use crate::seats::{HostExtender, HostScheduler, kubeconfig};
use apiserver::client::ApiClient;
use apiserver::connect;
use apiserver::writes::ApiServer;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::routing::post;
use decide::announce::HANDSHAKE_EVERY;
use jiff::Timestamp;
use lab::eventually::eventually;
use model::id::{NodeName, PodRef};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const PAIRS: usize = 7;
/// GPUs of a node.
pub(crate) const GPUS: usize = 8;
/// Memory of a GPU.
pub(crate) const GPU_MIB: u64 = 81_920;
/// Objects in one call of kubectl.
pub(crate) const CHUNK: usize = 500;
const HANDSHAKE: &str = "hami.io/node-handshake";
const NODE_POLICY: &str = "hami.io/node-scheduler-policy";
const GPU_POLICY: &str = "hami.io/gpu-scheduler-policy";
/// Nodes, pods, and the mark for the median of the pairs. Single pairs differ by a third.
const SIZES: [(usize, usize, f64); 2] = [(1_000, 1_000, 1.05), (5_000, 500, 1.1)];
/// At half of the possible rate a pod waits at most this many times as long as with the pass-through.
const LATER: f64 = 1.1;
/// The share of the rate that must remain while Nodes are annotated and pods that fit nowhere are retried.
const BESIDE: f64 = 0.9;
const REFUSED: usize = 200;
/// Events that the extender writes for each pod.
const EVENTS: usize = 2;
/// After this many tries, kube-scheduler's wait before it tries a pod again is longest: 1 s, 2 s, 4 s, 8 s, 16 s, 32 s, 60 s.
/// Without other pods it waits less.
const TRIES: u64 = 7;
/// Other pods, enough of them that some refused pods are tried while these are bound.
const LONG: usize = 3_000;
/// How often an agent with HAMi's period would annotate its Node. The agent of gpu-steward does so each [`HANDSHAKE_EVERY`].
const OFTEN: Duration = Duration::from_secs(30);
/// Longest time until either extender has bound a thousand pods.
const BOUND: Duration = Duration::from_secs(600);

#[test]
#[ignore = "takes 40 minutes and a cluster: tests/run --long"]
fn pods_are_bound_faster_than_by_an_extender_that_decides_nothing_and_names_every_node() {
    let placed = Placed::control_plane("extender-rate");
    let mut known = 0;
    let mut missed = Vec::new();
    for (nodes, pods, mark) in SIZES {
        add_nodes(&placed, known..nodes);
        known = nodes;
        let mut ratios = Vec::new();
        for pair in 1..=PAIRS {
            let ours = with_ours(&placed, |address| rate(&placed, address, (pods, EVENTS)));
            let passed = with_pass_through(&placed, |address| rate(&placed, address, (pods, 0)));
            let ratio = ours / passed;
            println!(
                "{nodes} nodes, {pods} pods, pair {pair}: {ours:.1} pods/s, pass-through {passed:.1}, ratio {ratio:.3}"
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        let (lowest, median) = (ratios[0], ratios[PAIRS / 2]);
        println!("{nodes} nodes, {pods} pods: median {median:.3} (at least {mark}), lowest {lowest:.3}");
        if median < mark {
            missed.push((nodes, ratios));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// At half of the possible rate, pods are bound about as soon as with the pass-through. Most of the rate also remains while
/// agents annotate a thousand Nodes and pods that fit nowhere are tried again and again.
#[test]
#[ignore = "takes 20 minutes and a cluster: tests/run --long"]
fn pods_are_bound_soon_also_beside_beating_nodes_and_pods_that_fit_nowhere() {
    const NODES: usize = 1_000;
    const PODS: usize = 500;
    let placed = Placed::control_plane("extender-latency");
    add_nodes(&placed, 0..NODES);
    let ours = with_ours(&placed, |address| rate(&placed, address, (PODS, EVENTS)));
    let passed = with_pass_through(&placed, |address| rate(&placed, address, (PODS, 0)));
    let pace = ours.min(passed) / 2.0;
    println!("{ours:.1} pods/s, pass-through {passed:.1}; at {pace:.1} pods/s:");
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        mine.extend(with_ours(&placed, |address| paced(&placed, address, PODS, pace)));
        theirs.extend(with_pass_through(&placed, |address| paced(&placed, address, PODS, pace)));
    }
    let mut later = Vec::new();
    for percent in [50, 99] {
        let (mine, theirs) = (quantile(&mut mine, percent), quantile(&mut theirs, percent));
        println!(
            "{percent} of 100 pods are bound within {mine:.4} s, pass-through {theirs:.4} s, {:.3}",
            mine / theirs
        );
        later.push(mine / theirs);
    }
    let mut beside = Vec::new();
    for pair in 1..=3 {
        let alone = with_ours(&placed, |address| rate(&placed, address, (LONG, EVENTS)));
        let [with, often] = [HANDSHAKE_EVERY, OFTEN].map(|every| rate_beside_refused(&placed, NODES, every));
        println!(
            "pair {pair}: {alone:.1} pods/s, beside beats and refused pods {with:.1} ({:.3}), with beats each {} s {often:.1} ({:.3})",
            with / alone,
            OFTEN.as_secs(),
            often / alone
        );
        beside.push(with / alone);
    }
    beside.sort_by(f64::total_cmp);
    println!("beside beats and refused pods: median {:.3} (at least {BESIDE})", beside[1]);
    assert!(later.iter().all(|ratio| *ratio <= LATER) && beside[1] >= BESIDE, "{later:?} {beside:?}");
}

/// An otherwise idle kube-scheduler does not wait its longest time before it tries a refused pod again: the next event makes it
/// try the pod.
#[test]
#[ignore = "takes a minute and a cluster: tests/run --long"]
fn a_pod_that_was_refused_often_is_bound_soon_after_there_is_room() {
    /// Much less than kube-scheduler's longest wait of a minute.
    const SOON: Duration = Duration::from_secs(10);
    let placed = Placed::control_plane("extender-room");
    add_nodes(&placed, 0..1);
    let extender = HostExtender::start_measured(&placed);
    extender.wait_until_leads();
    let _scheduler = warm_scheduler(&placed, extender.address);
    let whole = json!({ "nvidia.com/gpu": GPUS, "nvidia.com/gpumem": GPU_MIB });
    create(&placed, vec![pod("whole", &whole)]);
    // Each change of a Node makes kube-scheduler try the pod again.
    let node = |number: u64| {
        let label = format!("gpu-steward.test/change={number}");
        let _ = placed.admin.run(&["label", "node", "object-0", &label, "--overwrite"]).ok();
    };
    let tries = || extender.metric("gpu_steward_extender_answer_seconds_count{verb=\"filter\"}");
    let mut changes = 0;
    eventually("tries of the pod that fits nowhere", BOUND, || {
        changes += 1;
        node(changes);
        (tries() > 2 * TRIES).then_some(())
    });
    let room = Instant::now();
    let _ = placed.admin.run(&["delete", "pod", "first", "-n", &placed.space.name, "--wait=false"]).ok();
    let path = ["pod", "whole", "-n", &placed.space.name];
    eventually("the pod to be bound", BOUND, || {
        changes += 1;
        node(changes);
        placed.admin.get(&path)["spec"]["nodeName"].as_str().map(|_| ())
    });
    println!("bound {:.1} s after there was room, after {} tries", room.elapsed().as_secs_f64(), tries());
    assert!(room.elapsed() < SOON);
}

/// A burst that fills nearly all memory, under both node policies: kube-scheduler binds pods while the extender answers for
/// others, and hardly any binding is refused because its GPU was taken in between.
#[test]
#[ignore = "takes minutes and a cluster: tests/run --long"]
fn bindings_of_a_burst_that_fills_most_memory_are_hardly_ever_refused() {
    const NODES: usize = 20;
    /// A GPU has room for ten units.
    const UNIT_MIB: u64 = 8_000;
    /// Pods that request one, two and three units: 95.2 % of the memory of all GPUs.
    const PODS: [(&str, u64, usize); 3] = [("small", 1, 570), ("middle", 2, 300), ("large", 3, 130)];
    /// The limit for refused bindings, and the least share of memory that is claimed in the end. The share is below 95.2 %,
    /// because in the end no GPU may have room for three units.
    const REFUSED: f64 = 0.01;
    const FULL: f64 = 0.94;
    let placed = Placed::control_plane("extender-full");
    add_nodes(&placed, 0..NODES);
    let mut missed = Vec::new();
    for policy in ["binpack", "spread"] {
        let extender = HostExtender::start_measured(&placed);
        extender.wait_until_leads();
        let scheduler = HostScheduler::start_unbounded(&placed, extender.address);
        scheduler.signal("-STOP");
        let mut items = Vec::new();
        for (name, units, count) in PODS {
            let limits = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": units * UNIT_MIB });
            for number in 0..count {
                let mut pod = pod(&format!("{name}-{number}"), &limits);
                pod["metadata"]["annotations"] = json!({ NODE_POLICY: policy, GPU_POLICY: policy });
                // The order mixes the sizes.
                items.push((number * 1_000 / count, pod));
            }
        }
        items.sort_by_key(|(place, _)| *place);
        create(&placed, items.into_iter().map(|(_, pod)| pod).collect());
        scheduler.signal("-CONT");
        let (bound, claimed) = eventually("an answer for each pod", BOUND, || {
            std::thread::sleep(Duration::from_secs(1));
            let pods = placed.pods();
            let bound: Vec<&Value> = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).collect();
            let mib = |pod: &&Value| {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                PODS.iter().find(|(size, ..)| name.starts_with(size)).expect("a size").1 * UNIT_MIB
            };
            let waits = pods.iter().filter(|pod| pod["status"]["conditions"][0]["reason"] == "Unschedulable").count();
            (bound.len() + waits == pods.len()).then(|| (bound.len(), bound.iter().map(mib).sum::<u64>()))
        });
        let calls = extender.metric("gpu_steward_extender_answer_seconds_count{verb=\"bind\"}");
        let refused = (calls - bound as u64) as f64 / calls as f64;
        let full = claimed as f64 / (NODES as u64 * GPUS as u64 * GPU_MIB) as f64;
        println!(
            "{policy}: {bound} pods bound with {calls} calls, {refused:.4} of them refused (at most {REFUSED}); {full:.3} of the memory claimed"
        );
        if refused > REFUSED || full < FULL {
            missed.push((policy, bound, calls, full));
        }
        drop(scheduler);
        remove_all(&placed);
    }
    assert!(missed.is_empty(), "{missed:?}");
}

pub(crate) fn with_ours<T>(placed: &Placed, measure: impl FnOnce(SocketAddr) -> T) -> T {
    let extender = HostExtender::start_measured(placed);
    extender.wait_until_leads();
    measure(extender.address)
}

pub(crate) fn with_pass_through<T>(placed: &Placed, measure: impl FnOnce(SocketAddr) -> T) -> T {
    let pass_through = PassThrough::start(placed);
    measure(pass_through.address)
}

pub(crate) fn quantile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

/// The rate while the agents of this many Nodes annotate them, each at this interval, and while pods that fit nowhere are
/// retried. Each of these was tried so often before that kube-scheduler waits its longest time between two tries.
fn rate_beside_refused(placed: &Placed, nodes: usize, every: Duration) -> f64 {
    let beats = Beats::start(placed, nodes, every);
    let extender = HostExtender::start_measured(placed);
    extender.wait_until_leads();
    let scheduler = warm_scheduler(placed, extender.address);
    let huge = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 10 * GPU_MIB });
    create(placed, (0..REFUSED).map(|number| pod(&format!("huge-{number}"), &huge)).collect());
    let tries = || extender.metric("gpu_steward_extender_answer_seconds_count{verb=\"filter\"}");
    let often = TRIES * REFUSED as u64;
    eventually("tries of the pods that fit nowhere", BOUND, || (tries() > often).then_some(()));
    let before = tries();
    let rate = rate_of(placed, &scheduler, (LONG, EVENTS));
    let tries = (tries() - before).saturating_sub(LONG as u64);
    println!("    {rate:.1} pods/s beside {tries} tries of pods that fit nowhere");
    drop(scheduler);
    remove_all(placed);
    beats.end();
    rate
}

/// The agents of all Nodes, each of which annotates its Node regularly.
struct Beats {
    _runtime: Runtime,
    begun: Instant,
    pause: Duration,
    written: Arc<AtomicU32>,
}

impl Beats {
    fn start(placed: &Placed, nodes: usize, every: Duration) -> Beats {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let admin = placed.cluster.status().kubeconfig.clone();
        let (begun, written) = (Instant::now(), Arc::new(AtomicU32::new(0)));
        let pause = every / u32::try_from(nodes).expect("few");
        let counted = Arc::clone(&written);
        runtime.spawn(async move {
            let connection = connect(Some(admin.as_ref())).await.expect("a connection");
            let name = |number| NodeName::parse(&format!("object-{number}")).expect("a name");
            let agents: Vec<_> = (0..nodes).map(|number| ApiServer::new(connection.clone(), name(number))).collect();
            let mut pause = tokio::time::interval(pause);
            for agent in agents.iter().cycle() {
                pause.tick().await;
                let now = Timestamp::now().to_string();
                if agent.annotate_node(&[(HANDSHAKE, Some(&now))]).await.is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Beats { _runtime: runtime, begun, pause, written }
    }

    /// Checks that most of the annotations were written.
    fn end(self) {
        let (written, due) = (self.written.load(Ordering::Relaxed), self.begun.elapsed().div_duration_f64(self.pause));
        assert!(f64::from(written) >= 0.8 * due, "{written} of {due:.0} beats were written");
    }
}

/// Nodes as their agents and kubelets would write them.
pub(crate) fn add_nodes(placed: &Placed, numbers: std::ops::Range<usize>) {
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

/// Creates these objects, hundreds in each call.
pub(crate) fn create(placed: &Placed, items: Vec<Value>) {
    for items in items.chunks(CHUNK) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        let _ = placed.admin.run_with(&["create", "-n", &placed.space.name, "-f", "-"], &list).ok();
    }
}

/// A pod with these limits. No kubelet reports the Nodes, so they keep their initial taint.
pub(crate) fn pod(name: &str, limits: &Value) -> Value {
    let mut spec = spec(&[container("main", limits)]);
    spec["tolerations"] = json!([{ "operator": "Exists" }]);
    spec["nodeSelector"] = Value::Null;
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

fn pods(numbers: std::ops::Range<usize>) -> Vec<Value> {
    let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000 });
    numbers.map(|number| pod(&format!("pod-{number}"), &share)).collect()
}

/// A kube-scheduler that has bound a pod.
pub(crate) fn warm_scheduler(placed: &Placed, extender: SocketAddr) -> HostScheduler {
    let scheduler = HostScheduler::start_unbounded(placed, extender);
    create(placed, vec![pod("first", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000 }))]);
    let path = ["pod", "first", "-n", &placed.space.name];
    eventually("the first pod to be bound", BOUND, || placed.admin.get(&path)["spec"]["nodeName"].as_str().map(|_| ()));
    scheduler
}

pub(crate) fn remove_all(placed: &Placed) {
    let path = format!("/api/v1/namespaces/{}/pods", placed.space.name);
    let _ = placed.admin.run(&["delete", "--raw", &path]).ok();
    eventually("the end of all pods", SETTLED, || placed.pods().is_empty().then_some(()));
}

/// Pods per second for this many pods, with this many events of the extender for each pod.
pub(crate) fn rate(placed: &Placed, extender: SocketAddr, pods: (usize, usize)) -> f64 {
    let scheduler = warm_scheduler(placed, extender);
    let rate = rate_of(placed, &scheduler, pods);
    drop(scheduler);
    remove_all(placed);
    rate
}

/// Pods per second, from the moment when kube-scheduler may begin until all pods are bound and their last event is written. An
/// event about a refused pod may be counted as one of these events.
fn rate_of(placed: &Placed, scheduler: &HostScheduler, (count, events_each): (usize, usize)) -> f64 {
    scheduler.signal("-STOP");
    create(placed, pods(0..count));
    let from = audit::end(&placed.cluster);
    let begun = Timestamp::now();
    scheduler.signal("-CONT");
    let ended = eventually("all pods bound and all events written", BOUND, || {
        std::thread::sleep(Duration::from_secs(1));
        let writes = audit::writes_of_extenders(&placed.cluster, from);
        let of = |what: &str| {
            let of_it = writes.iter().filter(|write| write.resource() == what);
            let mut ended: Vec<Timestamp> = of_it.map(audit::Call::ended).collect();
            ended.sort_unstable();
            ended
        };
        let (bound, events) = (of("pods"), of("events"));
        let last_bound = *bound.get(count - 1)?;
        match events_each * count {
            0 => Some(last_bound),
            all => events.get(all - 1).map(|last| last_bound.max(*last)),
        }
    });
    count as f64 / ended.duration_since(begun).as_secs_f64()
}

/// The seconds from the creation of each pod until it was bound, while this many pods per second are created.
fn paced(placed: &Placed, extender: SocketAddr, count: usize, rate: f64) -> Vec<f64> {
    /// Pods that are created with one call of kubectl.
    const TOGETHER: usize = 10;
    let scheduler = warm_scheduler(placed, extender);
    let from = audit::end(&placed.cluster);
    let begun = Instant::now();
    for first in (0..count).step_by(TOGETHER) {
        let due = Duration::from_secs_f64(first as f64 / rate);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        create(placed, pods(first..first + TOGETHER));
    }
    let bindings = eventually("all pods bound", BOUND, || {
        std::thread::sleep(Duration::from_secs(1));
        let writes = audit::writes_of_extenders(&placed.cluster, from);
        let bindings: Vec<_> = writes.into_iter().filter(|write| write.resource() == "pods").collect();
        (bindings.len() >= count).then_some(bindings)
    });
    let created = audit::created_pods(&placed.cluster, from);
    let created: BTreeMap<&str, Timestamp> = created.iter().map(|write| (write.name().1, write.ended())).collect();
    let waited = bindings.iter().map(|write| write.ended().duration_since(created[write.name().1]).as_secs_f64());
    let waited = waited.collect();
    drop(scheduler);
    remove_all(placed);
    waited
}

/// An extender for which every node fits equally well, and which names all nodes.
struct PassThrough {
    address: SocketAddr,
    _runtime: Runtime,
    _dir: TempDir,
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
            let client = Arc::new(ApiClient::new(connection));
            let router = axum::Router::new()
                .route("/filter", post(|body: Bytes| async move { as_json(&filter(&body)) }))
                .route("/prioritize", post(|body: Bytes| async move { as_json(&prioritize(&body)) }))
                .route("/bind", post(move |body: Bytes| async move { as_json(&bind(&client, &body).await) }))
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
    serde_json::from_slice(body).expect("a call of kube-scheduler")
}

fn prioritize(body: &[u8]) -> Value {
    let question = decoded(body);
    let names = question["NodeNames"].as_array().into_iter().flatten();
    names.map(|name| json!({ "Host": name, "Score": 0 })).collect()
}

fn filter(body: &[u8]) -> Value {
    let mut question = decoded(body);
    json!({ "Nodes": null, "NodeNames": question["NodeNames"].take(), "FailedNodes": {}, "Error": "" })
}

async fn bind(client: &ApiClient, body: &[u8]) -> Value {
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
    match client.bind_pod(&pod, &to, &binding).await {
        Ok(_) => json!({ "Error": "" }),
        Err(error) => json!({ "Error": error.to_string() }),
    }
}
