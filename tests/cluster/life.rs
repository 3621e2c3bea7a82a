//! Tests the cluster itself: it comes up, works, and leaves nothing behind.

use lab::cluster::{Cluster, ClusterOptions};
use lab::eventually::eventually;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const READY: Duration = Duration::from_secs(60);

/// A busybox pod that only sleeps.
pub(crate) fn sleeper(namespace: &str, name: &str, node: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}}}, spec: {{nodeName: {node}, \
         terminationGracePeriodSeconds: 0, dnsPolicy: Default, containers: [{{name: main, \
         image: 'registry.local/busybox:1', command: [sleep, '100000']}}]}}}}"
    )
}

/// The traces that a cluster could leave on the machine.
#[derive(Debug, PartialEq)]
struct Machine {
    programs: BTreeSet<String>,
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
    addresses: String,
    cgroups: BTreeSet<String>,
    folders: Vec<(&'static str, bool)>,
    forwarding: String,
}

impl Machine {
    fn now() -> Machine {
        const FOLDERS: [&str; 9] = [
            "/var/lib/kubelet",
            "/var/lib/containerd",
            "/run/containerd",
            "/etc/cdi",
            "/run/cdi",
            "/etc/cni",
            "/etc/kubernetes",
            "/var/log/containers",
            "/var/lib/gpu-steward-cluster",
        ];
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let names = |folder: &Path| -> BTreeSet<String> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path().display().to_string()).collect()
        };
        let belongs_to_cluster =
            |name: &str| ["etcd", "kube", "containerd", "pause"].iter().any(|begin| name.starts_with(begin));
        let processes = names(Path::new("/proc")).into_iter().filter_map(|folder| {
            let name = fs::read_to_string(format!("{folder}/comm")).ok()?;
            // A zombie process has no command line.
            let running = !fs::read(format!("{folder}/cmdline")).ok()?.is_empty();
            (running && belongs_to_cluster(&name)).then(|| format!("{folder} {}", name.trim()))
        });
        let addresses = Command::new("ip").args(["-o", "addr", "show", "dev", "lo"]).output().expect("ip");
        Machine {
            programs: processes.collect(),
            mounts: text("/proc/mounts").lines().map(str::to_owned).collect(),
            links: names(Path::new("/sys/class/net")),
            addresses: String::from_utf8_lossy(&addresses.stdout).into_owned(),
            cgroups: names(Path::new("/sys/fs/cgroup/memory"))
                .union(&names(Path::new("/sys/fs/cgroup")))
                .cloned()
                .collect(),
            folders: FOLDERS.map(|path| (path, Path::new(path).exists())).to_vec(),
            forwarding: text("/proc/sys/net/ipv4/ip_forward"),
        }
    }
}

/// A second `up` keeps the running cluster. `down` restores the machine, even after all programs were killed.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_cluster_comes_up_twice_and_leaves_nothing_behind() {
    // The test must not measure a cluster that was already up.
    Cluster::up(&ClusterOptions::nodes(1)).down();
    let before = Machine::now();
    let same = || {
        let mut after = Machine::now();
        let deadline = Instant::now() + Duration::from_secs(10);
        // The kernel removes network namespaces with a delay.
        while after != before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            after = Machine::now();
        }
        assert_eq!(after, before, "the machine is not as it was");
    };
    for round in 0..2 {
        let cluster = Cluster::up(&ClusterOptions::nodes(1));
        let apiserver = cluster.pid("apiserver");
        drop(cluster);
        let cluster = Cluster::up(&ClusterOptions::nodes(1));
        if std::env::var_os("GPU_STEWARD_CLUSTER_KEEP").is_some() {
            assert_eq!(cluster.pid("apiserver"), apiserver, "the second start keeps the running cluster");
        }
        let _ = cluster.admin().apply(&sleeper("default", "sleeper", "node-1")).ok();
        cluster.admin().wait("condition=Ready", READY, &["pod/sleeper"]);
        assert_ne!(Machine::now(), before, "this comparison sees a running cluster");
        if round == 1 {
            // As after `kill -9` of every part: shims and containers still run without containerd.
            for part in ["node-1-kubelet", "node-1-containerd", "apiserver", "etcd"] {
                cluster.part("kill", part);
            }
        }
        cluster.down();
        same();
    }
}

/// A pod is scheduled, starts and gets an address; `kubectl exec` and `logs` work, and the pod reaches the API server.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn a_pod_runs_and_answers() {
    let cluster = Cluster::up(&ClusterOptions::nodes(1));
    let (admin, space) = (cluster.admin(), cluster.namespace("life-pod"));
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: talker, namespace: life-pod}, spec: {dnsPolicy: Default, \
               terminationGracePeriodSeconds: 0, containers: [{name: main, image: 'registry.local/busybox:1', \
               command: [sh, -c, 'echo hello; sleep 100000']}]}}";
    let _ = admin.apply(pod).ok();
    admin.wait("condition=Ready", READY, &["pod/talker", "-n", &space.name]);
    assert_eq!(admin.exec(&space.name, "talker", &["echo", "from inside"]).trim(), "from inside");
    assert_eq!(admin.run(&["logs", "-n", &space.name, "talker"]).ok().trim(), "hello");
    let pod = admin.get(&["pod", "talker", "-n", &space.name]);
    assert!(pod["status"]["podIP"].as_str().is_some_and(|address| address.starts_with("10.244.1.")), "{pod}");
    let answer = "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo reached";
    assert_eq!(admin.exec(&space.name, "talker", &["sh", "-c", answer]).trim(), "reached");
}

/// Three nodes are Ready, each with its own containerd, kubelet folder and CDI folder.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn three_nodes_are_separate() {
    let cluster = Cluster::up(&ClusterOptions::nodes(3));
    let (admin, space) = (cluster.admin(), cluster.namespace("life-three"));
    let nodes = admin.get(&["nodes"]);
    assert_eq!(nodes["items"].as_array().map(Vec::len), Some(3));
    for node in ["node-1", "node-2", "node-3"] {
        let _ = admin.apply(&sleeper(&space.name, &format!("on-{node}"), node)).ok();
    }
    for name in ["node-1", "node-2", "node-3"] {
        admin.wait("condition=Ready", READY, &[&format!("pod/on-{name}"), "-n", &space.name]);
        let node = cluster.node(name);
        assert!(node.plugins.join("kubelet.sock").exists(), "{node:?}");
        assert!(node.containerd.exists() && node.cdi.is_dir() && node.pod_resources.exists(), "{node:?}");
        let listed =
            node.command(cluster.program("ctr")).args(["-n", "k8s.io", "containers", "ls"]).output().expect("ctr");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        // A header line, a sandbox and a container.
        assert_eq!(listed.lines().count(), 3, "{name} runs its own pod and no other: {listed}");
        let links = fs::read_dir(&node.log_links).expect("links").flatten();
        let links: Vec<_> = links.map(|link| link.file_name().to_string_lossy().into_owned()).collect();
        assert!(links.len() == 1 && links[0].starts_with(&format!("on-{name}_life-three_main-")), "{links:?}");
    }
}

/// Parts can be stopped, killed and started again. Containers outlive the kubelet and containerd.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn parts_of_the_cluster_stop_and_start_again() {
    let cluster = Cluster::up(&ClusterOptions::nodes(1));
    let (admin, space) = (cluster.admin(), cluster.namespace("life-parts"));
    let _ = admin.apply(&sleeper(&space.name, "sleeper", "node-1")).ok();
    admin.wait("condition=Ready", READY, &["pod/sleeper", "-n", &space.name]);
    let container =
        admin.get(&["pod", "sleeper", "-n", &space.name])["status"]["containerStatuses"][0]["containerID"].clone();
    for (verb, part) in
        [("kill", "node-1-kubelet"), ("stop", "node-1-containerd"), ("kill", "apiserver"), ("stop", "etcd")]
    {
        cluster.part(verb, part);
        assert_eq!(cluster.pid(part), None, "{part} after {verb}");
    }
    let _ = admin.run(&["get", "nodes", "--request-timeout=5s"]).refused();
    for part in ["etcd", "apiserver", "node-1-containerd", "node-1-kubelet"] {
        cluster.part("start", part);
        assert!(cluster.pid(part).is_some(), "{part} after start");
    }
    assert_eq!(
        eventually("an answer from the pod", READY, || {
            let output = admin.run(&["exec", "-n", &space.name, "sleeper", "--", "echo", "still here"]);
            output.success.then_some(output.out)
        })
        .trim(),
        "still here"
    );
    let pod = admin.get(&["pod", "sleeper", "-n", &space.name]);
    assert_eq!(pod["status"]["containerStatuses"][0]["containerID"], container, "the same container");
}
