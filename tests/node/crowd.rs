//! Tests the agent with 5,000 containers, and with more cgroups than it keeps, on a directory tree that looks like
//! cgroup v2.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::slow_reader;
use std::collections::HashSet;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Two containers in each pod: 5,000 containers and 7,500 cgroups in all.
const PODS: u32 = 2500;
/// The same number as `model::cgroup::MAX_CGROUPS`.
const MAX_CGROUPS: u32 = 8192;
/// Time for some passes over a new tree: the first pass opens every file.
const SOON: Duration = Duration::from_secs(60);

fn cgroup(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for (name, text) in [
        ("cgroup.procs", ""),
        ("cpu.stat", "usage_usec 5000000\nuser_usec 4000000\nsystem_usec 1000000\n"),
        ("memory.current", "4096000\n"),
        ("memory.stat", "anon 2048000\nfile 1024000\ninactive_file 512000\n"),
    ] {
        fs::write(directory.join(name), text).unwrap();
    }
}

/// The ids of containers differ in their first digits, as those of runtimes do. The ids of ten pods do not differ there,
/// and the agent must handle this too.
fn id(pod: u32, container: u32) -> String {
    let first = if pod < 10 { 0 } else { 2 * pod + container };
    format!("{first:012x}{pod:026x}{container:026x}")
}

fn pod(root: &Path, number: u32) {
    let pod = root.join(format!("kubepods/burstable/pod00000000-0000-4000-8000-{number:012x}"));
    cgroup(&pod);
    for container in 0..2 {
        cgroup(&pod.join(id(number, container)));
    }
}

/// The bound is the number of answers in progress ([`serve::answer_queue`]), not that of the clients.
#[test]
fn clients_that_never_read_their_answers_take_little_memory() {
    let memory = Path::new("/dev/shm");
    let tree = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    fs::write(tree.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
    (0..500).for_each(|number| pod(tree.path(), number));
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--cgroup-root", tree.path()).start();
    let containers = || agent.get("/metrics").text().matches("gpu_steward_container_memory_usage_bytes{").count();
    eventually("every container", SOON, || (containers() == 1000).then_some(()));
    assert!(agent.get("/api/v1/pods").body.len() > 100_000);
    let before = agent.resident_mib();
    let (mut readers, mut most) = (Vec::<TcpStream>::new(), before);
    for number in 0..300_u16 {
        let from = Ipv4Addr::new(127, 0, 1, u8::try_from(number % 30).unwrap());
        let path = ["/metrics", "/api/v1/pods"][usize::from(number % 2)];
        readers.push(slow_reader::ask(from, agent.metrics, path).unwrap());
        most = agent.resident_mib().max(most);
    }
    for _ in 0..50 {
        most = agent.resident_mib().max(most);
        assert_eq!(agent.get("/healthz").status, 200);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(most - before < 64.0, "{before} MiB, and {most} with {} clients that read nothing", readers.len());
    eventually("a scrape of another client", SOON, || (agent.get("/metrics").status == 200).then_some(()));
}

/// Promise 17 in docs/specification.md.
#[test]
fn five_thousand_containers_are_shown_and_what_is_beyond_the_bound_is_counted() {
    // The tree is in memory because it has 40,000 small files.
    let memory = Path::new("/dev/shm");
    let tree = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let root = tree.path();
    fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
    (0..PODS).for_each(|number| pod(root, number));
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--cgroup-root", root).start();
    let values_of = |path: &str, series: &str| {
        let text = agent.get(path).text();
        let values = text.lines().filter(|line| line.starts_with(series));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).collect::<Vec<f64>>()
    };
    let memory = "gpu_steward_container_memory_usage_bytes{";
    eventually("every container", SOON, || (values_of("/metrics", memory).len() == 2 * PODS as usize).then_some(()));
    assert!(values_of("/metrics", memory).iter().all(|bytes| (bytes - 4_096_000.0).abs() < 1.0));
    for path in ["/metrics", "/metrics/cadvisor"] {
        let text = agent.get(path).text();
        let mut seen = HashSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let series = line.rsplit_once(' ').map(|(series, _)| series).unwrap_or_default();
            assert!(seen.insert(series), "{path} shows one series twice: {series}");
        }
        assert!(seen.len() > 4 * PODS as usize, "{path}: {}", seen.len());
    }
    assert_eq!(values_of("/metrics", "gpu_steward_left_out{what=\"cgroups\"}"), [0.0]);
    let begin = Instant::now();
    let pods = agent.get("/api/v1/pods").json();
    let resident = agent.resident_mib();
    println!("/api/v1/pods of 5,000 containers took {:?}, {resident:.1} MiB resident", begin.elapsed());
    // 20 KiB for each container, and several answers that hold all of them.
    assert!(resident < 160.0, "{resident} MiB");
    let containers = pods["pods"].as_array().unwrap().iter().map(|pod| pod["containers"].as_array().unwrap().len());
    assert_eq!(containers.sum::<usize>(), 2 * PODS as usize);
    assert_eq!(agent.get("/readyz").status, 200);

    // With 750 more cgroups, containers are left out and no pod. How many depends on the order in which they are found.
    let all = PODS + 250;
    (PODS..all).for_each(|number| pod(root, number));
    eventually("the cgroups that are left out", SOON, || {
        let left_out = values_of("/metrics", "gpu_steward_left_out{what=\"cgroups\"}");
        let shown = agent.get("/api/v1/pods").json();
        let pods = shown["pods"].as_array()?;
        let containers = pods.iter().map(|pod| pod["containers"].as_array().map_or(0, Vec::len)).sum::<usize>();
        let [pods, containers] = [pods.len(), containers].map(|number| u32::try_from(number).unwrap());
        let beyond = f64::from(3 * all - pods - containers);
        (pods == all && pods + containers >= MAX_CGROUPS && beyond > 0.0 && left_out == [beyond]).then_some(())
    });
    agent.logs("too many to keep");
    assert_eq!(agent.get("/readyz").status, 200);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    // Promise 14: the longest time of a drain.
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    assert_eq!(ended.log.matches("too many to keep").count(), 1, "logged once: {}", ended.log);
}
