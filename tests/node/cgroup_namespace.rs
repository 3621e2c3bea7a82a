//! The built program where a container runtime would put it: in a cgroup of its own, from whose namespace `/proc/<pid>/cgroup`
//! shows no path that begins at the root, with the host's hierarchies mounted as they are.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::pods::Pods;
use lab::scenario::{FakeGpu, FakeNvml, Scenario, cards, process};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Numbers that no other test gives to its pods: ours, and the one that is looked at.
const OURS: u32 = 0xc90;
const OTHERS: u32 = 0xc91;
const SOON: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// What a row says, for comparison: `namespace/pod/container`.
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
    let card = FakeGpu { processes: vec![process(pids[0], 4096 * MIB, 40.0)], ..cards("H100", 1) };
    fake.write(&Scenario { gpus: vec![card], ..Scenario::default() }).unwrap();

    // The namespace's root is where the process is when it is made: in our own pod, beside the other.
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
    eventually("the process on the card with its container", SOON, || {
        let cards = list("/api/v1/gpus", "gpus");
        let on_it = cards.first()?["processes"]["value"].as_array()?.clone();
        (on_it.len() == 1 && named(&on_it[0]["owner"]) == "ml/train-0/main").then_some(())
    });
    // It knows itself too, by the cgroup alone: nobody has named its pod.
    let own = list("/api/v1/pods", "pods").into_iter().find(|shown| shown["uid"] == pods.pods[0].uid);
    assert!(own.is_some_and(|own| own["name"].is_null()));
}
