//! Measures the cost of an agent that shares GPUs, with real pods. Promise 36 in docs/specification.md.

use crate::bed::{Bed, SOON};
use crate::built::binary;
use crate::fleet;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::scenario::{self, FakeNvml};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const GPUS: usize = 8;
const PODS: usize = 100;
/// The budget: `RssAnon` and `VmRSS` in MiB, and CPU time as a multiple of the CPU time of a standalone agent on the same
/// node. The hundred sandboxes and seven hundred other processes of a real node cost both agents the same, and a slow machine
/// slows both.
const MEMORY: f64 = 18.0;
const RESIDENT: f64 = 48.0;
const PROCESSOR: f64 = 1.1;
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// The pause before the measurement, because the start of pods costs CPU time that running pods do not cost.
const WARM_UP: Duration = Duration::from_secs(30);
const SPAN: Duration = Duration::from_secs(300);

/// One process of container `one` of each running pod of the namespace.
fn processes(bed: &Bed) -> Vec<u32> {
    let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
    let pid = |pod: &Value| {
        let states = pod["status"]["containerStatuses"].as_array()?;
        let id = states.iter().find(|state| state["name"] == "one")?["containerID"].as_str()?.rsplit('/').next()?;
        let folder = fleet::process(&bed.paths().cgroup, pod["metadata"]["uid"].as_str()?, id)?;
        folder.file_name()?.to_str()?.parse().ok()
    };
    list["items"].as_array().into_iter().flatten().filter_map(pid).collect()
}

fn device_nodes(folder: &Path) -> String {
    let dev = folder.join("dev");
    std::fs::create_dir(&dev).expect("a folder");
    for name in (0..GPUS).map(|number| format!("nvidia{number}")).chain(["nvidiactl".into()]) {
        let made = Command::new("mknod").arg(dev.join(name)).args(["c", "1", "3"]).status();
        assert!(made.expect("mknod can be run").success());
    }
    format!("--dev-root={}", dev.display())
}

/// 8 GPUs and 100 pods of 2 containers, each with a device share. The agent samples once a second, is scraped every 15
/// s, and has one usage watcher.
#[test]
#[ignore = "takes 7 minutes and a cluster: tests/run --long"]
fn sharing_with_a_hundred_pods_stays_within_its_budget() {
    let bed = Bed::exclusive("budget");
    let folder = tempfile::tempdir().expect("a folder");
    let fake = FakeNvml::install(folder.path()).expect("the fake library");
    let driver = |pids: &[Vec<u32>]| {
        fake.write_text(&serde_json::to_vec(&scenario::busy(pids)).expect("JSON")).expect("the scenario is written");
    };
    driver(&vec![Vec::new(); GPUS]);
    let library = format!("--nvml-library={}", fake.library().display());
    let off = "--workload-profiles=off";
    let agent = bed.agent(&["--gpus=nvml", &library, &device_nodes(folder.path()), "--split-count=32", off]);
    assert_eq!(agent.admin("PUT", "/loglevel", "0").status, 200, "the default log level");
    let uuids = Bed::gpus(&agent);
    let share = |n: usize| [(n % GPUS, 1000, 1)];
    let names: Vec<String> = (0..PODS).map(|n| format!("pod-{n}")).collect();
    let pod = |(n, name): (usize, &String)| {
        bed.pod(name, &uuids, &[("one", "app", &share(n)), ("two", "app", &share(n))], &Value::Null)
    };
    let pods: Vec<Value> = names.iter().enumerate().map(pod).collect();
    bed.create(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }));
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    bed.ready(&all);
    let pids = eventually("a process of every pod", SOON, || {
        let pids = processes(&bed);
        (pids.len() == PODS).then_some(pids)
    });
    let mut of_gpu = vec![Vec::new(); GPUS];
    pids.iter().enumerate().for_each(|(n, pid)| of_gpu[n % GPUS].push(*pid));
    driver(&of_gpu);
    let standalone = bed.standalone_agent(&["--gpus=nvml", &library, off]);
    let [(memory, cpu), (memory_standalone, cpu_standalone)] = costs(&[&agent, &standalone]);
    let resident = agent.resident_mib();
    println!(
        "{PODS} pods of 2 containers, {GPUS} GPUs: {:.2} % of a core, RssAnon {memory:.1} MiB, VmRSS {resident:.1} MiB; a standalone agent \
         {:.2} %, {memory_standalone:.1} MiB, {:.1} MiB",
        cpu * 100.0,
        cpu_standalone * 100.0,
        standalone.resident_mib()
    );
    for agent in [&agent, &standalone] {
        let seen = agent.get("/api/v1/pods").json()["pods"].as_array().map_or(0, Vec::len);
        assert!(seen >= PODS, "only {seen} pods are shown");
    }
    assert!(memory <= MEMORY, "RssAnon {memory:.1} MiB, and the budget is {MEMORY}");
    assert!(resident <= RESIDENT, "VmRSS {resident:.1} MiB, and the budget is {RESIDENT}");
    let times = cpu / cpu_standalone;
    assert!(times <= PROCESSOR, "{times:.2} times that of a standalone agent, and the budget is {PROCESSOR}");
}

/// For each agent, over the same time: its largest own memory (`RssAnon`), and its CPU time as a share of a core. Each agent
/// is scraped and has one usage watcher.
fn costs<const N: usize>(agents: &[&Agent; N]) -> [(f64, f64); N] {
    let mut watchers = agents.map(|agent| {
        let watch = Command::new(binary())
            .args(["usage", "--watch", "-o", "json", "--usage-socket"])
            .arg(&agent.usage_socket)
            .stdout(std::process::Stdio::null())
            .spawn();
        watch.expect("the usage watcher runs")
    });
    std::thread::sleep(WARM_UP);
    let (began, before) = (Instant::now(), agents.map(Agent::processor_time));
    let (mut memory, mut scraped) = ([0.0_f64; N], began);
    while began.elapsed() < SPAN {
        if Instant::now() >= scraped {
            scraped += SCRAPE_EVERY;
            agents.iter().for_each(|agent| assert_eq!(agent.get("/metrics").status, 200));
        }
        agents.iter().zip(&mut memory).for_each(|(agent, memory)| *memory = memory.max(agent.anonymous_mib()));
        std::thread::sleep(Duration::from_millis(500));
    }
    let span = began.elapsed().as_secs_f64();
    for watcher in &mut watchers {
        let _ = watcher.kill();
        let _ = watcher.wait();
    }
    std::array::from_fn(|n| (memory[n], (agents[n].processor_time() - before[n]).as_secs_f64() / span))
}
