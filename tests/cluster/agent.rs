//! Tests the agent on real nodes: in its DaemonSet as helm renders it, and as a service among the node's own paths.

use crate::bed::{Bed, devices_in};
use crate::built::binary;
use crate::chart::{self, CHART, NAMESPACE};
use crate::life::sleeper;
use lab::agent::Agent;
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::http;
use lab::kubectl::Kubectl;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

const READY: Duration = Duration::from_secs(60);
/// Longest rollout of three agents, one after the other.
const ROLLOUT: Duration = Duration::from_secs(90);

/// Waits until the agent's metrics name this pod.
fn wait_for_name(agent: SocketAddr, pod: &str) {
    let pod = format!("pod=\"{pod}\"");
    eventually(&format!("{pod} in the metrics of {agent}"), READY, || {
        let answer = http::get(agent, "/metrics").ok()?;
        (answer.status == 200 && answer.text().contains(&pod)).then_some(())
    });
}

/// The chart from its installation to its removal with helm. Users take the same steps.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn helm_installs_upgrades_and_removes_agents_that_serve_their_nodes() {
    let bed = Bed::exclusive("agent-life");
    bed.cluster.image("registry.local/gpu-steward:test", &binary(), &[]);
    // Remove the annotations of agents of earlier tests, and set a label of an operator.
    for key in ["hami.io/node-nvidia-register", "hami.io/node-handshake"] {
        let _ = bed.admin.run(&["annotate", "nodes", "--all", &format!("{key}-")]).ok();
    }
    let _ = bed.admin.run(&["label", "nodes", "--all", "--overwrite", "nvidia.com/gpu.present=false"]).ok();
    // The agent reads the kernel log only if GPUs come from NVML, so NVML is set here although there is no driver. The
    // accounts and policies already exist, for the other tests of this cluster.
    helm(&bed, "install", &["--take-ownership", "--set", "agent.kernelLog=true"]);
    check_kernel_log(&agents(&bed));
    // HAMi's device YAML comes in a ConfigMap, as in a HAMi installation.
    let yaml = "{apiVersion: v1, kind: ConfigMap, metadata: {name: device, namespace: gpu-steward}, data: {device-config.yaml: \
                'nvidia: {deviceSplitCount: 6}'}}";
    let _ = bed.admin.apply(yaml).ok();
    helm(&bed, "upgrade", &["--set", "agent.settings.gpus=simulated=H100:2,agent.deviceConfig.configMap=device"]);
    check_names(&bed);
    let gpus = check_shared_pod(&bed);
    check_rollout(&bed, &gpus);
    check_uninstall(&bed);
}

/// Runs helm on the release with the names that all other tests use, and waits until its workloads are ready.
fn helm(bed: &Bed, verb: &str, more: &[&str]) {
    let image = "image.repository=registry.local/gpu-steward,image.tag=test";
    let words = [verb, "gpu-steward", CHART, "-n", NAMESPACE, "--wait", "--timeout", "180s", "--set", image];
    let program = Kubectl::with_config(lab::cluster::helm(), &bed.cluster.status().kubeconfig);
    let _ = program.run(&[&words[..], more].concat()).ok();
}

/// The agents of the DaemonSet.
fn agents(bed: &Bed) -> Vec<Value> {
    let pods = bed.admin.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent"]);
    pods["items"].as_array().expect("a list").clone()
}

fn metrics_of(agent: &Value) -> SocketAddr {
    let address = format!("{}:9410", agent["status"]["podIP"].as_str().expect("an address"));
    address.parse().expect("an address")
}

/// The agent is Ready on every node without privileges, and names the pods of its own node.
fn check_names(bed: &Bed) {
    let nodes = bed.cluster.status().nodes.len();
    let agents = eventually("the end of the agents before the upgrade", READY, || {
        let mut now = agents(bed);
        now.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        (now.len() == nodes).then_some(now)
    });
    for agent in agents {
        wait_for_name(metrics_of(&agent), agent["metadata"]["name"].as_str().expect("a name"));
    }
}

/// With `agent.kernelLog` an unprivileged agent counts an NVSwitch error, which only the kernel log reports.
fn check_kernel_log(agents: &[Value]) {
    const ERROR: &str =
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt\n";
    assert_eq!(agents.len(), 3);
    std::fs::write("/dev/kmsg", ERROR).expect("root writes to the kernel log");
    for agent in agents {
        eventually("the error of the NVSwitch in the metrics", READY, || {
            let answer = http::get(metrics_of(agent), "/metrics").ok()?.text();
            let counted =
                |line: &str| line.starts_with("gpu_steward_nvswitch_errors_total{") && line.contains("\"22013\"");
            answer.lines().any(counted).then_some(())
        });
    }
}

/// The DaemonSet of the chart is the device plugin of its node: a pod gets the devices of its claim. The agent needs
/// only mounts of host folders, and no privileges. Returns the UUIDs of the node's GPUs.
fn check_shared_pod(bed: &Bed) -> Vec<String> {
    let gpus: Vec<String> = eventually("the GPUs on the Node", READY, || {
        let node = bed.node_object();
        let text = node["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str()?.to_owned();
        let gpus: Value = serde_json::from_str(&text).expect("JSON");
        (node["status"]["allocatable"]["nvidia.com/gpu"] == "12").then_some(())?;
        // The register is ordered by UUID; the containers' device nodes are ordered by index.
        let mut gpus = gpus.as_array()?.clone();
        (gpus.len() == 2).then_some(())?;
        gpus.sort_by_key(|gpu| gpu["index"].as_u64());
        gpus.iter().map(|gpu| gpu["id"].as_str().map(str::to_owned)).collect()
    });
    let pod = bed.pod("served", &gpus, &[("main", "app", &[(1, 3000, 30)])], &Value::Null);
    // The kubelet reports the agent's pod, and the agent stays registered.
    let _ = bed.ready_with_retries(&[("served".to_owned(), pod)], (0, &[]));
    assert_eq!(devices_in(&bed.limits("served", "main")), [(gpus[1].clone(), 3000 << 20)]);
    let seen =
        bed.sh("served", "main", "ls /dev | grep nvidia | sort | tr '\\n' ' '; echo $CUDA_DEVICE_MEMORY_LIMIT_0");
    assert_eq!(seen.trim(), "nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl 3000m");
    gpus
}

/// An upgrade: on each node the new agent becomes Ready while the old one runs, and then the old one ends. No node is ever
/// without a Ready agent. The pod that was served keeps running in the same container, and a later pod runs too.
fn check_rollout(bed: &Bed, gpus: &[String]) {
    let daemonset = || bed.admin.get(&["daemonset", "gpu-steward-agent", "-n", NAMESPACE]);
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    assert_eq!(daemonset()["spec"]["updateStrategy"], strategy);
    let container = || {
        let pod = bed.admin.get(&["pod", "served", "-n", &bed.space.name]);
        pod["status"]["containerStatuses"][0]["containerID"].as_str().expect("a container's id").to_owned()
    };
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().expect("a UID").to_owned();
    let (served, old) = (container(), agents(bed).iter().map(uid).collect::<BTreeSet<_>>());
    let _ = bed.admin.run(&["rollout", "restart", "daemonset/gpu-steward-agent", "-n", NAMESPACE]).ok();
    let nodes: BTreeSet<&str> = bed.cluster.status().nodes.iter().map(|node| node.name.as_str()).collect();
    let new = eventually("a new agent on each node, and the end of the old ones", ROLLOUT, || {
        let now = agents(bed);
        let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod);
        let covered: BTreeSet<&str> =
            now.iter().filter(stays).filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        assert_eq!(covered, nodes, "no agent is Ready on a node: {now:#?}");
        (now.len() == nodes.len() && now.iter().all(|pod| !old.contains(&uid(pod)))).then_some(now)
    });
    // tests/cluster/upgrade.rs tests pods that are created during an upgrade.
    let here = new.iter().find(|pod| pod["spec"]["nodeName"] == *bed.node()).expect("an agent on this node");
    eventually("kubelet to know the new agent", READY, || {
        // To the pod network this test is another machine, which may request only metrics.
        let answer = http::get(metrics_of(here), "/metrics").ok()?.text();
        let registered = |line: &str| line.starts_with("gpu_steward_plugin_registered{") && line.ends_with(" 1");
        answer.lines().any(registered).then_some(())
    });
    assert_eq!(container(), served, "the pod that was served was restarted");
    let after = bed.pod("after", gpus, &[("main", "app", &[(0, 2000, 20)])], &Value::Null);
    let _ = bed.ready_with_retries(&[("after".to_owned(), after)], (0, &[]));
    assert_eq!(devices_in(&bed.limits("after", "main")), [(gpus[0].clone(), 2000 << 20)]);
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// `helm uninstall` removes the agents' labels and annotations from every Node. Those of other programs stay.
fn check_uninstall(bed: &Bed) {
    let nodes = || bed.admin.get(&["nodes"])["items"].as_array().expect("a list").clone();
    let written_by_agent = |node: &Value| {
        let annotations = &node["metadata"]["annotations"];
        let labels = node["metadata"]["labels"].as_object().expect("labels");
        let labelled = labels.keys().filter(|key| key.starts_with("nvidia.com/")).count();
        (annotations["hami.io/node-nvidia-register"].is_string(), labelled)
    };
    eventually("the agents' annotations and labels on Nodes", READY, || {
        nodes().iter().all(|node| written_by_agent(node).0 && written_by_agent(node).1 > 5).then_some(())
    });
    let program = Kubectl::with_config(lab::cluster::helm(), &bed.cluster.status().kubeconfig);
    let _ = program.run(&["uninstall", "gpu-steward", "-n", NAMESPACE, "--timeout", "180s"]).ok();
    chart::uninstalled(&bed.cluster);
    for node in nodes() {
        assert_eq!(written_by_agent(&node), (false, 1), "{}", node["metadata"]);
        assert_eq!(node["metadata"]["labels"]["nvidia.com/gpu.present"], "false", "an operator's");
        assert!(node["metadata"]["annotations"]["hami.io/node-handshake"].is_null(), "{}", node["metadata"]);
    }
    let left = bed.admin.run(&["get", "clusterroles,clusterrolebindings", "-o", "name"]).ok();
    assert!(!left.contains("clean-nodes"), "{left}");
    let _ = bed.admin.run(&["label", "nodes", "--all", "nvidia.com/gpu.present-"]).ok();
}

/// In a node's mount namespace the runtime's socket is at its usual path, and the agent names the node's pods.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_service_names_the_pods_of_its_node() {
    let cluster = Cluster::shared();
    let lease = cluster.lease();
    let (admin, space) = (cluster.admin(), cluster.namespace("agent-service"));
    let _ = admin.apply(&sleeper(&space.name, "seen", &lease.node)).ok();
    admin.wait("condition=Ready", READY, &["pod/seen", "-n", &space.name]);
    let recipe = Agent::standalone(&binary()).with("--gpus", "none").with("--cri-socket", "auto");
    let agent = recipe.in_mounts_of(cluster.node(&lease.node).pid).start();
    wait_for_name(agent.metrics, "seen");
}
