//! Tests that the real kubelet registers the plugin, and registers it again after restarts.

use crate::bed::{Bed, SOON, devices_in};
use crate::stub::Stub;
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Two GPUs of ten slots.
const TOTAL: u32 = 20;
/// Longer than the agent's wait until the kubelet watches its list.
const SETTLED: Duration = Duration::from_secs(15);

/// A position in the kubelet's log, from which messages are counted.
struct KubeletLog(PathBuf, usize);

impl KubeletLog {
    fn from_now(bed: &Bed) -> KubeletLog {
        let kubelet = format!("{}-kubelet", bed.node());
        let part = bed.cluster.status().parts.iter().find(|part| part.name == kubelet).expect("kubelet");
        let len = std::fs::read(&part.log).expect("kubelet's log").len();
        KubeletLog(part.log.clone(), len)
    }

    /// How often a plugin has called `Register`.
    fn register_calls(&self) -> usize {
        let log = std::fs::read(&self.0).expect("kubelet's log");
        let log = String::from_utf8_lossy(&log[self.1..]).into_owned();
        log.matches("Got registration request from device plugin").count()
    }
}

fn allocatable(bed: &Bed) -> u32 {
    bed.node_object()["status"]["allocatable"]["nvidia.com/gpu"]
        .as_str()
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

/// Waits until the Node offers no GPUs of an earlier agent.
fn wait_for_no_slots(bed: &Bed) {
    eventually("a node without GPUs", SOON, || (allocatable(bed) == 0).then_some(()));
}

fn wait_for_all_slots(bed: &Bed) {
    eventually("all slots on the node", SOON, || (allocatable(bed) == TOTAL).then_some(()));
}

/// The number of registrations, once there is one.
fn registered(agent: &Agent) -> u64 {
    eventually("a registration", SOON, || {
        let node: Value = serde_json::from_str(&agent.get("/api/v1/node").text()).expect("JSON");
        (node["plugin"]["registered"] == true).then(|| Bed::registrations(agent))
    })
}

/// Waits for registration number `times`.
fn wait_for_registration(agent: &Agent, times: u64) {
    eventually(&format!("registration {times}"), SOON, || (registered(agent) >= times).then_some(()));
    assert_eq!(registered(agent), times, "{}", agent.log());
}

/// Checks for a while that nothing changes: no second registration, and no added or removed slot.
fn check_stable(bed: &Bed, agent: &Agent, times: u64) {
    let began = Instant::now();
    while began.elapsed() < SETTLED {
        assert_eq!(registered(agent), times, "{}", agent.log());
        assert_eq!(allocatable(bed), TOTAL);
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The agent's sockets in the plugin folder and in the registry.
fn sockets(bed: &Bed) -> [Vec<String>; 2] {
    let node = bed.paths();
    [&node.plugins, &node.kubelet.join("plugins_registry")].map(|folder| {
        let names = std::fs::read_dir(folder).expect("a folder").flatten();
        let names = names.map(|file| file.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("gpu-steward")).collect()
    })
}

/// Adds a pod, which gets its share, and checks that the earlier pods keep theirs.
fn check_pods(bed: &Bed, gpus: &[String], pods: &mut Vec<String>) {
    let number = pods.len();
    let mib = |number: usize| 1000 + number as u64;
    let name = format!("pod-{number}");
    bed.create(&bed.pod(&name, gpus, &[("main", "app", &[(number % 2, mib(number), 5)])], &Value::Null));
    pods.push(name);
    bed.ready(&pods.iter().map(String::as_str).collect::<Vec<_>>());
    for (number, name) in pods.iter().enumerate() {
        assert_eq!(devices_in(&bed.limits(name, "main")), [(gpus[number % 2].clone(), mib(number) * MIB)], "{name}");
    }
}

/// The socket that an agent of an earlier release leaves in the kubelet's registry.
fn leave_in_registry(bed: &Bed) {
    let left = bed.paths().kubelet.join("plugins_registry/gpu-steward@nvidia.com-gpu.sock");
    let _ = std::fs::remove_file(&left);
    drop(std::os::unix::net::UnixListener::bind(&left).expect("a socket"));
}

/// The agent is registered and used, and registered again after a restart of the kubelet and after the agent was killed. It
/// removes the socket of an earlier release when it starts, and after a restart of the kubelet.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_agent_registers_after_each_restart() {
    let bed = Bed::up("registration");
    leave_in_registry(&bed);
    let log = KubeletLog::from_now(&bed);
    let agent = bed.agent(&[]);
    wait_for_registration(&agent, 1);
    wait_for_all_slots(&bed);
    let (gpus, mut pods) = (Bed::gpus(&agent), Vec::new());
    check_pods(&bed, &gpus, &mut pods);
    let [plugins, registry] = sockets(&bed);
    assert_eq!((plugins.len(), registry.len()), (1, 0), "{plugins:?} {registry:?}");
    check_stable(&bed, &agent, 1);

    leave_in_registry(&bed);
    bed.part("stop", "kubelet");
    let began = Instant::now();
    bed.part("start", "kubelet");
    wait_for_registration(&agent, 2);
    println!("known again {} ms after kubelet's start", began.elapsed().as_millis());
    wait_for_all_slots(&bed);
    check_pods(&bed, &gpus, &mut pods);
    assert_eq!(sockets(&bed)[1], Vec::<String>::new());

    // The agent has no time to clean up, so its socket stays.
    agent.signal(9);
    drop(agent);
    wait_for_no_slots(&bed);
    let agent = bed.agent(&[]);
    wait_for_registration(&agent, 1);
    wait_for_all_slots(&bed);
    check_pods(&bed, &gpus, &mut pods);
    check_stable(&bed, &agent, 1);
    assert_eq!(log.register_calls(), 3, "calls of Register");
    let ended = agent.terminate();
    assert!(ended.status.success(), "{}", ended.log);
    assert_eq!(sockets(&bed), [vec![], Vec::<String>::new()], "no socket of the agent is left");
}

/// Two plugins of one resource would replace each other. The containers of another plugin keep their devices after that
/// plugin is gone.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_agent_does_not_replace_another_plugin_or_change_its_containers() {
    let bed = Bed::up("registration-rival");
    wait_for_no_slots(&bed);
    let rival = Stub::start(&bed, 8);
    bed.create(&bed.bare_pod("earlier", &[("main", "app", &[(0, 0, 0)])], &Value::Null));
    bed.ready(&["earlier"]);
    // The devices of the running container, from the variables of its first process.
    let stub = || bed.sh("earlier", "main", "tr '\\0' '\\n' </proc/1/environ | grep -c '^STUB=1$'").trim().to_owned();
    assert_eq!(stub(), "1");

    let ended = bed.launch(&[]).wait();
    assert!(!ended.status.success());
    for words in ["another plugin already serves GPUs to kubelet", "stub.sock", "stop it before"] {
        assert!(ended.log.contains(words), "{words}: {}", ended.log);
    }
    assert_eq!(allocatable(&bed), 8, "the other plugin still serves");

    drop(rival);
    let agent = bed.launch(&[]);
    // The names of the other plugin's devices are those of no GPU, so the pod may have any GPU of the node.
    agent.logs(&format!("gets no new containers until the pod {}/earlier ends", bed.space.name));
    // The command ends its own container, and kubectl may report that as an error.
    let _ = bed.admin.run(&["exec", "-n", &bed.space.name, "earlier", "--", "sh", "-c", "kill 1"]);
    eventually("its second start", SOON, || {
        let state = &bed.admin.get(&["pod", "earlier", "-n", &bed.space.name])["status"]["containerStatuses"][0];
        (state["restartCount"] == 1 && state["state"]["running"].is_object()).then_some(())
    });
    agent.logs("a container of an earlier plugin starts");
    assert_eq!(stub(), "1");
    assert_eq!(bed.sh("earlier", "main", "ls /etc/gpu-steward 2>/dev/null; true"), "", "no file of the agent");
    assert_eq!(allocatable(&bed), 0, "nothing is offered beside it");
    let _ = bed.admin.run(&["delete", "pod", "earlier", "-n", &bed.space.name, "--now"]).ok();
    bed.registered(&agent);
    wait_for_all_slots(&bed);
    let mut pods = Vec::new();
    check_pods(&bed, &Bed::gpus(&agent), &mut pods);

    // A second agent with another state directory does not replace the first agent either.
    let other = format!("--state-dir={}", bed.dir().join("other").display());
    let ended = bed.launch(&[&other]).wait();
    assert!(!ended.status.success());
    for words in ["another agent already shares GPUs", "nvidia.com-gpu.sock (process ", "--state-dir"] {
        assert!(ended.log.contains(words), "{words}: {}", ended.log);
    }
    assert_eq!((registered(&agent), allocatable(&bed)), (1, TOTAL), "the first agent still serves");
    check_pods(&bed, &Bed::gpus(&agent), &mut pods);
}

/// A starting agent is registered once, at the first try. The test prints how long it takes until the kubelet knows the agent
/// and until the Node offers its GPUs. With `GPU_STEWARD_LONG` there are ten rounds.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_starting_agent_is_registered_at_the_first_try() {
    let bed = Bed::up("registration-time");
    let rounds = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 10 } else { 1 };
    let _ = bed.kubeconfig();
    let mut took: Vec<(u128, u128)> = Vec::new();
    for _ in 0..rounds {
        wait_for_no_slots(&bed);
        let (log, began) = (KubeletLog::from_now(&bed), Instant::now());
        let agent = bed.launch(&[]);
        agent.logs("] registered with kubelet");
        let known = began.elapsed();
        wait_for_all_slots(&bed);
        took.push((known.as_millis(), began.elapsed().as_millis()));
        assert_eq!(registered(&agent), 1, "{}", agent.log());
        assert_eq!(log.register_calls(), 1, "calls of Register");
        drop(agent);
    }
    let middle = |of: fn(&(u128, u128)) -> u128| {
        let mut of: Vec<u128> = took.iter().map(of).collect();
        of.sort_unstable();
        (of[0], of[of.len() / 2], of[of.len() - 1])
    };
    println!("known after {:?} ms, offered after {:?} ms", middle(|one| one.0), middle(|one| one.1));
}
