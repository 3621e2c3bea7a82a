//! What tests of sharing need: the chart's rights applied, the agent running on a node with a token that is bound to it,
//! pods with the claims that a scheduler would have written.

use crate::chart;
use lab::agent::{Agent, Recipe};
use lab::cluster::{Cluster, ClusterNode, Lease, TestNamespace, Wanted};
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use lab::relay::Relay;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Generous: tests share two cores with compilers.
pub(crate) const SOON: Duration = Duration::from_secs(90);
/// Where a container was given what is another's, the pod never starts and waits for who may evict it.
pub(crate) const EVICT: &str = "gpu-steward.io/evict";
/// kubelet, of a pod that it let in before it knew the plugin: it has asked nobody for its devices, and never will.
pub(crate) const NEVER_ASKED: &str = "no devices found allocated in local cache";
const KUBECONFIG: &str = "node.kubeconfig";
/// The program, where `GPU_STEWARD_SHIPPED` names none: what is measured is what is shipped.
const BINARY: &str = env!("CARGO_BIN_EXE_gpu-steward");

/// A node of a cluster, for an agent and its pods.
#[derive(Debug)]
pub(crate) struct Bed {
    pub space: TestNamespace,
    pub admin: Kubectl,
    dir: TempDir,
    lease: Lease,
    // Last: what is above goes away while it is there.
    pub cluster: Cluster,
}

/// One container and its claim: name, kind (`init`, which reads its limits, `brief` and `slow`, which read nothing, `sidecar`,
/// `app`), and for each GPU its number, MiB and percent.
pub(crate) type Claim<'a> = (&'a str, &'a str, &'a [(usize, u64, u32)]);

/// The program of the tests, or the one that is shipped.
pub(crate) fn binary() -> String {
    std::env::var("GPU_STEWARD_SHIPPED").unwrap_or_else(|_| BINARY.to_owned())
}

impl Bed {
    /// Ready for an agent, beside other tests on other nodes.
    pub(crate) fn up(name: &str) -> Bed {
        Bed::of(name, Cluster::shared())
    }

    /// In a cluster that nobody else uses meanwhile.
    pub(crate) fn alone(name: &str) -> Bed {
        Bed::with(name, &Wanted::usual())
    }

    /// In one of this kind, alone.
    pub(crate) fn with(name: &str, wanted: &Wanted) -> Bed {
        Bed::of(name, Cluster::up(wanted))
    }

    fn of(name: &str, cluster: Cluster) -> Bed {
        let lease = cluster.lease();
        let (admin, space) = (cluster.admin(), cluster.namespace(name));
        let here = format!("spec.nodeName={}", lease.node);
        // What an earlier test in a cluster that was kept has placed here would say that a scheduler serves this node.
        eventually("the end of an earlier test's pods", SOON, || {
            let pods = admin.get(&["pods", "-A", "--field-selector", &here]);
            let claims = |pod: &&Value| pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].is_string();
            (pods["items"].as_array()?.iter().filter(claims).count() == 0).then_some(())
        });
        chart::install(&cluster, &[]);
        Bed { space, admin, dir: tempfile::tempdir().expect("a directory"), lease, cluster }
    }

    /// The name of its node.
    pub(crate) fn node(&self) -> &str {
        &self.lease.node
    }

    /// Where everything of its node is.
    pub(crate) fn place(&self) -> &ClusterNode {
        self.cluster.node(self.node())
    }

    /// Its Node, as the API server has it.
    pub(crate) fn told(&self) -> Value {
        self.admin.get(&["node", self.node()])
    }

    /// Does this to a part of its node: `kubelet`, `containerd`.
    pub(crate) fn part(&self, verb: &str, part: &str) {
        self.cluster.part(verb, &format!("{}-{part}", self.node()));
    }

    /// A kubeconfig of the agent's account with a token that is bound to its node.
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

    /// An agent on its node, ready and known to kubelet.
    pub(crate) fn agent(&self, flags: &[&str]) -> Agent {
        let agent = self.recipe(self.kubeconfig(), flags).start();
        self.registered(&agent);
        agent
    }

    /// One that hears the API server over this line.
    pub(crate) fn agent_by(&self, relay: &Relay, flags: &[&str]) -> Agent {
        let server = &self.cluster.status().server;
        let name = server.trim_start_matches("https://").split(':').next();
        let line = json!({ "server": format!("https://{}", relay.address), "tls-server-name": name });
        let agent = self.recipe(self.kubeconfig_of(&line), flags).start();
        self.registered(&agent);
        agent
    }

    /// One with variables of its own.
    pub(crate) fn agent_with(&self, environment: &[(&str, &str)], flags: &[&str]) -> Agent {
        let recipe = self.recipe(self.kubeconfig(), flags);
        let agent = environment.iter().fold(recipe, |recipe, (name, value)| recipe.env(name, value)).start();
        self.registered(&agent);
        agent
    }

    /// An agent that does this (`kill`, `hold`) at its first pass of this failpoint. Always the tests' build: what is shipped has
    /// no failpoints.
    pub(crate) fn armed(&self, (point, action): (&str, &str), flags: &[&str]) -> Agent {
        let recipe = self.recipe_of(BINARY, self.kubeconfig(), flags);
        let agent = recipe.env("FAILPOINTS", format!("{point}=1*return({action})")).start();
        self.registered(&agent);
        agent
    }

    /// An agent on its node that listens; whether it is ready is another matter. With the credentials of the one before, if
    /// there was one: the API server may be away.
    pub(crate) fn launch(&self, flags: &[&str]) -> Agent {
        let kept = self.dir.path().join(KUBECONFIG);
        let kubeconfig = if kept.exists() { kept } else { self.kubeconfig() };
        self.recipe(kubeconfig, flags).launch()
    }

    /// One on its node that stands alone: it sees what the other one sees, and gives nothing.
    pub(crate) fn looking_only(&self, flags: &[&str]) -> Agent {
        let recipe = Recipe::of(&binary())
            .in_mounts_of(self.place().pid)
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
        let node = self.place();
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

    /// A kubelet directory of this name for an agent, beside kubelet's own: sockets are kubelet's, whatever else kubelet keeps is
    /// not there, and nobody looks into its registry. Gives its path on the node, and what has to live as long.
    pub(crate) fn own_kubelet_root(&self, name: &str) -> (String, View) {
        let kubelet = &self.place().kubelet;
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
        (root, View(links))
    }

    /// A directory of this test's own.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn registered(&self, agent: &Agent) {
        agent.logs("registered with kubelet");
        eventually("allocatable GPUs on the node", SOON, || {
            let node = self.told();
            let count: Option<u32> = node["status"]["allocatable"]["nvidia.com/gpu"].as_str()?.parse().ok();
            assert!(agent.get("/healthz").status == 200, "{}", agent.log());
            count.filter(|count| *count > 0)
        });
    }

    /// How often this agent has been registered with kubelet.
    pub(crate) fn registrations(agent: &Agent) -> u64 {
        let metrics = agent.get("/metrics").text();
        let line = metrics.lines().find(|line| line.starts_with("gpu_steward_plugin_registrations_total"));
        line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
    }

    /// UUIDs in the order of their index.
    pub(crate) fn gpus(agent: &Agent) -> Vec<String> {
        let answer: Value = serde_json::from_str(&agent.get("/api/v1/gpus").text()).expect("JSON");
        answer["gpus"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|gpu| gpu["uuid"].as_str().expect("a UUID").to_owned())
            .collect()
    }

    /// A pod that is bound to its node, with its claim as a scheduler writes it; `extra` goes into every container.
    pub(crate) fn pod(&self, name: &str, gpus: &[String], claims: &[Claim<'_>], extra: &Value) -> Value {
        claimed(self.bare_pod(name, claims, extra), gpus, claims)
    }

    /// The same without a claim.
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

    /// Waits until every pod is Ready. One that kubelet failed for good at its door, because the plugin was away at that
    /// moment, is made again as its controller would, and so is one that the agent marked for eviction or that kubelet let in
    /// before it knew the plugin; says which. Only pods of these names may be, each of them once, and so many of them at most.
    pub(crate) fn ready_in_the_end(&self, pods: &[(String, Value)], (at_most, of): (usize, &[&str])) -> Vec<String> {
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
                if let Some(why) = lost(now) {
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

    /// `limits.json` as the container reads it.
    pub(crate) fn limits(&self, pod: &str, container: &str) -> Value {
        let words = ["exec", "-n", &self.space.name, pod, "-c", container, "--", "cat", "/etc/gpu-steward/limits.json"];
        serde_json::from_str(&self.admin.run(&words).ok()).expect("JSON")
    }

    /// What a container sees.
    pub(crate) fn sh(&self, pod: &str, container: &str, script: &str) -> String {
        let words = ["exec", "-n", &self.space.name, pod, "-c", container, "--", "sh", "-c", script];
        self.admin.run(&words).ok()
    }
}

/// Writes a claim on a pod that is bound to a node, as a scheduler does.
pub(crate) fn claimed(mut pod: Value, gpus: &[String], claims: &[Claim<'_>]) -> Value {
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

/// A pod (namespace, name) that is bound to this node; `extra` goes into every container.
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

/// Why this pod never runs: kubelet failed it for good at its door or let it in before it knew the plugin, or the agent marked it
/// for eviction. `None` of one that may still run.
///
/// # Panics
/// When it failed for any other reason.
pub(crate) fn lost(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    if status["phase"] == "Failed" {
        let reason = status["reason"].as_str().unwrap_or_default();
        assert!(reason == "UnexpectedAdmissionError" || reason.starts_with("OutOf"), "{}: {status}", pod["metadata"]);
        return Some(status["message"].to_string());
    }
    let marked = pod["metadata"]["annotations"][EVICT].as_str().map(|why| format!("{EVICT}: {why}"));
    marked.or_else(|| waits(pod).find(|why| why.contains(NEVER_ASKED)).map(str::to_owned))
}

/// Why containers of this pod do not run.
pub(crate) fn waits(pod: &Value) -> impl Iterator<Item = &str> {
    let kinds = ["initContainerStatuses", "containerStatuses"].into_iter();
    let states = kinds.filter_map(|kind| pod["status"][kind].as_array()).flatten();
    states.filter_map(|state| state["state"]["waiting"]["message"].as_str())
}

/// The links of [`Bed::own_kubelet_root`]. Taken away whatever comes of the test: other agents find a socket of theirs there.
#[derive(Debug)]
pub(crate) struct View([PathBuf; 2]);

impl Drop for View {
    fn drop(&mut self) {
        for link in &self.0 {
            let _ = std::fs::remove_file(link);
        }
    }
}

/// What a container must have read: for each device UUID and bytes.
pub(crate) fn promised(limits: &Value) -> Vec<(String, u64)> {
    let devices = limits["devices"].as_array().expect("a list of devices");
    devices
        .iter()
        .map(|device| {
            (device["uuid"].as_str().expect("a UUID").to_owned(), device["memory_bytes"].as_u64().expect("bytes"))
        })
        .collect()
}
