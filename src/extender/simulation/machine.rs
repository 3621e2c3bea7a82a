//! One machine: its GPUs, its kubelet, and its agent. The agent decides with the product's own allocator (`decide::allocator`,
//! late binding); the kubelet is simulated.
//!
//! ```text
//!   pod watch ──▶ admit: slots, tickets ──▶ start: NodeAllocator::start ──▶ status ──▶ end, deletion
//! ```
//!
//! A machine may have the manifest of a static pod. Its kubelet runs it whatever the API server says, and makes its mirror there
//! again whenever that is deleted.

use super::api_server::ApiServers;
use super::etcd::{Content, Did, Kind};
use super::object::{ContainerIs, ContainerShape, SimNode, SimPod, Taken};
use super::random::Random;
use super::weather::SECOND;
use decide::allocator::{NodeAllocator, SharedDevice, StartVerdict, WithoutClaim};
use model::checkpoint::CheckpointEntry;
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, NodeName, PodUid, Ticket};
use model::limits::ContainerLimits;
use model::registered::RegisteredGpu;
use model::request::ContainerRole;
use model::slot::Slot;
use model::unit::{CorePercent, Mib};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::annotation_keys::{EVICT, REGISTER};
use wire::resource::RequestRules;

/// Number of slots of each GPU.
pub(super) const SLOTS: u32 = 4;
/// Memory of each GPU, in MiB.
pub(super) const MIB: u64 = 10_000;
/// After this number of refused starts the agent marks the pod for eviction.
const REFUSALS: u32 = 3;

/// A pod that the kubelet has admitted, or has failed.
#[derive(Clone, Debug)]
pub(super) struct Admitted {
    pub(super) pod: Arc<SimPod>,
    pub(super) containers: Vec<ContainerIs>,
    phase: &'static str,
    reported: bool,
    refusals: u32,
    /// How much of each GPU the pod's containers hold.
    pub(super) holds: BTreeMap<GpuUuid, Taken>,
    /// The GPU on which the pod's processes run although it requests no GPU.
    uses: Option<GpuUuid>,
}

/// A pod that is gone, or has ended, and whose containers still run.
#[derive(Clone, Debug)]
pub(super) struct Lingering {
    pub(super) gpus: Vec<GpuUuid>,
    /// See [`Admitted::is_idle`].
    pub(super) idle: bool,
    /// When the pod's containers end.
    pub(super) until: u64,
}

impl Admitted {
    /// Whether a container of it is running.
    pub(super) fn runs(&self) -> bool {
        self.containers.contains(&ContainerIs::Running)
    }

    fn end(&mut self, phase: &'static str) {
        for is in self.containers.iter_mut().filter(|is| **is == ContainerIs::Running) {
            *is = ContainerIs::Terminated;
        }
        (self.phase, self.reported) = (phase, false);
        self.holds.clear();
        self.uses = None;
    }

    /// Whether the pod holds GPUs and has not started a process on them. It may do so at any moment.
    pub(super) fn is_idle(&self) -> bool {
        !self.holds.is_empty() && self.pod.uid.as_str().bytes().map(u32::from).sum::<u32>() % 2 == 0
    }

    /// The GPUs on which the pod has processes while it runs, or may start processes.
    pub(super) fn gpus(&self) -> Vec<GpuUuid> {
        self.holds.keys().chain(&self.uses).cloned().collect()
    }
}

/// The process of the agent, which forgets all this at a restart.
#[derive(Debug)]
pub(super) struct AgentProcess {
    number: u64,
    pub(super) allocator: NodeAllocator,
    version: u64,
    /// The agent has read the pods of its node.
    pub(super) listed: bool,
    /// When the driver begins to report which processes are on the GPUs.
    pub(super) lists_at: u64,
}

/// A machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: String,
    /// The machine's Node exists.
    pub(super) up: bool,
    pub(super) gpus: Vec<RegisteredGpu>,
    /// How many times the machine was installed.
    installed: u32,
    version: u64,
    seen: BTreeMap<String, Arc<SimPod>>,
    pub(super) admitted: BTreeMap<PodUid, Admitted>,
    pub(super) checkpoint: Vec<CheckpointEntry>,
    pub(super) agent: Option<AgentProcess>,
    /// Processes of the agent so far.
    agents: u64,
    /// The next process of the agent starts at this moment at the earliest.
    agent_back: u64,
    /// Pods that have ended and whose containers still run.
    pub(super) lingering: BTreeMap<PodUid, Lingering>,
    /// The agent's file of pods that have started.
    started: BTreeSet<PodUid>,
    /// The agent's files with the limits of their containers.
    limits: Vec<ContainerLimits>,
    tickets: u64,
    /// The hash of the manifest of the static pod, and its containers.
    manifest: Option<(PodUid, ContainerShape)>,
    /// How much memory of each GPU is used by processes that belong to no pod, in MiB.
    pub(super) strangers: BTreeMap<GpuUuid, u64>,
}

impl Machine {
    /// A machine, maybe with a static pod that requests this many GPUs.
    pub(super) fn new(number: usize, gpus: usize, static_pod: Option<u32>) -> Machine {
        let name = format!("node-{number}");
        let mut machine = Machine {
            name,
            up: false,
            gpus: Vec::new(),
            installed: 0,
            version: 0,
            seen: BTreeMap::new(),
            admitted: BTreeMap::new(),
            checkpoint: Vec::new(),
            agent: None,
            agents: 0,
            agent_back: 0,
            lingering: BTreeMap::new(),
            started: BTreeSet::new(),
            limits: Vec::new(),
            tickets: 0,
            // Machines with the same manifest have the same hash.
            manifest: static_pod.map(|gpus| {
                let hash = PodUid::parse(&"a".repeat(32)).unwrap();
                let mib = if gpus > 0 { 1000 } else { 0 };
                (hash, ContainerShape { name: "main".to_owned(), role: ContainerRole::App, gpus, mib, cores: 0 })
            }),
            strangers: BTreeMap::new(),
        };
        machine.replace_gpus(number, gpus);
        machine
    }

    /// Replaces the GPUs of the machine.
    pub(super) fn replace_gpus(&mut self, number: usize, gpus: usize) {
        self.installed += 1;
        let gpu = |index: usize| RegisteredGpu {
            uuid: GpuUuid::parse(&format!("GPU-{number:08x}-{:04x}-4000-8000-{index:012x}", self.installed)).unwrap(),
            index: u32::try_from(index).unwrap(),
            slots: SLOTS,
            memory: Mib(MIB),
            cores: CorePercent(100),
            product: "NVIDIA H100".into(),
            numa: 0,
            mode: "hami-core".into(),
            healthy: true,
            mig_profiles: Vec::new(),
        };
        self.gpus = (0..gpus).map(gpu).collect();
        self.strangers.clear();
    }

    /// The machine boots, and its kubelet makes the Node.
    pub(super) fn boots(&mut self, api: &mut ApiServers, random: &mut Random) {
        self.registers(api, random);
        self.up = true;
        self.relist(api);
    }

    /// The kubelet makes the Node.
    fn registers(&mut self, api: &mut ApiServers, random: &mut Random) {
        let uid = format!("uid-{}-{}", self.name, random.number());
        let node = SimNode { uid, name: self.name.clone(), annotations: BTreeMap::new() };
        api.etcd.put(Kind::Nodes, &self.name, Content::Node(Arc::new(node)));
    }

    /// The machine loses power; its Node is deleted.
    pub(super) fn dies(&mut self, api: &mut ApiServers) {
        api.etcd.delete(Kind::Nodes, &self.name);
        self.up = false;
        self.admitted.clear();
        self.checkpoint.clear();
        self.started.clear();
        self.limits.clear();
        self.lingering.clear();
        self.strangers.clear();
        self.agent = None;
    }

    /// The agent ends, and comes back by itself after this moment.
    pub(super) fn agent_ends(&mut self, back: u64) {
        (self.agent, self.agent_back) = (None, back);
    }

    /// The process of the agent that runs.
    pub(super) fn agent_number(&self) -> Option<u64> {
        self.agent.as_ref().map(|agent| agent.number)
    }

    /// Slots that kube-scheduler may count.
    pub(super) fn allocatable(&self) -> u64 {
        let healthy = self.gpus.iter().filter(|gpu| gpu.healthy).count();
        if self.up && self.agent.is_some() { healthy as u64 * u64::from(SLOTS) } else { 0 }
    }

    /// Does one thing. Returns the pod whose container has started now, if there is such a pod.
    pub(super) fn step(&mut self, api: &mut ApiServers, random: &mut Random) -> Option<PodUid> {
        if !self.up {
            return None;
        }
        match random.below(10) {
            0..3 => self.watch(api, random),
            3 => self.agent_registers(api, random),
            4..6 => self.agent_watches(api),
            6 => self.admit_one(random),
            7..9 => return self.start_one(api, random),
            _ => {
                self.make_mirror(api, random);
                self.report(api);
            }
        }
        None
    }

    fn relist(&mut self, api: &ApiServers) {
        let own = api.etcd.pods().filter(|pod| pod.node.as_deref() == Some(&self.name));
        self.seen = own.map(|pod| (pod.name.clone(), Arc::clone(pod))).collect();
        self.version = api.etcd.version;
        // After a restore of etcd the API server has an older status.
        self.admitted.values_mut().for_each(|one| one.reported = false);
    }

    /// The kubelet takes over some changes of its pods.
    fn watch(&mut self, api: &mut ApiServers, random: &mut Random) {
        if self.version < api.etcd.compacted {
            self.relist(api);
        } else {
            let changes = api.etcd.after(Kind::Pods, self.version);
            let some = random.place(changes.len() + 1);
            for change in &changes[..some] {
                let pod = change.object.pod();
                if pod.node.as_deref() == Some(&self.name) {
                    match change.did {
                        Did::Delete => self.seen.remove(&pod.name),
                        _ => self.seen.insert(pod.name.clone(), Arc::clone(pod)),
                    };
                }
                self.version = change.version;
            }
        }
        let there: BTreeSet<&PodUid> = self.seen.values().map(|pod| &pod.uid).collect();
        let gone = self.admitted.iter().filter(|(uid, one)| one.pod.hash.is_none() && !there.contains(uid));
        let gone: Vec<PodUid> = gone.map(|(uid, _)| uid.clone()).collect();
        for uid in &gone {
            self.may_linger(uid, api.etcd.now, random);
            self.forget(uid);
        }
        // One that is being deleted ends: first its containers, then the object.
        let Some(pod) = self.seen.values().find(|pod| pod.deleted).cloned() else { return };
        self.may_linger(&pod.uid, api.etcd.now, random);
        // A static pod goes on without its mirror: it is known by another UID.
        match self.admitted.get_mut(&pod.uid) {
            Some(admitted) if admitted.runs() => admitted.end("Failed"),
            _ => {
                self.forget(&pod.uid);
                self.seen.remove(&pod.name);
                if api.etcd.pod(&pod.name).is_some_and(|now| now.uid == pod.uid) {
                    api.etcd.delete(Kind::Pods, &pod.name);
                }
            }
        }
    }

    /// A pod ends. Some leave containers behind that end later.
    fn may_linger(&mut self, uid: &PodUid, now: u64, random: &mut Random) {
        if let Some(one) = self.admitted.get(uid).filter(|one| one.runs() && !one.gpus().is_empty())
            && random.chance(400)
        {
            let until = now + random.between(SECOND / 10, 6 * SECOND);
            let one = Lingering { gpus: one.gpus(), idle: one.is_idle(), until };
            self.lingering.insert(uid.clone(), one);
        }
    }

    fn forget(&mut self, uid: &PodUid) {
        self.admitted.remove(uid);
        self.checkpoint.retain(|row| row.holder.pod != *uid);
    }

    fn admit_one(&mut self, random: &mut Random) {
        let waits = |pod: &&Arc<SimPod>| {
            !pod.deleted && !pod.ended() && pod.hash.is_none() && !self.admitted.contains_key(&pod.uid)
        };
        // The kubelet fails a static pod with GPUs that it sees before the agent; here it is restarted after it.
        let admits = self.agent.is_some();
        let own = self.manifest.as_ref().filter(|(hash, _)| admits && !self.admitted.contains_key(hash));
        let own = own.map(|(hash, shape)| {
            let shape = vec![shape.clone()];
            Arc::new(SimPod::mirror(hash.clone(), hash.clone(), shape, (&self.name, 0)))
        });
        let Some(pod) = own.or_else(|| self.seen.values().find(waits).cloned()) else { return };
        let mut admitted = Admitted {
            containers: vec![ContainerIs::Waiting; pod.shape.len()],
            phase: "Pending",
            reported: true,
            refusals: 0,
            holds: BTreeMap::new(),
            uses: None,
            pod,
        };
        // A pod of another scheduler may have taken the CPU.
        match self.allocate(&admitted.pod, random).filter(|_| !random.chance(10)) {
            Some(rows) => self.checkpoint.extend(rows),
            None => admitted.end("Failed"),
        }
        self.admitted.insert(admitted.pod.uid.clone(), admitted);
    }

    /// Allocates any free slots for each container, with a ticket of the agent. Later containers get the slots of init
    /// containers again.
    fn allocate(&mut self, pod: &SimPod, random: &mut Random) -> Option<Vec<CheckpointEntry>> {
        if pod.shape.iter().all(|shape| shape.gpus == 0) {
            return Some(Vec::new());
        }
        self.agent.as_ref()?;
        let healthy = self.gpus.iter().filter(|gpu| gpu.healthy);
        let all = healthy.flat_map(|gpu| (0..4).map(|number| Slot { device: gpu.uuid.clone(), number }.to_string()));
        let taken: BTreeSet<&str> = self.checkpoint.iter().flat_map(|row| row.ids.iter().map(|id| &**id)).collect();
        let mut free: Vec<String> = all.filter(|id| !taken.contains(id.as_str())).collect();
        let (mut reuse, mut rows): (Vec<String>, Vec<CheckpointEntry>) = (Vec::new(), Vec::new());
        for shape in pod.shape.iter().filter(|shape| shape.gpus > 0) {
            let mut ids: Vec<String> = Vec::new();
            for _ in 0..shape.gpus {
                let from = if reuse.is_empty() { &mut free } else { &mut reuse };
                if from.is_empty() {
                    return None;
                }
                ids.push(from.swap_remove(random.place(from.len())));
            }
            if shape.role == ContainerRole::Init {
                reuse.extend(ids.iter().cloned());
            }
            self.tickets += 1;
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&random.number().to_be_bytes());
            bytes[8..].copy_from_slice(&self.tickets.to_be_bytes());
            rows.push(CheckpointEntry {
                holder: ContainerKey { pod: pod.uid.clone(), container: shape.name.as_str().into() },
                ids: ids.into_iter().map(Arc::from).collect(),
                ticket: Some(Ticket::of_random(bytes)),
                foreign: false,
                early: false,
            });
        }
        Some(rows)
    }

    /// The next container of some pod starts, or an init container ends.
    fn start_one(&mut self, api: &mut ApiServers, random: &mut Random) -> Option<PodUid> {
        let open: Vec<PodUid> =
            self.admitted.iter().filter(|(_, one)| one.phase == "Pending").map(|(uid, _)| uid.clone()).collect();
        if open.is_empty() {
            return None;
        }
        let uid = random.one_of(&open.iter().collect::<Vec<_>>()).clone();
        let admitted = self.admitted.get_mut(&uid)?;
        let pod = Arc::clone(&admitted.pod);
        let init_runs = |(shape, is): (&super::object::ContainerShape, &ContainerIs)| {
            shape.role == ContainerRole::Init && *is == ContainerIs::Running
        };
        if let Some(at) = pod.shape.iter().zip(&admitted.containers).position(init_runs) {
            admitted.containers[at] = ContainerIs::Terminated;
            admitted.reported = false;
            return None;
        }
        let Some(at) = admitted.containers.iter().position(|is| *is == ContainerIs::Waiting) else {
            (admitted.phase, admitted.reported) = ("Running", false);
            return None;
        };
        let shape = &pod.shape[at];
        if shape.gpus > 0 {
            let row =
                self.checkpoint.iter().find(|row| row.holder.pod == uid && *row.holder.container == *shape.name)?;
            let (ids, agent) = (row.ids.clone(), self.agent.as_mut()?);
            if !agent.listed {
                return None;
            }
            match agent.allocator.start(&ids, Some(&self.checkpoint)) {
                StartVerdict::Fill { bound, .. } => {
                    assert!(!bound.is_empty(), "a start without a container");
                    self.started.insert(uid.clone());
                    self.limits.retain(|kept| bound.iter().all(|one| one.limits.holder != kept.holder));
                    self.limits.extend(bound.into_iter().map(|one| one.limits));
                }
                StartVerdict::Wait(_) | StartVerdict::Foreign => return None,
                StartVerdict::Refuse { .. } => {
                    admitted.refusals += 1;
                    if admitted.refusals == REFUSALS {
                        mark(api, &pod);
                        admitted.refusals = 0;
                    }
                    return None;
                }
            }
            // A pod holds its whole claim from the start of its first container.
            admitted.holds = pod.claim().map(|claim| pod.takes(&claim)).unwrap_or_default();
        } else if pod.slots() == 0 && admitted.uses.is_none() && random.chance(500) {
            admitted.uses = Some(self.gpus[random.place(self.gpus.len())].uuid.clone());
        }
        (admitted.containers[at], admitted.reported) = (ContainerIs::Running, false);
        (shape.gpus > 0).then_some(uid)
    }

    /// The work of some running pod is done.
    pub(super) fn end_one(&mut self, now: u64, random: &mut Random) {
        let running = self.admitted.iter().filter(|(_, one)| one.phase == "Running" && one.pod.hash.is_none());
        let running: Vec<PodUid> = running.map(|(uid, _)| uid.clone()).collect();
        if let Some(uid) = running.get(random.place(running.len())) {
            self.may_linger(uid, now, random);
            let phase = random.one_of(&["Succeeded", "Failed"]);
            self.admitted.get_mut(uid).into_iter().for_each(|one| one.end(phase));
        }
    }

    /// The kubelet makes the mirror of the static pod if there is none.
    fn make_mirror(&mut self, api: &mut ApiServers, random: &mut Random) {
        let Some((hash, shape)) = &self.manifest else { return };
        let (first, second) = (random.below(1 << 32), random.below(1 << 40));
        let uid = PodUid::parse(&format!("{first:08x}-0001-4000-8000-{second:012x}")).unwrap();
        let mirror = SimPod::mirror(uid, hash.clone(), vec![shape.clone()], (&self.name, api.etcd.now));
        if api.etcd.pod(&mirror.name).is_none() {
            self.admitted.get_mut(hash).into_iter().for_each(|one| one.reported = false);
            api.etcd.put_pod(mirror);
        }
    }

    /// The kubelet writes the status of one pod. The slots of a pod that has ended are free afterwards.
    fn report(&mut self, api: &mut ApiServers) {
        let Some((uid, admitted)) = self.admitted.iter_mut().find(|(_, one)| !one.reported) else { return };
        admitted.reported = true;
        if let Some(now) = api.etcd.pod(&admitted.pod.name).filter(|now| now.local_uid() == uid) {
            let next = SimPod { phase: admitted.phase, containers: admitted.containers.clone(), ..SimPod::clone(now) };
            api.etcd.put_pod(next);
        }
        if matches!(admitted.phase, "Succeeded" | "Failed") {
            self.checkpoint.retain(|row| row.holder.pod != *uid);
        }
    }

    /// The agent writes the GPUs of the machine on its Node.
    fn agent_registers(&mut self, api: &mut ApiServers, random: &mut Random) {
        if self.agent.is_none() {
            if api.etcd.now < self.agent_back {
                return;
            }
            self.agents += 1;
            let mut allocator = NodeAllocator::new(WithoutClaim::Auto, true);
            allocator.recall(self.started.clone());
            allocator.recall_limits(self.limits.clone());
            let lists_at = api.etcd.now + random.below(4 * SECOND);
            self.agent = Some(AgentProcess { number: self.agents, allocator, version: 0, listed: false, lists_at });
        }
        let Some(node) = api.etcd.get(Kind::Nodes, &self.name).map(|stored| SimNode::clone(stored.node())) else {
            return self.registers(api, random);
        };
        let register = wire::register::encode(&self.gpus).unwrap();
        if node.annotations.get(REGISTER) != Some(&register) {
            let annotations = BTreeMap::from([(REGISTER.to_owned(), register)]);
            api.etcd.put(Kind::Nodes, &self.name, Content::Node(Arc::new(SimNode { annotations, ..node })));
        }
        let device = |gpu: &RegisteredGpu| SharedDevice {
            device: gpu.uuid.clone(),
            parent: None,
            index: gpu.index,
            minor: Some(gpu.index),
            model: Arc::clone(&gpu.product),
            slots: 4,
            memory: gpu.memory.bytes(),
            cores: gpu.cores.0,
            numa: Some(0),
            healthy: gpu.healthy,
        };
        let devices = self.gpus.iter().map(device).collect();
        if let Some(agent) = &mut self.agent {
            agent.allocator.set_devices(devices);
        }
    }

    /// The agent takes over changes of the node's pods. A pod counts as gone only when no process of it is left.
    fn agent_watches(&mut self, api: &ApiServers) {
        let Some(agent) = &mut self.agent else { return };
        let node = NodeName::parse(&self.name).unwrap();
        let gpu_pod = |text: &str| {
            let pod = wire::pod::decode(text.as_bytes()).unwrap();
            wire::gpu_pod::of(&pod, &RequestRules::default(), &node)
        };
        let runs = |uid: &PodUid| self.admitted.get(uid).is_some_and(Admitted::runs);
        if !agent.listed || agent.version < api.etcd.compacted {
            let own = api.etcd.objects(Kind::Pods).values().filter(|pod| pod.pod().node.as_deref() == Some(&self.name));
            let mut list: Vec<GpuPod> = own.filter_map(|stored| gpu_pod(&stored.text)).collect();
            let left = self.admitted.keys().filter(|uid| runs(uid) && list.iter().all(|pod| pod.uid != **uid));
            let left: Vec<GpuPod> = left.filter_map(|uid| agent.allocator.gpu_pod(uid).cloned()).collect();
            list.extend(left);
            agent.allocator.set_gpu_pods(list);
            (agent.version, agent.listed) = (api.etcd.version, true);
            self.forget_started();
            return;
        }
        for change in api.etcd.after(Kind::Pods, agent.version) {
            let pod = change.object.pod();
            if pod.node.as_deref() == Some(&self.name) {
                if change.did == Did::Delete && pod.hash.is_none() && runs(&pod.uid) {
                    return;
                }
                match gpu_pod(&change.object.text).filter(|_| change.did != Did::Delete) {
                    Some(pod) => agent.allocator.set_gpu_pod(pod),
                    None => agent.allocator.remove_gpu_pod(pod.local_uid()),
                }
            }
            agent.version = change.version;
        }
        self.forget_started();
    }

    /// The agent's file of started pods loses the pods that have ended or are gone.
    fn forget_started(&mut self) {
        let Some(agent) = &self.agent else { return };
        self.started.retain(|uid| agent.allocator.gpu_pod(uid).is_some_and(|pod| !pod.finished));
        self.limits.retain(|one| self.started.contains(&one.holder.pod));
    }
}

/// The agent marks a pod that cannot start.
fn mark(api: &mut ApiServers, pod: &SimPod) {
    let Some(now) = api.etcd.pod(&pod.name).filter(|now| now.uid == pod.uid && now.claim().is_some()) else { return };
    let mut next = SimPod::clone(now);
    next.annotations.insert(EVICT.to_owned(), "DoesNotFit".to_owned());
    api.etcd.put_pod(next);
}
