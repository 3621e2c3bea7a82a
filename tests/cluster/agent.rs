//! The agent on real nodes: in its DaemonSet, as helm renders it, and as a service among the node's own paths.

use crate::bed::{Bed, promised};
use crate::chart::{CHART, NAMESPACE, install, render};
use crate::life::sleeper;
use lab::agent::Agent;
use lab::cluster::{Cluster, Wanted};
use lab::eventually::eventually;
use lab::http;
use lab::kubectl::Kubectl;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

const READY: Duration = Duration::from_secs(60);
/// Of three agents, one after the other.
const ROLLOUT: Duration = Duration::from_secs(90);
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
#[ignore = "needs cluster alone: tests/run"]
fn the_daemonset_runs_on_every_node() {
    let cluster = Cluster::up(&Wanted::usual());
    install(&cluster, &[]);
    let admin = cluster.admin();
    cluster.image("registry.local/gpu-steward:test", BINARY, &[]);
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

/// With `agent.kernelLog` an agent that is not privileged counts an error of an NVSwitch, which only the kernel log tells.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_daemonset_reads_the_kernel_log_where_it_is_switched_on() {
    const ERROR: &str =
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt\n";
    let cluster = Cluster::up(&Wanted::usual());
    install(&cluster, &[]);
    let admin = cluster.admin();
    cluster.image("registry.local/gpu-steward:test", BINARY, &[]);
    // Without a driver GPUs come from NVML all the same, and only then the kernel log is read.
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
            let told =
                |line: &str| line.starts_with("gpu_steward_nvswitch_errors_total{") && line.contains("\"22013\"");
            answer.lines().any(told).then_some(())
        });
    }
    let _ = admin.run(&["delete", "daemonset", "-n", NAMESPACE, "gpu-steward-agent"]).ok();
}

/// The DaemonSet as the chart has it is the device plugin of its node: a pod gets what it was promised, through mounts of the
/// host's folders alone, and without privilege.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_daemonset_shares_the_gpus_of_its_node() {
    let bed = Bed::alone("agent-shares");
    bed.cluster.image("registry.local/gpu-steward:test", BINARY, &[]);
    // HAMi's device YAML comes as HAMi has it, in a ConfigMap.
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
        let node = bed.told();
        let text = node["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str()?.to_owned();
        let gpus: Value = serde_json::from_str(&text).expect("JSON");
        (node["status"]["allocatable"]["nvidia.com/gpu"] == "12").then_some(())?;
        // The list is by UUID; the containers' device nodes are by index.
        let mut gpus = gpus.as_array()?.clone();
        // What an earlier test's agent wrote there names other GPUs.
        gpus.iter().all(|gpu| gpu["count"] == 6).then_some(())?;
        gpus.sort_by_key(|gpu| gpu["index"].as_u64());
        gpus.iter().map(|gpu| gpu["id"].as_str().map(str::to_owned)).collect()
    });
    let pod = bed.pod("served", &gpus, &[("main", "app", &[(1, 3000, 30)])], &Value::Null);
    // The agent's pod is known to kubelet and stays.
    let _ = bed.ready_in_the_end(&[("served".to_owned(), pod)], (0, &[]));
    assert_eq!(promised(&bed.limits("served", "main")), [(gpus[1].clone(), 3000 << 20)]);
    let seen =
        bed.sh("served", "main", "ls /dev | grep nvidia | sort | tr '\\n' ' '; echo $CUDA_DEVICE_MEMORY_LIMIT_0");
    assert_eq!(seen.trim(), "nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl 3000m");
    is_upgraded(&bed, &gpus);
    let _ = bed.admin.run(&["delete", "daemonset", "-n", NAMESPACE, "gpu-steward-agent", "--wait"]).ok();
}

/// An upgrade: on each node the new one is Ready beside the old one, which then ends. No node is without one at any look, the pod
/// that was served runs on in its container, and one that comes afterwards runs.
fn is_upgraded(bed: &Bed, gpus: &[String]) {
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
    // A kubelet before 1.37 has no plugin from the end of the old connection to the begin of the new one: a pod of that moment is
    // what tests/cluster/upgrade.rs is about.
    let here = new.iter().find(|pod| pod["spec"]["nodeName"] == *bed.node()).expect("one on our node");
    let address = format!("{}:9410", here["status"]["podIP"].as_str().expect("an address"));
    eventually("kubelet to know the new agent", READY, || {
        // From here, another machine to the pod, no more than its metrics can be asked for.
        let answer = http::get(address.parse().expect("an address"), "/metrics").ok()?.text();
        let registered = |line: &str| line.starts_with("gpu_steward_plugin_registered{") && line.ends_with(" 1");
        answer.lines().any(registered).then_some(())
    });
    assert_eq!(container(), served, "the pod that was served was started again");
    let after = bed.pod("after", gpus, &[("main", "app", &[(0, 2000, 20)])], &Value::Null);
    let _ = bed.ready_in_the_end(&[("after".to_owned(), after)], (0, &[]));
    assert_eq!(promised(&bed.limits("after", "main")), [(gpus[0].clone(), 2000 << 20)]);
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// `helm uninstall` leaves no Node that tells of GPUs: neither labels nor annotations of agents, and those of others stay.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn helm_uninstall_leaves_nodes_as_they_were() {
    const RELEASE: &str = "cleaned";
    let cluster = Cluster::up(&Wanted::usual());
    let admin = cluster.admin();
    // What earlier tests' agents wrote under other names.
    for key in ["hami.io/node-nvidia-register", "hami.io/node-handshake"] {
        let _ = admin.run(&["annotate", "nodes", "--all", &format!("{key}-")]).ok();
    }
    cluster.image("registry.local/gpu-steward:test", BINARY, &[]);
    let helm = Kubectl::with_config(cluster.program("helm"), &cluster.status().kubeconfig);
    let _ = admin.run(&["label", "nodes", "--all", "--overwrite", "nvidia.com/gpu.present=false"]).ok();
    let values = "image.repository=registry.local/gpu-steward,image.tag=test,agent.settings.gpus=simulated=H100:2";
    let place = ["-n", RELEASE, "--timeout", "180s"];
    let install = ["install", RELEASE, CHART, "--create-namespace", "--wait", "--set", values];
    let _ = helm.run(&[&install[..], &place].concat()).ok();
    let nodes = || admin.get(&["nodes"])["items"].as_array().expect("a list").clone();
    let ours = |node: &Value| {
        let annotations = &node["metadata"]["annotations"];
        let labels = node["metadata"]["labels"].as_object().expect("labels");
        let labelled = labels.keys().filter(|key| key.starts_with("nvidia.com/")).count();
        (annotations["hami.io/node-nvidia-register"].is_string(), labelled)
    };
    eventually("what agents write on Nodes", READY, || {
        nodes().iter().all(|node| ours(node).0 && ours(node).1 > 5).then_some(())
    });
    let _ = helm.run(&[&["uninstall", RELEASE][..], &place].concat()).ok();
    for node in nodes() {
        assert_eq!(ours(&node), (false, 1), "{}", node["metadata"]);
        assert_eq!(node["metadata"]["labels"]["nvidia.com/gpu.present"], "false", "an operator's");
        assert!(node["metadata"]["annotations"]["hami.io/node-handshake"].is_null(), "{}", node["metadata"]);
    }
    let left = admin.run(&["get", "clusterroles,clusterrolebindings", "-o", "name"]).ok();
    assert!(!left.contains("clean-nodes"), "{left}");
    let _ = admin.run(&["label", "nodes", "--all", "nvidia.com/gpu.present-"]).ok();
    let _ = admin.run(&["delete", "namespace", RELEASE]).ok();
}

/// In a node's mount namespace the runtime's socket is where it always is, and the agent names the node's pods.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_service_names_the_pods_of_its_node() {
    let cluster = Cluster::shared();
    let lease = cluster.lease();
    let (admin, space) = (cluster.admin(), cluster.namespace("agent-service"));
    let _ = admin.apply(&sleeper(&space.name, "seen", &lease.node)).ok();
    admin.wait("condition=Ready", READY, &["pod/seen", "-n", &space.name]);
    let recipe = Agent::standalone(BINARY).with("--gpus", "none").with("--cri-socket", "auto");
    let agent = recipe.in_mounts_of(cluster.node(&lease.node).pid).start();
    names(agent.metrics, "seen");
}
