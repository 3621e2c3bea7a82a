//! Everything that a user of the cluster may try against the extender, at the same time and for ten minutes, while other pods
//! are created at a held pace and bound. The Nodes exist only as objects.
//!
//! The attacks load the API server too, so they cost pods that the extender does not lose. A pass-through extender among the same
//! attacks shows how many pods the machine can bind then, and the pace is below that. So at this pace only a slower extender binds
//! fewer pods than without attacks. Times with and without attacks take turns.

use crate::audit;
use crate::placed::{Placed, SETTLED};
use crate::seats::HostExtender;
use crate::throughput::{
    GPU_MIB, GPUS, add_nodes, create, pod, quantile, rate, remove_all, warm_scheduler, with_ours, with_pass_through,
};
use hyper::Request;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use lab::eventually::eventually;
use lab::slow_reader;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const NODES: usize = 1_000;
/// Times with attacks, each after one without.
const TURNS: usize = 3;
/// How long pods are bound without attacks, in each turn.
const ALONE: Duration = Duration::from_secs(60);
/// The same among attacks: ten minutes in all turns.
const ATTACKED: Duration = Duration::from_secs(200);
/// How long the pass-through binds pods among attacks.
const CONTROL: Duration = Duration::from_secs(60);
/// The pace is at most this share of the pods that the pass-through binds among attacks: the rest is what the extender itself may
/// need more than the pass-through.
const CARRIED: f64 = 0.8;
/// The share of the pace at which pods must really be created, with and without attacks. At a lower one the number of bound pods
/// would depend on whoever creates them.
const HELD: f64 = 0.9;
/// The share of the pods a second that must remain among attacks.
const REMAINS: f64 = 0.8;
/// The longest time, in seconds, from the creation of a pod to its binding for 99 of 100 pods among attacks. A container takes
/// about as long to start, and an extender that cannot keep the pace makes pods wait longer and longer.
const WAIT: f64 = 2.0;
/// The largest memory of the extender in all this time, in MiB.
const MEMORY: u64 = 128;
/// Clients that read nothing of their answers.
const READERS: usize = 300;
/// Connections that create pods. They hold a pace of 100 a second while an answer takes less than 80 ms.
const CONNECTIONS: usize = 16;
/// Pods that are there at the same time: those of the last ten seconds at 100 a second.
const KEPT: usize = 1_000;

#[test]
#[ignore = "takes 20 minutes and a cluster: tests/run --long"]
fn a_user_who_tries_everything_at_once_neither_stops_nor_slows_the_extender() {
    let placed = Placed::control_plane("extender-attacked");
    placed.allows_any_shape();
    add_nodes(&placed, 0..NODES);
    for (name, value) in [("low", 10), ("high", 1000)] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value,
        });
        let _ = placed.admin.run_with(&["apply", "-f", "-"], &class.to_string()).ok();
    }
    let pace = pace(&placed);
    let extender = HostExtender::start_measured(&placed);
    extender.wait_until_leads();
    let _scheduler = warm_scheduler(&placed, extender.address);
    let attacks = Attacks::on(&placed, extender.address);
    let (mut alone, mut attacked) = (Bound::default(), Bound::default());
    for turn in 0..TURNS {
        let name = format!("alone-{turn}");
        alone.add(bound(&placed, &name, pace, ALONE));
        remove(&placed, &name);
        let name = format!("attacked-{turn}");
        attacked.add(attacks.beside(|| bound(&placed, &name, pace, ATTACKED)));
        placed.check_claims(extender.address);
        remove(&placed, &name);
    }
    let most = peak_memory(extender.pid()) >> 10;
    let rounds = attacks.rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
    alone.print("alone");
    attacked.print("among attacks");
    let (remains, wait) = (attacked.rate() / alone.rate(), attacked.wait(99));
    println!(
        "pods a second among attacks: {remains:.3} of those without (at least {REMAINS}); 99 of 100 are bound within {wait:.3} s (limit \
         {WAIT}); at most {most} MiB (limit {MEMORY}); rounds of the attacks {rounds:?}"
    );
    assert!(rounds.iter().all(|rounds| *rounds >= 5), "{rounds:?}");
    let log = extender.log();
    assert!(extender.leads() && log.matches("won the election").count() == 1, "{log}");
    let held = [&alone, &attacked].map(|pods| pods.created_rate() / pace);
    assert!(held.iter().all(|share| *share >= HELD), "the pace was not held: {held:?}");
    assert!(remains >= REMAINS && wait <= WAIT && most <= MEMORY);
}

/// Pods a second: half of the possible rate, and less if the machine cannot bind so many among attacks.
fn pace(placed: &Placed) -> f64 {
    let half = with_ours(placed, |address| rate(placed, address, (500, 2))) / 2.0;
    let control = with_pass_through(placed, |address| {
        let scheduler = warm_scheduler(placed, address);
        let control = Attacks::on(placed, address).beside(|| bound(placed, "control", half, CONTROL));
        drop(scheduler);
        remove_all(placed);
        control
    });
    let pace = half.min(CARRIED * control.rate());
    println!(
        "half of the possible rate: {half:.1} pods a second; a pass-through extender among attacks binds {:.1}; the pace: {pace:.1}",
        control.rate()
    );
    pace
}

/// The largest memory of a process so far, in KiB.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the extender runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Pods that were created in some time, and those of them that were bound in this time.
#[derive(Default)]
struct Bound {
    seconds: f64,
    created: usize,
    bound: usize,
    /// The seconds from the creation of each pod until it was bound, or until the end of the time.
    waits: Vec<f64>,
}

impl Bound {
    fn add(&mut self, other: Bound) {
        self.seconds += other.seconds;
        self.created += other.created;
        self.bound += other.bound;
        self.waits.extend(other.waits);
    }

    /// Pods that were created a second.
    fn created_rate(&self) -> f64 {
        self.created as f64 / self.seconds
    }

    /// Pods that were bound a second.
    fn rate(&self) -> f64 {
        self.bound as f64 / self.seconds
    }

    /// How long this percentage of the pods waited at most.
    fn wait(&mut self, percent: usize) -> f64 {
        quantile(&mut self.waits, percent)
    }

    fn print(&mut self, when: &str) {
        let [half, most] = [50, 99].map(|percent| self.wait(percent));
        println!(
            "{when}: in {:.0} s {} pods were created ({:.1} a second) and {} bound ({:.1}); 50 and 99 of 100 within {half:.3} and {most:.3} s",
            self.seconds,
            self.created,
            self.created_rate(),
            self.bound,
            self.rate(),
        );
    }
}

/// Creates pods at this pace, and counts those that are bound meanwhile.
fn bound(placed: &Placed, name: &str, pace: f64, lasts: Duration) -> Bound {
    let (from, begun) = (audit::end(&placed.cluster), Instant::now());
    create_paced(placed, name, pace, lasts);
    let (seconds, last) = (begun.elapsed().as_secs_f64(), Timestamp::now());
    let start = format!("{name}-");
    let own = |call: &&audit::Call| call.succeeded() && call.name().1.starts_with(&start);
    let created = audit::created_pods(&placed.cluster, from);
    let writes = audit::writes_of_extenders(&placed.cluster, from);
    let bindings = writes.iter().filter(own).filter(|write| write.verb_and_subresource() == "create binding");
    let bindings: BTreeMap<&str, Timestamp> =
        bindings.filter(|write| write.ended() <= last).map(|write| (write.name().1, write.ended())).collect();
    let waited = |write: &audit::Call| {
        let until = bindings.get(write.name().1).copied().unwrap_or(last);
        until.duration_since(write.ended()).as_secs_f64()
    };
    let waits: Vec<f64> = created.iter().filter(own).map(waited).collect();
    let mut bound = Bound { seconds, created: waits.len(), bound: bindings.len(), waits };
    bound.print(name);
    bound
}

/// Creates pods at this pace, and deletes the oldest ones beyond [`KEPT`]. The connections are kept: the calls of kubectl for as
/// many pods would take more processor time than the API server.
fn create_paced(placed: &Placed, name: &str, pace: f64, lasts: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pods = format!("/api/v1/namespaces/{}/pods", placed.space.name);
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(&placed.cluster.status().kubeconfig).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        let (begun, next) = (Instant::now(), AtomicUsize::new(0));
        let creation = Arc::new(Creation { client, pods, name: name.to_owned(), pace, begun, lasts, next });
        let mut connections = JoinSet::new();
        for _ in 0..CONNECTIONS {
            connections.spawn(Arc::clone(&creation).go_on());
        }
        connections.join_all().await;
    });
}

/// Pods that several connections create in turn.
struct Creation {
    client: Client,
    /// The path of all pods of the namespace.
    pods: String,
    name: String,
    pace: f64,
    begun: Instant,
    lasts: Duration,
    /// The number of the next pod.
    next: AtomicUsize,
}

impl Creation {
    /// Creates pods when they are due, until the end of the time.
    async fn go_on(self: Arc<Creation>) {
        let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000 });
        while self.begun.elapsed() < self.lasts {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let due = Duration::from_secs_f64(number as f64 / self.pace).min(self.lasts);
            tokio::time::sleep(due.saturating_sub(self.begun.elapsed())).await;
            let pod = labelled(&self.name, pod(&format!("{}-{number}", self.name), &share));
            let create = Request::post(&self.pods).header("content-type", "application/json");
            self.send(create.body(pod.to_string().into_bytes())).await;
            if let Some(old) = number.checked_sub(KEPT) {
                let delete = Request::delete(format!("{}/{}-{old}", self.pods, self.name));
                self.send(delete.body(Vec::new())).await;
            }
        }
    }

    /// Sends a request. The audit log says whether it succeeded.
    async fn send(&self, request: hyper::http::Result<Request<Vec<u8>>>) {
        let _ = self.client.request_text(request.expect("a request")).await;
    }
}

/// Gives a pod this label `app`.
fn labelled(app: &str, mut pod: Value) -> Value {
    pod["metadata"]["labels"]["app"] = app.into();
    pod
}

/// Deletes the pods of this label `app`.
fn delete(placed: &Placed, app: &str) {
    let selector = format!("app={app}");
    let _ = placed.admin.run(&["delete", "pods", "-n", &placed.space.name, "-l", &selector, "--wait=false"]).ok();
}

/// Deletes the pods of this label `app` with one call, and waits for their end.
fn remove(placed: &Placed, app: &str) {
    let (space, selector) = (&placed.space.name, format!("app={app}"));
    let path = format!("/api/v1/namespaces/{space}/pods?labelSelector=app%3D{app}");
    let _ = placed.admin.run(&["delete", "--raw", &path]).ok();
    eventually("the end of these pods", SETTLED, || {
        placed.admin.get(&["pods", "-n", space, "-l", &selector])["items"].as_array()?.is_empty().then_some(())
    });
}

/// What the user does, one round of each at a time.
struct Attacks<'a> {
    placed: &'a Placed,
    extender: SocketAddr,
    ended: AtomicBool,
    /// How often each of [`Attacks::ALL`] was carried out.
    rounds: [AtomicUsize; 6],
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Attacks<'a> {
    /// Attacks on the extender at this address.
    fn on(placed: &'a Placed, extender: SocketAddr) -> Attacks<'a> {
        Attacks { placed, extender, ended: AtomicBool::new(true), rounds: Default::default() }
    }

    /// Carries out all attacks again and again while this work is done.
    fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.ended.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            // Ends the attacks also after a panic, so that the scope ends.
            let _end = EndOnDrop(&self.ended);
            for (attack, rounds) in Attacks::ALL.into_iter().zip(&self.rounds) {
                scope.spawn(move || {
                    while !self.ended.load(Ordering::Relaxed) {
                        attack(self);
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            work()
        })
    }
}

impl Attacks<'_> {
    const ALL: [fn(&Attacks<'_>); 6] = [
        |attacks| attacks.escaped(),
        |attacks| attacks.full(),
        |attacks| attacks.by_hand(),
        |attacks| attacks.gangs(),
        |attacks| attacks.preempting(),
        |attacks| attacks.readers(),
    ];

    /// Pauses unless the attacks have ended.
    fn pause(&self, seconds: u64) {
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until && !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Creates these pods, waits, and deletes them.
    fn keep(&self, app: &str, pods: Vec<Value>, seconds: u64) {
        create(self.placed, pods.into_iter().map(|pod| labelled(app, pod)).collect());
        self.pause(seconds);
        delete(self.placed, app);
        self.pause(1);
    }

    /// Pods whose JSON is six times as long as they are: 36 MiB together.
    fn escaped(&self) {
        let one = |number: usize| {
            let mut pod = pod(&format!("escaped-{number}"), &json!({}));
            pod["metadata"]["annotations"] = json!({ "a": "<".repeat(256 * 1024 - 1) });
            pod["spec"]["schedulerName"] = "nobody".into();
            labelled("escaped", pod)
        };
        let pods: Vec<Value> = (0..24).map(one).collect();
        pods.chunks(4).for_each(|some| create(self.placed, some.to_vec()));
        self.keep("escaped", Vec::new(), 20);
    }

    /// Pods whose annotations have no room for a claim.
    fn full(&self) {
        let one = |number: usize| {
            let mut pod = pod(&format!("full-{number}"), &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000 }));
            pod["metadata"]["annotations"] = json!({ "a": "x".repeat(262_099) });
            pod
        };
        self.keep("full", (0..2).map(one).collect(), 5);
    }

    /// Pods that name their node themselves.
    fn by_hand(&self) {
        let one = |number: usize| {
            let mut pod = pod(&format!("hand-{number}"), &json!({ "nvidia.com/gpu": 1 }));
            pod["spec"]["nodeName"] = format!("object-{}", NODES - 1 - number).into();
            pod
        };
        self.keep("hand", (0..10).map(one).collect(), 5);
    }

    /// A gang that is larger than the node for which all of its members ask.
    fn gangs(&self) {
        let one = |number: usize| {
            let mut pod = whole(&format!("gang-{number}"), 1, 1);
            pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "gang".into();
            pod
        };
        self.keep("gang", (0..=GPUS).map(one).collect(), 10);
    }

    /// A pod that takes its node from a pod of lower priority.
    fn preempting(&self) {
        let with = |name: &str| {
            let mut pod = whole(&format!("{name}-priority"), GPUS, 0);
            pod["spec"]["priorityClassName"] = name.into();
            labelled("priority", pod)
        };
        create(self.placed, vec![with("low")]);
        self.pause(3);
        self.keep("priority", vec![with("high")], 7);
    }

    /// Clients that read nothing.
    fn readers(&self) {
        let one = |number: usize| {
            let from = Ipv4Addr::new(127, 0, 1, u8::try_from(number % 200 + 1).unwrap_or(1));
            slow_reader::ask(from, self.extender, "/metrics/hami").ok()
        };
        let readers: Vec<TcpStream> = (0..READERS).filter_map(one).collect();
        self.pause(8);
        drop(readers);
    }
}

/// A pod that asks for this many whole GPUs of one node.
fn whole(name: &str, gpus: usize, node: usize) -> Value {
    let mut pod = pod(name, &json!({ "nvidia.com/gpu": gpus, "nvidia.com/gpumem": GPU_MIB }));
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": format!("object-{node}") });
    pod
}
