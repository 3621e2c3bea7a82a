//! Runs the built program as a container runtime would: in its own cgroup and cgroup namespace. In that namespace no
//! path in `/proc/<pid>/cgroup` begins at the root of the hierarchy. The host's hierarchies are mounted unchanged.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::pods::Pods;
use lab::scenario::{FakeGpu, FakeNvml, Scenario, fake_gpus, process};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Pod numbers that no other test uses: the agent's own pod, and the observed pod.
const OURS: u32 = 0xc90;
const OTHERS: u32 = 0xc91;
const SOON: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// The owner of a row as `namespace/pod/container`, for comparison.
fn named(owner: &Value) -> String {
    ["namespace", "pod", "container"].map(|key| owner[key].as_str().unwrap_or("?")).join("/")
}

#[test]
#[ignore = "needs root: tests/run"]
fn from_a_private_cgroup_namespace_the_program_shows_pods_processes_and_names() {
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let ours = pods.add(OURS, 1, &["sleep", "1000"]).unwrap().containers[0].path.clone();
    let recipe = Agent::standalone(BINARY);
    let links = recipe.dir().join("links");
    let pod = pods.add(OTHERS, 2, &["sleep", "1000"]).unwrap();
    let names = ["main", "side"];
    for (container, name) in pod.containers.iter().zip(names) {
        container.named(&links, ("train-0", "ml", name)).unwrap();
    }
    let pids: Vec<u32> = pod.containers.iter().map(|container| container.pid).collect();
    let fake = FakeNvml::install(recipe.dir()).unwrap();
    let gpu = FakeGpu { processes: vec![process(pids[0], 4096 * MIB, 40.0)], ..fake_gpus("H100", 1) };
    fake.write(&Scenario { gpus: vec![gpu], ..Scenario::default() }).unwrap();

    // The kernel makes a process's cgroup the root of its new cgroup namespace. So the process first moves into the
    // agent's own pod.
    let join = format!(
        "for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
           [ ! -e \"$tree{ours}/cgroup.procs\" ] || echo $$ >\"$tree{ours}/cgroup.procs\"
         done
         set -- unshare -C \"$@\""
    );
    let agent = recipe.within(&join).with("--nvml-library", fake.library()).with("--log-links", &links).start();
    let seen_from_here = std::fs::read_to_string(format!("/proc/{}/cgroup", agent.pid())).unwrap();
    assert!(seen_from_here.contains(&ours), "the program is in {ours}: {seen_from_here}");
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/cgroup")).unwrap();
    assert_ne!(namespace(&agent.pid().to_string()), namespace("self"), "its cgroup namespace is its own");

    eventually("that it knows", SOON, || {
        (agent.get("/api/v1/node").json()["private_cgroup_namespace"]["value"] == true).then_some(())
    });
    let list = |path: &str, key: &str| agent.get(path).json()[key].as_array().cloned().unwrap_or_default();
    let shown = eventually("the other pod by name with what its cgroups count", SOON, || {
        let pods = list("/api/v1/pods?namespace=ml&pod=train-0", "pods");
        let containers = pods.first()?["containers"].as_array()?.clone();
        let read = |container: &Value| container["usage"]["memory_usage_bytes"]["value"].as_u64().is_some();
        (containers.len() == 2 && containers.iter().all(read)).then(|| pods[0].clone())
    });
    assert_eq!(shown["uid"], pods.pods[1].uid);
    let containers: Vec<&Value> = shown["containers"].as_array().unwrap().iter().collect();
    assert_eq!(containers.iter().map(|container| &container["name"]).collect::<Vec<_>>(), names);
    assert!(containers.iter().all(|container| container["usage"]["processes"]["value"] == 1), "{shown}");

    let owners = eventually("both processes with their containers", SOON, || {
        let rows = list("/api/v1/processes?namespace=ml", "processes");
        let owner = |pid: &u32| rows.iter().find(|row| row["pid"] == *pid).map(|row| named(&row["owner"]));
        pids.iter().map(owner).collect::<Option<Vec<String>>>()
    });
    assert_eq!(owners, ["ml/train-0/main", "ml/train-0/side"]);
    eventually("the process on the GPU with its container", SOON, || {
        let gpus = list("/api/v1/gpus", "gpus");
        let on_it = gpus.first()?["processes"]["value"].as_array()?.clone();
        (on_it.len() == 1 && named(&on_it[0]["owner"]) == "ml/train-0/main").then_some(())
    });
    // The agent's own pod is in the list, by its cgroup alone: no source gives its name.
    let own = list("/api/v1/pods", "pods").into_iter().find(|shown| shown["uid"] == pods.pods[0].uid);
    assert!(own.is_some_and(|own| own["name"].is_null()));
}
