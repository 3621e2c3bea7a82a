//! Restarts and losses, each on a real cluster with pods that run and pods that come. In all of them: no container has
//! what was promised to another, and no slot is lost. Promise 28 in docs/specification.md.
//!
//! kubelet fails a pod for good when it comes while no plugin is there, and never asks again where a call of `Allocate` broke off. Each
//! test says which pods may fail by what it does, and how many of them; no other may, and what may is over when all run again:
//! Promise 38.
//!
//! `GPU_STEWARD_LONG=1` (`tests/run --long`) makes the numbers those of the record: what every change must pass has to fit into
//! little more than an hour.

use crate::bed::{Bed, SOON};
use crate::fleet::{Fleet, everybody_has_his_own};
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
const TOTAL: usize = 20;
/// After a reboot, from the node's Ready.
const BACK: Duration = Duration::from_secs(60);

/// `ordinary`, or in a long run `long`.
fn number<T>(ordinary: T, long: T) -> T {
    if std::env::var_os("GPU_STEWARD_LONG").is_some() { long } else { ordinary }
}

/// Numbers that look random and are told, so that a failure can be had again: `GPU_STEWARD_SEED`.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn new() -> Dice {
        let given = std::env::var("GPU_STEWARD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(std::process::id()) ^ 0x9e37_79b9_7f4a_7c15);
        println!("GPU_STEWARD_SEED={seed}");
        Dice(seed)
    }

    /// Below `bound` milliseconds (SplitMix64, Steele and others 2014).
    fn millis(&mut self, bound: u64) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_millis((z ^ (z >> 31)) % bound)
    }
}

/// Somebody else's work on both processors, while it lives.
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

/// Ends it at once, in the middle of whatever it does, and starts the next one.
fn kill(bed: &Bed, agent: Agent) -> Agent {
    agent.signal(9);
    drop(agent);
    bed.agent(&[])
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn an_agent_killed_at_any_point_of_an_allocation_mistakes_nobody() {
    let bed = Bed::up("restart-kills");
    let mut agent = bed.agent(&[]);
    let (mut fleet, mut dice) = (Fleet::new(&bed, &agent), Dice::new());
    let kills = number(10, 100);
    for done in 1..=kills {
        // kubelet may be asking for it, or find nobody to ask.
        fleet.one_more_before_the_end();
        std::thread::sleep(dice.millis(600));
        agent = kill(&bed, agent);
        if done % 10 == 0 {
            fleet.settle();
            fleet.keep(4);
        }
    }
    fleet.settle();
    fleet.nothing_is_lost(TOTAL);
    fleet.tell(&format!("{kills} kills of the agent"));
}

/// No start is under way when the agent ends, by a signal or at once, and pods come when it is known again: none fails.
/// Promise 38 in docs/specification.md.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_agent_restarted_while_nothing_starts_fails_no_pod() {
    let bed = Bed::up("restart-quiet");
    let mut agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    fleet.one_more();
    fleet.settle();
    for round in 0..number(2, 10) {
        if round % 2 == 0 {
            assert!(agent.terminate().status.success());
            agent = bed.agent(&[]);
        } else {
            agent = kill(&bed, agent);
        }
        fleet.one_more();
        fleet.settle();
        fleet.keep(4);
    }
    fleet.nothing_is_lost(TOTAL);
    fleet.tell("an agent restarted while nothing starts");
    drop(agent);
}

/// The kubelet notices the end of the old connection and the next agent's registration at the same moment. Before 1.37 it
/// drops the plugin that it has when the old connection ends, so the next agent registers after that.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_kubelet_that_notices_an_end_late_keeps_the_next_agent() {
    let bed = Bed::up("restart-late-notice");
    let mut agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    for round in 0..number(3, 20) {
        bed.part("pause", "kubelet");
        agent.signal(9);
        drop(agent);
        agent = bed.launch(&[]);
        bed.part("resume", "kubelet");
        agent.logs("registered with kubelet");
        let name = format!("next-{round}");
        bed.create(&bed.pod(&name, &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
        bed.ready(&[&name]);
        assert_eq!(Bed::registrations(&agent), 1, "round {round}: {}", agent.log());
    }
    drop(agent);
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn kubelet_and_runtime_killed_mistake_nobody() {
    let bed = Bed::up("restart-node");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..number(2, 10) {
        for part in ["kubelet", "containerd"] {
            fleet.one_more();
            let before = Bed::registrations(&agent);
            bed.part("kill", part);
            bed.part("start", part);
            fleet.one_more();
            if part == "kubelet" {
                // When it starts it admits every pod of its node anew, and knows no plugin for a second or two: all that are there
                // may fail, and the one that has just come.
                fleet.may_fail(fleet.len(), &fleet.names());
                known_again(&agent, before);
            }
            bed.registered(&agent);
            // After each: what a new kubelet fails is not to be taken for what a new containerd does, which fails no pod.
            fleet.settle();
        }
        fleet.keep(6);
    }
    fleet.nothing_is_lost(TOTAL);
    fleet.tell("kubelet and containerd killed");
}

/// Waits until kubelet knows the plugin once more than `before`.
fn known_again(agent: &Agent, before: u64) {
    eventually("kubelet to know the plugin again", SOON, || (Bed::registrations(agent) > before).then_some(()));
}

/// What runs goes on while the API server is away, through a restart of the agent and one of kubelet; what comes after it
/// starts.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn an_api_server_that_is_away_changes_nothing() {
    let bed = Bed::alone("restart-api");
    let mut agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..6 {
        fleet.one_more();
    }
    fleet.settle();
    let began = Instant::now();
    let away = number(Duration::from_secs(45), Duration::from_secs(300));
    bed.cluster.part("kill", "apiserver");
    agent.signal(15);
    drop(agent);
    agent = bed.launch(&[]);
    std::thread::sleep(away.saturating_sub(began.elapsed()));
    // kubelet is not ready before the API server is: it goes while that is away and comes after it.
    let before = Bed::registrations(&agent);
    bed.part("kill", "kubelet");
    bed.cluster.part("start", "apiserver");
    // It admits every pod of its node anew, and knows no plugin for a second or two. Who comes after that may not fail.
    fleet.may_fail(fleet.len(), &fleet.names());
    bed.part("start", "kubelet");
    known_again(&agent, before);
    bed.registered(&agent);
    for _ in 0..4 {
        fleet.one_more();
    }
    fleet.settle();
    fleet.nothing_is_lost(TOTAL);
    fleet.tell(&format!("API server away for {} s", away.as_secs()));
}

/// The agent is away while pods come and processors are busy.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn an_agent_that_is_away_under_load_comes_back_to_whole_books() {
    let bed = Bed::alone("restart-away");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..4 {
        fleet.one_more();
    }
    fleet.settle();
    let busy = Busy::all();
    agent.signal(9);
    drop(agent);
    let (began, away) = (Instant::now(), Duration::from_secs(number(15, 60)));
    while began.elapsed() < away {
        if fleet.len() < 10 {
            // There is nobody whom kubelet could ask.
            let name = fleet.one_more();
            fleet.may_fail(1, &[name]);
        }
        std::thread::sleep(Duration::from_secs(6));
    }
    let agent = bed.agent(&[]);
    fleet.settle();
    drop(busy);
    fleet.nothing_is_lost(TOTAL);
    fleet.tell(&format!("agent away for {} s", away.as_secs()));
    drop(agent);
}

/// A machine that is switched off and on: kubelet comes first, with its checkpoint and pods to admit again; the agent later.
#[test]
#[ignore = "needs cluster: tests/run"]
fn after_a_reboot_every_owned_pod_runs_again() {
    let bed = Bed::up("restart-reboot");
    let agent = bed.agent(&["--without-claim=share"]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..4 {
        fleet.one_more();
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
    // kubelet comes before the agent and admits all of them anew.
    fleet.may_fail(fleet.len(), &fleet.names());
    let agent = bed.agent(&["--without-claim=share"]);
    // Ready as kubelet says after the reboot, of containers that were started after it.
    eventually("every owned pod runs again", BACK.saturating_sub(began.elapsed()), || {
        let now = owned();
        let again: Vec<Value> = now.iter().filter(ready).cloned().collect();
        (again.len() == 5 && started(&again).is_disjoint(&before)).then_some(())
    });
    println!("5 owned pods run again {:.1} s after the node was Ready", began.elapsed().as_secs_f64());
    fleet.settle();
    fleet.nothing_is_lost(TOTAL);
    fleet.tell("reboot");
    drop(agent);
}

/// The running containers, by their ids.
fn started(pods: &[Value]) -> BTreeSet<String> {
    let states = pods.iter().filter_map(|pod| pod["status"]["containerStatuses"].as_array()).flatten();
    let running = states.filter(|state| state["state"]["running"].is_object());
    running.filter_map(|state| Some(state["containerID"].as_str()?.to_owned())).collect()
}

/// Pods that no scheduler of ours placed, with an owner.
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

/// Left to the scheduler, which has this node to choose from.
fn scheduled(bed: &Bed, mut spec: Value) -> Value {
    spec.as_object_mut().expect("an object").remove("nodeName");
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": bed.node() });
    spec
}

/// The next version starts while this one still runs: it waits for its end, and kubelet has one plugin at every moment.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_new_agent_takes_over_from_the_old_one() {
    let bed = Bed::up("restart-upgrade");
    let mut agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..number(3, 20) {
        fleet.one_more();
        let next = bed.launch(&[]);
        next.logs("another agent shares the GPUs of this node");
        // The one that comes in the very moment in which kubelet has neither (tests/cluster/upgrade.rs counts how seldom that is).
        fleet.one_more_before_the_end();
        agent.signal(15);
        drop(agent);
        agent = next;
        bed.registered(&agent);
        fleet.settle();
        fleet.keep(6);
    }
    fleet.nothing_is_lost(TOTAL);
    fleet.tell("agents that overlap");
}

/// 60 pods of two containers at once while both processors are busy; without `GPU_STEWARD_LONG` 10.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn bursts_under_load_mistake_nobody() {
    let bed = Bed::alone("restart-bursts");
    let (bursts, pods, gpus) = number((3, 10, 2), (20, 60, 8));
    let agent = bed.agent(&[&format!("--gpus=simulated=H100:{gpus}")]);
    let mut fleet = Fleet::new(&bed, &agent);
    let busy = Busy::all();
    for _ in 0..bursts {
        fleet.burst(pods);
        fleet.settle();
        fleet.keep(0);
        fleet.gone();
    }
    drop(busy);
    fleet.nothing_is_lost(gpus * TOTAL / 2);
    fleet.tell(&format!("{bursts} bursts of {pods} pods of two containers"));
}

/// Deleted as soon as kubelet has written that it has GPUs, before its container runs.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_deleted_between_allocate_and_start_leaves_nothing() {
    let bed = Bed::up("restart-deleted");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    let books = bed.place().checkpoint.clone();
    for _ in 0..number(10, 100) {
        let name = fleet.one_more();
        let uid = bed.admin.get(&["pod", &name, "-n", &bed.space.name])["metadata"]["uid"]
            .as_str()
            .expect("a UID")
            .to_owned();
        eventually("the pod in kubelet's books", SOON, || {
            std::fs::read_to_string(&books).ok()?.contains(&uid).then_some(())
        });
        fleet.keep(0);
    }
    fleet.gone();
    for _ in 0..4 {
        fleet.one_more();
    }
    fleet.settle();
    fleet.nothing_is_lost(TOTAL);
    fleet.tell("pods deleted between Allocate and start");
    drop(agent);
}

/// The same names again and again, each time another pod with another claim, while our watch tells everything two seconds late.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_recreated_pod_is_never_taken_for_its_forerunner() {
    let bed = Bed::up("restart-recreated");
    let server = bed.cluster.status().server.trim_start_matches("https://").to_owned();
    let server = if server.contains(':') { server } else { server + ":443" };
    let relay = Relay::to(server.parse().expect("an address"), Duration::ZERO);
    let agent = bed.agent_by(&relay, &[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..2 {
        fleet.one_more();
    }
    fleet.settle();
    relay.delay(Duration::from_secs(2));
    let times = number(10, 100);
    for _ in 0..times {
        fleet.again();
        fleet.settle();
    }
    relay.delay(Duration::ZERO);
    fleet.nothing_is_lost(TOTAL);
    fleet.tell(&format!("{times} times two pods made again under their names"));
}

/// kubelet's books are garbage while pods come, and gone at kubelet's next start.
#[test]
#[ignore = "needs cluster: tests/run"]
fn garbage_in_kubelets_books_gives_nobody_what_is_anothers() {
    let bed = Bed::up("restart-books");
    let agent = bed.agent(&[]);
    let mut fleet = Fleet::new(&bed, &agent);
    let books = bed.place().checkpoint.clone();
    for _ in 0..3 {
        fleet.one_more();
    }
    fleet.settle();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = std::fs::write(&books, b"{\"Data\":{\"PodDeviceEntries\":[");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        for _ in 0..3 {
            fleet.one_more();
        }
        let until = Instant::now() + Duration::from_secs(8);
        while Instant::now() < until {
            everybody_has_his_own(&bed);
            std::thread::sleep(Duration::from_millis(500));
        }
        done.store(true, Ordering::Relaxed);
    });
    fleet.settle();
    let before = Bed::registrations(&agent);
    // kubelet admits every pod of its node anew when it starts.
    fleet.may_fail(fleet.len(), &fleet.names());
    bed.part("stop", "kubelet");
    std::fs::remove_file(&books).expect("the books are there");
    bed.part("start", "kubelet");
    // Without books a kubelet that does not know the plugin yet asks nobody for a pod's devices (docs/sharing.md).
    known_again(&agent, before);
    bed.registered(&agent);
    fleet.one_more();
    fleet.settle();
    fleet.nothing_is_lost(TOTAL);
    fleet.tell("kubelet's books torn, then gone");
}

/// How often a start ended so, by the agent's metrics.
fn starts(agent: &Agent, outcome: &str) -> f64 {
    let text = agent.get("/metrics").text();
    let wanted = format!("outcome=\"{outcome}\"");
    let lines =
        text.lines().filter(|line| line.starts_with("gpu_steward_plugin_starts_total{") && line.contains(&wanted));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// PodResources accepts and never answers; nothing waits for it: each container starts at kubelet's first try.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_silent_pod_resources_service_holds_up_nobody() {
    let bed = Bed::up("restart-silent");
    let socket = bed.dir().join("silent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for caller in listener.incoming().map_while(Result::ok).take(1000) {
            held.push(caller);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let flag = format!("--pod-resources-socket={}", socket.display());
    let agent = bed.agent(&[&flag]);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..4 {
        fleet.one_more();
    }
    fleet.settle();
    assert!(asked.load(Ordering::Relaxed) > 0, "nobody has asked there");
    let each_once = |agent: &Agent, containers: u32| {
        eventually("the count of starts", SOON, || (starts(agent, "filled") >= f64::from(containers)).then_some(()));
        let ends = ["filled", "late", "refused", "failed"].map(|outcome| starts(agent, outcome));
        assert_eq!(ends, [f64::from(containers), 0.0, 0.0, 0.0], "filled, late, refused, failed");
    };
    // Four pods, each with an init container and an app.
    each_once(&agent, 8);
    fleet.nothing_is_lost(TOTAL);
    drop(agent);
    let agent = bed.agent(&["--pod-resources-socket=/nonexistent/kubelet.sock"]);
    fleet.one_more();
    fleet.settle();
    each_once(&agent, 2);
    drop(agent);
}

/// The agent's wall clock jumps an hour ahead and two back while pods come.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_clock_that_jumps_mistakes_nobody() {
    let bed = Bed::up("restart-clock");
    let (library, offset) = wall_clock(bed.dir());
    let agent = bed.agent_with(&[("LD_PRELOAD", &library), ("WALL_CLOCK_OFFSET", &offset)], &[]);
    let mut fleet = Fleet::new(&bed, &agent);
    for seconds in [3600_i64, -3600, 0] {
        fleet.one_more();
        // In place: the agent has the file mapped, and one that is made empty first ends who reads it at that moment.
        let file = std::fs::File::options().write(true).open(&offset).expect("the clock's file");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("the clock can be set");
        fleet.one_more();
        fleet.settle();
        bed.registered(&agent);
    }
    fleet.nothing_is_lost(TOTAL);
    fleet.tell("a clock that jumps an hour either way");
    drop(agent);
}

/// A wall clock of the agent's own: the library to preload, and the file that holds its offset in seconds.
fn wall_clock(folder: &Path) -> (String, String) {
    let [library, source, offset] = ["wall_clock.so", "wall_clock.c", "offset"].map(|name| folder.join(name));
    std::fs::write(&source, include_str!("../node/wall_clock.c")).expect("the source is written");
    std::fs::write(&offset, 0_i64.to_ne_bytes()).expect("the offset is written");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]);
    assert!(cc.status().expect("cc is installed: Rust links with it").success());
    (library.display().to_string(), offset.display().to_string())
}
