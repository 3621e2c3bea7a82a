//! Many pods at once, and checks of each: the devices that each running container really has, read from its own process
//! and compared with the claim on its pod.

use crate::bed::{Bed, devices_in};
use lab::agent::Agent;
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Longest time until all pods and slots are in the expected state.
const RECOVERY: Duration = Duration::from_secs(60);
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";

/// Pods with different claims, and the failures that the kubelet caused.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    bed: &'a Bed,
    /// The UUIDs of the GPUs, by index.
    pub gpus: Vec<String>,
    /// The kind of each pod's first container: `brief` if there is no limits file to read.
    pub first: &'static str,
    pods: Vec<(String, Value)>,
    made: usize,
    /// Pods that failed admission or were marked for eviction, with the reason. Their replacements run.
    pub failed: Vec<String>,
    /// Names of the pods that may fail because of the test's actions since the last `settle`.
    may_fail: BTreeSet<String>,
    /// How many of these pods may fail.
    at_most: usize,
    /// How many pods may fail in the whole test, for the record.
    allowed: usize,
    /// For each pod that was seen running, by UID: the container that ran and must keep running.
    running: BTreeMap<String, String>,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(bed: &'a Bed, agent: &Agent) -> Fleet<'a> {
        let gpus = Bed::gpus(agent);
        // An agent of an earlier test may have written a register with other GPUs.
        eventually("this agent's GPUs on the Node", RECOVERY, || {
            minors(&bed.admin, bed.node()).into_keys().eq(gpus.iter().cloned().collect::<BTreeSet<_>>()).then_some(())
        });
        Fleet {
            bed,
            gpus,
            first: "init",
            pods: Vec::new(),
            made: 0,
            failed: Vec::new(),
            may_fail: BTreeSet::new(),
            at_most: 0,
            allowed: 0,
            running: BTreeMap::new(),
        }
    }

    /// Adds a pod with an init container and an app container, and with a device share that differs from those of all other
    /// pods. The pods use the GPUs in turn.
    pub(crate) fn add_pod(&mut self) -> String {
        self.plan();
        let (name, pod) = self.pods.last().expect("the newest");
        self.bed.create(pod);
        name.clone()
    }

    fn plan(&mut self) {
        self.plan_as(format!("pod-{}", self.made));
    }

    fn plan_as(&mut self, name: String) {
        let n = self.made;
        self.made += 1;
        let mib = 1000 + n as u64;
        let own = [(n % self.gpus.len(), mib, 1)];
        let pod = self.bed.pod(&name, &self.gpus, &[("warm", self.first, &own), ("main", "app", &own)], &Value::Null);
        self.pods.push((name, pod));
    }

    /// Deletes every pod and creates another one with the same name and another claim.
    pub(crate) fn recreate_all(&mut self) {
        let names = self.names();
        let mut arguments = vec!["delete", "pod", "-n", &self.bed.space.name, "--now"];
        arguments.extend(names.iter().map(String::as_str));
        let _ = self.bed.admin.run(&arguments).ok();
        self.pods.clear();
        for name in names {
            self.plan_as(name);
            self.bed.create(&self.pods.last().expect("the newest").1);
        }
    }

    /// Adds this many pods at once.
    pub(crate) fn burst(&mut self, pods: usize) {
        let before = self.pods.len();
        for _ in 0..pods {
            self.plan();
        }
        let items: Vec<&Value> = self.pods[before..].iter().map(|(_, pod)| pod).collect();
        self.bed.create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }));
    }

    /// The names of all pods.
    pub(crate) fn names(&self) -> Vec<String> {
        self.pods.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The number of pods.
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Waits until only the pods of this fleet are left in the namespace.
    pub(crate) fn wait_for_deletions(&self) {
        eventually("the end of pods that were deleted", RECOVERY, || {
            let list = self.bed.admin.get(&["pods", "-n", &self.bed.space.name]);
            (list["items"].as_array()?.len() <= self.pods.len()).then_some(())
        });
    }

    /// Deletes all pods but the newest.
    pub(crate) fn delete_all_but(&mut self, newest: usize) {
        let old = self.pods.len().saturating_sub(newest);
        let names: Vec<String> = self.pods.drain(..old).map(|(name, _)| name).collect();
        if names.is_empty() {
            return;
        }
        let mut arguments =
            vec!["delete", "pod", "-n", &self.bed.space.name, "--now", "--wait=false", "--ignore-not-found"];
        arguments.extend(names.iter().map(String::as_str));
        let _ = self.bed.admin.run(&arguments).ok();
    }

    /// At most this many of these pods may fail because of the test's actions before the next `settle`: it kills an agent
    /// during a call, or starts a kubelet that does not know the plugin yet. No other pod may fail, and no pod may fail for
    /// another reason.
    pub(crate) fn may_fail(&mut self, at_most: usize, of: &[String]) {
        self.at_most += at_most;
        self.allowed += at_most;
        self.may_fail.extend(of.iter().cloned());
    }

    /// Adds a pod while the agent is about to end. One pod may fail because of this: the new pod, or an earlier one that
    /// does not run yet. The kubelet admits one pod at a time, so at most one call breaks off.
    pub(crate) fn add_pod_before_agent_end(&mut self) {
        // The list is read before the new pod is created. Reading it afterwards would take the time in which the test must
        // end the agent.
        let mut starting = self.starting();
        starting.push(self.add_pod());
        self.may_fail(1, &starting);
    }

    /// The pods that do not run yet. Earlier pods that run now have not failed, and are removed from the pods that may fail.
    pub(crate) fn starting(&mut self) -> Vec<String> {
        let list = self.bed.admin.get(&["pods", "-n", &self.bed.space.name]);
        let runs = |pod: &&Value| pod["status"]["phase"] == "Running";
        let running = list["items"].as_array().expect("a list").iter().filter(runs);
        let running: BTreeSet<&str> = running.filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        self.may_fail.retain(|name| !running.contains(&**name));
        self.names().into_iter().filter(|name| !running.contains(&**name)).collect()
    }

    /// Waits until all pods are Ready. Checks that every container has its own devices and that only pods that may fail
    /// have failed. Clears the list of pods that may fail.
    pub(crate) fn settle(&mut self) {
        let may_fail = std::mem::take(&mut self.may_fail);
        let may_fail: Vec<&str> = may_fail.iter().map(String::as_str).collect();
        let at_most = std::mem::take(&mut self.at_most);
        self.failed.extend(self.bed.ready_with_retries(&self.pods, (at_most, &may_fail)));
        let containers = check_all_containers(self.bed);
        assert!(containers >= self.pods.len(), "{containers} containers of {} pods were seen", self.pods.len());
        self.check_running_containers();
    }

    /// Checks that containers that ran before still run, and that the init container of each new pod read its own
    /// limits.
    fn check_running_containers(&mut self) {
        let list = self.bed.admin.get(&["pods", "-n", &self.bed.space.name]);
        let mut running = BTreeMap::new();
        for pod in list["items"].as_array().expect("a list") {
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            let (name, uid) = (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]));
            let state = &pod["status"]["containerStatuses"][0];
            if !self.pods.iter().any(|(ours, _)| *ours == name) || !state["state"]["running"].is_object() {
                continue;
            }
            let container = text(&state["containerID"]);
            match self.running.get(&uid) {
                Some(before) => assert_eq!(*before, container, "{name} was restarted: {state}"),
                None if self.first == "init" => self.check_init_container(&name, &uid),
                None => {}
            }
            running.insert(uid, container);
        }
        self.running = running;
    }

    /// Checks the output of an init container, which ends too early to be observed.
    fn check_init_container(&self, name: &str, uid: &str) {
        // The runtime may write the log a moment after the container's end.
        let printed = eventually(&format!("what {name}, warm, printed"), RECOVERY, || {
            let printed = self.bed.admin.run(&["logs", "-n", &self.bed.space.name, name, "-c", "warm"]).ok();
            (!printed.is_empty()).then_some(printed)
        });
        let limits: Value =
            serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{name}, warm: {error}: {printed}"));
        let has: Devices = devices_in(&limits).into_iter().map(|(uuid, bytes)| (uuid, bytes / MIB)).collect();
        assert_eq!((&limits["pod"]["uid"], &limits["container"]), (&json!(uid), &json!("warm")), "{name}: {limits}");
        // A claim that moved to other devices is written on its pod a moment later.
        eventually(&format!("the claim of {name} to match what its container warm had: {limits}"), RECOVERY, || {
            let pod = self.bed.admin.get(&["pod", name, "-n", &self.bed.space.name]);
            (parse(pod["metadata"]["annotations"][ALLOCATED].as_str()?)[0] == has).then_some(())
        });
    }

    /// Forgets the containers, because the machine was switched off and no container keeps running.
    pub(crate) fn rebooted(&mut self) {
        self.running.clear();
    }

    /// Checks that no slot is lost: the kubelet counts all slots, and pods can use every free slot.
    pub(crate) fn check_all_slots(&mut self, total: usize) {
        eventually("every slot allocatable", RECOVERY, || {
            (self.bed.node_object()["status"]["allocatable"]["nvidia.com/gpu"] == *total.to_string()).then_some(())
        });
        // Each GPU gets as many pods as it has free slots, because claims name the GPU.
        let each = total / self.gpus.len();
        let mut fillers = Vec::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            // The containers of such a pod use one slot in turn.
            let on = |pod: &&Vec<Devices>| pod.iter().flatten().any(|(uuid, _)| uuid == gpu);
            let used = claims(self.bed).values().filter(on).count();
            for _ in used..each {
                let name = format!("filler-{}", fillers.len());
                let pod = self.bed.pod(&name, &self.gpus, &[("main", "app", &[(number, 1, 0)])], &Value::Null);
                fillers.push((name, pod));
            }
        }
        let items: Vec<&Value> = fillers.iter().map(|(_, pod)| pod).collect();
        if !items.is_empty() {
            self.bed.create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }));
        }
        // Each pod starts at once.
        let _ = self.bed.ready_with_retries(&fillers, (0, &[]));
        check_all_containers(self.bed);
        let mut arguments = vec!["delete", "pod", "-n", &self.bed.space.name, "--now"];
        arguments.extend(fillers.iter().map(|(name, _)| name.as_str()));
        if !fillers.is_empty() {
            let _ = self.bed.admin.run(&arguments).ok();
        }
    }

    /// Prints which pods had to be created again.
    pub(crate) fn print_record(&self, what: &str) {
        let (failed, allowed) = (self.failed.len(), self.allowed);
        println!("{what}: {} pods made, {failed} failed for good and made again, {allowed} may", self.made);
        for line in &self.failed {
            println!("    {line}");
        }
    }
}

/// The devices of one container: UUID and MiB.
pub(crate) type Devices = Vec<(String, u64)>;

/// For each pod with a claim that has not ended, by name: the devices of each container, init containers first.
fn claims(bed: &Bed) -> BTreeMap<String, Vec<Devices>> {
    let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
    let living = list["items"].as_array().expect("a list").iter().filter(|pod| !ended(pod));
    living
        .filter_map(|pod| {
            let text = pod["metadata"]["annotations"][ALLOCATED].as_str()?;
            Some((pod["metadata"]["name"].as_str().expect("a name").to_owned(), parse(text)))
        })
        .collect()
}

pub(crate) fn ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed" || pod["status"]["phase"] == "Succeeded"
}

/// Parses a claim: `UUID,NVIDIA,MiB,cores:` for each device, `;` after each container.
pub(crate) fn parse(text: &str) -> Vec<Devices> {
    let device = |text: &str| {
        let mut words = text.split(',');
        let uuid = words.next().expect("a UUID").to_owned();
        (uuid, words.nth(1).expect("memory").parse().expect("MiB"))
    };
    let container = |text: &str| text.split(':').filter(|text| !text.is_empty()).map(device).collect();
    text.strip_suffix(';').unwrap_or(text).split(';').map(container).collect()
}

/// Compares every running container of the namespace that requests GPUs with the claim on its pod, and returns the number
/// of containers. The test reads the limits file, device nodes and variables from a container's first process.
pub(crate) fn check_all_containers(bed: &Bed) -> usize {
    check_containers(&bed.cluster, &bed.admin, &bed.space.name)
}

/// The same for a namespace whose pods are on any node.
pub(crate) fn check_containers(cluster: &Cluster, admin: &Kubectl, namespace: &str) -> usize {
    let list = admin.get(&["pods", "-n", namespace]);
    let mut minors_by_node: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut seen = 0;
    for pod in list["items"].as_array().expect("a list").iter().filter(|pod| !ended(pod)) {
        // A pod without a node has no containers.
        let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
        let cgroup = &cluster.node(node).cgroup;
        let minors = minors_by_node.entry(node.to_owned()).or_insert_with(|| minors(admin, node));
        let (name, uid) = (pod["metadata"]["name"].as_str().expect("a name"), pod["metadata"]["uid"].as_str());
        let inits = pod["spec"]["initContainers"].as_array().into_iter().flatten();
        let containers: Vec<&Value> = inits.chain(pod["spec"]["containers"].as_array().into_iter().flatten()).collect();
        let requests_gpus = |container: &Value| container["resources"]["limits"]["nvidia.com/gpu"].is_string();
        if !containers.iter().any(|container| requests_gpus(container)) {
            continue;
        }
        let status = &pod["status"];
        let states = ["initContainerStatuses", "containerStatuses"].map(|key| status[key].as_array());
        for state in states.into_iter().flatten().flatten().filter(|state| state["state"]["running"].is_object()) {
            let position =
                containers.iter().position(|container| container["name"] == state["name"]).expect("its place");
            if !requests_gpus(containers[position]) {
                continue;
            }
            let claim = eventually(&format!("a claim on {name}"), RECOVERY, || {
                let own = pod["metadata"]["annotations"][ALLOCATED].as_str().map(str::to_owned);
                own.or_else(|| {
                    let now = admin.get(&["pod", name, "-n", namespace]);
                    now["metadata"]["annotations"][ALLOCATED].as_str().map(str::to_owned)
                })
            });
            let id = state["containerID"].as_str().and_then(|id| id.rsplit('/').next()).expect("an id");
            let uid = uid.expect("a UID");
            // A container that ended after the list was read has no process.
            let Some(process) = process(cgroup, uid, id) else { continue };
            let Ok(text) = std::fs::read(process.join("root/etc/gpu-steward/limits.json")) else {
                assert!(!process.exists(), "{name}/{}: no limits.json in a container with a GPU", state["name"]);
                continue;
            };
            let limits: Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!(limits["pod"]["uid"], uid, "{name}: {limits}");
            assert_eq!(limits["container"], state["name"], "{name}: {limits}");
            check_container(name, &process, &limits, &parse(&claim)[position], minors);
            seen += 1;
        }
    }
    seen
}

/// Compares one container with its part of the claim: its limits file, its device nodes and its variables.
fn check_container(name: &str, process: &Path, limits: &Value, claimed: &Devices, minors: &BTreeMap<String, u64>) {
    let read = |device: &Value| {
        let bytes = device["memory_bytes"].as_u64().expect("bytes");
        (device["uuid"].as_str().expect("a UUID").to_owned(), bytes / MIB)
    };
    let devices: Devices = limits["devices"].as_array().expect("a list").iter().map(read).collect();
    assert_eq!(devices.len(), claimed.len(), "{name}: {limits}");
    // The device nodes that the runtime or the kubelet created, whatever the limits file says.
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("nvidia")?.parse().ok();
    let nodes = std::fs::read_dir(process.join("root/dev")).into_iter().flatten().flatten();
    let nodes: BTreeSet<u64> = nodes.filter_map(number).collect();
    let own: BTreeSet<u64> = claimed.iter().filter_map(|(uuid, _)| minors.get(uuid).copied()).collect();
    // A process that has ended in the meantime has no device nodes.
    assert!(nodes == own || !process.exists(), "{name}: device nodes {nodes:?}, claimed {own:?}");
    let environ = std::fs::read(process.join("environ")).unwrap_or_default();
    let environ: Vec<&[u8]> = environ.split(|byte| *byte == 0).collect();
    for (index, ((uuid, mib), (own, own_mib))) in devices.iter().zip(claimed).enumerate() {
        assert_eq!(uuid, own, "{name}: {limits}");
        // A claim of 0 MiB means the whole memory of the GPU.
        assert!(*own_mib == 0 || mib == own_mib, "{name}: {claimed:?}: {limits}");
        let line = format!("CUDA_DEVICE_MEMORY_LIMIT_{index}={mib}m");
        let found = environ.contains(&line.as_bytes()) || !process.exists();
        assert!(found, "{name}: {line} is not among its variables");
    }
}

/// The number in the name of each GPU's device node, by UUID, from the register on the Node.
fn minors(admin: &Kubectl, node: &str) -> BTreeMap<String, u64> {
    let text = eventually("the register on the Node", RECOVERY, || {
        let node = admin.get(&["node", node]);
        node["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str().map(str::to_owned)
    });
    let gpus: Value = serde_json::from_str(&text).expect("JSON");
    let number = |gpu: &Value| Some((gpu["id"].as_str()?.to_owned(), gpu["index"].as_u64().unwrap_or(0)));
    gpus.as_array().expect("a list").iter().filter_map(number).collect()
}

/// `/proc/<pid>` of a process of this container.
pub(crate) fn process(cgroup: &str, uid: &str, id: &str) -> Option<PathBuf> {
    for hierarchy in ["pids", "memory", "unified", "."] {
        for class in ["besteffort", "burstable", "."] {
            let file = format!("/sys/fs/cgroup/{hierarchy}{cgroup}/kubepods/{class}/pod{uid}/{id}/cgroup.procs");
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            if let Some(pid) = text.lines().next() {
                return Some(PathBuf::from(format!("/proc/{pid}")));
            }
        }
    }
    None
}
