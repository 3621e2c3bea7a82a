//! The extender with a real kube-scheduler, and agents on three nodes: pods that ask for parts of GPUs run with the
//! memory that they request, and nothing is given twice or leaks.

use crate::bed::{SOON, binary, devices_in};
use crate::chart::{self, NAMESPACE, render};
use lab::cluster::{Cluster, ClusterOptions};
use lab::eventually::eventually;
use lab::http;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
const MIB: u64 = 1 << 20;
/// Longest time until 60 pods run on two cores.
const BURST: Duration = Duration::from_secs(300);
/// Memory of a simulated H100, in MiB.
const GPU_MIB: u64 = 81_559;

/// A cluster whose kube-scheduler asks the extender, with an agent on each node.
struct Placed {
    cluster: Cluster,
    extender: Child,
    address: SocketAddr,
    dir: TempDir,
}

impl Placed {
    fn up() -> Placed {
        let dir = tempfile::tempdir().expect("a folder");
        // A port that nothing else has: the printed configuration names it before the extender listens.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let printed = Command::new(binary())
            .args(["print-config", "kube-scheduler", "--extender-listen", &address.to_string()])
            .output()
            .expect("the program can be run");
        let printed = String::from_utf8(printed.stdout).expect("UTF-8");
        // The cluster's own configuration has the first lines.
        let (_, added) = printed.split_once("profiles:\n").expect("profiles");
        let file = dir.path().join("scheduler.yaml");
        std::fs::write(&file, format!("profiles:\n  - schedulerName: default-scheduler\n{added}")).expect("a file");
        let cluster = Cluster::up(&ClusterOptions::usual().scheduler(&file));
        chart::install(&cluster, &[]);
        let _ = cluster
            .admin()
            .apply(&render(&cluster, &["accounts", "extender/rbac", "guard/access"], &["extender.enabled=true"]))
            .ok();
        cluster.image("registry.local/gpu-steward:test", &binary(), &[]);
        let values =
            ["image.repository=registry.local/gpu-steward", "image.tag=test", "agent.settings.gpus=simulated=H100:2"];
        let _ = cluster.admin().apply(&render(&cluster, &["agent/daemonset"], &values)).ok();
        let wait = ["rollout", "status", "daemonset/gpu-steward-agent", "-n", NAMESPACE, "--timeout=120s"];
        let _ = cluster.admin().run(&wait).ok();
        let extender = Placed::extender(&cluster, address, &dir);
        let placed = Placed { cluster, extender, address, dir };
        eventually("an extender that leads", SOON, || {
            http::get(address, "/leadz").is_ok_and(|answer| answer.status == 200).then_some(())
        });
        eventually("three open nodes", SOON, || {
            (placed.metric("gpu_steward_extender_nodes{state=\"open\"}") == 3.0).then_some(())
        });
        placed
    }

    /// The extender with the rights of its account.
    fn extender(cluster: &Cluster, address: SocketAddr, dir: &TempDir) -> Child {
        let token = chart::token(&cluster.admin(), "gpu-steward-extender", &[]);
        let server = json!({ "server": cluster.status().server, "certificate-authority": cluster.status().ca });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": server }],
            "users": [{ "name": "u", "user": { "token": token } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        let kubeconfig = dir.path().join("extender.kubeconfig");
        std::fs::write(&kubeconfig, config.to_string()).expect("a kubeconfig");
        Command::new(binary())
            .args(["extender", "-v", "2", "--extender-listen", &address.to_string()])
            .args(["--lease-namespace", NAMESPACE, "--kubeconfig"])
            .arg(kubeconfig)
            .stdin(Stdio::null())
            .stderr(File::create(dir.path().join("log")).expect("a log"))
            .spawn()
            .expect("the extender starts")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The value of a metric of the extender; 0 where it has none.
    fn metric(&self, name: &str) -> f64 {
        let text = http::get(self.address, "/metrics").map(|answer| answer.text()).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }

    fn pods(&self, namespace: &str) -> Vec<Value> {
        self.cluster.admin().get(&["pods", "-n", namespace])["items"].as_array().cloned().unwrap_or_default()
    }

    /// The pods of a namespace, once as many run.
    fn running(&self, namespace: &str, count: usize) -> Vec<Value> {
        eventually(&format!("{count} running pods"), BURST, || {
            let pods = self.pods(namespace);
            let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            (running == count && pods.len() == count).then_some(pods)
        })
    }

    /// Nothing is claimed, and no pod is pending.
    fn is_empty(&self) {
        eventually("a ledger without claims", SOON, || {
            let claims = ["assumed", "bound", "started"]
                .map(|state| self.metric(&format!("gpu_steward_extender_claims{{state=\"{state}\"}}")));
            (claims == [0.0; 3]).then_some(())
        });
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.extender.kill();
        let _ = self.extender.wait();
        let _ = self.cluster.admin().run(&["delete", "daemonset", "-n", NAMESPACE, "gpu-steward-agent"]);
    }
}

/// A Deployment whose pods ask for a part of a GPU, by the scheduler with the extender.
fn deployment(namespace: &str, name: &str, replicas: u32, mib: u64, cores: u32) -> String {
    let limits = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": mib, "nvidia.com/gpucores": cores });
    let container = json!({
        "name": "main", "image": "registry.local/busybox:1", "command": ["sh", "-c", "trap exit TERM; sleep 100000 & wait"],
        "resources": { "limits": limits },
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "schedulerName": "gpu-steward", "terminationGracePeriodSeconds": 0, "dnsPolicy": "Default",
                    "automountServiceAccountToken": false, "containers": [container],
                },
            },
        },
    })
    .to_string()
}

/// The claim of a pod with one container and one GPU: UUID, MiB, percent.
fn claim(pod: &Value) -> (String, u64, u32) {
    let text = pod["metadata"]["annotations"][ALLOCATED].as_str().expect("a claim");
    let parts: Vec<&str> = text.trim_end_matches(';').trim_end_matches(':').split(',').collect();
    let [uuid, "NVIDIA", mib, cores] = parts[..] else { panic!("{text}") };
    (uuid.to_owned(), mib.parse().expect("MiB"), cores.parse().expect("percent"))
}

#[test]
#[ignore = "needs cluster alone: tests/run"]
fn sixty_sharing_pods_at_once_get_what_they_ask_for_and_leave_nothing_behind() {
    let placed = Placed::up();
    let admin = placed.cluster.admin();
    let space = placed.cluster.namespace("extender");
    // A Deployment as users write it, which stays pending without the extender.
    let _ = admin.apply(&deployment(&space.name, "small", 2, 3000, 0)).ok();
    placed.running(&space.name, 2);
    let _ = admin.run(&["delete", "deployment", "small", "-n", &space.name, "--wait=true"]).ok();
    for round in 0..3 {
        // Six GPUs with ten slots each: every slot is taken. Ten of the largest pods fit one GPU, so every order fits.
        for (name, mib, cores) in [("a", 3000, 5), ("b", 5000, 5), ("c", 7000, 10)] {
            let _ = admin.apply(&deployment(&space.name, name, 20, mib, cores)).ok();
        }
        let pods = placed.running(&space.name, 60);
        let mut used: BTreeMap<String, (u64, u32, usize)> = BTreeMap::new();
        for pod in &pods {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            let (uuid, mib, cores) = claim(pod);
            let asked = &pod["spec"]["containers"][0]["resources"]["limits"];
            let number = |value: &Value| value.as_str().expect("an amount").replace('k', "000");
            assert_eq!(number(&asked["nvidia.com/gpumem"]), mib.to_string(), "{name}");
            let limits = admin.run(&["exec", name, "-n", &space.name, "--", "cat", "/etc/gpu-steward/limits.json"]);
            let limits: Value = serde_json::from_str(&limits.ok()).expect("limits in JSON");
            assert_eq!(devices_in(&limits), [(uuid.clone(), mib * MIB)], "{name}, round {round}");
            let sum = used.entry(uuid).or_default();
            *sum = (sum.0 + mib, sum.1 + cores, sum.2 + 1);
        }
        for (uuid, (mib, cores, pods)) in &used {
            assert!(*mib <= GPU_MIB && *cores <= 100 && *pods <= 10, "{uuid}: {mib} MiB, {cores} %, {pods} pods");
        }
        assert_eq!(used.len(), 6, "{used:?}");
        eventually("sixty started claims", SOON, || {
            (placed.metric("gpu_steward_extender_claims{state=\"started\"}") == 60.0).then_some(())
        });
        let _ = admin.run(&["delete", "deployment", "--all", "-n", &space.name, "--wait=true"]).ok();
        eventually("the end of all pods", BURST, || placed.pods(&space.name).is_empty().then_some(()));
        placed.is_empty();
    }
}
