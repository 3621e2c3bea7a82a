//! Tests the agent on real nodes: in its DaemonSet as helm renders it, and as a service among the node's own paths.

use crate::bed::{Bed, devices_in};
use crate::built::binary;
use crate::chart::{CHART, NAMESPACE, install, render};
use crate::life::sleeper;
use lab::agent::Agent;
use lab::cluster::{Cluster, ClusterOptions};
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

/// The agent becomes Ready on every node without privileges, and names the pods of its own node.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_daemonset_runs_on_every_node() {
    let cluster = Cluster::up(&ClusterOptions::usual());
    install(&cluster, &[]);
    let admin = cluster.admin();
    cluster.image("registry.local/gpu-steward:test", &binary(), &[]);
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
        wait_for_name(address.parse().expect("an address"), pod["metadata"]["name"].as_str().expect("a name"));
    }
    let _ = admin.run(&["delete", "daemonset", "-n", NAMESPACE, "gpu-steward-agent"]).ok();
}

/// With `agent.kernelLog` an unprivileged agent counts an NVSwitch error, which only the kernel log reports.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_daemonset_reads_the_kernel_log_if_it_is_switched_on() {
    const ERROR: &str =
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt\n";
    let cluster = Cluster::up(&ClusterOptions::usual());
    install(&cluster, &[]);
    let admin = cluster.admin();
    cluster.image("registry.local/gpu-steward:test", &binary(), &[]);
    // The agent reads the kernel log only if GPUs come from NVML, so they do here although there is no driver.
    let values = ["image.repository=registry.local/gpu-steward", "image.tag=test", "agent.kernelLog=true"];
    let _ = admin.apply(&render(&cluster, &["agent/daemonset"], &values)).ok();
    let wait = ["rollout", "status", "daemonset/gpu-steward-agent", "-n", NAMESPACE, "--timeout=90s"];
    let _ = admin.run(&wait).ok();
    let pods = admin.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent"]);
    let pods = pods["items"].as_array().expect("a list").clone();
    assert_eq!(pods.len(), 3);
    std::fs::write("/dev/kmsg", ERROR).expect("root writes to the kernel log");
    for pod in &pods {
        let address = format!("{}:9410", pod["status"]["podIP"].as_str().expect("an address"));
        eventually("the error of the NVSwitch in the metrics", READY, || {
            let answer = http::get(address.parse().expect("an address"), "/metrics").ok()?.text();
            let counted =
                |line: &str| line.starts_with("gpu_steward_nvswitch_errors_total{") && line.contains("\"22013\"");
            answer.lines().any(counted).then_some(())
        });
    }
    let _ = admin.run(&["delete", "daemonset", "-n", NAMESPACE, "gpu-steward-agent"]).ok();
}

/// The DaemonSet of the chart is the device plugin of its node: a pod gets the devices of its claim. The agent needs
/// only mounts of host folders, and no privileges.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_daemonset_shares_the_gpus_of_its_node() {
    let bed = Bed::exclusive("agent-shares");
    bed.cluster.image("registry.local/gpu-steward:test", &binary(), &[]);
    // HAMi's device YAML comes in a ConfigMap, as in a HAMi installation.
    let yaml = "{apiVersion: v1, kind: ConfigMap, metadata: {name: device, namespace: gpu-steward}, data: {device-config.yaml: \
                'nvidia: {deviceSplitCount: 6}'}}";
    let _ = bed.admin.apply(yaml).ok();
    let values = [
        "image.repository=registry.local/gpu-steward",
        "image.tag=test",
        "agent.settings.gpus=simulated=H100:2",
        "agent.deviceConfig.configMap=device",
    ];
    let _ = bed.admin.apply(&render(&bed.cluster, &["agent/daemonset"], &values)).ok();
    let wait = ["rollout", "status", "daemonset/gpu-steward-agent", "-n", NAMESPACE, "--timeout=90s"];
    let _ = bed.admin.run(&wait).ok();
    let gpus: Vec<String> = eventually("the GPUs on the Node", READY, || {
        let node = bed.node_object();
        let text = node["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str()?.to_owned();
        let gpus: Value = serde_json::from_str(&text).expect("JSON");
        (node["status"]["allocatable"]["nvidia.com/gpu"] == "12").then_some(())?;
        // The register is ordered by UUID; the containers' device nodes are ordered by index.
        let mut gpus = gpus.as_array()?.clone();
        // An agent of an earlier test may have written a register with other GPUs.
        gpus.iter().all(|gpu| gpu["count"] == 6).then_some(())?;
        gpus.sort_by_key(|gpu| gpu["index"].as_u64());
        gpus.iter().map(|gpu| gpu["id"].as_str().map(str::to_owned)).collect()
    });
    let pod = bed.pod("served", &gpus, &[("main", "app", &[(1, 3000, 30)])], &Value::Null);
    // The kubelet knows the agent's pod, and it stays registered.
    let _ = bed.ready_with_retries(&[("served".to_owned(), pod)], (0, &[]));
    assert_eq!(devices_in(&bed.limits("served", "main")), [(gpus[1].clone(), 3000 << 20)]);
    let seen =
        bed.sh("served", "main", "ls /dev | grep nvidia | sort | tr '\\n' ' '; echo $CUDA_DEVICE_MEMORY_LIMIT_0");
    assert_eq!(seen.trim(), "nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl 3000m");
    check_upgrade(&bed, &gpus);
    let _ = bed.admin.run(&["delete", "daemonset", "-n", NAMESPACE, "gpu-steward-agent", "--wait"]).ok();
}

/// An upgrade: on each node the new agent is Ready beside the old one, which then ends. No node is ever without a Ready
/// agent. The pod that was served runs on in the same container, and a later pod runs too.
fn check_upgrade(bed: &Bed, gpus: &[String]) {
    let daemonset = || bed.admin.get(&["daemonset", "gpu-steward-agent", "-n", NAMESPACE]);
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    assert_eq!(daemonset()["spec"]["updateStrategy"], strategy);
    let container = || {
        let pod = bed.admin.get(&["pod", "served", "-n", &bed.space.name]);
        pod["status"]["containerStatuses"][0]["containerID"].as_str().expect("a container's id").to_owned()
    };
    let agents = || -> Vec<Value> {
        let pods = bed.admin.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent"]);
        pods["items"].as_array().expect("a list").clone()
    };
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().expect("a UID").to_owned();
    let (served, old) = (container(), agents().iter().map(uid).collect::<BTreeSet<_>>());
    let _ = bed.admin.run(&["rollout", "restart", "daemonset/gpu-steward-agent", "-n", NAMESPACE]).ok();
    let nodes: BTreeSet<&str> = bed.cluster.status().nodes.iter().map(|node| node.name.as_str()).collect();
    let new = eventually("a new agent on each node, and the end of the old ones", ROLLOUT, || {
        let now = agents();
        let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod);
        let covered: BTreeSet<&str> =
            now.iter().filter(stays).filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        assert_eq!(covered, nodes, "no agent is Ready on a node: {now:#?}");
        (now.len() == nodes.len() && now.iter().all(|pod| !old.contains(&uid(pod)))).then_some(now)
    });
    // tests/cluster/upgrade.rs tests pods that come meanwhile.
    let here = new.iter().find(|pod| pod["spec"]["nodeName"] == *bed.node()).expect("one on our node");
    let address = format!("{}:9410", here["status"]["podIP"].as_str().expect("an address"));
    eventually("kubelet to know the new agent", READY, || {
        // For the pod network the test runs on another machine, which may ask only for metrics.
        let answer = http::get(address.parse().expect("an address"), "/metrics").ok()?.text();
        let registered = |line: &str| line.starts_with("gpu_steward_plugin_registered{") && line.ends_with(" 1");
        answer.lines().any(registered).then_some(())
    });
    assert_eq!(container(), served, "the pod that was served was started again");
    let after = bed.pod("after", gpus, &[("main", "app", &[(0, 2000, 20)])], &Value::Null);
    let _ = bed.ready_with_retries(&[("after".to_owned(), after)], (0, &[]));
    assert_eq!(devices_in(&bed.limits("after", "main")), [(gpus[0].clone(), 2000 << 20)]);
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// `helm uninstall` removes the agents' labels and annotations from every Node. Those of other programs stay.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn helm_uninstall_cleans_every_node() {
    const RELEASE: &str = "cleaned";
    let cluster = Cluster::up(&ClusterOptions::usual());
    let admin = cluster.admin();
    // Annotations that agents of earlier tests have written.
    for key in ["hami.io/node-nvidia-register", "hami.io/node-handshake"] {
        let _ = admin.run(&["annotate", "nodes", "--all", &format!("{key}-")]).ok();
    }
    cluster.image("registry.local/gpu-steward:test", &binary(), &[]);
    let helm = Kubectl::with_config(cluster.program("helm"), &cluster.status().kubeconfig);
    let _ = admin.run(&["label", "nodes", "--all", "--overwrite", "nvidia.com/gpu.present=false"]).ok();
    let values = "image.repository=registry.local/gpu-steward,image.tag=test,agent.settings.gpus=simulated=H100:2";
    let place = ["-n", RELEASE, "--timeout", "180s"];
    let install = ["install", RELEASE, CHART, "--create-namespace", "--wait", "--set", values];
    let _ = helm.run(&[&install[..], &place].concat()).ok();
    let nodes = || admin.get(&["nodes"])["items"].as_array().expect("a list").clone();
    let written_by_agent = |node: &Value| {
        let annotations = &node["metadata"]["annotations"];
        let labels = node["metadata"]["labels"].as_object().expect("labels");
        let labelled = labels.keys().filter(|key| key.starts_with("nvidia.com/")).count();
        (annotations["hami.io/node-nvidia-register"].is_string(), labelled)
    };
    eventually("what agents write on Nodes", READY, || {
        nodes().iter().all(|node| written_by_agent(node).0 && written_by_agent(node).1 > 5).then_some(())
    });
    let _ = helm.run(&[&["uninstall", RELEASE][..], &place].concat()).ok();
    for node in nodes() {
        assert_eq!(written_by_agent(&node), (false, 1), "{}", node["metadata"]);
        assert_eq!(node["metadata"]["labels"]["nvidia.com/gpu.present"], "false", "an operator's");
        assert!(node["metadata"]["annotations"]["hami.io/node-handshake"].is_null(), "{}", node["metadata"]);
    }
    let left = admin.run(&["get", "clusterroles,clusterrolebindings", "-o", "name"]).ok();
    assert!(!left.contains("clean-nodes"), "{left}");
    let _ = admin.run(&["label", "nodes", "--all", "nvidia.com/gpu.present-"]).ok();
    let _ = admin.run(&["delete", "namespace", RELEASE]).ok();
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
