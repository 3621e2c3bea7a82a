//! Nothing is shown of a pod that is gone: the built program beside a real pod that ends. Promise 8.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::pods::Pods;
use lab::scenario::{Card, FakeNvml, Scenario, cards, process};
use std::path::Path;
use std::time::Duration;

const PATHS: [&str; 7] = [
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/dcgm",
    "/metrics/hami",
    "/api/v1/pods",
    "/api/v1/processes",
    "/api/v1/gpus",
];

/// A number that no other test gives to its pods: they may run beside this one.
const NUMBER: u32 = 0x6057;

#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_that_ended_is_in_no_answer_one_pass_later() {
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let pod = pods.add(NUMBER, 2, &["sleep", "1000"]).unwrap();
    let (uid, container, pid) = (pod.uid.clone(), pod.containers[1].id.clone(), pod.containers[1].pid);
    let folder = tempfile::tempdir().unwrap();
    let links = folder.path().join("links");
    pod.containers[1].named(&links, ("ghost-0", "ml", "main")).unwrap();
    // A driver may list a process for a while after its end; this one does so for ever.
    let fake = FakeNvml::install(folder.path()).unwrap();
    let card = Card { processes: vec![process(pid, 1 << 30, 50.0)], ..cards("H100", 1) };
    fake.write(&Scenario { gpus: vec![card], ..Scenario::default() }).unwrap();
    let recipe = Agent::standalone(BINARY).with("--nvml-library", fake.library()).with("--log-links", &links);
    let agent = recipe.with("--slow-period", "1s").with("--process-period", "1s").start();
    let shows = |path: &str| {
        let text = agent.get(path).text();
        [&*uid, &*container, "ghost-0"].iter().any(|name| text.contains(name))
    };
    for path in PATHS {
        eventually(&format!("the pod in {path}"), Duration::from_secs(10), || shows(path).then_some(()));
    }
    assert!(pods.remove_last());
    // One pass a second, and a view 50 ms after it: of scrapes a second apart, the second must be clean. Processes are
    // looked at every slow period.
    let clean = || PATHS.iter().all(|path| !shows(path)).then_some(());
    eventually("no path that shows the pod", Duration::from_millis(2_200), clean);
}
