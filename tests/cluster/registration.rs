//! Both ways in which the real kubelet comes to know the plugin, and comes to know it again.

use crate::bed::{Bed, SOON, promised};
use crate::stub::Stub;
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Two GPUs of ten slots.
const TOTAL: u32 = 20;
/// Longer than the other way waits for its turn.
const SETTLED: Duration = Duration::from_secs(15);

/// A place in kubelet's log, from which its words are counted.
struct KubeletLog(PathBuf, usize);

impl KubeletLog {
    fn from_now(bed: &Bed) -> KubeletLog {
        let kubelet = format!("{}-kubelet", bed.node());
        let part = bed.cluster.status().parts.iter().find(|part| part.name == kubelet).expect("kubelet");
        let len = std::fs::read(&part.log).expect("kubelet's log").len();
        KubeletLog(part.log.clone(), len)
    }

    /// How often it was called by `Register`.
    fn registers(&self) -> usize {
        let log = std::fs::read(&self.0).expect("kubelet's log");
        let log = String::from_utf8_lossy(&log[self.1..]).into_owned();
        log.matches("Got registration request from device plugin").count()
    }
}

fn allocatable(bed: &Bed) -> u32 {
    bed.told()["status"]["allocatable"]["nvidia.com/gpu"].as_str().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Until the Node offers nothing of an earlier agent.
fn nothing_is_offered(bed: &Bed) {
    eventually("a node without GPUs", SOON, || (allocatable(bed) == 0).then_some(()));
}

fn all_is_offered(bed: &Bed) {
    eventually("all slots on the node", SOON, || (allocatable(bed) == TOTAL).then_some(()));
}

/// The way it is registered, once it is, and how often that has been.
fn registered(agent: &Agent) -> (String, u64) {
    eventually("a registration", SOON, || {
        let node: Value = serde_json::from_str(&agent.get("/api/v1/node").text()).expect("JSON");
        Some((node["plugin"]["way"].as_str()?.to_owned(), Bed::registrations(agent)))
    })
}

/// It is registered for the `n`th time, this way.
fn is_registered(agent: &Agent, way: &str, times: u64) {
    eventually(&format!("registration {times}"), SOON, || (registered(agent).1 >= times).then_some(()));
    assert_eq!(registered(agent), (way.to_owned(), times), "{}", agent.log());
}

/// Nothing moves for a while: no second registration, no slot that comes and goes.
fn stays(bed: &Bed, agent: &Agent, way: &str, times: u64) {
    let began = Instant::now();
    while began.elapsed() < SETTLED {
        assert_eq!(registered(agent), (way.to_owned(), times), "{}", agent.log());
        assert_eq!(allocatable(bed), TOTAL);
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Our sockets in the plugin folder and in the registry.
fn sockets(bed: &Bed) -> [Vec<String>; 2] {
    let node = bed.place();
    [&node.plugins, &node.kubelet.join("plugins_registry")].map(|folder| {
        let names = std::fs::read_dir(folder).expect("a folder").flatten();
        let names = names.map(|file| file.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("gpu-steward")).collect()
    })
}

/// One more pod gets its share, and those before it keep theirs.
fn a_pod_gets_its_share(bed: &Bed, gpus: &[String], pods: &mut Vec<String>) {
    let number = pods.len();
    let mib = |number: usize| 1000 + number as u64;
    let name = format!("pod-{number}");
    bed.create(&bed.pod(&name, gpus, &[("main", "app", &[(number % 2, mib(number), 5)])], &Value::Null));
    pods.push(name);
    bed.ready(&pods.iter().map(String::as_str).collect::<Vec<_>>());
    for (number, name) in pods.iter().enumerate() {
        assert_eq!(promised(&bed.limits(name, "main")), [(gpus[number % 2].clone(), mib(number) * MIB)], "{name}");
    }
}

/// Registered, used, and registered again after kubelet's restart and the agent's own death.
fn lives_through_restarts(bed: &Bed, way: &str, flags: &[&str]) {
    let log = KubeletLog::from_now(bed);
    let agent = bed.agent(flags);
    is_registered(&agent, way, 1);
    all_is_offered(bed);
    let (gpus, mut pods) = (Bed::gpus(&agent), Vec::new());
    a_pod_gets_its_share(bed, &gpus, &mut pods);
    let [plugins, registry] = sockets(bed);
    let expect = if way == "watcher" { (0, 1) } else { (1, 0) };
    assert_eq!((plugins.len(), registry.len()), expect, "{plugins:?} {registry:?}");
    stays(bed, &agent, way, 1);

    bed.part("stop", "kubelet");
    let began = Instant::now();
    bed.part("start", "kubelet");
    is_registered(&agent, way, 2);
    println!("{way}: known again {} ms after kubelet's start", began.elapsed().as_millis());
    all_is_offered(bed);
    a_pod_gets_its_share(bed, &gpus, &mut pods);

    // With no time to clean up: its socket stays where it lay.
    agent.signal(9);
    drop(agent);
    nothing_is_offered(bed);
    let agent = bed.agent(flags);
    is_registered(&agent, way, 1);
    all_is_offered(bed);
    a_pod_gets_its_share(bed, &gpus, &mut pods);
    stays(bed, &agent, way, 1);
    assert_eq!(log.registers(), if way == "watcher" { 0 } else { 3 }, "calls of Register");
    let ended = agent.terminate();
    assert!(ended.status.success(), "{}", ended.log);
    assert_eq!(sockets(bed), [vec![], Vec::<String>::new()], "nothing of ours is left");
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn kubelets_watcher_registers_the_plugin_and_registers_it_again() {
    let bed = Bed::up("registration-watcher");
    lives_through_restarts(&bed, "watcher", &["--registration=watcher"]);
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn the_classic_way_still_registers_and_registers_again() {
    let bed = Bed::up("registration-classic");
    // As an agent that was killed leaves it, on its way by the watcher.
    let left = bed.place().kubelet.join("plugins_registry/gpu-steward@nvidia.com-gpu.sock");
    let _ = std::fs::remove_file(&left);
    drop(std::os::unix::net::UnixListener::bind(&left).expect("a socket"));
    lives_through_restarts(&bed, "classic", &["--registration=classic"]);
}

/// A kubelet that is not there yet is waited for and not taken for one without a watcher.
#[test]
#[ignore = "needs cluster: tests/run"]
fn auto_is_the_watcher_also_where_kubelet_comes_late() {
    let bed = Bed::up("registration-auto");
    let log = KubeletLog::from_now(&bed);
    let agent = bed.agent(&[]);
    agent.logs("way=watcher");
    is_registered(&agent, "watcher", 1);
    drop(agent);

    bed.part("kill", "kubelet");
    let agent = bed.launch(&[]);
    let began = Instant::now();
    while began.elapsed() < SETTLED {
        assert!(!agent.log().contains("the classic way"), "{}", agent.log());
        std::thread::sleep(Duration::from_millis(500));
    }
    bed.part("start", "kubelet");
    is_registered(&agent, "watcher", 1);
    all_is_offered(&bed);
    stays(&bed, &agent, "watcher", 1);
    assert_eq!(log.registers(), 0, "calls of Register");
}

/// A registry that kubelet does not watch, as with a kubelet of old.
#[test]
#[ignore = "needs cluster: tests/run"]
fn where_kubelet_does_not_look_auto_registers_the_classic_way() {
    let bed = Bed::up("registration-fallback");
    let (root, view) = bed.own_kubelet_root("deaf");
    let log = KubeletLog::from_now(&bed);
    let began = Instant::now();
    let agent = bed.agent(&[&format!("--kubelet-root={root}")]);
    println!("nobody looks into the registry: known after {} ms", began.elapsed().as_millis());
    agent.logs("registering the classic way");
    is_registered(&agent, "classic", 1);
    all_is_offered(&bed);
    stays(&bed, &agent, "classic", 1);
    assert_eq!(log.registers(), 1, "calls of Register");
    drop((agent, view));
}

/// Two plugins of one resource would take it from each other. Once the other is gone its containers keep what it gave them.
#[test]
#[ignore = "needs cluster: tests/run"]
fn another_plugin_is_not_pushed_aside_and_what_it_gave_is_left_alone() {
    let bed = Bed::up("registration-rival");
    nothing_is_offered(&bed);
    let rival = Stub::start(&bed, 8);
    bed.create(&bed.bare_pod("earlier", &[("main", "app", &[(0, 0, 0)])], &Value::Null));
    bed.ready(&["earlier"]);
    // What runs now: its variables are those of the first process, whatever starts it.
    let stub = || bed.sh("earlier", "main", "tr '\\0' '\\n' </proc/1/environ | grep -c '^STUB=1$'").trim().to_owned();
    assert_eq!(stub(), "1");

    let ended = bed.launch(&[]).wait();
    assert!(!ended.status.success());
    for words in ["another plugin already serves GPUs to kubelet", "stub.sock", "stop it before"] {
        assert!(ended.log.contains(words), "{words}: {}", ended.log);
    }
    assert_eq!(allocatable(&bed), 8, "the other one serves on");

    drop(rival);
    let agent = bed.agent(&[]);
    all_is_offered(&bed);
    // Who ends the container ends himself with it, and kubectl may say so.
    let _ = bed.admin.run(&["exec", "-n", &bed.space.name, "earlier", "--", "sh", "-c", "kill 1"]);
    eventually("its second start", SOON, || {
        let state = &bed.admin.get(&["pod", "earlier", "-n", &bed.space.name])["status"]["containerStatuses"][0];
        (state["restartCount"] == 1 && state["state"]["running"].is_object()).then_some(())
    });
    agent.logs("a container of an earlier plugin starts");
    assert_eq!(stub(), "1");
    assert_eq!(bed.sh("earlier", "main", "ls /etc/gpu-steward 2>/dev/null; true"), "", "nothing of ours");
    let mut pods = Vec::new();
    a_pod_gets_its_share(&bed, &Bed::gpus(&agent), &mut pods);

    // Nor does a second agent that does not know of the first.
    let other = format!("--state-dir={}", bed.dir().join("other").display());
    let ended = bed.launch(&[&other]).wait();
    assert!(!ended.status.success());
    for words in ["another agent already shares GPUs", "nvidia.com-gpu.sock (process ", "--state-dir"] {
        assert!(ended.log.contains(words), "{words}: {}", ended.log);
    }
    assert_eq!((registered(&agent).1, allocatable(&bed)), (1, TOTAL), "the first one serves on");
    a_pod_gets_its_share(&bed, &Bed::gpus(&agent), &mut pods);
}

/// An agent that starts is registered once and at the first try, whichever way. How long that takes, until kubelet knows it and
/// until the Node offers its GPUs, is printed for the record: `GPU_STEWARD_LONG` makes ten rounds.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_agents_start_to_allocatable_by_both_ways() {
    let bed = Bed::up("registration-time");
    let rounds = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 10 } else { 1 };
    let _ = bed.kubeconfig();
    for way in ["watcher", "classic"] {
        let mut took: Vec<(u128, u128)> = Vec::new();
        for _ in 0..rounds {
            nothing_is_offered(&bed);
            let (log, began) = (KubeletLog::from_now(&bed), Instant::now());
            let agent = bed.launch(&[&format!("--registration={way}")]);
            agent.logs("] registered with kubelet");
            let known = began.elapsed();
            all_is_offered(&bed);
            took.push((known.as_millis(), began.elapsed().as_millis()));
            assert_eq!(registered(&agent), (way.to_owned(), 1), "{}", agent.log());
            assert_eq!(log.registers(), usize::from(way == "classic"), "calls of Register");
            drop(agent);
        }
        let middle = |of: fn(&(u128, u128)) -> u128| {
            let mut of: Vec<u128> = took.iter().map(of).collect();
            of.sort_unstable();
            (of[0], of[of.len() / 2], of[of.len() - 1])
        };
        println!("{way}: known after {:?} ms, offered after {:?} ms", middle(|one| one.0), middle(|one| one.1));
    }
}
