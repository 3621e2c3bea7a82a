//! The agent on real nodes: in its DaemonSet, as helm renders it, and as a service among the node's own paths.

use crate::chart::{NAMESPACE, install, render};
use crate::life::sleeper;
use lab::agent::Agent;
use lab::cluster::{Cluster, Wanted};
use lab::eventually::eventually;
use lab::http;
use std::net::SocketAddr;
use std::time::Duration;

const READY: Duration = Duration::from_secs(60);
const BINARY: &str = env!("CARGO_BIN_EXE_gpu-steward");

/// Waits until the agent's metrics name this pod.
fn names(agent: SocketAddr, pod: &str) {
    let pod = format!("pod=\"{pod}\"");
    eventually(&format!("{pod} in the metrics of {agent}"), READY, || {
        let answer = http::get(agent, "/metrics").ok()?;
        (answer.status == 200 && answer.text().contains(&pod)).then_some(())
    });
}

/// It becomes Ready on every node without privilege, and names the pods of its own node.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_daemonset_runs_on_every_node() {
    let cluster = Cluster::up(&Wanted::nodes(3));
    install(&cluster, &[]);
    let admin = cluster.admin();
    cluster.image("registry.local/gpu-steward:test", BINARY);
    let values =
        ["image.repository=registry.local/gpu-steward", "image.tag=test", "agent.settings.gpus=simulated=H100:2"];
    let _ = admin.apply(&render(&cluster, &["agent/daemonset"], &values)).ok();
    let wait = ["rollout", "status", "daemonset/gpu-steward-agent", "-n", NAMESPACE, "--timeout=90s"];
    let _ = admin.run(&wait).ok();
    let pods = admin.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent"]);
    let pods = pods["items"].as_array().expect("a list").clone();
    assert_eq!(pods.len(), 3);
    for pod in &pods {
        let address = format!("{}:9410", pod["status"]["podIP"].as_str().expect("an address"));
        names(address.parse().expect("an address"), pod["metadata"]["name"].as_str().expect("a name"));
    }
    let _ = admin.run(&["delete", "daemonset", "-n", NAMESPACE, "gpu-steward-agent"]).ok();
}

/// In a node's mount namespace the runtime's socket is where it always is, and the agent names the node's pods.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_service_names_the_pods_of_its_node() {
    let cluster = Cluster::up(&Wanted::nodes(1));
    let (admin, space) = (cluster.admin(), cluster.namespace("agent-service"));
    let _ = admin.apply(&sleeper(&space.name, "seen", "node-1")).ok();
    admin.wait("condition=Ready", READY, &["pod/seen", "-n", &space.name]);
    let recipe = Agent::standalone(BINARY).with("--gpus", "none").with("--cri-socket", "auto");
    let agent = recipe.in_mounts_of(cluster.node("node-1").pid).start();
    names(agent.metrics, "seen");
}
