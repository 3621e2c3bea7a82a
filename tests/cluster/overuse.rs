//! Tests a pod that holds more GPU memory than it claims, with a real process in a real pod and a fake driver that
//! reports the process's memory.

use crate::audit;
use crate::bed::{Bed, SOON};
use crate::chart;
use crate::container::{device_nodes, events};
use lab::agent::Agent;
use lab::bearer::Bearer;
use lab::eventually::eventually;
use lab::scenario::{FakeGpu, FakeNvml, Scenario, process};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
/// Half a minute until the agent reports the over-use, a minute until the eviction, and extra time for a slow machine.
const LONG: Duration = Duration::from_secs(240);
/// The times of promise 35.
const REPORTED_AFTER: Duration = Duration::from_secs(30);
const EVICTED_AFTER: Duration = Duration::from_secs(60);
/// After this time the agent would have evicted the pod.
const MARGIN: Duration = Duration::from_secs(10);

/// The PID, on the host, of the pod's main process.
fn pid(bed: &Bed, pod: &str) -> u32 {
    let state = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    let uid = state["metadata"]["uid"].as_str().expect("a UID").to_owned();
    let mark = format!("pod{uid}");
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let found = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let cgroup = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        (cgroup.contains(&mark) && command.starts_with(b"sh\0")).then_some(pid)
    });
    found.min().expect("a process of the pod")
}

/// The value of a series of the pod, if the series exists.
fn series(agent: &Agent, name: &str, pod: &str) -> Option<u64> {
    let text = agent.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(&format!("pod=\"{pod}\"")))?.to_owned();
    line.rsplit(' ').next()?.parse().ok()
}

/// A driver with one GPU, whose processes the test sets.
struct Driver {
    fake: FakeNvml,
    folder: tempfile::TempDir,
}

impl Driver {
    fn new() -> Driver {
        let folder = tempfile::tempdir().expect("a directory");
        let fake = FakeNvml::install(folder.path()).expect("the fake library");
        let driver = Driver { fake, folder };
        driver.hold(&[]);
        driver
    }

    /// Sets the processes that hold memory, and how much each holds.
    fn hold(&self, processes: &[(u32, u64)]) {
        let processes = processes.iter().map(|(pid, memory)| process(*pid, *memory, 10.0)).collect();
        let scenario = Scenario { gpus: vec![FakeGpu { processes, ..FakeGpu::default() }], ..Scenario::default() };
        self.fake.write(&scenario).expect("a scenario");
    }

    fn agent(&self, bed: &Bed, more: &[&str]) -> Agent {
        let dev = device_nodes(self.folder.path(), &["nvidia0", "nvidiactl"]);
        let flags = [
            "--gpus=nvml",
            &format!("--nvml-library={}", self.fake.library().display()),
            &format!("--dev-root={}", dev.display()),
        ];
        bed.agent(&[&flags, more].concat())
    }
}

/// Waits for the event, which has both sizes and must not be written before half a minute is over.
fn wait_for_event(bed: &Bed, pod: &str, since: Instant) {
    eventually("an event about the over-use of the pod", LONG, || {
        let messages = events(bed, pod, "OverUse");
        messages.first().filter(|text| text.contains("8192 MiB") && text.contains("3000 MiB")).map(|_| ())
    });
    assert!(since.elapsed() >= REPORTED_AFTER, "reported after {:?}", since.elapsed());
}

/// Promise 35 in docs/specification.md: the agent reports over-use once, after half a minute, shows it as a metric, and with
/// the flag evicts the pod a minute later. It leaves a pod alone that stays within its claim.
#[test]
#[ignore = "needs cluster: tests/run"]
fn over_use_is_reported_and_the_pod_is_evicted() {
    let bed = Bed::up("overuse");
    chart::install(&bed.cluster, &chart::EXTRAS);
    let driver = Driver::new();
    let agent = driver.agent(&bed, &["--evict-over-use"]);
    let gpus = Bed::gpus(&agent);
    for name in ["greedy", "honest"] {
        bed.create(&bed.pod(name, &gpus, &[("main", "app", &[(0, 3000, 10)])], &Value::Null));
    }
    bed.ready(&["greedy", "honest"]);
    let (greedy, honest) = (pid(&bed, "greedy"), pid(&bed, "honest"));
    let began = Instant::now();
    driver.hold(&[(greedy, 8 * GIB), (honest, 3 * GIB)]);
    wait_for_event(&bed, "greedy", began);
    assert_eq!(series(&agent, "gpu_steward_pod_over_use_bytes", "greedy"), Some(8 * GIB - (3000 << 20)));
    assert_eq!(series(&agent, "gpu_steward_pod_gpu_memory_promised_bytes", "honest"), Some(3000 << 20));
    assert_eq!(series(&agent, "gpu_steward_pod_over_use_bytes", "honest"), None);
    eventually("the eviction", LONG, || {
        let state = bed.admin.run(&["get", "pod", "greedy", "-n", &bed.space.name]);
        (!state.success).then_some(())
    });
    assert!(began.elapsed() >= REPORTED_AFTER + EVICTED_AFTER, "evicted after {:?}", began.elapsed());
    assert_eq!(events(&bed, "greedy", "OverUse").len(), 1, "reported once");
    assert_eq!(events(&bed, "greedy", "EvictedForOverUse").len(), 1);
    assert!(events(&bed, "honest", "OverUse").is_empty());
    let state = bed.admin.get(&["pod", "honest", "-n", &bed.space.name]);
    assert_eq!(state["status"]["phase"], "Running");
    eventually("the end of the series", SOON, || {
        series(&agent, "gpu_steward_pod_over_use_bytes", "greedy").is_none().then_some(())
    });
}

/// Promise 35 in docs/specification.md: without the flag the agent requests no eviction, although it has the rights and
/// the pod exceeds its claim for long enough.
#[test]
#[ignore = "needs cluster: tests/run"]
fn over_use_without_the_flag_evicts_no_pod() {
    let bed = Bed::up("overuse-stays");
    chart::install(&bed.cluster, &chart::EXTRAS);
    let driver = Driver::new();
    let agent = driver.agent(&bed, &[]);
    bed.create(&bed.pod("greedy", &Bed::gpus(&agent), &[("main", "app", &[(0, 3000, 10)])], &Value::Null));
    bed.ready(&["greedy"]);
    let (from, began) = (audit::end(&bed.cluster), Instant::now());
    driver.hold(&[(pid(&bed, "greedy"), 8 * GIB)]);
    wait_for_event(&bed, "greedy", began);
    let reported = Instant::now();
    while reported.elapsed() < EVICTED_AFTER + MARGIN {
        assert_eq!(series(&agent, "gpu_steward_pod_over_use_bytes", "greedy"), Some(8 * GIB - (3000 << 20)));
        std::thread::sleep(Duration::from_secs(1));
    }
    let writes = audit::writes_since(&bed, from);
    assert!(writes.iter().all(|write| write.resource() != "pods"), "{writes:#?}");
    assert_eq!(events(&bed, "greedy", "OverUse").len(), 1, "reported once");
    assert!(events(&bed, "greedy", "EvictedForOverUse").is_empty());
    assert_eq!(bed.admin.get(&["pod", "greedy", "-n", &bed.space.name])["status"]["phase"], "Running");
}

/// Promise 27 in docs/specification.md, for evictions: the rights exist only if evictions are switched on, and they cover
/// no pod of another node.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_agent_can_evict_no_pod_of_another_node() {
    let bed = Bed::up("overuse-guard");
    chart::install(&bed.cluster, &chart::EXTRAS);
    let other = bed.cluster.status().nodes.iter().find(|node| node.name != *bed.node()).expect("another node");
    for (name, node) in [("here", bed.node()), ("there", &other.name)] {
        let _ = bed.admin.apply(&crate::life::sleeper(&bed.space.name, name, node)).ok();
    }
    let agent = chart::agent_of(&bed.cluster, bed.node());
    let eviction = |by: &Bearer, pod: &str| {
        let namespace = &bed.space.name;
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": namespace },
        });
        by.post(&format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction"), &body)
    };
    // A new policy comes into force some seconds after its creation.
    let unbound = bed.cluster.caller(&chart::token(&bed.admin, chart::AGENT, &[]));
    eventually("the guard of evictions", SOON, || {
        let answer = eviction(&unbound, "none");
        answer.body["message"].as_str()?.contains("names no node").then_some(())
    });
    let refused = eviction(&agent, "there").forbidden();
    assert!(refused.contains("may evict only pods bound to it"), "{refused}");
    assert!(bed.admin.run(&["get", "pod", "there", "-n", &bed.space.name]).success);
    let refused = eviction(&agent, "gpu-steward-guard-check").forbidden();
    assert!(
        refused.contains("is never evicted"),
        "agents try this eviction to find out whether the policy is in force: {refused}"
    );
    let _ = eviction(&agent, "here").ok();
}
