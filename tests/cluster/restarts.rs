//! Tests restarts and losses on a real cluster, with running pods and new pods. In each test no container gets the
//! devices of another container, and no slot is lost. Promise 28 in docs/specification.md.
//!
//! The kubelet fails a pod that it admits while no plugin is registered, and never retries an `Allocate` call that broke
//! off. Each test states which pods may fail because of its actions, and how many. No other pod may fail, and after
//! `settle` no pod may fail: Promise 38.
//!
//! `GPU_STEWARD_LONG=1` (`tests/run --long`) sets the counts of the record. An ordinary run repeats each action only as often
//! as needed to see a failure that always happens.

use crate::bed::{Bed, SOON};
use crate::fleet::{Fleet, check_all_containers};
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::relay::Relay;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Two GPUs of ten slots.
pub(crate) const TOTAL: usize = 20;
/// Longest time until pods run after a reboot, from the moment when the node is Ready.
const READY_AFTER_REBOOT: Duration = Duration::from_secs(60);

/// `ordinary`, or `long` in a long run.
pub(crate) fn number<T>(ordinary: T, long: T) -> T {
    if std::env::var_os("GPU_STEWARD_LONG").is_some() { long } else { ordinary }
}

/// A random number generator. It prints its seed; `GPU_STEWARD_SEED` repeats a run.
#[derive(Debug)]
struct RandomPauses(u64);

impl RandomPauses {
    fn new() -> RandomPauses {
        let given = std::env::var("GPU_STEWARD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(std::process::id()) ^ 0x9e37_79b9_7f4a_7c15);
        println!("GPU_STEWARD_SEED={seed}");
        RandomPauses(seed)
    }

    /// A random time below `bound` milliseconds (SplitMix64, Steele and others 2014).
    fn millis(&mut self, bound: u64) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_millis((z ^ (z >> 31)) % bound)
    }
}

/// Load on all processors until it is dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn all() -> Busy {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("sh");
        Busy((0..cores).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = (child.kill(), child.wait());
        }
    }
}

/// Kills the agent with SIGKILL and starts the next one.
fn kill(bed: &Bed, agent: Agent) -> Agent {
    agent.signal(9);
    drop(agent);
    bed.agent(&[])
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn containers_get_their_own_devices_although_the_agent_is_killed_again_and_again() {
    let bed = Bed::up("restart-kills");
    let mut agent = bed.agent(&[]);
    let (mut fleet, mut pauses) = (Fleet::new(&bed, &agent), RandomPauses::new());
    let kills = number(5, 100);
    for kill_number in 1..=kills {
        // The kubelet may be waiting for a call to the agent, or find no agent.
        fleet.add_pod_before_agent_end();
        std::thread::sleep(pauses.millis(600));
        agent = kill(&bed, agent);
        if kill_number % 10 == 0 {
            fleet.settle();
            fleet.delete_all_but(4);
        }
    }
    fleet.settle();
    fleet.check_all_slots(TOTAL);
    fleet.print_record(&format!("{kills} kills of the agent"));
}

/// The agent ends, by SIGTERM or by SIGKILL, while no start is in flight, and pods are created when the next agent is
/// registered: no pod fails. Promise 38 in docs/specification.md.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_agent_restarted_while_nothing_starts_fails_no_pod() {
    let bed = Bed::up("restart-quiet");
    let mut agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    fleet.add_pod();
    fleet.settle();
    for round in 0..number(2, 10) {
        if round % 2 == 0 {
            assert!(agent.terminate().status.success());
            agent = bed.agent(&[]);
        } else {
            agent = kill(&bed, agent);
        }
        fleet.add_pod();
        fleet.settle();
        fleet.delete_all_but(4);
    }
    fleet.check_all_slots(TOTAL);
    fleet.print_record("an agent restarted while nothing starts");
    drop(agent);
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn containers_get_their_own_devices_although_kubelet_and_runtime_are_killed() {
    let bed = Bed::up("restart-node");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..number(2, 10) {
        for part in ["kubelet", "containerd"] {
            fleet.add_pod();
            let before = Bed::registrations(&agent);
            bed.part("kill", part);
            bed.part("start", part);
            fleet.add_pod();
            if part == "kubelet" {
                // A starting kubelet admits every pod of its node again, and knows no plugin for a second or two. So all
                // existing pods may fail, including the newest one.
                fleet.may_fail(fleet.len(), &fleet.names());
                wait_for_registration(&agent, before);
            }
            bed.registered(&agent);
            // Settle after each part: a pod that a new kubelet fails must not be counted for a new containerd, which fails no
            // pod.
            fleet.settle();
        }
        fleet.delete_all_but(6);
    }
    fleet.check_all_slots(TOTAL);
    fleet.print_record("kubelet and containerd killed");
}

/// Waits until the plugin has been registered more than `before` times.
pub(crate) fn wait_for_registration(agent: &Agent, before: u64) {
    eventually("kubelet to know the plugin again", SOON, || (Bed::registrations(agent) > before).then_some(()));
}

/// No agent runs while pods are created and the processors are busy.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn an_agent_that_was_away_under_load_finds_every_slot_again() {
    let bed = Bed::exclusive("restart-away");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..4 {
        fleet.add_pod();
    }
    fleet.settle();
    let busy = Busy::all();
    agent.signal(9);
    drop(agent);
    let (began, away) = (Instant::now(), Duration::from_secs(number(15, 60)));
    while began.elapsed() < away {
        if fleet.len() < 10 {
            // The kubelet finds no plugin for this pod.
            let name = fleet.add_pod();
            fleet.may_fail(1, &[name]);
        }
        std::thread::sleep(Duration::from_secs(6));
    }
    let agent = bed.agent(&[]);
    fleet.settle();
    drop(busy);
    fleet.check_all_slots(TOTAL);
    fleet.print_record(&format!("agent away for {} s", away.as_secs()));
    drop(agent);
}

/// The machine is switched off and on: the kubelet starts first, with its checkpoint and with pods that it admits again; the
/// agent starts later.
#[test]
#[ignore = "needs cluster: tests/run"]
fn after_a_reboot_every_owned_pod_runs_again() {
    let bed = Bed::up("restart-reboot");
    let agent = bed.agent(&["--without-claim=share"]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..4 {
        fleet.add_pod();
    }
    bed.create(&deployment(&bed, "owned", 5));
    fleet.settle();
    let owned = || -> Vec<Value> {
        let list = bed.admin.get(&["pods", "-n", &bed.space.name, "-l", "app=owned"]);
        list["items"].as_array().expect("a list").clone()
    };
    let ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    eventually("the owned pods to be Ready", SOON, || (owned().iter().filter(ready).count() == 5).then_some(()));
    let before = started(&owned());
    agent.signal(9);
    drop(agent);
    bed.cluster.part("reboot", bed.node());
    let began = Instant::now();
    fleet.rebooted();
    // The kubelet starts before the agent and admits all pods again.
    fleet.may_fail(fleet.len(), &fleet.names());
    let agent = bed.agent(&["--without-claim=share"]);
    // The pods are Ready by the kubelet's status after the reboot, in containers that were started after it.
    eventually("every owned pod runs again", READY_AFTER_REBOOT.saturating_sub(began.elapsed()), || {
        let now = owned();
        let again: Vec<Value> = now.iter().filter(ready).cloned().collect();
        (again.len() == 5 && started(&again).is_disjoint(&before)).then_some(())
    });
    println!("5 owned pods run again {:.1} s after the node was Ready", began.elapsed().as_secs_f64());
    fleet.settle();
    fleet.check_all_slots(TOTAL);
    fleet.print_record("reboot");
    drop(agent);
}

/// The ids of the running containers.
fn started(pods: &[Value]) -> BTreeSet<String> {
    let states = pods.iter().filter_map(|pod| pod["status"]["containerStatuses"].as_array()).flatten();
    let running = states.filter(|state| state["state"]["running"].is_object());
    running.filter_map(|state| Some(state["containerID"].as_str()?.to_owned())).collect()
}

/// Pods without a claim, with an owner.
fn deployment(bed: &Bed, name: &str, replicas: u32) -> Value {
    let mut pod = bed.bare_pod(name, &[("main", "app", &[(0, 0, 0)])], &Value::Null);
    let spec = pod["spec"].take();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": bed.space.name },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": scheduled(bed, spec) },
        },
    })
}

/// A pod spec that the scheduler binds, with only this node to choose from.
fn scheduled(bed: &Bed, mut spec: Value) -> Value {
    spec.as_object_mut().expect("an object").remove("nodeName");
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": bed.node() });
    spec
}

/// The next agent starts while this one still runs, prepares beside it, and takes over when it ends (decision 0120).
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_new_agent_takes_over_from_the_old_one() {
    let bed = Bed::up("restart-upgrade");
    let mut agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..number(2, 20) {
        fleet.add_pod();
        let next = bed.launch(&[]);
        next.logs("another agent shares the GPUs of this node");
        // Here the old agent is stopped at once and does not drain, so one pod may fail. In tests/cluster/upgrade.rs no pod may
        // fail.
        fleet.add_pod_before_agent_end();
        agent.signal(15);
        drop(agent);
        agent = next;
        bed.registered(&agent);
        fleet.settle();
        fleet.delete_all_but(6);
    }
    fleet.check_all_slots(TOTAL);
    fleet.print_record("agents that overlap");
}

/// Largest own memory (`RssAnon`) of an agent with plugin and watch, in MiB.
const MEMORY: f64 = 18.0;

/// Bursts of 60 pods of two containers. The agent is killed once in the middle of each burst, when at most one container is
/// starting. Also promise 36 in docs/specification.md. In the record all processors are busy during the bursts.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn bursts_give_each_container_its_own_devices_although_the_agent_is_killed() {
    const PODS: usize = 60;
    const GPUS: usize = 8;
    let bed = Bed::exclusive("restart-bursts");
    let flag = format!("--gpus=simulated=H100:{GPUS}");
    let mut agent = bed.agent(&[&flag]);
    let mut fleet = Fleet::new(&bed, &agent);
    let (bursts, busy) = number((1, None), (20, Some(())));
    let busy = busy.map(|()| Busy::all());
    for burst in 0..bursts {
        if burst > 0 {
            fleet.delete_all_but(0);
            fleet.wait_for_deletions();
        }
        let began = Instant::now();
        fleet.burst(PODS);
        eventually("the first containers of the burst", SOON, || (starts(&agent, "filled") >= 10.0).then_some(()));
        // One admission may break off, and later ones find no plugin until the next agent is registered.
        let starting = fleet.starting();
        fleet.may_fail(starting.len(), &starting);
        agent.signal(9);
        drop(agent);
        agent = bed.agent(&[&flag]);
        fleet.settle();
        println!("{PODS} pods of 2 containers run {:.1} s after they were made", began.elapsed().as_secs_f64());
        let (own, resident) = (agent.anonymous_mib(), agent.resident_mib());
        println!("the agent holds {own:.1} MiB (RssAnon), {resident:.1} MiB (VmRSS)");
        assert!(own <= MEMORY, "{own} MiB, and the budget is {MEMORY}");
    }
    drop(busy);
    fleet.check_all_slots(GPUS * TOTAL / 2);
    fleet.print_record(&format!("{bursts} bursts of {PODS} pods of two containers, the agent killed in each"));
    drop(agent);
}

/// The pod is deleted once the kubelet's checkpoint has its GPUs, before its container runs.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_deleted_between_allocate_and_start_leaves_nothing() {
    let bed = Bed::up("restart-deleted");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    let checkpoint = bed.paths().checkpoint.clone();
    for _ in 0..number(5, 100) {
        let name = fleet.add_pod();
        let uid = bed.admin.get(&["pod", &name, "-n", &bed.space.name])["metadata"]["uid"]
            .as_str()
            .expect("a UID")
            .to_owned();
        eventually("the pod in the kubelet's checkpoint", SOON, || {
            std::fs::read_to_string(&checkpoint).ok()?.contains(&uid).then_some(())
        });
        fleet.delete_all_but(0);
    }
    fleet.wait_for_deletions();
    for _ in 0..4 {
        fleet.add_pod();
    }
    fleet.settle();
    fleet.check_all_slots(TOTAL);
    fleet.print_record("pods deleted between Allocate and start");
    drop(agent);
}

/// Two pod names are reused again and again, each time for a new pod with another claim, while the agent's watch is two
/// seconds late.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_recreated_pod_is_never_confused_with_the_earlier_one() {
    let bed = Bed::up("restart-recreated");
    let server = bed.cluster.status().server.trim_start_matches("https://").to_owned();
    let server = if server.contains(':') { server } else { server + ":443" };
    let relay = Relay::to(server.parse().expect("an address"), Duration::ZERO);
    let agent = bed.agent_over_relay(&relay, &[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..2 {
        fleet.add_pod();
    }
    fleet.settle();
    relay.delay(Duration::from_secs(2));
    let times = number(3, 100);
    for _ in 0..times {
        fleet.recreate_all();
        fleet.settle();
    }
    relay.delay(Duration::ZERO);
    fleet.check_all_slots(TOTAL);
    fleet.print_record(&format!("{times} times two pods made again under their names"));
}

/// The kubelet's checkpoint is garbage while pods are created, and missing at the kubelet's next start.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_garbage_checkpoint_gives_no_container_anothers_devices() {
    let bed = Bed::up("restart-checkpoint");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    let checkpoint = bed.paths().checkpoint.clone();
    for _ in 0..3 {
        fleet.add_pod();
    }
    fleet.settle();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = std::fs::write(&checkpoint, b"{\"Data\":{\"PodDeviceEntries\":[");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        for _ in 0..3 {
            fleet.add_pod();
        }
        let until = Instant::now() + Duration::from_secs(8);
        while Instant::now() < until {
            check_all_containers(&bed);
            std::thread::sleep(Duration::from_millis(500));
        }
        done.store(true, Ordering::Relaxed);
    });
    fleet.settle();
    let before = Bed::registrations(&agent);
    // A starting kubelet admits every pod of its node again.
    fleet.may_fail(fleet.len(), &fleet.names());
    bed.part("stop", "kubelet");
    std::fs::remove_file(&checkpoint).expect("the checkpoint exists");
    bed.part("start", "kubelet");
    // Without its checkpoint, a kubelet that does not know the plugin yet never calls `Allocate` for a pod
    // (docs/sharing.md).
    wait_for_registration(&agent, before);
    bed.registered(&agent);
    fleet.add_pod();
    fleet.settle();
    fleet.check_all_slots(TOTAL);
    fleet.print_record("the kubelet's checkpoint torn, then missing");
}

/// The number of starts with this outcome in the agent's metrics.
fn starts(agent: &Agent, outcome: &str) -> f64 {
    let text = agent.get("/metrics").text();
    let label = format!("outcome=\"{outcome}\"");
    let lines =
        text.lines().filter(|line| line.starts_with("gpu_steward_plugin_starts_total{") && line.contains(&label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// PodResources accepts connections but never answers. No start waits for it: each container starts at the kubelet's first
/// try.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_silent_pod_resources_service_delays_no_start() {
    let bed = Bed::up("restart-silent");
    let socket = bed.dir().join("silent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for caller in listener.incoming().map_while(Result::ok).take(1000) {
            open.push(caller);
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let flag = format!("--pod-resources-socket={}", socket.display());
    let agent = bed.agent(&[&flag]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..4 {
        fleet.add_pod();
    }
    fleet.settle();
    assert!(connections.load(Ordering::Relaxed) > 0, "no connection to PodResources");
    let each_once = |agent: &Agent, containers: u32| {
        eventually("the count of starts", SOON, || (starts(agent, "filled") >= f64::from(containers)).then_some(()));
        let ends = ["filled", "late", "refused", "failed"].map(|outcome| starts(agent, outcome));
        assert_eq!(ends, [f64::from(containers), 0.0, 0.0, 0.0], "filled, late, refused, failed");
    };
    // Four pods, each with an init container and an app container.
    each_once(&agent, 8);
    fleet.check_all_slots(TOTAL);
    drop(agent);
    let agent = bed.agent(&["--pod-resources-socket=/nonexistent/kubelet.sock"]);
    fleet.add_pod();
    fleet.settle();
    each_once(&agent, 2);
    drop(agent);
}

/// The agent's wall clock jumps an hour ahead and two hours back while pods are created.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_clock_that_jumps_gives_no_container_anothers_devices() {
    let bed = Bed::up("restart-clock");
    let (library, offset) = wall_clock(bed.dir());
    let agent = bed.agent_with_env(&[("LD_PRELOAD", &library), ("WALL_CLOCK_OFFSET", &offset)], &[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for seconds in [3600_i64, -3600, 0] {
        fleet.add_pod();
        // Written in place: the agent maps the file, and would crash if it read the file while it is truncated.
        let file = std::fs::File::options().write(true).open(&offset).expect("the clock's file");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("the clock can be set");
        fleet.add_pod();
        fleet.settle();
        bed.registered(&agent);
    }
    fleet.check_all_slots(TOTAL);
    fleet.print_record("a clock that jumps an hour either way");
    drop(agent);
}

/// A wall clock for the agent: the library to preload, and the file with its offset in seconds.
fn wall_clock(folder: &Path) -> (String, String) {
    let [library, source, offset] = ["wall_clock.so", "wall_clock.c", "offset"].map(|name| folder.join(name));
    std::fs::write(&source, include_str!("../node/wall_clock.c")).expect("the source is written");
    std::fs::write(&offset, 0_i64.to_ne_bytes()).expect("the offset is written");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]);
    assert!(cc.status().expect("cc is installed: Rust links with it").success());
    (library.display().to_string(), offset.display().to_string())
}
