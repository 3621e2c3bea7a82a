//! Promise 8: no answer shows a pod that is gone. The built program runs beside a real pod that ends.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::pods::Pods;
use lab::scenario::{FakeGpu, FakeNvml, Scenario, fake_gpus, process};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PATHS: [&str; 7] = [
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/dcgm",
    "/metrics/hami",
    "/api/v1/pods",
    "/api/v1/processes",
    "/api/v1/gpus",
];

/// Several times the longest period here.
const SOON: Duration = Duration::from_secs(60);

/// Pod numbers that no other test uses: other tests may run at the same time.
const NUMBER: u32 = 0x6057;

/// The time at which a reading was measured, by the wall clock.
fn measured(answer: &Value, reading: &Value) -> Option<f64> {
    let view = &answer["view"];
    Some(view["time_seconds"].as_f64()? + view["age_seconds"].as_f64()? - reading["age_seconds"].as_f64()?)
}

/// Waits until `time`, the time of a measurement, has changed twice after now. The first change may come from a measurement
/// that began before now.
fn measured_twice(what: &str, mut time: impl FnMut() -> Option<f64>) {
    let mut last = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for _ in 0..2 {
        // Ages are rounded to the millisecond; periods are much longer than 0.1 s.
        last = eventually(what, SOON, || time().filter(|now| *now > last + 0.1));
    }
}

/// A pod ends while another one stays. `periods` are flags; without them the agent uses its defaults. The readings of
/// the remaining pod show when each source was read. After two readings of each source, no answer may show the pod
/// that ended.
fn a_pod_ends(number: u32, periods: &[(&str, &str)]) {
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let stays = pods.add(number, 1, &["sleep", "1000"]).unwrap();
    let (witness, witness_pid) = (stays.uid.clone(), stays.containers[0].pid);
    let pod = pods.add(number + 1, 2, &["sleep", "1000"]).unwrap();
    let (uid, container, pid) = (pod.uid.clone(), pod.containers[1].id.clone(), pod.containers[1].pid);
    let folder = tempfile::tempdir().unwrap();
    let links = folder.path().join("links");
    pod.containers[1].named(&links, ("ghost-0", "ml", "main")).unwrap();
    // A driver may list a process for a while after its end; this fake driver lists it forever.
    let fake = FakeNvml::install(folder.path()).unwrap();
    let gpu = FakeGpu { processes: vec![process(pid, 1 << 30, 50.0)], ..fake_gpus("H100", 1) };
    fake.write(&Scenario { gpus: vec![gpu], ..Scenario::default() }).unwrap();
    let recipe = Agent::standalone(BINARY).with("--nvml-library", fake.library()).with("--log-links", &links);
    let agent = periods.iter().fold(recipe, |recipe, (flag, period)| recipe.with(flag, period)).start();
    let shows = |path: &str| {
        let text = agent.get(path).text();
        [&*uid, &*container, "ghost-0"].iter().any(|name| text.contains(name))
    };
    for path in PATHS {
        eventually(&format!("the pod in {path}"), SOON, || shows(path).then_some(()));
    }
    assert!(pods.remove_last());
    measured_twice("passes over cgroups", || {
        let answer = agent.get("/api/v1/pods").json();
        let pod = answer["pods"].as_array()?.iter().find(|pod| pod["uid"] == *witness)?.clone();
        measured(&answer, &pod["containers"][0]["usage"]["cpu_seconds"])
    });
    measured_twice("passes over processes", || {
        let answer = agent.get("/api/v1/processes").json();
        let process = answer["processes"].as_array()?.iter().find(|process| process["pid"] == witness_pid)?.clone();
        measured(&answer, &process["rss_bytes"])
    });
    measured_twice("lists of GPU processes", || {
        let answer = agent.get("/api/v1/gpus").json();
        measured(&answer, &answer["gpus"][0]["processes"])
    });
    for path in PATHS {
        assert!(!shows(path), "{path} shows a pod that is gone: {}", agent.get(path).text());
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_that_ended_is_in_no_answer_after_two_passes_of_each_source() {
    a_pod_ends(NUMBER, &[("--period", "200ms"), ("--slow-period", "1s"), ("--process-period", "1s")]);
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_that_ended_is_in_no_answer_with_the_default_periods() {
    a_pod_ends(NUMBER + 2, &[]);
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_that_ended_is_in_no_answer_with_the_longest_slow_period() {
    a_pod_ends(NUMBER + 4, &[("--period", "1s"), ("--slow-period", "8s"), ("--process-period", "3s")]);
}
