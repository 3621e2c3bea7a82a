//! An agent on each node from the chart's DaemonSet, and a scheduler: the chart's Deployment with kube-scheduler and the
//! extender, or the same programs as processes of this machine (`seats`). Pods are made without a node and without a
//! claim, as users make them.

use crate::built::binary;
use crate::chart::{self, NAMESPACE};
use crate::fleet::{check_containers, ended, parse};
use lab::cluster::{Cluster, ClusterOptions, TestNamespace};
use lab::eventually::eventually;
use lab::http;
use lab::kubectl::Kubectl;
use lab::relay::Relay;
use proto::pod_resources::ListPodResourcesRequest;
use proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Longest time until sixty pods run, or are gone, on two busy cores.
pub(crate) const SETTLED: Duration = Duration::from_secs(180);
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
const REGISTER: &str = "hami.io/node-nvidia-register";
const COUNT: &str = "nvidia.com/gpu";
/// GPUs of the three nodes together.
pub(crate) const GPUS: usize = 12;
const DAEMONSET: &str = "daemonset/gpu-steward-agent";
const DEPLOYMENT: &str = "deployment/gpu-steward-extender";
/// The label selector of the extender's pods.
const EXTENDERS: &str = "app.kubernetes.io/component=extender";
/// The port of the extender for streams.
const STREAMS: u16 = 9443;
const VALUES: [&str; 5] = [
    "extender.enabled=true",
    "extender.scheduler.image=registry.local/kube-scheduler:test",
    "image.repository=registry.local/gpu-steward",
    "image.tag=test",
    "agent.settings.gpus=simulated=H100:4",
];

/// A cluster of three nodes with four simulated GPUs each, which no other test uses.
#[derive(Debug)]
pub(crate) struct Placed {
    pub space: TestNamespace,
    pub admin: Kubectl,
    // This is the last field, because the fields above need the cluster while they are dropped.
    pub cluster: Cluster,
}

/// The part of one device that pods claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claimed {
    slots: u64,
    mib: u64,
    cores: u64,
}

impl Placed {
    /// Installs the chart with these values for its scheduler, and waits until agents and scheduler are ready.
    pub(crate) fn up_with(name: &str, values: &[&str]) -> Placed {
        let placed = Placed::agents(name);
        placed.deploy_scheduler(values);
        placed
    }

    fn deploy_scheduler(&self, values: &[&str]) {
        let scheduler = self.cluster.program("kube-scheduler");
        let scheduler = scheduler.to_str().expect("a path in UTF-8");
        self.cluster.image("registry.local/kube-scheduler:test", scheduler, &[]);
        let values = [&VALUES, values].concat();
        let _ = self.admin.apply(&chart::render(&["extender/deployment"], &values)).ok();
        self.rolled_out(DEPLOYMENT);
    }

    /// Installs the chart on one node whose GPUs the fake driver in this folder reports, and waits until agent and scheduler are
    /// ready and the agent reports. The folder has the device nodes too (`dev`).
    pub(crate) fn with_driver(name: &str, library: &Path, gpus: usize) -> Placed {
        let folder = library.parent().expect("a folder").display();
        let placed = Placed::chart(name, &ClusterOptions::nodes(1));
        placed.deploy_scheduler(&[]);
        let settings = [
            "agent.settings.gpus=nvml".to_owned(),
            format!("agent.settings.nvml-library={}", library.display()),
            format!("agent.settings.dev-root={folder}/dev"),
            format!("agent.settings.dev-root-mount={folder}/dev"),
            format!("agent.settings.extender-address={}", SocketAddr::new(placed.extender_address().ip(), STREAMS)),
        ];
        let values: Vec<&str> = VALUES.into_iter().chain(settings.iter().map(String::as_str)).collect();
        let _ = placed.admin.apply(&chart::render(&["agent/daemonset"], &values)).ok();
        let (mount, volume) = (
            json!({ "name": "driver", "mountPath": folder.to_string() }),
            json!({ "name": "driver", "hostPath": { "path": folder.to_string() } }),
        );
        let pod = json!({ "containers": [{ "name": "agent", "volumeMounts": [mount] }], "volumes": [volume] });
        let patch = json!({ "spec": { "template": { "spec": pod } } }).to_string();
        let _ = placed.admin.run(&["patch", DAEMONSET, "-n", NAMESPACE, "--patch", &patch]).ok();
        placed.rolled_out(DAEMONSET);
        let slots = (10 * gpus).to_string();
        eventually("the GPUs of the node", SETTLED, || {
            let nodes = placed.admin.get(&["nodes"]);
            (nodes["items"][0]["status"]["allocatable"][COUNT] == json!(slots)).then_some(())
        });
        eventually("a stream of the agent", SETTLED, || (placed.streams() == Some(1)).then_some(()));
        placed
    }

    /// Installs the chart, without its Deployment and without waiting for agents.
    fn chart(name: &str, options: &ClusterOptions) -> Placed {
        let cluster = Cluster::up(options);
        let (admin, space) = (cluster.admin(), cluster.namespace(name));
        chart::install(&cluster, &VALUES);
        remove_pods(&admin);
        cluster.image("registry.local/gpu-steward:test", &binary(), &[]);
        let _ = admin.apply(&chart::render(&["extender/rbac", "extender/authority"], &VALUES)).ok();
        Placed { space, admin, cluster }
    }

    /// Installs the chart without its scheduler, and waits until agents are ready.
    pub(crate) fn agents(name: &str) -> Placed {
        let placed = Placed::chart(name, &ClusterOptions::usual());
        let _ = placed.admin.apply(&chart::render(&["agent/daemonset"], &VALUES)).ok();
        placed.rolled_out(DAEMONSET);
        eventually("the GPUs of all nodes", SETTLED, || {
            let nodes = placed.admin.get(&["nodes"]);
            let ready = |node: &Value| {
                node["status"]["allocatable"][COUNT] == "40" && node["metadata"]["annotations"][REGISTER].is_string()
            };
            nodes["items"].as_array()?.iter().all(ready).then_some(())
        });
        placed
    }

    /// A control plane whose Nodes exist only as objects: no agents, and no controller manager.
    pub(crate) fn control_plane(name: &str) -> Placed {
        let cluster = Cluster::up(&ClusterOptions::nodes(1));
        let (admin, space) = (cluster.admin(), cluster.namespace(name));
        chart::install(&cluster, &VALUES);
        let _ = admin.apply(&chart::render(&["extender/rbac"], &VALUES)).ok();
        cluster.part("stop", "controller-manager");
        Placed { space, admin, cluster }
    }

    fn rolled_out(&self, workload: &str) {
        let wait = ["rollout", "status", workload, "-n", NAMESPACE, "--timeout=120s"];
        let output = self.admin.run(&wait);
        assert!(output.success, "{}{}: {}", output.out, output.err, self.extender_log());
    }

    /// Lets the agents report to the extender at the address of its pod, because this cluster has no proxy for Services.
    pub(crate) fn agents_report(&self) {
        self.agents_report_to(SocketAddr::new(self.extender_address().ip(), STREAMS));
    }

    /// The same at an address that stays when the extender's pods are replaced, like the address of a Service: each connection
    /// goes to a ready extender.
    pub(crate) fn agents_report_over_relay(&self) -> Relay {
        let (admin, server) = (self.cluster.admin(), &self.cluster.status().server);
        let own = server.trim_start_matches("https://").split([':', '/']).next().expect("an address");
        let relay = Relay::to_any(own.parse().expect("an address"), Duration::ZERO, move || {
            let pods = admin.get(&["pods", "-n", NAMESPACE, "-l", EXTENDERS]);
            let ready = |pod: &&Value| {
                let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                let ends = pod["metadata"]["deletionTimestamp"].is_string();
                !ends && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            };
            let pod = pods["items"].as_array()?.iter().find(ready)?;
            Some(SocketAddr::new(pod["status"]["podIP"].as_str()?.parse().ok()?, STREAMS))
        });
        self.agents_report_to(relay.address);
        relay
    }

    fn agents_report_to(&self, address: SocketAddr) {
        let reach = format!("agent.settings.extender-address={address}");
        let values: Vec<&str> = VALUES.into_iter().chain([&*reach]).collect();
        let _ = self.admin.apply(&chart::render(&["agent/daemonset"], &values)).ok();
        self.rolled_out(DAEMONSET);
        let nodes = self.cluster.status().nodes.len();
        eventually("a stream of each agent", SETTLED, || (self.streams() == Some(nodes)).then_some(()));
    }

    /// How many agents report to the extender.
    pub(crate) fn streams(&self) -> Option<usize> {
        self.metric("gpu_steward_extender_streams ")
    }

    /// How many nodes take no new claims.
    pub(crate) fn closed_nodes(&self) -> Option<usize> {
        self.metric("gpu_steward_extender_nodes{state=\"closed\"} ")
    }

    /// The value of a metric of the extender.
    pub(crate) fn metric(&self, name: &str) -> Option<usize> {
        let text = http::get(self.extender_address(), "/metrics").ok()?.text();
        text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok())
    }

    /// Replaces all agents, as an upgrade does, and waits until each new one reports.
    pub(crate) fn replace_agents(&self) {
        let _ = self.admin.run(&["rollout", "restart", DAEMONSET, "-n", NAMESPACE]).ok();
        let wait = ["rollout", "status", DAEMONSET, "-n", NAMESPACE, "--timeout=400s"];
        let output = self.admin.run(&wait);
        assert!(output.success, "{}{}: {}", output.out, output.err, self.extender_log());
        let nodes = self.cluster.status().nodes.len();
        eventually("a stream of each agent", SETTLED, || (self.streams() == Some(nodes)).then_some(()));
    }

    /// Replaces the pods of the extender, as an upgrade does.
    pub(crate) fn replace_extender(&self) {
        let _ = self.admin.run(&["rollout", "restart", DEPLOYMENT, "-n", NAMESPACE]).ok();
        self.rolled_out(DEPLOYMENT);
    }

    /// The end of the log of the extender.
    pub(crate) fn extender_log(&self) -> String {
        self.admin.run(&["logs", DEPLOYMENT, "-n", NAMESPACE, "-c", "extender", "--tail=60"]).out
    }

    /// Takes the test's namespace out of the policy about the shape of pods: what the extender does must not rest on it.
    pub(crate) fn allows_any_shape(&self) {
        let _ = self.admin.run(&["label", "namespace", &self.space.name, "gpu-steward.io/pod-shape=any"]).ok();
    }

    /// The pods of the test's namespace.
    pub(crate) fn pods(&self) -> Vec<Value> {
        self.admin.get(&["pods", "-n", &self.space.name])["items"].as_array().expect("a list").clone()
    }

    /// Makes a Deployment without pods, whose pods have one container with these limits.
    pub(crate) fn deployment(&self, name: &str, limits: &Value) {
        let none = workload("Deployment", name, &spec(&[container("main", limits)]), &json!({ "replicas": 0 }));
        let _ = self.admin.run_with(&["create", "-n", &self.space.name, "-f", "-"], &none.to_string()).ok();
    }

    /// Sets how many pods a Deployment has.
    pub(crate) fn scale(&self, name: &str, replicas: usize) {
        let (name, replicas) = (format!("deployment/{name}"), format!("--replicas={replicas}"));
        let _ = self.admin.run(&["scale", &name, "-n", &self.space.name, &replicas]).ok();
    }

    /// Waits until this many pods of this selection run and none has failed.
    pub(crate) fn run(&self, selector: &str, count: usize) {
        let mut last = Vec::new();
        let mut runs = || {
            last = self.admin.get(&["pods", "-n", &self.space.name, "-l", selector])["items"].as_array()?.clone();
            let phase = |word: &str| last.iter().filter(|pod| pod["status"]["phase"] == word).count();
            let failed: Vec<&Value> = last.iter().filter(|pod| pod["status"]["phase"] == "Failed").collect();
            assert!(failed.is_empty(), "{failed:#?}");
            (phase("Running") == count && last.len() == count).then_some(())
        };
        eventually(&format!("{count} pods of {selector} to run"), SETTLED, &mut runs);
    }

    /// Waits until the namespace has no pod.
    pub(crate) fn empty(&self) {
        eventually("the end of all pods", SETTLED, || self.pods().is_empty().then_some(()));
    }

    /// Removes the objects that a part of a test has created in the namespace, and waits for the end of its pods.
    pub(crate) fn clear(&self) {
        let kinds = "deployments,statefulsets,daemonsets,jobs,poddisruptionbudgets,pods,persistentvolumeclaims";
        let _ = self.admin.run(&["delete", kinds, "--all", "-n", &self.space.name]).ok();
        self.empty();
    }

    /// The port of the Deployment's extender, over the pod network: health and metrics.
    pub(crate) fn extender_address(&self) -> SocketAddr {
        eventually("a running extender", SETTLED, || {
            let pods =
                self.admin.get(&["pods", "-n", NAMESPACE, "-l", EXTENDERS, "--field-selector=status.phase=Running"]);
            // An extender that is replaced runs for a while beside its successor.
            let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
            let address = pods["items"].as_array()?.iter().find(stays)?["status"]["podIP"].as_str()?;
            format!("{address}:9444").parse().ok()
        })
    }

    /// The node on which the Deployment's extender runs.
    pub(crate) fn extender_node(&self) -> String {
        let pods = self.admin.get(&["pods", "-n", NAMESPACE, "-l", EXTENDERS]);
        pods["items"][0]["spec"]["nodeName"].as_str().expect("a node").to_owned()
    }

    /// The samples of a metric of the extender: labels and value.
    fn samples(extender: SocketAddr, path: &str, name: &str) -> Vec<(String, u64)> {
        let answer = http::get(extender, path).expect("an answer of the extender");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let start = format!("{name}{{");
        let sample = |line: &str| {
            let (labels, value) = line.strip_prefix(&start)?.rsplit_once("} ")?;
            Some((labels.to_owned(), value.parse().ok()?))
        };
        answer.text().lines().filter_map(sample).collect()
    }

    /// The sums of the claims of all living pods of the cluster, by device.
    fn claimed(&self) -> BTreeMap<String, Claimed> {
        let pods = self.admin.get(&["pods", "-A"]);
        let mut claimed: BTreeMap<String, Claimed> = BTreeMap::new();
        for pod in pods["items"].as_array().expect("a list").iter().filter(|pod| !ended(pod)) {
            let Some(claim) = pod["metadata"]["annotations"][ALLOCATED].as_str() else { continue };
            let inits = pod["spec"]["initContainers"].as_array().map_or(0, Vec::len);
            for (uuid, share) in peak(claim, inits) {
                let sum = claimed.entry(uuid).or_default();
                (sum.slots, sum.mib, sum.cores) =
                    (sum.slots + share.slots, sum.mib + share.mib, sum.cores + share.cores);
            }
        }
        claimed
    }

    /// Checks that all sources agree: no device is overclaimed; the extender's claims match the pods' annotations; each
    /// kubelet has given each container as many devices as its claim names; and each running container has the devices of
    /// its claim. Returns the number of containers with GPUs that ran.
    pub(crate) fn check(&self, extender: SocketAddr) -> usize {
        self.check_claims(extender);
        self.check_kubelets();
        check_containers(&self.cluster, &self.admin, &self.space.name)
    }

    /// Checks that no device is overclaimed, and that the extender's claims match the pods' annotations.
    pub(crate) fn check_claims(&self, extender: SocketAddr) {
        let nodes = self.admin.get(&["nodes"]);
        let claimed = self.claimed();
        let mut known = 0;
        for node in nodes["items"].as_array().expect("a list") {
            let Some(text) = node["metadata"]["annotations"][REGISTER].as_str() else { continue };
            let gpus: Value = serde_json::from_str(text).expect("JSON");
            for gpu in gpus.as_array().expect("a list") {
                let has = |field: &str| gpu[field].as_u64().expect("a number");
                let own = claimed.get(gpu["id"].as_str().expect("a UUID")).copied().unwrap_or_default();
                known += usize::from(own != Claimed::default());
                assert!(
                    own.slots <= has("count") && own.mib <= has("devmem") && own.cores <= has("devcore"),
                    "{own:?} of {gpu}"
                );
            }
        }
        assert_eq!(known, claimed.len(), "claims of devices that no node has: {claimed:?}");
        eventually("the extender's ledger to match the pods' claims", SETTLED, || {
            (Placed::ledger(extender) == self.claimed()).then_some(())
        });
    }

    /// The claimed part of each device in the extender's ledger.
    fn ledger(extender: SocketAddr) -> BTreeMap<String, Claimed> {
        let mut ledger: BTreeMap<String, Claimed> = BTreeMap::new();
        let mut read = |name: &str, take: fn(&mut Claimed, u64)| {
            for (labels, value) in Placed::samples(extender, "/metrics/hami", name) {
                take(ledger.entry(label(&labels, "device_uuid")).or_default(), value);
            }
        };
        read("hami_gpu_memory_allocated_bytes", |own, bytes| own.mib = bytes >> 20);
        read("hami_gpu_core_allocated_ratio", |own, percent| own.cores = percent);
        read("hami_gpu_shared_count", |own, slots| own.slots = slots);
        ledger.retain(|_, own| *own != Claimed::default());
        ledger
    }

    /// How many GPUs each kubelet has given to each container of the namespace.
    fn given(&self) -> BTreeMap<(String, String), usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut given: BTreeMap<(String, String), usize> = BTreeMap::new();
        for node in &self.cluster.status().nodes {
            let socket = format!("unix://{}", node.kubelet.join("pod-resources/kubelet.sock").display());
            let list = runtime.block_on(async {
                let mut kubelet = PodResourcesListerClient::connect(socket).await.expect("kubelet");
                kubelet.list(ListPodResourcesRequest {}).await.expect("a list").into_inner()
            });
            for pod in list.pod_resources.into_iter().filter(|pod| pod.namespace == self.space.name) {
                for container in pod.containers {
                    let ids = container.devices.iter().filter(|device| device.resource_name == COUNT);
                    let ids = ids.map(|device| device.device_ids.len()).sum();
                    if ids > 0 {
                        given.insert((pod.name.clone(), container.name), ids);
                    }
                }
            }
        }
        given
    }

    /// Compares the devices that each kubelet gave out with the claims of the running pods. No pod that is gone may have any.
    fn check_kubelets(&self) {
        eventually("the kubelets' devices to match the pods", SETTLED, || {
            let pods = self.pods();
            let in_phase = |phase: &'static str| pods.iter().filter(move |pod| pod["status"]["phase"] == phase);
            // A starting pod has devices before it runs.
            let starting: BTreeSet<&str> =
                in_phase("Pending").filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
            let mut given = self.given();
            given.retain(|(pod, _), _| !starting.contains(&**pod));
            let claimed = claimed_by_containers(in_phase("Running"));
            if given != claimed {
                println!("the kubelets gave {given:?}, and the pods claim {claimed:?}");
            }
            (given == claimed).then_some(())
        });
    }
}

/// How many devices each container of these pods claims.
fn claimed_by_containers<'a>(pods: impl Iterator<Item = &'a Value>) -> BTreeMap<(String, String), usize> {
    let mut claimed = BTreeMap::new();
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let claim = parse(pod["metadata"]["annotations"][ALLOCATED].as_str().unwrap_or_default());
        let inits = pod["spec"]["initContainers"].as_array().map_or(0, Vec::len);
        let containers = pod["spec"]["containers"].as_array().expect("a list");
        for (container, devices) in containers.iter().zip(claim.into_iter().skip(inits)) {
            let container = container["name"].as_str().expect("a name").to_owned();
            if !devices.is_empty() {
                claimed.insert((name.to_owned(), container), devices.len());
            }
        }
    }
    claimed
}

impl Drop for Placed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the extender's log:\n{}", self.extender_log());
            eprintln!("{}", self.admin.run(&["get", "pods", "-A", "-o", "wide"]).out);
            eprintln!("{}", self.admin.run(&["get", "events", "-n", &self.space.name]).out);
        }
        for workload in [DEPLOYMENT, DAEMONSET] {
            let _ = self.admin.run(&["delete", workload, "-n", NAMESPACE, "--ignore-not-found", "--wait"]);
        }
        remove_pods(&self.admin);
    }
}

/// Removes the pods of the chart's workloads. After an outage of the API server, the garbage collector may never remove them,
/// and a workload of the next test would adopt them.
fn remove_pods(admin: &Kubectl) {
    let _ =
        admin.run(&["delete", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=gpu-steward", "--now", "--wait"]);
}

/// The part of each device that a pod holds: the maximum of its largest init container and the sum of its other containers.
fn peak(claim: &str, inits: usize) -> BTreeMap<String, Claimed> {
    let mut peak: BTreeMap<String, Claimed> = BTreeMap::new();
    let mut together: BTreeMap<String, Claimed> = BTreeMap::new();
    for (place, container) in claim.strip_suffix(';').unwrap_or(claim).split(';').enumerate() {
        let mut own: BTreeMap<String, Claimed> = BTreeMap::new();
        for share in container.split(':').filter(|share| !share.is_empty()) {
            let words: Vec<&str> = share.split(',').collect();
            let number = |place: usize| words[place].parse::<u64>().expect("a number");
            let sum = own.entry(words[0].to_owned()).or_default();
            (sum.slots, sum.mib, sum.cores) = (sum.slots + 1, sum.mib + number(2), sum.cores + number(3));
        }
        for (uuid, share) in own {
            let into = if place < inits { &mut peak } else { &mut together };
            let sum = into.entry(uuid).or_default();
            *sum = if place < inits {
                larger(*sum, share)
            } else {
                Claimed { slots: sum.slots + share.slots, mib: sum.mib + share.mib, cores: sum.cores + share.cores }
            };
        }
    }
    for (uuid, share) in together {
        let sum = peak.entry(uuid).or_default();
        *sum = larger(*sum, share);
    }
    peak
}

fn larger(one: Claimed, other: Claimed) -> Claimed {
    Claimed { slots: one.slots.max(other.slots), mib: one.mib.max(other.mib), cores: one.cores.max(other.cores) }
}

/// The value of a label.
fn label(labels: &str, name: &str) -> String {
    let start = format!("{name}=\"");
    let value = labels.split_once(&start).and_then(|(_, rest)| rest.split_once('"'));
    value.map(|(value, _)| value.to_owned()).unwrap_or_else(|| panic!("no label {name} in {labels}"))
}

/// A container that waits, with these limits.
pub(crate) fn container(name: &str, limits: &Value) -> Value {
    json!({
        "name": name, "image": "registry.local/busybox:1", "resources": { "limits": limits },
        "command": ["sh", "-c", "trap exit TERM; sleep 100000 & wait"],
    })
}

/// The spec of a pod that the extender's scheduler places.
pub(crate) fn spec(containers: &[Value]) -> Value {
    json!({
        "schedulerName": "gpu-steward", "terminationGracePeriodSeconds": 0, "dnsPolicy": "Default",
        "automountServiceAccountToken": false, "containers": containers,
    })
}

/// A Deployment, StatefulSet or DaemonSet with this pod.
pub(crate) fn workload(kind: &str, name: &str, spec: &Value, more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": spec },
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}
