//! Tests names from a real API server with the rights of the chart's agent. The agent has no other source of names,
//! which could hide a gap.

use crate::built::binary;
use crate::chart::{AGENT, install, token};
use crate::life::sleeper;
use lab::agent::{Agent, Recipe};
use lab::cluster::{Cluster, ClusterOptions};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const NODE: &str = "node-1";

/// An agent of a node, with a token that is bound to that node.
fn agent(cluster: &Cluster) -> Agent {
    let bound = ["--bound-object-kind", "Node", "--bound-object-name", NODE];
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": cluster.status().server, "certificate-authority": cluster.status().ca}}],
        "users": [{"name": "lab", "user": {"token": token(&cluster.admin(), AGENT, &bound)}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    });
    let recipe = Recipe::of(&binary());
    let path = recipe.dir().join("kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    recipe.with("--gpus", "none").with("--node-name", NODE).with("--kubeconfig", path).start()
}

fn shown(agent: &Agent, namespace: &str, name: &str) -> Option<Value> {
    let pods = agent.get(&format!("/api/v1/pods?namespace={namespace}&pod={name}")).json();
    pods["pods"].as_array().unwrap().first().cloned()
}

/// A pod, a static pod whose cgroup has another UID than its mirror pod, and an API server that goes away and returns.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn pods_of_the_node_keep_their_names_while_the_api_server_is_away() {
    let cluster = Cluster::up(&ClusterOptions::usual());
    install(&cluster, &[]);
    let (admin, space) = (cluster.admin(), cluster.namespace("names"));
    let agent = agent(&cluster);
    let _ = admin.apply(&sleeper(&space.name, "sleeper", NODE)).ok();
    let pod = eventually("the pod by its name", SOON, || {
        shown(&agent, &space.name, "sleeper").filter(|pod| {
            pod["containers"].as_array().is_some_and(|list| list.iter().any(|container| container["name"] == "main"))
        })
    });
    let object = admin.get(&["pod", "sleeper", "-n", &space.name]);
    assert_eq!(pod["uid"], object["metadata"]["uid"]);
    let main = pod["containers"].as_array().unwrap().iter().find(|container| container["name"] == "main").unwrap();
    assert_eq!(main["image"], "registry.local/busybox:1");
    let id = object["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
    assert_eq!(format!("containerd://{}", main["id"].as_str().unwrap()), id);

    let manifest = cluster.node(NODE).manifests.join("fixed.yaml");
    // The kubelet would read text that begins with a brace as JSON.
    fs::write(&manifest, format!("---\n{}", sleeper(&space.name, "fixed", ""))).unwrap();
    let name = format!("fixed-{NODE}");
    let fixed = eventually("the static pod by its mirror's name", SOON, || shown(&agent, &space.name, &name));
    let mirror = admin.get(&["pod", &name, "-n", &space.name]);
    assert_ne!(fixed["uid"], mirror["metadata"]["uid"], "kubelet names the cgroup after the manifest");

    let watch = || agent.get("/api/v1/node").json()["pod_watch"].clone();
    cluster.part("kill", "apiserver");
    eventually("a broken watch", SOON, || (watch()["state"] == "broken").then_some(()));
    assert!(shown(&agent, &space.name, "sleeper").is_some());
    cluster.part("start", "apiserver");
    eventually("a watch that works", SOON, || (watch()["state"] == "following").then_some(()));

    fs::remove_file(&manifest).unwrap();
    let _ = admin.run(&["delete", "pod", "sleeper", "-n", &space.name]).ok();
    for name in ["sleeper", name.as_str()] {
        eventually("the end of the pod", SOON, || shown(&agent, &space.name, name).is_none().then_some(()));
    }
    let log = agent.terminate().log;
    assert!(!log.contains("a pod cannot be read") && !log.contains("panicked"), "{log}");
}
