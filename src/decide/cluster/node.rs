//! One node of the cluster: its GPUs, the claims on them, and whether it takes new claims.

use super::agent_link::{AgentLink, LinkState};
use super::closed::{BlockingPods, ClosedReason, UnknownClaim};
use super::handshake_age::HandshakeAge;
use super::static_pods::StaticPods;
use super::version::CountedVersion;
use crate::ledger::{ClaimState, DeviceDemand, Ledger, LedgerClaim, demand_of};
use crate::placement::{
    BeyondClaims, Capacity, ClaimedUse, DeviceFitness, DeviceKind, PlacementDevice, PlacementNode, ReportedMemory,
};
use model::agent_stream::{AgentPhase, PodStage, ReportedGpu, ReportedPod, ReportedUse};
use model::assumed::AssumedDevice;
use model::claim::{Claim, ClaimOrigin};
use model::followed_node::NodeFacts;
use model::gpu_pod::GpuPod;
use model::id::{GpuUuid, NodeName, ObjectUid, PodUid};
use model::registered::RegisteredGpu;
use model::time::Monotonic;
use model::unit::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// One node of the cluster.
#[derive(Clone, Debug)]
pub struct NodeClaims {
    name: NodeName,
    /// The UID of the Node; `None` while only pods name it.
    uid: Option<ObjectUid>,
    unreadable: Option<Arc<str>>,
    devices: PlacementNode,
    ledger: Ledger,
    /// The demand, by device, of each pod that the filter expects here.
    proposals: BTreeMap<PodUid, Vec<(GpuUuid, DeviceDemand)>>,
    /// Its pods whose claims are not known.
    blocking_pods: BlockingPods,
    /// Whether there are pods without a claim that are not followed, on any node.
    unproven_left_out: bool,
    /// The number of the node, and a count of the changes on which a verdict about it depends: its devices, their claims, its
    /// proposals, and what closes it.
    version: CountedVersion,
    /// The agent's stream; `None` if the agent has never opened a stream to this leader.
    agent: Option<AgentLink>,
    /// The handshake on the Node. It counts only while the agent has no stream.
    handshake: HandshakeAge,
    /// What the Node says is taken of its GPUs.
    shown_assumed: Option<Arc<str>>,
    /// Whether the agent had a stream when the Node was deleted, and has opened no stream since. Until then, it is not known what
    /// runs on a new Node of this name: its register may be the deleted Node's.
    returns: bool,
    /// Pods that have ended and hold their GPUs until the agent sees no process and no container of them.
    ending: BTreeSet<PodUid>,
    /// The names by which the agent knows the static pods.
    static_pods: StaticPods,
    /// Devices that pods without a claim here use or hold, by the agent's reports. The Node registers all of them, which bounds their
    /// number.
    in_use: BTreeSet<GpuUuid>,
    /// The UID of the Node whose register has the devices.
    registered_by: Option<ObjectUid>,
    /// Devices with claims that the register of this Node has listed and no longer lists: they were removed. A claim on one of
    /// them does not count on any other device.
    removed: BTreeSet<GpuUuid>,
    /// A pod, and a device of its claim that is unknown ([`NodeClaims::look_for_unknown_device`]).
    unknown_device: Option<(PodUid, GpuUuid)>,
    /// Memory of strangers up to this amount does not count.
    margin: Bytes,
}

impl NodeClaims {
    pub(super) fn named(name: NodeName, version: CountedVersion, margin: Bytes) -> NodeClaims {
        NodeClaims {
            name,
            uid: None,
            unreadable: None,
            devices: PlacementNode::default(),
            ledger: Ledger::default(),
            proposals: BTreeMap::new(),
            blocking_pods: BlockingPods::default(),
            unproven_left_out: false,
            version,
            agent: None,
            handshake: HandshakeAge::default(),
            shown_assumed: None,
            returns: false,
            ending: BTreeSet::new(),
            static_pods: StaticPods::default(),
            in_use: BTreeSet::new(),
            registered_by: None,
            removed: BTreeSet::new(),
            unknown_device: None,
            margin,
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// The UID of the Node; `None` while only pods name the node.
    #[must_use]
    pub fn uid(&self) -> Option<&ObjectUid> {
        self.uid.as_ref()
    }

    /// The devices with the sums of the claims on them.
    #[must_use]
    pub fn devices(&self) -> &PlacementNode {
        &self.devices
    }

    /// The claims of the pods on this node.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How much the claims take of each of its devices, without devices of which nothing is taken.
    #[must_use]
    pub fn assumed(&self) -> Vec<AssumedDevice> {
        let taken = self.devices.devices.iter().filter(|device| device.claimed != DeviceDemand::default());
        let one = |device: &PlacementDevice| AssumedDevice {
            device: device.uuid.clone(),
            containers: device.claimed.containers,
            memory: Bytes(device.claimed.memory),
            cores: device.claimed.cores,
        };
        taken.map(one).collect()
    }

    /// What the Node says is taken of its GPUs.
    #[must_use]
    pub fn shown_assumed(&self) -> Option<&Arc<str>> {
        self.shown_assumed.as_ref()
    }

    /// The version of the node for which a verdict is valid.
    pub(super) fn version(&self) -> &CountedVersion {
        &self.version
    }

    /// The pods that may keep it from taking new claims, mutable.
    pub(super) fn blocking_pods_mut(&mut self) -> &mut BlockingPods {
        self.version.changes();
        &mut self.blocking_pods
    }

    /// The reason that was reported last about the node, mutable: no verdict depends on it.
    pub(super) fn last_reported_mut(&mut self) -> &mut Option<ClosedReason> {
        &mut self.blocking_pods.last_reported
    }

    /// Why the node takes no new claims; `None` if it takes new claims.
    #[must_use]
    pub fn closed(&self) -> Option<ClosedReason> {
        if self.uid.is_none() {
            return Some(ClosedReason::Gone);
        }
        if let Some(why) = &self.unreadable {
            return Some(ClosedReason::Unreadable(Arc::clone(why)));
        }
        let holds_none = |uid: &PodUid, claim| self.holds_none(uid, claim);
        if let Some(reason) = self.blocking_pods.first(self.reported_unknown(), holds_none) {
            return Some(reason);
        }
        if let Some((pod, device)) = &self.unknown_device {
            return Some(ClosedReason::UnknownDevice(pod.clone(), device.clone()));
        }
        if self.unproven_left_out && self.may_have_unseen_pod() {
            return Some(ClosedReason::UnprovenLeftOut);
        }
        let Some(link) = &self.agent else { return self.closed_without_stream() };
        match (link.state, link.report.phase) {
            (LinkState::Away, _) => Some(ClosedReason::AgentAway),
            (_, AgentPhase::Leaving) => Some(ClosedReason::AgentLeaving),
            (_, AgentPhase::Starting) => Some(ClosedReason::AgentStarting),
            (_, AgentPhase::ServingEarly) => Some(ClosedReason::AgentWithoutCdi),
            (_, AgentPhase::Serving) => None,
        }
    }

    /// Sets whether there are pods without a claim that are not followed, on any node.
    pub(super) fn leaves_out_unproven_pods(&mut self, any: bool) {
        if self.unproven_left_out != any {
            self.version.changes();
            self.unproven_left_out = any;
        }
    }

    /// Why the node takes no new claims, if its agent has no stream. A node that registers no GPU takes no claims anyway.
    fn closed_without_stream(&self) -> Option<ClosedReason> {
        if self.returns {
            return Some(ClosedReason::AgentAway);
        }
        (self.handshake.is_stale() && !self.devices.devices.is_empty()).then_some(ClosedReason::HandshakeStale)
    }

    /// Returns whether the node's handshake has become stale.
    pub(super) fn handshake_gets_stale(&mut self, now: Monotonic) -> bool {
        let stale = self.handshake.look(now);
        if stale {
            self.version.changes();
        }
        stale
    }

    /// Nodes were not watched for this time, which does not count in the age of the handshake.
    pub(super) fn was_unwatched(&mut self, time: Duration) {
        self.handshake.skips(time);
    }

    /// The agent's stream.
    pub(super) fn agent(&self) -> Option<&AgentLink> {
        self.agent.as_ref()
    }

    /// The agent's stream, mutable. After a change that opens or closes the node, call [`NodeClaims::is_changed`].
    pub(super) fn agent_mut(&mut self) -> Option<&mut AgentLink> {
        self.agent.as_mut()
    }

    /// Sets the agent's stream. `None` also forgets what agents have reported.
    pub(super) fn set_agent(&mut self, agent: Option<AgentLink>) {
        self.version.changes();
        self.returns = false;
        self.agent = agent;
        if self.agent.is_none() {
            self.are_in_use(&BTreeSet::new());
        }
        self.find_memory_in_use();
    }

    /// Compares the memory in use of each device with the claims on it. Called after each change of the agent's report, the register
    /// and the agent's silence. A pod whose memory grows inside its claim changes no version.
    pub(super) fn find_memory_in_use(&mut self) {
        let check = self.agent.as_ref().map(|link| link.report.check).unwrap_or_default();
        if self.devices.check != check {
            self.devices.check = check;
            self.version.changes();
        }
        let found: Vec<BeyondClaims> =
            self.devices.devices.iter().map(|device| self.beyond_claims(&device.uuid, device.capacity)).collect();
        for (device, beyond) in self.devices.devices.iter_mut().zip(found) {
            if device.beyond.taken != beyond.taken {
                self.version.changes();
            }
            device.beyond = beyond;
        }
    }

    /// The memory in use beyond the claims on one device.
    fn beyond_claims(&self, device: &GpuUuid, capacity: Capacity) -> BeyondClaims {
        let Some(link) = self.agent.as_ref().filter(|link| link.state != LinkState::Away && !link.is_silent) else {
            return BeyondClaims::UNKNOWN;
        };
        let Some(gpu) = link.report.gpus.get(device) else { return BeyondClaims::UNKNOWN };
        let pods: Vec<ClaimedUse> = self.ledger.pods_on(device).map(|uid| self.claimed_use(uid, device)).collect();
        BeyondClaims::of(Bytes(capacity.memory), reported_memory(gpu), pods.iter().copied(), self.margin)
    }

    /// How much a pod claims of a device, and how much its processes use.
    fn claimed_use(&self, uid: &PodUid, device: &GpuUuid) -> ClaimedUse {
        let claimed = self.ledger.get(uid).map(|claim| claim.demand(device).memory).unwrap_or_default();
        let mut uses = self.reported_pods(uid).filter_map(|pod| pod.uses.get(device));
        // Containers of a pod that is gone are reported with the devices of its claim, even without a process.
        let memory = |used: &ReportedUse| if used.processes == 0 { Some(Bytes(0)) } else { used.memory_used.get() };
        let used = uses.try_fold(0_u64, |sum, used| Some(sum.saturating_add(memory(used)?.0)));
        ClaimedUse { claimed, used }
    }

    /// What the agent reports of a pod.
    fn reported_pods<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a ReportedPod> {
        self.static_pods.names(uid).filter_map(move |name| self.agent.as_ref()?.report.pods.get(name))
    }

    /// Takes a pod out of this copy of the node, with its claim and the memory of its processes.
    pub(super) fn is_without(&mut self, uid: &PodUid) {
        let used = self.reported_pods(uid).flat_map(|pod| pod.uses.iter()).map(|(device, _)| device.clone());
        let devices: BTreeSet<GpuUuid> = used.chain(self.claimed_by(uid)).collect();
        for device in devices {
            let pod = self.claimed_use(uid, &device);
            let Some(gpu) = self.agent.as_mut().and_then(|link| link.report.gpus.get_mut(&device)) else { continue };
            let left = reported_memory(gpu).without(pod);
            gpu.memory_used = gpu.memory_used.map(|used| left.used.unwrap_or(used));
            gpu.memory_listed = gpu.memory_listed.map(|listed| left.listed.unwrap_or(listed));
        }
        let names: Vec<PodUid> = self.static_pods.names(uid).cloned().collect();
        if let Some(link) = &mut self.agent {
            names.iter().for_each(|name| drop(link.report.pods.remove(name)));
        }
        self.release(uid);
    }

    /// Something has changed on which a verdict about the node depends.
    pub(super) fn is_changed(&mut self) {
        self.version.changes();
    }

    /// Pods that have ended and still hold their GPUs.
    pub(super) fn ending(&self) -> impl Iterator<Item = &PodUid> {
        self.ending.iter()
    }

    /// Whether a pod has ended and still holds its GPUs.
    #[must_use]
    pub fn is_ending(&self, uid: &PodUid) -> bool {
        self.ending.contains(uid)
    }

    /// A pod has ended, and its processes may still be on its GPUs.
    pub(super) fn ends(&mut self, uid: &PodUid) {
        self.ending.insert(uid.clone());
    }

    /// The names by which the agent knows the static pods.
    pub(super) fn static_pods(&self) -> &StaticPods {
        &self.static_pods
    }

    /// Sets the config hash of a static pod on this node; `None` removes the entry.
    pub(super) fn static_pod_is(&mut self, uid: &PodUid, hash: Option<&PodUid>) {
        if self.static_pods.set(uid, hash) {
            self.version.changes();
            self.note_unclaimed(uid);
        }
    }

    /// Called after each change of a pod's hash, or of what is known of the pod's claim.
    fn note_unclaimed(&mut self, uid: &PodUid) {
        let unclaimed = self.blocking_pods.unknown().get(uid) == Some(&UnknownClaim::NotStarted);
        self.static_pods.unclaimed_is(uid, unclaimed);
    }

    /// How far the start of a pod has come, as the agent reports it.
    fn stage(&self, uid: &PodUid) -> Option<PodStage> {
        let link = self.agent.as_ref()?;
        self.static_pods.names(uid).filter_map(|name| link.stage(name)).max()
    }

    /// Whether the agent refuses every start of the pod, or will do so. Then the pod holds no GPU. An agent that refuses pods
    /// without a claim also refuses a claim on a device that its node does not have.
    ///
    /// A container that requests no GPU runs all the same, and may open GPUs by `NVIDIA_VISIBLE_DEVICES`. Its processes count like
    /// processes of a pod that requests no GPU, as long as the API server shows that no container with a request has run.
    fn holds_none(&self, uid: &PodUid, claim: UnknownClaim) -> bool {
        match self.stage(uid) {
            Some(PodStage::Refused) => claim == UnknownClaim::NotStarted || !self.has_processes(uid),
            // The kubelet has not asked this agent for its devices yet.
            None | Some(PodStage::Waiting) => {
                claim == UnknownClaim::NotStarted && self.refuses_unclaimed() && !self.has_processes(uid)
            }
            Some(PodStage::Allocated | PodStage::Started | PodStage::Ended) => false,
        }
    }

    /// The pods with an unknown claim that the agent's report may name, if the agent refuses all other such pods that have not
    /// started. `None` if it does not, or if looking at all of them is less work. A pod is known by its UID or its hash: what holds
    /// for one pod of a hash that is not named by its UID holds for all.
    fn reported_unknown(&self) -> Option<impl Iterator<Item = &PodUid>> {
        let link = self.agent.as_ref().filter(|link| link.report.refuses_unclaimed)?;
        let (reported, unknown) = (&link.report.pods, self.blocking_pods.unknown());
        if reported.len() >= unknown.len() {
            return None;
        }
        let is_alike = move |uid: &&PodUid| !reported.contains_key(*uid);
        let hashed = move |name| self.static_pods.unclaimed(name).find(is_alike);
        Some(reported.keys().flat_map(move |name| std::iter::once(name).chain(hashed(name))))
    }

    /// Whether the agent says that it refuses all pods without a claim.
    fn refuses_unclaimed(&self) -> bool {
        self.agent.as_ref().is_some_and(|link| link.report.refuses_unclaimed)
    }

    /// Whether a pod that requests GPUs, has no claim and is not followed may get GPUs of this node, or has some by the agent's
    /// newest report.
    fn may_have_unseen_pod(&self) -> bool {
        let Some(link) = self.agent.as_ref().filter(|link| link.report.refuses_unclaimed) else { return true };
        let is_known = |uid: &PodUid| self.ledger.get(uid).is_some() || self.blocking_pods.unknown().contains_key(uid);
        link.report.pods.iter().any(|(name, pod)| {
            matches!(pod.stage, PodStage::Allocated | PodStage::Started) && !self.static_pods.meant(name).any(is_known)
        })
    }

    /// Whether the agent has seen a container of the pod start.
    fn has_started(&self, uid: &PodUid) -> bool {
        self.stage(uid) >= Some(PodStage::Started)
    }

    /// Whether there are processes of the pod on a GPU, by the agent's newest report.
    fn has_processes(&self, uid: &PodUid) -> bool {
        self.agent.as_ref().is_some_and(|link| self.static_pods.names(uid).any(|name| link.sees_processes(name)))
    }

    /// Whether there are processes of the pod on a GPU, or containers of the pod that may start one, by the agent's newest report.
    pub(super) fn runs(&self, uid: &PodUid) -> bool {
        self.agent.as_ref().is_some_and(|link| self.static_pods.names(uid).any(|name| link.runs(name)))
    }

    /// Whether processes of a pod may be on the GPUs that it claims: the pod runs, or the agent has no list of the processes on one
    /// of the GPUs. A missing list does not mean that there are no processes: an agent that has just started, or whose driver hangs,
    /// sees no process.
    pub(super) fn may_run(&self, uid: &PodUid) -> bool {
        self.runs(uid) || self.claimed_by(uid).iter().any(|device| self.lacks_list(device))
    }

    /// Whether the process list of a device is missing in the agent's newest report. If the report does not name the device but
    /// the Node registers it, the list is missing: the agent has not found its GPUs yet. If neither names the device, it was
    /// removed, and a claim on it can be released, because no other pod can get the device. So a claim is kept while the agent
    /// does not know which processes are on an existing GPU: until the driver answers, or the GPU or the Node is gone.
    fn lacks_list(&self, device: &GpuUuid) -> bool {
        let Some(link) = &self.agent else { return false };
        let registers = || self.devices.devices.iter().any(|one| one.uuid == *device);
        link.has_list(device).map_or_else(registers, |has| !has)
    }

    /// Marks the claims that have started according to the agent's report. A reservation waits until the pod watch shows it: the
    /// agent's report may be about an earlier binding of the pod, which an etcd restore took back.
    pub(super) fn take_started(&mut self) {
        if self.agent.is_none() {
            return;
        }
        let started: Vec<PodUid> = self
            .ledger
            .claims()
            .filter(|(uid, claim)| claim.state == ClaimState::Bound && self.has_started(uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in started {
            self.ledger.has_started(&uid);
        }
    }

    /// The pods with a claim for which the kubelet has not called `Allocate` yet, as far as the agent has reported. For a pod that
    /// has ended it never will.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &PodUid> {
        let asked = |uid: &PodUid| self.stage(uid).is_some_and(|stage| stage != PodStage::Waiting);
        let waits = self.ledger.claims().filter(move |(uid, claim)| claim.state != ClaimState::Started && !asked(uid));
        waits.map(|(uid, _)| uid).filter(|uid| !self.ending.contains(*uid))
    }

    /// Ended pods with the hash of this static pod whose claims are within its claim. When a mirror pod is deleted, its
    /// containers keep running and the kubelet makes another mirror pod. The devices of these containers must not count twice.
    pub(super) fn predecessors(&self, uid: &PodUid) -> Vec<PodUid> {
        let Some(own) = self.ledger.get(uid) else { return Vec::new() };
        let within = |held: &LedgerClaim| {
            held.claim.shares().all(|share| {
                let (own, held) = (own.demand(&share.device), held.demand(&share.device));
                own.max(held) == own
            })
        };
        // Anyone who may create pods can make very many pods with one hash, but few pods have ended and still run.
        let ended = self.ending.iter().filter(|other| self.static_pods.are_siblings(uid, other));
        ended.filter(|other| self.ledger.get(other).is_some_and(within)).cloned().collect()
    }

    /// A pod with a claim on a device that is not known: the register does not list it and never has since this leader
    /// follows the Node, and the agent does not report that it was withdrawn. Without a listed device no pod can be placed
    /// here, so there is nothing to protect.
    fn find_unknown_device(&self) -> Option<(PodUid, GpuUuid)> {
        if self.devices.devices.is_empty() {
            return None;
        }
        let listed = |device: &GpuUuid| self.devices.devices.iter().any(|one| one.uuid == *device);
        // The agent knows a device that it reports, even a device that is divided into instances.
        let withdrawn = |device| {
            let report = self.agent.as_ref().map(|link| &link.report);
            report.is_some_and(|report| report.withdrawn.contains(device) || report.gpus.contains_key(device))
        };
        let holds = |uid: &&PodUid| match self.ledger.get(uid).map(|claim| claim.state) {
            // A reservation is for devices that this leader has seen in the register.
            None | Some(ClaimState::Assumed) => false,
            // Anybody may write such a claim, and the agent refuses to start the pod.
            Some(ClaimState::Bound) => !self.holds_none(uid, UnknownClaim::NotStarted),
            Some(ClaimState::Started) => true,
        };
        let unlisted = self.ledger.devices().filter(|device| !listed(device));
        let mut unknown = unlisted.filter(|device| !self.removed.contains(*device) && !withdrawn(*device));
        unknown.find_map(|device| Some((self.ledger.pods_on(device).find(holds)?.clone(), device.clone())))
    }

    /// Finds out whether a pod here claims an unknown device. Called after each change of the claims, the register or
    /// the agent's report.
    pub(super) fn look_for_unknown_device(&mut self) {
        let found = self.find_unknown_device();
        if self.unknown_device != found {
            self.version.changes();
            self.unknown_device = found;
        }
    }

    /// Whether processes of pods without a claim use a device.
    pub(super) fn is_in_use(&self) -> bool {
        !self.in_use.is_empty()
    }

    /// Lets devices that processes of pods without a claim use count as free, to find out what fits when these have ended.
    pub(super) fn ignore_use(&mut self) {
        for device in self.devices.devices.iter_mut().filter(|device| device.fitness == DeviceFitness::InUse) {
            device.fitness = DeviceFitness::Fit;
        }
    }

    /// Sets the devices on which, by the agent's newest report, there are processes of pods without a claim here. A device with
    /// such processes in an earlier report stays in the set until a report has a list of its processes.
    pub(super) fn are_in_use(&mut self, devices: &BTreeSet<GpuUuid>) {
        if devices.is_empty() && self.in_use.is_empty() {
            return;
        }
        let counts = |uuid: &GpuUuid| devices.contains(uuid) || (self.in_use.contains(uuid) && self.lacks_list(uuid));
        let registered = self.devices.devices.iter().map(|device| &device.uuid);
        let now: BTreeSet<GpuUuid> = registered.filter(|uuid| counts(uuid)).cloned().collect();
        for device in &mut self.devices.devices {
            let fitness = match (device.fitness, now.contains(&device.uuid)) {
                (DeviceFitness::Fit, true) => DeviceFitness::InUse,
                (DeviceFitness::InUse, false) => DeviceFitness::Fit,
                (fitness, _) => fitness,
            };
            if fitness != device.fitness {
                device.fitness = fitness;
                self.version.changes();
            }
        }
        self.in_use = now;
    }

    /// Whether the entry can be removed: no Node, no claim, no proposal.
    pub(super) fn is_empty(&self) -> bool {
        self.uid.is_none()
            && self.ledger.is_empty()
            && self.proposals.is_empty()
            && self.blocking_pods.is_empty()
            && self.static_pods.is_empty()
            && self.agent.is_none()
    }

    /// Sets the current Node. If its register cannot be read, the node is closed and keeps its last known devices, so that the
    /// claims on them stay visible.
    pub(super) fn is(&mut self, facts: &NodeFacts, kinds: &mut dyn FnMut(&RegisteredGpu) -> Arc<DeviceKind>) {
        // Most new versions of a Node are about something else.
        let before = (self.uid.take(), self.unreadable.take());
        if before.0.is_none() || before.1.is_some() || facts.register.is_err() {
            self.version.changes();
        }
        self.uid = Some(facts.uid.clone());
        if self.handshake.is(facts.handshake) {
            self.version.changes();
        }
        if self.shown_assumed != facts.assumed {
            // Written at most once a second in the whole cluster, so verdicts are seldom lost by it.
            self.version.changes();
            self.shown_assumed.clone_from(&facts.assumed);
        }
        let register = match &facts.register {
            Ok(register) => register,
            Err(why) => {
                self.unreadable = Some(Arc::clone(why));
                return;
            }
        };
        self.unreadable = None;
        let device = |gpu: &RegisteredGpu| PlacementDevice {
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            numa: gpu.numa,
            capacity: Capacity { slots: gpu.slots.into(), cores: gpu.cores.0.into(), memory: gpu.memory.bytes().0 },
            kind: kinds(gpu),
            fitness: match gpu.healthy {
                false => DeviceFitness::Unhealthy,
                true if facts.cordoned.contains(&gpu.uuid) => DeviceFitness::Cordoned,
                true if self.in_use.contains(&gpu.uuid) => DeviceFitness::InUse,
                true => DeviceFitness::Fit,
            },
            claimed: self.ledger.claimed(&gpu.uuid),
            proposed: DeviceDemand::default(),
            beyond: BeyondClaims::UNKNOWN,
        };
        let mut devices: Vec<PlacementDevice> = register.iter().map(device).collect();
        devices.sort_by(|one, other| (one.index, &one.uuid).cmp(&(other.index, &other.uuid)));
        let link =
            |one: &GpuUuid, other: &GpuUuid| facts.links.get(&(one.clone(), other.clone())).copied().unwrap_or(0);
        let links = if facts.links.is_empty() {
            Box::default()
        } else {
            devices.iter().flat_map(|one| devices.iter().map(|other| link(&one.uuid, &other.uuid))).collect()
        };
        let check = self.devices.check;
        for device in &mut devices {
            device.beyond = self.beyond_claims(&device.uuid, device.capacity);
        }
        let before = std::mem::replace(&mut self.devices, PlacementNode { devices, links, check });
        self.note_removed(&before, &facts.uid);
        for uid in self.proposals.keys().cloned().collect::<Vec<_>>() {
            self.add_proposed(&uid);
        }
        if self.devices != before {
            self.version.changes();
        }
    }

    /// Remembers the devices that the register listed `before` and lists no longer. Another Node of this name may be another
    /// machine: what its register lacks was never there.
    fn note_removed(&mut self, before: &PlacementNode, node: &ObjectUid) {
        match self.registered_by.replace(node.clone()) {
            Some(registered_by) if registered_by == *node => {
                self.removed.extend(before.devices.iter().map(|device| device.uuid.clone()));
            }
            Some(_) | None => self.removed.clear(),
        }
        let listed = |uuid: &GpuUuid| self.devices.devices.iter().any(|device| device.uuid == *uuid);
        self.removed.retain(|uuid| !listed(uuid) && self.ledger.pods_on(uuid).next().is_some());
    }

    /// The newest version of the Node cannot be read. The node keeps its last known devices.
    pub(super) fn is_unreadable(&mut self, why: &Arc<str>) {
        self.version.changes();
        self.unreadable = Some(Arc::clone(why));
    }

    /// The Node of this UID is gone from the API server.
    pub(super) fn gone(&mut self, uid: &ObjectUid) {
        if self.uid.as_ref() == Some(uid) {
            self.version.changes();
            self.uid = None;
            // A token for the Node that is gone is no longer valid.
            let returns = self.returns || self.agent.is_some();
            self.set_agent(None);
            self.returns = returns;
        }
    }

    /// Sets the devices that a pod holds.
    pub(super) fn claim(&mut self, pod: &GpuPod, state: ClaimState, claim: &Claim) {
        let started = state != ClaimState::Assumed && self.has_started(&pod.uid);
        let state = if started { ClaimState::Started } else { state };
        self.ending.remove(&pod.uid);
        let before = self.claimed_by(&pod.uid);
        self.ledger.set(pod, state, claim);
        self.refresh(before.into_iter().chain(claim.shares().map(|share| share.device.clone())));
    }

    /// A pod is no longer here: releases the devices that it holds.
    pub(super) fn release(&mut self, uid: &PodUid) {
        self.claim_is_known(uid);
        self.static_pod_is(uid, None);
        self.has_no_claim(uid);
    }

    /// Releases the devices that a pod holds.
    pub(super) fn has_no_claim(&mut self, uid: &PodUid) {
        self.claim_is_from(uid, None);
        self.ending.remove(uid);
        let before = self.claimed_by(uid);
        self.ledger.remove(uid);
        self.refresh(before);
    }

    /// A pod holds GPUs of this node, but it is not known which.
    pub(super) fn claim_is_unknown(&mut self, uid: &PodUid, claim: UnknownClaim) {
        if self.blocking_pods.unknown_is(uid, Some(claim)) {
            self.version.changes();
            self.note_unclaimed(uid);
        }
    }

    /// The claim of this pod is known, or the pod has no claim.
    pub(super) fn claim_is_known(&mut self, uid: &PodUid) {
        if self.blocking_pods.unknown_is(uid, None) {
            self.version.changes();
            self.note_unclaimed(uid);
        }
    }

    /// Sets which scheduler wrote the claim of this pod; `None` if no scheduler wrote it.
    pub(super) fn claim_is_from(&mut self, uid: &PodUid, origin: Option<ClaimOrigin>) {
        if self.blocking_pods.origin(uid) != origin.as_ref() {
            self.blocking_pods_mut().origin_is(uid, origin);
        }
    }

    /// Adds a proposal for a pod.
    pub(super) fn propose(&mut self, pod: &GpuPod, claim: &Claim) {
        self.withdraw(&pod.uid);
        let devices: BTreeSet<&GpuUuid> = claim.shares().map(|share| &share.device).collect();
        let demands = devices.into_iter().map(|device| (device.clone(), demand_of(pod, claim, device))).collect();
        self.version.changes();
        self.proposals.insert(pod.uid.clone(), demands);
        self.add_proposed(&pod.uid);
    }

    /// The devices, with the proposals of these pods among the claims; `None` if none of the pods is expected here.
    pub(super) fn devices_with(&self, members: &BTreeSet<PodUid>) -> Option<PlacementNode> {
        let (own, others): (Vec<_>, Vec<_>) = self.proposals.iter().partition(|(uid, _)| members.contains(*uid));
        if own.is_empty() {
            return None;
        }
        let sum = |of: &[(&PodUid, &Vec<(GpuUuid, DeviceDemand)>)], device: &GpuUuid| {
            let demands = of.iter().flat_map(|(_, demands)| demands.iter()).filter(|(one, _)| one == device);
            demands.fold(DeviceDemand::default(), |mut sum, (_, demand)| {
                sum.add(*demand);
                sum
            })
        };
        let mut devices = self.devices.clone();
        for device in &mut devices.devices {
            device.claimed.add(sum(&own, &device.uuid));
            device.proposed = sum(&others, &device.uuid);
        }
        Some(devices)
    }

    /// The pods that the filter expects here.
    pub(super) fn expected(&self) -> impl Iterator<Item = &PodUid> {
        self.proposals.keys()
    }

    /// Whether the filter expects pods here.
    pub(super) fn has_proposals(&self) -> bool {
        !self.proposals.is_empty()
    }

    /// Removes a proposal.
    pub(super) fn withdraw(&mut self, uid: &PodUid) {
        let _ = self.take_proposal(uid);
    }

    /// Removes a proposal, and returns it for [`NodeClaims::restore_proposal`].
    pub(super) fn take_proposal(&mut self, uid: &PodUid) -> Option<Vec<(GpuUuid, DeviceDemand)>> {
        let demands = self.proposals.remove(uid)?;
        self.version.changes();
        for (device, _) in &demands {
            let rest = self.proposals.values().flatten().filter(|(other, _)| other == device);
            let sum = rest.fold(DeviceDemand::default(), |mut sum, (_, demand)| {
                sum.add(*demand);
                sum
            });
            if let Some(device) = self.devices.devices.iter_mut().find(|one| one.uuid == *device) {
                device.proposed = sum;
            }
        }
        Some(demands)
    }

    /// Puts a proposal back.
    pub(super) fn restore_proposal(&mut self, uid: &PodUid, demands: Vec<(GpuUuid, DeviceDemand)>) {
        self.version.changes();
        self.proposals.insert(uid.clone(), demands);
        self.add_proposed(uid);
    }

    fn add_proposed(&mut self, uid: &PodUid) {
        for (uuid, demand) in self.proposals.get(uid).into_iter().flatten() {
            if let Some(device) = self.devices.devices.iter_mut().find(|device| device.uuid == *uuid) {
                device.proposed.add(*demand);
            }
        }
    }

    fn claimed_by(&self, uid: &PodUid) -> Vec<GpuUuid> {
        let claim = self.ledger.get(uid).into_iter().flat_map(|claim| claim.claim.shares());
        claim.map(|share| share.device.clone()).collect()
    }

    fn refresh(&mut self, devices: impl IntoIterator<Item = GpuUuid>) {
        for uuid in devices {
            let claimed = self.ledger.claimed(&uuid);
            // A newer version of a pod seldom changes its claim.
            let changed = |device: &PlacementDevice| device.uuid == uuid && device.claimed != claimed;
            let Some(device) = self.devices.devices.iter().find(|device| changed(device)) else { continue };
            let beyond = self.beyond_claims(&uuid, device.capacity);
            if let Some(device) = self.devices.devices.iter_mut().find(|device| device.uuid == uuid) {
                (device.claimed, device.beyond) = (claimed, beyond);
                self.version.changes();
            }
        }
    }
}

fn reported_memory(gpu: &ReportedGpu) -> ReportedMemory {
    ReportedMemory { total: gpu.memory_total.get(), used: gpu.memory_used.get(), listed: gpu.memory_listed.get() }
}
