//! The setup for tests of sharing: the chart's rights are applied, the agent runs on a node with a token that is bound
//! to this node, and pods have the claims that a scheduler would have written.

use crate::built::{TEST_BUILD, binary};
use crate::chart;
use lab::agent::{Agent, Recipe};
use lab::cluster::{Cluster, ClusterNode, ClusterOptions, Lease, TestNamespace};
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use lab::relay::Relay;
use proto::pod_resources::AllocatableResourcesRequest;
use proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Generous because tests run while other code compiles.
pub(crate) const SOON: Duration = Duration::from_secs(90);
/// The agent sets this annotation on a pod that can never start with its own devices. The pod then waits until a
/// program with the right to do so evicts it.
pub(crate) const EVICT: &str = "gpu-steward.io/evict";
/// The kubelet's message for a pod that it admitted before it knew the plugin: the kubelet has never called `Allocate` for
/// the pod, and never will.
pub(crate) const NEVER_ALLOCATED: &str = "no devices found allocated in local cache";
/// The prefix of the names of the agent's sockets in the kubelet's folders.
const PLUGIN_SOCKETS: &str = "gpu-steward";
const KUBECONFIG: &str = "node.kubeconfig";

/// A node of a cluster, for an agent and its pods.
#[derive(Debug)]
pub(crate) struct Bed {
    pub space: TestNamespace,
    pub admin: Kubectl,
    dir: TempDir,
    lease: Lease,
    // This is the last field, because the fields above need the cluster while they are dropped.
    pub cluster: Cluster,
}

/// One container and its claim: name, kind, and for each GPU its index, MiB and percent. The kinds are `init` (reads
/// its limits), `brief` and `slow` (read nothing), `sidecar` and `app`.
pub(crate) type Claim<'a> = (&'a str, &'a str, &'a [(usize, u64, u32)]);

impl Bed {
    /// A node of the shared cluster, while other tests run on other nodes.
    pub(crate) fn up(name: &str) -> Bed {
        Bed::of(name, Cluster::shared())
    }

    /// A node of a cluster that no other test uses at the same time.
    pub(crate) fn exclusive(name: &str) -> Bed {
        Bed::with(name, &ClusterOptions::usual())
    }

    /// A node of a cluster with these options, which no other test uses at the same time.
    pub(crate) fn with(name: &str, options: &ClusterOptions) -> Bed {
        Bed::of(name, Cluster::up(options))
    }

    fn of(name: &str, cluster: Cluster) -> Bed {
        let lease = cluster.lease();
        let (admin, space) = (cluster.admin(), cluster.namespace(name));
        let here = format!("spec.nodeName={}", lease.node);
        // If the cluster was kept, pods of an earlier test would look as if a scheduler placed pods on this node.
        eventually("the end of an earlier test's pods", SOON, || {
            let pods = admin.get(&["pods", "-A", "--field-selector", &here]);
            let claims = |pod: &&Value| pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].is_string();
            (pods["items"].as_array()?.iter().filter(claims).count() == 0).then_some(())
        });
        chart::install(&cluster, &[]);
        let bed = Bed { space, admin, dir: tempfile::tempdir().expect("a directory"), lease, cluster };
        bed.forget_earlier_agents();
        bed
    }

    /// Removes the registry sockets of agents that earlier tests killed, and waits until the kubelet has dropped them. The
    /// kubelet looks for removed sockets once a second, later under load, and then drops the plugin that serves the
    /// resource. Without this wait it would drop the agent of this test, and a pod that is created then would fail.
    fn forget_earlier_agents(&self) {
        let registry = self.paths().kubelet.join("plugins_registry");
        for entry in std::fs::read_dir(registry).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(PLUGIN_SOCKETS) {
                std::fs::remove_file(entry.path()).expect("a left socket is removed");
            }
        }
        let metrics = format!("/api/v1/nodes/{}/proxy/metrics", self.node());
        eventually("a kubelet that has dropped the plugins of earlier tests", SOON, || {
            let output = self.admin.run(&["get", "--raw", &metrics]);
            let text = output.success.then_some(output.out)?;
            let plugins = text.lines().filter(|line| line.starts_with("plugin_manager_total_plugins{"));
            (text.contains("kubelet_node_name") && plugins.filter(|line| line.contains(PLUGIN_SOCKETS)).count() == 0)
                .then_some(())
        });
    }

    /// The name of the node.
    pub(crate) fn node(&self) -> &str {
        &self.lease.node
    }

    /// The paths of the node.
    pub(crate) fn paths(&self) -> &ClusterNode {
        self.cluster.node(self.node())
    }

    /// The Node object from the API server.
    pub(crate) fn node_object(&self) -> Value {
        self.admin.get(&["node", self.node()])
    }

    /// Stops, starts or kills a part of the node: `kubelet`, `containerd`.
    pub(crate) fn part(&self, verb: &str, part: &str) {
        self.cluster.part(verb, &format!("{}-{part}", self.node()));
    }

    /// A kubeconfig of the agent's account with a token that is bound to the node.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let server = self.cluster.status().server.clone();
        self.kubeconfig_of(&json!({ "server": server }))
    }

    fn kubeconfig_of(&self, server: &Value) -> PathBuf {
        let bound = ["--bound-object-kind", "Node", "--bound-object-name", self.node()];
        let token = chart::token(&self.admin, chart::AGENT, &bound);
        let mut server = server.clone();
        server["certificate-authority"] = self.cluster.status().ca.as_str().into();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": server }],
            "users": [{ "name": "u", "user": { "token": token } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        let path = self.dir.path().join(KUBECONFIG);
        std::fs::write(&path, config.to_string()).expect("the kubeconfig is written");
        path
    }

    /// Starts an agent on the node, and waits until it is ready and registered with the kubelet.
    pub(crate) fn agent(&self, flags: &[&str]) -> Agent {
        let agent = self.recipe(self.kubeconfig(), flags).start();
        self.registered(&agent);
        agent
    }

    /// An agent that reaches the API server through this relay.
    pub(crate) fn agent_over_relay(&self, relay: &Relay, flags: &[&str]) -> Agent {
        let server = &self.cluster.status().server;
        let name = server.trim_start_matches("https://").split(':').next();
        let line = json!({ "server": format!("https://{}", relay.address), "tls-server-name": name });
        let agent = self.recipe(self.kubeconfig_of(&line), flags).start();
        self.registered(&agent);
        agent
    }

    /// An agent with these environment variables.
    pub(crate) fn agent_with_env(&self, environment: &[(&str, &str)], flags: &[&str]) -> Agent {
        let recipe = self.recipe(self.kubeconfig(), flags);
        let agent = environment.iter().fold(recipe, |recipe, (name, value)| recipe.env(name, value)).start();
        self.registered(&agent);
        agent
    }

    /// An agent with this action (`kill`, `hold`) at the first time it reaches this failpoint. It is always the test build,
    /// because the release build has no failpoints.
    pub(crate) fn agent_with_failpoint(&self, (point, action): (&str, &str), flags: &[&str]) -> Agent {
        let recipe = self.recipe_of(TEST_BUILD, self.kubeconfig(), flags);
        let agent = recipe.env("FAILPOINTS", format!("{point}=1*return({action})")).start();
        self.registered(&agent);
        agent
    }

    /// An agent on the node that listens but may not be ready yet. It uses the kubeconfig of an earlier agent if there
    /// is one, because the API server may be unreachable.
    pub(crate) fn launch(&self, flags: &[&str]) -> Agent {
        let kept = self.dir.path().join(KUBECONFIG);
        let kubeconfig = if kept.exists() { kept } else { self.kubeconfig() };
        self.recipe(kubeconfig, flags).launch()
    }

    /// A standalone agent on the node: it samples the same pods, and shares no GPU.
    pub(crate) fn standalone_agent(&self, flags: &[&str]) -> Agent {
        let recipe = Recipe::of(&binary())
            .in_mounts_of(self.paths().pid)
            .with("--node-name", self.node())
            .with("--pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock")
            .with("--cri-socket", "auto")
            .switch("--standalone");
        flags.iter().fold(recipe, |recipe, flag| recipe.switch(flag)).start()
    }

    fn recipe(&self, kubeconfig: PathBuf, flags: &[&str]) -> Recipe {
        self.recipe_of(&binary(), kubeconfig, flags)
    }

    fn recipe_of(&self, binary: &str, kubeconfig: PathBuf, flags: &[&str]) -> Recipe {
        let node = self.paths();
        let mut recipe = Recipe::of(binary)
            .in_mounts_of(node.pid)
            .with("--cdi-dir", "/var/run/cdi")
            .with("--kubeconfig", kubeconfig)
            .with("--node-name", self.node())
            .with("-v", "4");
        let state = self.state();
        for (flag, usual) in [
            ("--gpus", "simulated=H100:2"),
            ("--pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock"),
            ("--cri-socket", "auto"),
            ("--kubelet-root", "/var/lib/kubelet"),
            ("--state-dir", state.to_str().expect("a path")),
        ] {
            if !flags.iter().any(|given| given.split('=').next() == Some(flag)) {
                recipe = recipe.with(flag, usual);
            }
        }
        flags.iter().fold(recipe, |recipe, flag| recipe.switch(flag))
    }

    /// Makes a kubelet directory for an agent beside the real one. It has only links to the kubelet's sockets, and the
    /// kubelet does not watch its registry. Returns its path on the node, and the links, which must be kept as long as the
    /// directory is used.
    pub(crate) fn own_kubelet_root(&self, name: &str) -> (String, KubeletRootLinks) {
        let kubelet = &self.paths().kubelet;
        let (root, folder) = (format!("/var/lib/kubelet/{name}"), kubelet.join(name));
        for folder in ["device-plugins", "plugins_registry"].map(|part| folder.join(part)) {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        let (ours, kubelets) = ("device-plugins/gpu-steward-nvidia.com-gpu.sock", "device-plugins/kubelet.sock");
        let links = [
            (format!("/var/lib/kubelet/{kubelets}"), folder.join(kubelets)),
            (format!("{root}/{ours}"), kubelet.join(ours)),
        ];
        let links = links.map(|(target, link)| {
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).expect("a link");
            link
        });
        (root, KubeletRootLinks(links))
    }

    /// The directory of this test.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until the kubelet can allocate healthy GPUs of this agent. The Node's status can still be from an earlier agent,
    /// and the agent's log line comes before the kubelet has the list: a pod that is created in between would fail.
    pub(crate) fn registered(&self, agent: &Agent) {
        agent.logs("registered with kubelet");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let devices = Bed::devices(agent);
        eventually("healthy GPUs of this agent in the kubelet", SOON, || {
            let healthy = runtime.block_on(self.has_healthy(&devices));
            healthy.unwrap_or(false).then_some(())
        });
        eventually("allocatable GPUs on the node", SOON, || {
            let node = self.node_object();
            let count: Option<u32> = node["status"]["allocatable"]["nvidia.com/gpu"].as_str()?.parse().ok();
            assert!(agent.get("/healthz").status == 200, "{}", agent.log());
            count.filter(|count| *count > 0)
        });
    }

    async fn has_healthy(&self, devices: &[String]) -> Result<bool, Box<dyn Error>> {
        let socket = self.paths().kubelet.join("pod-resources/kubelet.sock");
        let mut kubelet = PodResourcesListerClient::connect(format!("unix://{}", socket.display())).await?;
        let answer = kubelet.get_allocatable_resources(AllocatableResourcesRequest {}).await?;
        let listed = answer.into_inner().devices.into_iter();
        let mut ids = listed.filter(|one| one.resource_name == "nvidia.com/gpu").flat_map(|one| one.device_ids);
        Ok(ids.any(|id| devices.iter().any(|uuid| id.starts_with(uuid.as_str()))))
    }

    /// How often this agent has been registered with the kubelet.
    pub(crate) fn registrations(agent: &Agent) -> u64 {
        let metrics = agent.get("/metrics").text();
        let line = metrics.lines().find(|line| line.starts_with("gpu_steward_plugin_registrations_total"));
        line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
    }

    /// The UUIDs of the devices that the agent can share: each GPU and each MIG instance.
    fn devices(agent: &Agent) -> Vec<String> {
        let answer: Value = serde_json::from_str(&agent.get("/api/v1/gpus").text()).expect("JSON");
        let gpus = answer["gpus"].as_array().expect("a list").iter();
        let with_instances = gpus.flat_map(|gpu| gpu["mig"]["value"].as_array().into_iter().flatten().chain([gpu]));
        with_instances.map(|device| device["uuid"].as_str().expect("a UUID").to_owned()).collect()
    }

    /// The UUIDs in the order of their index.
    pub(crate) fn gpus(agent: &Agent) -> Vec<String> {
        let answer: Value = serde_json::from_str(&agent.get("/api/v1/gpus").text()).expect("JSON");
        answer["gpus"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|gpu| gpu["uuid"].as_str().expect("a UUID").to_owned())
            .collect()
    }

    /// A pod that is bound to the node, with its claim as a scheduler writes it. `extra` goes into every container.
    pub(crate) fn pod(&self, name: &str, gpus: &[String], claims: &[Claim<'_>], extra: &Value) -> Value {
        with_claim(self.bare_pod(name, claims, extra), gpus, claims)
    }

    /// The same pod without a claim.
    pub(crate) fn bare_pod(&self, name: &str, claims: &[Claim<'_>], extra: &Value) -> Value {
        bare_pod((&self.space.name, name), self.node(), claims, extra)
    }

    /// The agent's state directory.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn create(&self, pod: &Value) {
        let _ = self.admin.create(&pod.to_string()).ok();
    }

    pub(crate) fn ready(&self, pods: &[&str]) {
        let names: Vec<String> = pods.iter().map(|pod| format!("pod/{pod}")).collect();
        let mut args: Vec<&str> = vec!["-n", &self.space.name];
        args.extend(names.iter().map(String::as_str));
        self.admin.wait("condition=Ready", SOON, &args);
    }

    /// Waits until every pod is Ready. Like a controller, deletes and recreates each pod that failed admission while the
    /// plugin was not registered, that the agent marked for eviction, or that the kubelet admitted before it knew the
    /// plugin. Returns the name and the reason of each such pod. Only pods with the names `of` may fail, each at most once,
    /// and at most `at_most` in total.
    pub(crate) fn ready_with_retries(&self, pods: &[(String, Value)], (at_most, of): (usize, &[&str])) -> Vec<String> {
        let mut failed: BTreeMap<&str, String> = BTreeMap::new();
        let again = |name: &str| drop(self.admin.run(&["delete", "pod", name, "-n", &self.space.name, "--now"]).ok());
        eventually("every pod Ready", Duration::from_secs(180), || {
            let list = self.admin.get(&["pods", "-n", &self.space.name]);
            let items = list["items"].as_array()?;
            let mut ready = 0;
            for (name, pod) in pods {
                let Some(now) = items.iter().find(|item| item["metadata"]["name"] == **name) else {
                    self.create(pod);
                    continue;
                };
                if let Some(why) = failure_of(now) {
                    assert!(of.contains(&&**name), "{name} may not fail, {of:?} may: {why}");
                    let before = failed.insert(name, format!("{name}: {why}"));
                    assert_eq!(before, None, "{name} has failed once more: {why}");
                    again(name);
                }
                let conditions = now["status"]["conditions"].as_array().into_iter().flatten();
                let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
                ready += usize::from(conditions.clone().any(is_ready));
            }
            assert!(failed.len() <= at_most, "{at_most} pods may fail: {failed:#?}");
            (ready == pods.len()).then_some(())
        });
        failed.into_values().collect()
    }

    /// The `limits.json` that the container reads.
    pub(crate) fn limits(&self, pod: &str, container: &str) -> Value {
        let words = ["exec", "-n", &self.space.name, pod, "-c", container, "--", "cat", "/etc/gpu-steward/limits.json"];
        serde_json::from_str(&self.admin.run(&words).ok()).expect("JSON")
    }

    /// The output of a shell script in a container.
    pub(crate) fn sh(&self, pod: &str, container: &str, script: &str) -> String {
        let words = ["exec", "-n", &self.space.name, pod, "-c", container, "--", "sh", "-c", script];
        self.admin.run(&words).ok()
    }
}

/// Writes a claim on a pod that is bound to a node, as a scheduler does.
pub(crate) fn with_claim(mut pod: Value, gpus: &[String], claims: &[Claim<'_>]) -> Value {
    let mut allocated = String::new();
    for (_, _, devices) in claims {
        for (gpu, mib, cores) in *devices {
            write!(allocated, "{},NVIDIA,{mib},{cores}:", gpus[*gpu]).expect("a string grows");
        }
        allocated.push(';');
    }
    let node = pod["spec"]["nodeName"].clone();
    pod["metadata"]["annotations"] = json!({ "hami.io/vgpu-node": node, "hami.io/vgpu-devices-allocated": allocated });
    pod
}

/// A pod (namespace, name) that is bound to this node. `extra` goes into every container.
pub(crate) fn bare_pod((namespace, name): (&str, &str), node: &str, claims: &[Claim<'_>], extra: &Value) -> Value {
    let container = |(container, kind, devices): &Claim<'_>| {
        let command = match *kind {
            "init" => "cat /etc/gpu-steward/limits.json",
            "brief" => "true",
            "slow" => "sleep 4",
            _ => "trap exit TERM; sleep 100000 & wait",
        };
        let mut text = json!({
            "name": container, "image": "registry.local/busybox:1", "command": ["sh", "-c", command],
        });
        if !devices.is_empty() {
            text["resources"]["limits"]["nvidia.com/gpu"] = devices.len().to_string().into();
        }
        if *kind == "sidecar" {
            text["restartPolicy"] = "Always".into();
        }
        for (key, value) in extra.as_object().into_iter().flatten() {
            text[key] = value.clone();
        }
        text
    };
    let of = |app: bool| -> Vec<Value> {
        claims.iter().filter(|(_, kind, _)| (*kind == "app") == app).map(container).collect()
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0, "dnsPolicy": "Default",
            "automountServiceAccountToken": false,
            "initContainers": of(false), "containers": of(true),
        },
    })
}

/// The reason why this pod never runs: it failed admission, the kubelet admitted it before it knew the plugin, or the
/// agent marked it for eviction. `None` if the pod may still run.
///
/// # Panics
/// If it failed for any other reason.
pub(crate) fn failure_of(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    if status["phase"] == "Failed" {
        let reason = status["reason"].as_str().unwrap_or_default();
        assert!(reason == "UnexpectedAdmissionError" || reason.starts_with("OutOf"), "{}: {status}", pod["metadata"]);
        return Some(status["message"].to_string());
    }
    let marked = pod["metadata"]["annotations"][EVICT].as_str().map(|why| format!("{EVICT}: {why}"));
    marked.or_else(|| waiting_messages(pod).find(|why| why.contains(NEVER_ALLOCATED)).map(str::to_owned))
}

/// The messages of the waiting containers of this pod.
pub(crate) fn waiting_messages(pod: &Value) -> impl Iterator<Item = &str> {
    let kinds = ["initContainerStatuses", "containerStatuses"].into_iter();
    let states = kinds.filter_map(|kind| pod["status"][kind].as_array()).flatten();
    states.filter_map(|state| state["state"]["waiting"]["message"].as_str())
}

/// The links of [`Bed::own_kubelet_root`]. They are removed even if the test fails, because other agents would find their
/// own sockets there.
#[derive(Debug)]
pub(crate) struct KubeletRootLinks([PathBuf; 2]);

impl Drop for KubeletRootLinks {
    fn drop(&mut self) {
        for link in &self.0 {
            let _ = std::fs::remove_file(link);
        }
    }
}

/// UUID and bytes of each device in a limits file.
pub(crate) fn devices_in(limits: &Value) -> Vec<(String, u64)> {
    let devices = limits["devices"].as_array().expect("a list of devices");
    devices
        .iter()
        .map(|device| {
            (device["uuid"].as_str().expect("a UUID").to_owned(), device["memory_bytes"].as_u64().expect("bytes"))
        })
        .collect()
}
