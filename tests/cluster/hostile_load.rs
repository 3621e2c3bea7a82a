//! Everything that a user of the cluster may try against the extender, at the same time and for ten minutes, while other pods
//! are bound at half of the possible rate. The Nodes exist only as objects.

use crate::audit;
use crate::placed::Placed;
use crate::seats::HostExtender;
use crate::throughput::{GPU_MIB, GPUS, add_nodes, create, pod, quantile, rate, warm_scheduler, with_ours};
use jiff::Timestamp;
use lab::slow_reader;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const NODES: usize = 1_000;
/// How long pods are bound without attacks, for comparison.
const ALONE: Duration = Duration::from_secs(180);
const ATTACKED: Duration = Duration::from_secs(600);
/// The share of the pods that must be bound while they are created, compared with the same without attacks. The number of pods a
/// second says little: on two cores the attacks, the API server and the calls that create the pods take time from each other.
const REMAINS: f64 = 0.8;
/// The largest memory of the extender in all this time, in MiB.
const MEMORY: u64 = 128;
/// Clients that read nothing of their answers.
const READERS: usize = 300;
/// Pods that are created together.
const TOGETHER: usize = 20;
/// Pods of a finished batch are deleted after this many batches.
const KEPT: usize = 60;

#[test]
#[ignore = "takes 20 minutes and a cluster: tests/run --long"]
fn a_user_who_tries_everything_at_once_neither_stops_nor_slows_the_extender() {
    let placed = Placed::control_plane("extender-attacked");
    add_nodes(&placed, 0..NODES);
    for (name, value) in [("low", 10), ("high", 1000)] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value,
        });
        let _ = placed.admin.run_with(&["apply", "-f", "-"], &class.to_string()).ok();
    }
    let pace = with_ours(&placed, |address| rate(&placed, address, (500, 2))) / 2.0;
    let extender = HostExtender::start_measured(&placed);
    extender.wait_until_leads();
    let _scheduler = warm_scheduler(&placed, extender.address);
    let alone = bound_share(&placed, "alone", pace, ALONE);
    let attacks = Attacks { placed: &placed, extender: extender.address, ended: AtomicBool::new(false) };
    let rounds: [AtomicUsize; 6] = Default::default();
    let attacked = std::thread::scope(|scope| {
        // Ends the attacks also after a panic, so that the scope ends.
        let _end = EndOnDrop(&attacks.ended);
        for (attack, rounds) in Attacks::ALL.into_iter().zip(&rounds) {
            let attacks = &attacks;
            scope.spawn(move || {
                while !attacks.ended.load(Ordering::Relaxed) {
                    attack(attacks);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        bound_share(&placed, "attacked", pace, ATTACKED)
    });
    let most = peak_memory(extender.pid()) >> 10;
    let rounds = rounds.map(AtomicUsize::into_inner);
    println!(
        "share of the pods that are bound while they are created: {alone:.3} alone, {attacked:.3} among attacks (at least {REMAINS} of \
         it); at most {most} MiB (limit {MEMORY}); rounds of the attacks {rounds:?}"
    );
    assert!(rounds.iter().all(|rounds| *rounds >= 5), "{rounds:?}");
    placed.check_claims(extender.address);
    let log = extender.log();
    assert!(extender.leads() && log.matches("won the election").count() == 1, "{log}");
    assert!(attacked >= REMAINS * alone && most <= MEMORY);
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The largest memory of a process so far, in KiB.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the extender runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Creates up to this many pods a second, and deletes those of earlier batches. Returns the share of them that was bound by the end.
fn bound_share(placed: &Placed, name: &str, pace: f64, lasts: Duration) -> f64 {
    let (from, begun) = (audit::end(&placed.cluster), Instant::now());
    let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000 });
    let batch = |number: usize| format!("{name}-{number}");
    let mut made = 0;
    while begun.elapsed() < lasts {
        let due = Duration::from_secs_f64((made * TOGETHER) as f64 / pace);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let pods = (0..TOGETHER).map(|number| labelled(&batch(made), pod(&format!("{name}-{made}-{number}"), &share)));
        create(placed, pods.collect());
        made += 1;
        if made > KEPT {
            delete(placed, &batch(made - KEPT - 1));
        }
    }
    let (seconds, last) = (begun.elapsed().as_secs_f64(), Timestamp::now());
    let own = |write: &audit::Call| write.name().1.starts_with(name);
    let created = audit::created_pods(&placed.cluster, from);
    let created: BTreeMap<&str, Timestamp> =
        created.iter().filter(|write| own(write)).map(|write| (write.name().1, write.ended())).collect();
    let writes = audit::writes_of_extenders(&placed.cluster, from);
    let binds = writes.iter().filter(|write| write.verb_and_subresource() == "create binding" && own(write));
    let binds = binds.filter(|write| write.ended() <= last);
    let mut waits: Vec<f64> = binds
        .filter_map(|write| Some(write.ended().duration_since(*created.get(write.name().1)?).as_secs_f64()))
        .collect();
    let bound = waits.len();
    println!(
        "{name}: {} pods created and {bound} bound in {seconds:.0} s ({:.1} a second of {pace:.1}); 50 and 99 of 100 within {:.3} and {:.3} s",
        created.len(),
        bound as f64 / seconds,
        quantile(&mut waits, 50),
        quantile(&mut waits, 99),
    );
    bound as f64 / created.len() as f64
}

/// Gives a pod this label `app`.
fn labelled(app: &str, mut pod: Value) -> Value {
    pod["metadata"]["labels"]["app"] = app.into();
    pod
}

fn delete(placed: &Placed, app: &str) {
    let selector = format!("app={app}");
    let _ = placed.admin.run(&["delete", "pods", "-n", &placed.space.name, "-l", &selector, "--wait=false"]).ok();
}

/// What the user does, one round of each at a time.
struct Attacks<'a> {
    placed: &'a Placed,
    extender: SocketAddr,
    ended: AtomicBool,
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
