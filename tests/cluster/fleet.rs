//! Pods in numbers, and the truth about them: what each running container of theirs really has, read from its own process
//! and held against the claim on its pod.

use crate::bed::{Bed, promised};
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Nothing may be lost for longer.
const LOST: Duration = Duration::from_secs(60);
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";

/// Pods with a claim each, no two alike, and what kubelet did to them.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    bed: &'a Bed,
    /// UUIDs by index.
    pub gpus: Vec<String>,
    /// All pods ask for the same, where it is not to be told whose is whose.
    pub alike: bool,
    /// What kind the first container of each is: `brief` where no file of limits is to be read.
    pub first: &'static str,
    pods: Vec<(String, Value)>,
    made: usize,
    /// Pods that kubelet failed for good or that were marked for eviction, with the reason. Their successors run.
    pub failed: Vec<String>,
    /// Names of those that may be, by what the test has done to them since the last `settle`.
    may_fail: BTreeSet<String>,
    /// How many of them at most.
    at_most: usize,
    /// How many in the whole test: for the record.
    allowed: usize,
    /// Of each pod that was seen running, by UID: the container that ran, and that must run on.
    running: BTreeMap<String, String>,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(bed: &'a Bed, agent: &Agent) -> Fleet<'a> {
        let gpus = Bed::gpus(agent);
        // What an earlier test's agent wrote there names other GPUs.
        eventually("this agent's GPUs on the Node", LOST, || {
            minors(bed).into_keys().eq(gpus.iter().cloned().collect::<BTreeSet<_>>()).then_some(())
        });
        Fleet {
            bed,
            gpus,
            alike: false,
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

    /// One more pod: an init container and an app, with a share that no other pod has; GPUs in turn.
    pub(crate) fn one_more(&mut self) -> String {
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
        let mib = if self.alike { 1000 } else { 1000 + n as u64 };
        let own = [(n % self.gpus.len(), mib, 1)];
        let pod = self.bed.pod(&name, &self.gpus, &[("warm", self.first, &own), ("main", "app", &own)], &Value::Null);
        self.pods.push((name, pod));
    }

    /// Takes every pod away and makes another one under its name, with a claim of its own.
    pub(crate) fn again(&mut self) {
        let names = self.names();
        let mut words = vec!["delete", "pod", "-n", &self.bed.space.name, "--now"];
        words.extend(names.iter().map(String::as_str));
        let _ = self.bed.admin.run(&words).ok();
        self.pods.clear();
        for name in names {
            self.plan_as(name);
            self.bed.create(&self.pods.last().expect("the newest").1);
        }
    }

    /// So many at once.
    pub(crate) fn burst(&mut self, pods: usize) {
        let before = self.pods.len();
        for _ in 0..pods {
            self.plan();
        }
        let items: Vec<&Value> = self.pods[before..].iter().map(|(_, pod)| pod).collect();
        self.bed.create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }));
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.pods.iter().map(|(name, _)| name.clone()).collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Waits until no pod of the namespace is left but ours.
    pub(crate) fn gone(&self) {
        eventually("the end of pods that were deleted", LOST, || {
            let list = self.bed.admin.get(&["pods", "-n", &self.bed.space.name]);
            (list["items"].as_array()?.len() <= self.pods.len()).then_some(())
        });
    }

    /// Takes away all pods but the newest.
    pub(crate) fn keep(&mut self, newest: usize) {
        let old = self.pods.len().saturating_sub(newest);
        let names: Vec<String> = self.pods.drain(..old).map(|(name, _)| name).collect();
        if names.is_empty() {
            return;
        }
        let mut words =
            vec!["delete", "pod", "-n", &self.bed.space.name, "--now", "--wait=false", "--ignore-not-found"];
        words.extend(names.iter().map(String::as_str));
        let _ = self.bed.admin.run(&words).ok();
    }

    /// So many of these pods may fail, because of what is done to them before the next `settle`: an agent that is killed while it is
    /// asked, a kubelet that starts and does not know the plugin yet. No other pod may, and none for any other reason.
    pub(crate) fn may_fail(&mut self, at_most: usize, of: &[String]) {
        self.at_most += at_most;
        self.allowed += at_most;
        self.may_fail.extend(of.iter().cloned());
    }

    /// One more pod, which comes while the agent is about to end. One pod may fail of it: this one, or one that came before and does
    /// not run yet. kubelet admits one after the other, so that one call at most breaks off.
    pub(crate) fn one_more_before_the_end(&mut self) {
        // Before the new one is made: a look in between would take the time in which it is to be met.
        let mut starting = self.starting();
        starting.push(self.one_more());
        self.may_fail(1, &starting);
    }

    /// The pods that do not run yet. What may have failed of what was done earlier and runs by now has not, and may not any more.
    fn starting(&mut self) -> Vec<String> {
        let list = self.bed.admin.get(&["pods", "-n", &self.bed.space.name]);
        let runs = |pod: &&Value| pod["status"]["phase"] == "Running";
        let running = list["items"].as_array().expect("a list").iter().filter(runs);
        let running: BTreeSet<&str> = running.filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        self.may_fail.retain(|name| !running.contains(&**name));
        self.names().into_iter().filter(|name| !running.contains(&**name)).collect()
    }

    /// All are Ready, in the end; every container has its own; none has failed but those that may. What may fail later is said anew.
    pub(crate) fn settle(&mut self) {
        let may_fail = std::mem::take(&mut self.may_fail);
        let may_fail: Vec<&str> = may_fail.iter().map(String::as_str).collect();
        let at_most = std::mem::take(&mut self.at_most);
        self.failed.extend(self.bed.ready_in_the_end(&self.pods, (at_most, &may_fail)));
        let containers = everybody_has_his_own(self.bed);
        assert!(containers >= self.pods.len(), "{containers} containers of {} pods were seen", self.pods.len());
        self.each_goes_on();
    }

    /// What ran before runs still, in the same container; what is new read its own limits in its init container too.
    fn each_goes_on(&mut self) {
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
                Some(before) => assert_eq!(*before, container, "{name} was started again: {state}"),
                None if self.first == "init" => self.warm_had_its_own(&name, &uid),
                None => {}
            }
            running.insert(uid, container);
        }
        self.running = running;
    }

    /// An init container is over before anybody could look: it prints its limits.
    fn warm_had_its_own(&self, name: &str, uid: &str) {
        // A runtime writes the log beside the container, and may be a moment behind it.
        let said = eventually(&format!("what {name}, warm, printed"), LOST, || {
            let said = self.bed.admin.run(&["logs", "-n", &self.bed.space.name, name, "-c", "warm"]).ok();
            (!said.is_empty()).then_some(said)
        });
        let limits: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{name}, warm: {error}: {said}"));
        let has: Devices = promised(&limits).into_iter().map(|(uuid, bytes)| (uuid, bytes / MIB)).collect();
        assert_eq!((&limits["pod"]["uid"], &limits["container"]), (&json!(uid), &json!("warm")), "{name}: {limits}");
        // A claim that was moved to other devices is written on its pod a moment later.
        eventually(&format!("what {name}, warm, had as its claim: {limits}"), LOST, || {
            let pod = self.bed.admin.get(&["pod", name, "-n", &self.bed.space.name]);
            (parse(pod["metadata"]["annotations"][ALLOCATED].as_str()?)[0] == has).then_some(())
        });
    }

    /// The machine was switched off: no container runs on.
    pub(crate) fn rebooted(&mut self) {
        self.running.clear();
    }

    /// No slot is lost: kubelet counts all of them, and those that nobody holds can be used, each by a pod of its own.
    pub(crate) fn nothing_is_lost(&mut self, total: usize) {
        eventually("every slot allocatable", LOST, || {
            (self.bed.told()["status"]["allocatable"]["nvidia.com/gpu"] == *total.to_string()).then_some(())
        });
        // The room on each GPU goes by claims, so that the free places are filled where they are.
        let each = total / self.gpus.len();
        let mut fillers = Vec::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            // The containers of such a pod take turns on one slot.
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
        // Each is had at once.
        let _ = self.bed.ready_in_the_end(&fillers, (0, &[]));
        everybody_has_his_own(self.bed);
        let mut words = vec!["delete", "pod", "-n", &self.bed.space.name, "--now"];
        words.extend(fillers.iter().map(|(name, _)| name.as_str()));
        if !fillers.is_empty() {
            let _ = self.bed.admin.run(&words).ok();
        }
    }

    /// Says which pods had to be made again.
    pub(crate) fn tell(&self, what: &str) {
        let (failed, allowed) = (self.failed.len(), self.allowed);
        println!("{what}: {} pods made, {failed} failed for good and made again, {allowed} may", self.made);
        for line in &self.failed {
            println!("    {line}");
        }
    }
}

/// The devices of one container: UUID and MiB.
type Devices = Vec<(String, u64)>;

/// Of each pod with a claim that has not ended, by name: what each container was promised, init containers first.
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

fn ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed" || pod["status"]["phase"] == "Succeeded"
}

/// `UUID,NVIDIA,MiB,cores:` for each device, `;` after each container.
fn parse(text: &str) -> Vec<Devices> {
    let device = |text: &str| {
        let mut words = text.split(',');
        let uuid = words.next().expect("a UUID").to_owned();
        (uuid, words.nth(1).expect("memory").parse().expect("MiB"))
    };
    let container = |text: &str| text.split(':').filter(|text| !text.is_empty()).map(device).collect();
    text.strip_suffix(';').unwrap_or(text).split(';').map(container).collect()
}

/// Holds every running container of the namespace that asks for GPUs against the claim on its pod; says how many there
/// were. What a container has is read from its first process: its file of limits and its variables.
pub(crate) fn everybody_has_his_own(bed: &Bed) -> usize {
    let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
    let cgroup = bed.place().cgroup.clone();
    let minors = minors(bed);
    let mut seen = 0;
    for pod in list["items"].as_array().expect("a list").iter().filter(|pod| !ended(pod)) {
        let (name, uid) = (pod["metadata"]["name"].as_str().expect("a name"), pod["metadata"]["uid"].as_str());
        let inits = pod["spec"]["initContainers"].as_array().into_iter().flatten();
        let containers: Vec<&Value> = inits.chain(pod["spec"]["containers"].as_array().into_iter().flatten()).collect();
        let asks = |container: &Value| container["resources"]["limits"]["nvidia.com/gpu"].is_string();
        if !containers.iter().any(|container| asks(container)) {
            continue;
        }
        let status = &pod["status"];
        let states = ["initContainerStatuses", "containerStatuses"].map(|key| status[key].as_array());
        for state in states.into_iter().flatten().flatten().filter(|state| state["state"]["running"].is_object()) {
            let place = containers.iter().position(|container| container["name"] == state["name"]).expect("its place");
            if !asks(containers[place]) {
                continue;
            }
            let claim = eventually(&format!("a claim on {name}"), LOST, || {
                let own = pod["metadata"]["annotations"][ALLOCATED].as_str().map(str::to_owned);
                own.or_else(|| {
                    let now = bed.admin.get(&["pod", name, "-n", &bed.space.name]);
                    now["metadata"]["annotations"][ALLOCATED].as_str().map(str::to_owned)
                })
            });
            let id = state["containerID"].as_str().and_then(|id| id.rsplit('/').next()).expect("an id");
            let uid = uid.expect("a UID");
            // One that ended between the list and this look shows nothing.
            let Some(process) = process(&cgroup, uid, id) else { continue };
            let Ok(text) = std::fs::read(process.join("root/etc/gpu-steward/limits.json")) else {
                assert!(!process.exists(), "{name}/{}: no limits.json in a container with a GPU", state["name"]);
                continue;
            };
            let limits: Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!(limits["pod"]["uid"], uid, "{name}: {limits}");
            assert_eq!(limits["container"], state["name"], "{name}: {limits}");
            has_what_was_promised(name, &process, &limits, &parse(&claim)[place], &minors);
            seen += 1;
        }
    }
    seen
}

/// Holds one container against its part of the claim: its file of limits, its device nodes, its variables.
fn has_what_was_promised(
    name: &str,
    process: &Path,
    limits: &Value,
    promised: &Devices,
    minors: &BTreeMap<String, u64>,
) {
    let read = |device: &Value| {
        let bytes = device["memory_bytes"].as_u64().expect("bytes");
        (device["uuid"].as_str().expect("a UUID").to_owned(), bytes / MIB)
    };
    let devices: Devices = limits["devices"].as_array().expect("a list").iter().map(read).collect();
    assert_eq!(devices.len(), promised.len(), "{name}: {limits}");
    // What the runtime or kubelet put there, whatever the file says.
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("nvidia")?.parse().ok();
    let nodes = std::fs::read_dir(process.join("root/dev")).into_iter().flatten().flatten();
    let nodes: BTreeSet<u64> = nodes.filter_map(number).collect();
    let own: BTreeSet<u64> = promised.iter().filter_map(|(uuid, _)| minors.get(uuid).copied()).collect();
    // One that ends meanwhile shows nothing.
    assert!(nodes == own || !process.exists(), "{name}: device nodes {nodes:?}, promised {own:?}");
    let environ = std::fs::read(process.join("environ")).unwrap_or_default();
    let environ: Vec<&[u8]> = environ.split(|byte| *byte == 0).collect();
    for (index, ((uuid, mib), (own, own_mib))) in devices.iter().zip(promised).enumerate() {
        assert_eq!(uuid, own, "{name}: {limits}");
        // 0 is no limit: what the card has.
        assert!(*own_mib == 0 || mib == own_mib, "{name}: {promised:?}: {limits}");
        let line = format!("CUDA_DEVICE_MEMORY_LIMIT_{index}={mib}m");
        let told = environ.contains(&line.as_bytes()) || !process.exists();
        assert!(told, "{name}: {line} is not among its variables");
    }
}

/// The number in the name of each GPU's device node, by UUID, as the agent has written it on the Node.
fn minors(bed: &Bed) -> BTreeMap<String, u64> {
    let text = eventually("the register on the Node", LOST, || {
        bed.told()["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str().map(str::to_owned)
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
