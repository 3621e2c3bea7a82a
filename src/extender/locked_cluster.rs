//! Holds the cluster's state. The followers of pods and Nodes feed it, and the verbs ask it.
//!
//! The state is behind one lock, which is held only inside the methods of this file and never while something waits: a
//! call borrows the names of nodes from the request's bytes, so it cannot go through a queue to another task without
//! a copy of up to 15,000 names. A change holds the lock for some microseconds. So does each step of a filter call, which
//! judges most of its thousands of nodes without the lock; the first call of a kind has steps of 0.2 ms
//! ([`decide::cluster::filter`]).

use super::deferred_pods::DeferredPods;
use super::large_pods::LargePods;
use super::plain_pods::{PlainPod, PlainPods};
use super::planted::{PlantedMistake, planted};
use super::pod_steps;
use super::realtime::{self, RealtimeFindings};
use decide::cluster::{
    self, BindOutcome, BindRefusal, BindStep, ClosingChange, ClusterRules, ClusterState, FailedCheck, FilterVerdict,
    NodeClaims, NodeNames, OrderStages, PreemptVerdict, RefusedNode, ReportRefusal, StateAccess, StreamId, WakeStep,
};
use decide::ledger::{ClaimState, DeviceDemand};
use decide::placement::{Capacity, CheckResult};
use decide::wake_pace::WakeCounts;
use model::agent_stream::{AgentReport, LeaderView, ReportChange, ReportedGpu, ReportedPod, ReportedUses};
use model::assumed::AssumedDevice;
use model::claim::{BindOrder, ClaimOrigin, PodClaim};
use model::followed_node::FollowedNode;
use model::gpu_pod::{BoundPod, GpuPod};
use model::id::{GpuUuid, NodeName, ObjectUid, PodRef, PodUid};
use model::lease::LeaseName;
use model::placement::PlacementRequest;
use model::pod::Pod;
use model::request::ContainerRole;
use model::time::Monotonic;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use wire::placement::{self, BadPlacementRequest};
use wire::resource::RequestRules;
use wire::{bound_pod, claim_origin, node_facts};

/// How long a pod's filter call is remembered for its bind. kube-scheduler waits up to 10 minutes for volumes
/// (`bindTimeoutSeconds`).
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// How long a step of a scrape holds the lock before it finishes with the current node. A full node takes as long again.
const STEP: Duration = Duration::from_micros(100);

/// The state has taken over everything that was written before these moments. Each is the time at which the newest list was
/// requested, or at which this process began to write its newest mark.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownBefore {
    pub(super) pods: Option<Instant>,
    pub(super) nodes: Option<Instant>,
}

/// The state of the cluster behind its lock.
#[derive(Debug)]
pub(super) struct LockedCluster {
    cluster: Mutex<ClusterState>,
    /// Pods with orders that the pod watch has not shown bound yet, each with the time when its binding was written, once that is
    /// known. A task of the binder follows each pod. The lock of the state is always taken before this lock.
    unshown: Mutex<HashMap<PodUid, Option<Instant>>>,
    /// Pods without GPUs that kube-scheduler may ask to bind.
    plain: Mutex<PlainPods>,
    /// Pods that the state has no place for. The lock of the state is always taken before this lock.
    deferred: Mutex<DeferredPods>,
    /// Pods without a node whose objects have no room for later writes.
    large: Mutex<LargePods>,
    rules: RequestRules,
    lease: LeaseName,
    /// `spec.schedulerName` of the pods that wait for this scheduler.
    scheduler: Arc<str>,
    known: watch::Sender<KnownBefore>,
    findings: RealtimeFindings,
}

/// The part of a pod that the state takes over: what the pod holds, which scheduler wrote its claim, and whether it waits for a node.
type ShownPod = (Option<BoundPod>, Option<ClaimOrigin>, ShownWait);

/// Whether a pod waits for a node.
#[derive(Debug)]
enum ShownWait {
    /// The pod waits for this scheduler.
    Waits(Box<PlacementRequest>),
    /// No scheduler may place the pod.
    No,
    /// The pod has a node, another scheduler is to place it, or the pod watch does not show its request.
    OfOthers,
}

/// How many claims are in which state, and how many pods wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterCounts {
    pub(super) nodes: usize,
    pub(super) closed: usize,
    /// Pods for which a node is named and that are not bound.
    pub(super) expected: usize,
    /// Pods that no node fits.
    pub(super) refused: usize,
    /// The outcomes of wakes.
    pub(super) wakes: WakeCounts,
    pub(super) claims: BTreeMap<&'static str, usize>,
}

/// One device of a node, with the claimed part.
#[derive(Clone, Debug)]
pub(super) struct ScheduledDevice {
    pub(super) node: NodeName,
    pub(super) uuid: GpuUuid,
    pub(super) index: u32,
    pub(super) product: Arc<str>,
    pub(super) capacity: Capacity,
    pub(super) claimed: DeviceDemand,
}

/// What one container of a pod claims of one device.
#[derive(Clone, Debug)]
pub(super) struct ClaimedShare {
    pub(super) node: NodeName,
    pub(super) pod: PodRef,
    /// The container's place among the pod's containers, init containers first.
    pub(super) container: usize,
    pub(super) device: GpuUuid,
    /// Bytes; `None` if no amount is claimed.
    pub(super) memory: Option<u64>,
    /// Percent.
    pub(super) cores: u32,
}

/// How much of a node's devices is taken, and what its Node shows.
#[derive(Clone, Debug)]
pub(super) struct AssumedNode {
    pub(super) uid: ObjectUid,
    pub(super) devices: Vec<AssumedDevice>,
    pub(super) shown: Option<Arc<str>>,
}

impl LockedCluster {
    /// An empty cluster, for the extenders with this Lease.
    pub(super) fn new(rules: ClusterRules, requests: RequestRules, lease: LeaseName) -> LockedCluster {
        let known = watch::Sender::new(KnownBefore::default());
        LockedCluster {
            cluster: Mutex::new(ClusterState::new(rules)),
            unshown: Mutex::default(),
            plain: Mutex::default(),
            deferred: Mutex::default(),
            large: Mutex::default(),
            rules: requests,
            lease,
            scheduler: "gpu-steward".into(),
            known,
            findings: RealtimeFindings::default(),
        }
    }

    /// The same cluster, for pods of the scheduler with this name.
    pub(super) fn of_scheduler(self, scheduler: Arc<str>) -> LockedCluster {
        LockedCluster { scheduler, ..self }
    }

    /// The scheduler that asks this extender.
    pub(super) fn scheduler(&self) -> &Arc<str> {
        &self.scheduler
    }

    /// How amounts of resources become requests of GPUs.
    pub(super) fn rules(&self) -> &RequestRules {
        &self.rules
    }

    /// The Lease of the installation.
    pub(super) fn lease(&self) -> &LeaseName {
        &self.lease
    }

    /// Takes over a pod that the watch shows.
    pub(super) fn pod_is(&self, pod: &Arc<Pod>) {
        if pod.node.is_some() {
            self.plain.lock().forget(&pod.uid);
        }
        self.large.lock().pod_is(pod);
        let shown = self.shown(pod);
        let mut cluster = self.cluster.lock();
        let written_here = pod.node.is_some() && self.unshown.lock().remove(&pod.uid).is_some();
        let has_place = take_over(&mut cluster, pod, shown);
        let waits = pod.node.is_none() && pod.deleted_at.is_none() && !pod.ended();
        let nominated = pod.nominated.as_ref().filter(|_| waits);
        cluster.nomination_is(&pod.uid, nominated, pod.version, clock::monotonic());
        let mut deferred = self.deferred.lock();
        match has_place {
            true => deferred.remove(&pod.uid),
            false => deferred.add(pod),
        }
        drop(deferred);
        drop(cluster);
        if let Some(node) = pod.node.as_ref().filter(|_| written_here) {
            pod_steps::log(&pod.name, format_args!("the pod watch shows it bound to {node}"));
        }
    }

    /// The pod watch has shown this version of a pod, and everything before it. Its size counts at once, because kube-scheduler asks
    /// for a new pod sooner than its changes are taken over.
    pub(super) fn pod_is_watched(&self, pod: &Pod) {
        self.large.lock().watched(pod);
    }

    /// A list of all pods, of this version, is taken over. `held` are the pods that the store holds now.
    pub(super) fn pods_are_listed<'a>(&self, version: Option<u64>, held: impl Iterator<Item = &'a Arc<Pod>>) {
        // Filter calls wait for the lock, and few of the pods are too large.
        let large: Vec<&Pod> = held.map(|pod| &**pod).filter(|pod| placement::too_large(pod).is_some()).collect();
        self.large.lock().listed(version, large.into_iter());
    }

    /// Why a pod cannot be bound, if its object has no room for later writes. The pod watch shows the whole object.
    pub(super) fn too_large(&self, uid: &PodUid) -> Option<BadPlacementRequest> {
        self.large.lock().why(uid)
    }

    /// Whether the pod watch has shown how large a pod is in the version of its last filter call, so that
    /// [`LockedCluster::too_large`] knows it.
    pub(super) fn knows_size(&self, uid: &PodUid) -> bool {
        let version = self.cluster.lock().asked(uid).and_then(|request| request.version);
        self.large.lock().know(version)
    }

    /// Takes over a pod that was read by its name, unless the watch has shown it: the watch is as new, and keeps the order of
    /// changes. The watch may show the end of the pod while this call waits for the lock, so the check is made under the lock.
    pub(super) fn pod_was_read(&self, pod: &Pod) {
        let shown = self.shown(pod);
        let mut cluster = self.cluster.lock();
        let unshown = self.unshown.lock().contains_key(&pod.uid);
        if unshown && !cluster.is_gone(&pod.uid) {
            take_over(&mut cluster, pod, shown);
        }
    }

    /// What the state takes over of a pod. This is computed before the state is locked.
    fn shown(&self, pod: &Pod) -> ShownPod {
        let mut bound = bound_pod::of(pod, &self.rules);
        if planted(PlantedMistake::ForgottenInitContainer) {
            forget_init_containers(bound.as_mut());
        }
        if planted(PlantedMistake::UnknownClaimIgnored)
            && let Some(bound) = &mut bound
        {
            bound.gpu_pod.take_if(|pod| !matches!(pod.claim, PodClaim::Given(_)));
        }
        if planted(PlantedMistake::PlainPodIsUnknown) {
            bound.take_if(|bound| bound.gpu_pod.is_none());
        }
        if planted(PlantedMistake::HashIgnored)
            && let Some(bound) = &mut bound
        {
            bound.hash = None;
        }
        (bound, claim_origin::of(pod, &self.lease), LockedCluster::wait(pod))
    }

    /// Whether a pod waits for a node.
    fn wait(pod: &Pod) -> ShownWait {
        if pod.node.is_some() {
            return ShownWait::OfOthers;
        }
        if pod.gated || pod.deleted_at.is_some() || pod.ended() {
            return ShownWait::No;
        }
        pod.request.clone().map_or(ShownWait::OfOthers, ShownWait::Waits)
    }

    /// The newest version of a pod, by its UID at the API server, cannot be read; it is bound to this node.
    pub(super) fn pod_is_unreadable(&self, uid: &PodUid, pod: Option<PodRef>, node: &NodeName) {
        self.cluster.lock().pod_is_unreadable(uid, pod, node);
    }

    /// A pod that could not be read is proven gone, or can be read again.
    pub(super) fn pod_is_settled(&self, uid: &PodUid) {
        self.cluster.lock().pod_is_settled(uid);
    }

    /// The newest version of a Node cannot be read.
    pub(super) fn node_is_unreadable(&self, name: &NodeName, why: &Arc<str>) {
        self.cluster.lock().node_is_unreadable(name, why);
    }

    /// Why this node takes no new claims; `None` if it takes new claims.
    pub(super) fn closed(&self, name: &str) -> Option<String> {
        self.cluster.lock().closing(name).map(|why| why.to_string())
    }

    /// Details for the owner of the pod that the reason codes of these refused nodes do not give.
    pub(super) fn refusal_details(
        &self,
        request: &PlacementRequest,
        refused: &[RefusedNode],
        nodes: &[&str],
    ) -> Vec<String> {
        self.cluster.lock().refusal_details(request, refused, nodes)
    }

    /// The nodes that were closed or opened since this was last called.
    pub(super) fn take_closings(&self) -> Vec<ClosingChange> {
        self.cluster.lock().take_closings()
    }

    /// A pod that was bound is proven to have no node any more.
    pub(super) fn pod_is_unbound(&self, uid: &PodUid) {
        self.cluster.lock().pod_is_unbound(uid);
    }

    /// A pod is proven gone.
    pub(super) fn pod_gone(&self, uid: &PodUid) {
        self.plain.lock().forget(uid);
        self.large.lock().forget(uid);
        let mut cluster = self.cluster.lock();
        self.unshown.lock().remove(uid);
        self.deferred.lock().remove(uid);
        cluster.pod_gone(uid);
    }

    /// Whether there are pods that request GPUs, have no claim and are not followed.
    pub(super) fn leaves_out_unproven_pods(&self, any: bool) {
        self.cluster.lock().leaves_out_unproven_pods(any);
    }

    /// A pod is not followed any more, because others matter more.
    pub(super) fn pod_is_left_out(&self, uid: &PodUid) {
        self.plain.lock().forget(uid);
        self.large.lock().forget(uid);
        let mut cluster = self.cluster.lock();
        self.deferred.lock().remove(uid);
        // Its nomination stays: the pod still waits, for a minute at most.
        cluster.pod_is_left_out(uid);
    }

    /// Takes over a Node, and the pods that were bound to it before it was known.
    pub(super) fn node_is(&self, node: &FollowedNode) {
        let facts = node_facts::of(node);
        let mut cluster = self.cluster.lock();
        cluster.node_is(&facts);
        let deferred = self.deferred.lock().take(&node.name);
        // Under the same lock, so that no pod is placed there before these claims count.
        for pod in deferred {
            take_over(&mut cluster, &pod, self.shown(&pod));
        }
    }

    /// A Node is proven gone.
    pub(super) fn node_gone(&self, node: &FollowedNode) {
        self.cluster.lock().node_gone(&node.name, &node.uid);
    }

    /// Whether the watch of Nodes runs.
    pub(super) fn nodes_are_watched(&self, watched: bool) {
        self.cluster.lock().nodes_are_watched(watched, clock::monotonic());
    }

    /// The state has taken over everything that was written to pods before this moment.
    pub(super) fn pods_known(&self, moment: Instant) {
        self.known.send_modify(|known| known.pods = known.pods.max(Some(moment)));
    }

    /// The state has taken over everything that was written to Nodes before this moment.
    pub(super) fn nodes_known(&self, moment: Instant) {
        self.known.send_modify(|known| known.nodes = known.nodes.max(Some(moment)));
    }

    /// Receives each change of the moments before which everything is known.
    pub(super) fn known(&self) -> watch::Receiver<KnownBefore> {
        self.known.subscribe()
    }

    /// Whether everything is known that was written before this moment.
    pub(super) fn knows_all_before(&self, moment: Instant) -> bool {
        let known = *self.known.borrow();
        [known.pods, known.nodes].iter().all(|known| known.is_some_and(|known| known >= moment))
    }

    /// Whether all pods have been read once.
    pub(super) fn pods_were_listed(&self) -> bool {
        self.known.borrow().pods.is_some()
    }

    /// Whether a pod holds GPUs and the watch has not shown it bound since its order was made. It holds GPUs even if its claim was
    /// overwritten since.
    pub(super) fn claim_is_unshown(&self, uid: &PodUid) -> bool {
        // Another order of the pod could begin between two separate checks, and would lose its entry.
        let cluster = self.cluster.lock();
        let mut unshown = self.unshown.lock();
        if cluster.holder(uid).is_none() {
            unshown.remove(uid);
        }
        unshown.contains_key(uid)
    }

    /// Whether the pod's binding is known to be written, and the pod watch has not shown it.
    pub(super) fn binding_is_written(&self, uid: &PodUid) -> bool {
        self.unshown.lock().get(uid).is_some_and(Option::is_some)
    }

    /// Time since the oldest binding that the pod watch has not confirmed yet; zero if all are confirmed.
    pub(super) fn watch_lag(&self) -> Duration {
        let written = self.unshown.lock().values().flatten().min().copied();
        written.map_or(Duration::ZERO, |written| written.elapsed())
    }

    /// Sets the epoch of new claims.
    pub(super) fn lead(&self, epoch: u64) {
        self.cluster.lock().lead(epoch);
    }

    /// This process begins to decide, with this epoch.
    pub(super) fn begins_to_lead(&self, epoch: u64) {
        let mut cluster = self.cluster.lock();
        cluster.lead(epoch);
        if !planted(PlantedMistake::WaitingPodsAreForgotten) {
            cluster.begins_to_lead(clock::monotonic());
        }
    }

    /// The pods that are to be woken now.
    pub(super) fn wakes(&self) -> WakeStep {
        let (mut cluster, now) = (self.cluster.lock(), clock::monotonic());
        cluster.agents_at(now);
        cluster.wakes(now)
    }

    /// Whether a pod that was to be woken still waits for its wake.
    pub(super) fn may_wake(&self, uid: &PodUid) -> bool {
        self.cluster.lock().may_wake(uid, clock::monotonic())
    }

    /// A pod could not be written.
    pub(super) fn wake_has_failed(&self, uid: &PodUid) {
        self.cluster.lock().wake_has_failed(uid);
    }

    /// No node fits a pod as it is now.
    pub(super) fn is_refused(&self, pod: &Pod) {
        self.plain.lock().forget(&pod.uid);
        self.cluster.lock().is_refused(&pod.uid, &pod.name, clock::monotonic());
    }

    /// The filter was asked for a pod that requests no GPU. kube-scheduler lets the extender bind it too.
    pub(super) fn plain_pod_is_filtered(&self, pod: &Pod) {
        self.cluster.lock().is_not_pending(&pod.uid);
        let now = clock::monotonic();
        let mut plain = self.plain.lock();
        plain.forget_before(forgotten_before(now));
        plain.filtered(&pod.uid, pod.version, now);
    }

    /// A pod that requests no GPU, if the filter was asked for it and it is not known to be bound.
    pub(super) fn plain_pod(&self, uid: &PodUid) -> Option<PlainPod> {
        self.plain.lock().get(uid)
    }

    /// Decides which of these nodes fit. If none fits, the node to which kube-scheduler has nominated the pod keeps room for it.
    pub(super) fn filter(
        &self,
        request: PlacementRequest,
        nominated: Option<&NodeName>,
        nodes: &[&str],
    ) -> FilterVerdict {
        let now = clock::monotonic();
        self.plain.lock().forget(&request.uid);
        let mut cluster = self.cluster.lock();
        cluster.agents_at(now);
        cluster.forget_pending(forgotten_before(now));
        drop(cluster);
        let nominated = nominated.map(|node| (request.clone(), node));
        let verdict = cluster::filter(self, request, nodes, now);
        if let Some((request, node)) = nominated.filter(|_| verdict.fit.is_empty()) {
            self.cluster.lock().is_nominated(&request, node, now);
        }
        self.say_missing(&verdict, nodes, now);
        verdict
    }

    /// Logs the named nodes of which the memory of processes is not known.
    fn say_missing(&self, verdict: &FilterVerdict, nodes: &[&str], now: Monotonic) {
        let named = verdict.fit.iter().zip(&verdict.explained);
        let unknown = named.filter(|(_, explained)| explained.check == CheckResult::Fallback);
        for name in unknown.filter_map(|(place, _)| nodes.get(*place)) {
            if !self.findings.may_say(name, now) {
                continue;
            }
            // The line is written after the lock is free.
            let unknown = self.cluster.lock().unknown_memory(name);
            if let Some((device, why)) = unknown {
                tracing::info!("{}", realtime::missing(name, &device, &why));
            }
        }
    }

    /// The GPUs of this node on which the real-time check fails for a container of the pod.
    pub(super) fn failed_checks(&self, request: &PlacementRequest, node: &str) -> Vec<FailedCheck> {
        self.cluster.lock().failed_checks(request, node)
    }

    /// What the real-time check has found.
    pub(super) fn findings(&self) -> &RealtimeFindings {
        &self.findings
    }

    /// The scores of these nodes in the pod's newest filter call.
    pub(super) fn score(&self, uid: &PodUid, nodes: &[&str]) -> Vec<i64> {
        cluster::score(self, uid, nodes)
    }

    /// Which of the planned evictions make room for the pod, or the node that gets room without an eviction.
    pub(super) fn preempt(
        &self,
        request: &PlacementRequest,
        nominated: Option<&NodeName>,
        nodes: &[(&str, &[PodUid])],
    ) -> PreemptVerdict {
        let nominated = nominated.filter(|_| !planted(PlantedMistake::NominationIgnored));
        match self.cluster.lock().preempt(request, nominated, nodes, clock::monotonic()) {
            PreemptVerdict::Offers(_) if planted(PlantedMistake::EvictionsAlwaysHelp) => {
                PreemptVerdict::Offers((0..nodes.len()).collect())
            }
            verdict => verdict,
        }
    }

    /// Chooses the devices of a pod and reserves them. Returns also the request for which they were chosen; `None` if they
    /// were reserved before.
    pub(super) fn bind(
        &self,
        uid: &PodUid,
        node: &NodeName,
    ) -> Result<(BindOrder, Option<PlacementRequest>), BindRefusal> {
        let mut cluster = self.cluster.lock();
        let now = clock::monotonic();
        cluster.agents_at(now);
        cluster.nominations_at(now);
        let reserved = cluster.claim_of(uid).is_some();
        let asked = cluster.asked(uid).filter(|_| !reserved).cloned();
        let order = cluster.bind(uid, node);
        if order.is_ok() && !reserved {
            self.unshown.lock().insert(uid.clone(), None);
        }
        if order.is_ok() && planted(PlantedMistake::NoReservation) {
            cluster.bind_ended(uid, BindOutcome::Refused);
        }
        order.map(|order| (order, asked))
    }

    /// The next step of an order. `may_write`: whether this process leads and is not stopping.
    pub(super) fn next_step(&self, stages: &mut OrderStages, may_write: bool) -> BindStep {
        stages.next(clock::monotonic(), &mut self.cluster.lock(), may_write)
    }

    /// An agent has reported everything.
    pub(super) fn agent_reports(
        &self,
        id: StreamId,
        mut report: AgentReport,
        now: Monotonic,
    ) -> Result<(), ReportRefusal> {
        let mut cluster = self.cluster.lock();
        if planted(PlantedMistake::UnreportedIsGone) {
            let claims = cluster.node(&report.node).into_iter().flat_map(|node| node.ledger().claims());
            let unreported = claims.map(|(uid, _)| uid.clone()).filter(|uid| !report.pods.contains_key(uid));
            unreported.collect::<Vec<_>>().iter().for_each(|uid| cluster.pod_gone(uid));
        }
        if planted(PlantedMistake::ProcessesIgnored) {
            report.pods.values_mut().for_each(without_processes);
        }
        if planted(PlantedMistake::UnsetCheckIsOff) {
            report.check.enabled = report.check.enabled.or(Some(false));
        }
        if planted(PlantedMistake::FreedMemoryStays) {
            keep_freed_memory(&mut report.gpus, cluster.agent_report(&report.node));
        }
        let taken = cluster.agent_reports(id, report, now);
        let changes = cluster.take_usage_changes();
        drop(cluster);
        self.findings.changed(&changes);
        taken
    }

    /// An agent has reported changes.
    pub(super) fn agent_changes(
        &self,
        node: &NodeName,
        id: StreamId,
        mut change: ReportChange,
        now: Monotonic,
    ) -> Result<(), ReportRefusal> {
        if planted(PlantedMistake::ProcessesIgnored) {
            change.pods.values_mut().for_each(without_processes);
        }
        if planted(PlantedMistake::UnsetCheckIsOff) {
            change.check.enabled = change.check.enabled.or(Some(false));
        }
        let mut cluster = self.cluster.lock();
        if planted(PlantedMistake::FreedMemoryStays) {
            keep_freed_memory(&mut change.gpus, cluster.agent_report(node));
        }
        let taken = cluster.agent_changes(node, id, change, now);
        let changes = cluster.take_usage_changes();
        drop(cluster);
        self.findings.changed(&changes);
        taken
    }

    /// An agent has sent a heartbeat.
    pub(super) fn agent_beats(&self, node: &NodeName, id: StreamId, now: Monotonic) -> Result<(), ReportRefusal> {
        self.cluster.lock().agent_beats(node, id, now)
    }

    /// A stream has ended.
    pub(super) fn agent_closed(&self, node: &NodeName, id: StreamId, now: Monotonic) {
        self.cluster.lock().agent_closed(node, id, now);
    }

    /// Closes the nodes whose agents have not reconnected in time, or have no stream and a stale handshake.
    pub(super) fn close_late_agents(&self) {
        self.cluster.lock().agents_at(clock::monotonic());
    }

    /// Forgets all streams: this process no longer leads.
    pub(super) fn forget_agents(&self) {
        if !planted(PlantedMistake::ReportsOutliveTerm) {
            self.cluster.lock().forget_agents();
        }
    }

    /// What the leader answers to the agent of this node.
    pub(super) fn leader_view(&self, node: &NodeName) -> LeaderView {
        let mut cluster = self.cluster.lock();
        cluster.agents_at(clock::monotonic());
        cluster.leader_view(node)
    }

    /// Takes in the outcome of a bind.
    pub(super) fn bind_ended(&self, uid: &PodUid, outcome: BindOutcome) {
        let mut cluster = self.cluster.lock();
        if outcome == BindOutcome::Written
            && let Some(written) = self.unshown.lock().get_mut(uid)
        {
            written.get_or_insert_with(Instant::now);
        }
        cluster.bind_ended(uid, outcome);
    }

    /// The whole state, for a test.
    #[cfg(test)]
    pub(super) fn inspect<R>(&self, look: impl FnOnce(&ClusterState) -> R) -> R {
        look(&self.cluster.lock())
    }

    /// The node of a pod's claim, and the state of the claim.
    pub(super) fn claim_of(&self, uid: &PodUid) -> Option<(NodeName, ClaimState)> {
        self.cluster.lock().claim_of(uid).map(|(node, state)| (node.clone(), state))
    }

    /// Counts nodes, claims and waiting pods for a scrape.
    pub(super) fn counts(&self) -> ClusterCounts {
        let mut counts = {
            let cluster = self.cluster.lock();
            let (expected, refused, wakes) = (cluster.pending(), cluster.refused(), cluster.wake_counts());
            ClusterCounts { expected, refused, wakes, ..ClusterCounts::default() }
        };
        for state in [ClaimState::Assumed, ClaimState::Bound, ClaimState::Started] {
            counts.claims.insert(word(state), 0);
        }
        self.walk(|_, node| {
            counts.nodes += 1;
            counts.closed += usize::from(node.closed().is_some());
            for (_, claim) in node.ledger().claims() {
                *counts.claims.entry(word(claim.state)).or_default() += 1;
            }
        });
        counts
    }

    /// All devices and all claims, copied for a scrape, ordered by node.
    pub(super) fn shares(&self) -> (Vec<ScheduledDevice>, Vec<ClaimedShare>) {
        let (mut devices, mut shares) = (Vec::new(), Vec::new());
        self.walk(|cluster, node| {
            devices.extend(node.devices().devices.iter().map(|device| ScheduledDevice {
                node: node.name().clone(),
                uuid: device.uuid.clone(),
                index: device.index,
                product: Arc::clone(&device.kind.product),
                capacity: device.capacity,
                claimed: device.claimed,
            }));
            for (uid, held) in node.ledger().claims() {
                let Some(pod) = cluster.holder(uid) else { continue };
                for (container, own) in held.claim.iter().enumerate() {
                    shares.extend(own.iter().map(|share| ClaimedShare {
                        node: node.name().clone(),
                        pod: pod.clone(),
                        container,
                        device: share.device.clone(),
                        memory: share.memory.map(|memory| memory.0),
                        cores: share.cores.map_or(0, |cores| cores.0),
                    }));
                }
            }
        });
        devices.sort_by(|one, other| (&one.node, one.index).cmp(&(&other.node, other.index)));
        shares.sort_by(|one, other| {
            (&one.node, &one.pod, one.container).cmp(&(&other.node, &other.pod, other.container))
        });
        (devices, shares)
    }

    /// The names of all nodes with their versions.
    pub(super) fn node_names(&self) -> NodeNames {
        self.cluster.lock().node_names()
    }

    /// What is taken of a node's devices; `None` without a Node.
    pub(super) fn assumed(&self, name: &NodeName) -> Option<AssumedNode> {
        let cluster = self.cluster.lock();
        let node = cluster.node(name)?;
        Some(AssumedNode { uid: node.uid()?.clone(), devices: node.assumed(), shown: node.shown_assumed().cloned() })
    }

    /// Visits all nodes in steps, and releases the lock between two steps: a filter call must not wait for a whole
    /// scrape.
    pub(super) fn walk(&self, mut look: impl FnMut(&ClusterState, &NodeClaims)) {
        let names = self.node_names();
        let names: Vec<NodeName> = names.iter().cloned().collect();
        let mut names = names.iter();
        while names.len() > 0 {
            let cluster = self.cluster.lock();
            let begun = Instant::now();
            for name in names.by_ref() {
                if let Some(node) = cluster.node(name) {
                    look(&cluster, node);
                }
                if begun.elapsed() >= STEP {
                    break;
                }
            }
            // A thread that waits gets the lock now.
            MutexGuard::unlock_fair(cluster);
        }
    }
}

impl StateAccess for LockedCluster {
    fn with<R>(&self, step: impl FnOnce(&mut ClusterState) -> R) -> R {
        step(&mut self.cluster.lock())
    }
}

/// Takes over a pod as the watch or a read shows it. Returns false if the state has no place for it.
fn take_over(cluster: &mut ClusterState, pod: &Pod, (bound, origin, wait): ShownPod) -> bool {
    if pod.ended() && planted(PlantedMistake::EndedPodHolds) {
        return true;
    }
    if pod.node.is_none() && planted(PlantedMistake::UnboundIsEvidence) {
        cluster.bind_ended(&pod.uid, BindOutcome::Refused);
    }
    match wait {
        ShownWait::Waits(request) => cluster.pod_waits(&request, clock::monotonic()),
        ShownWait::No => cluster.cannot_be_placed(&pod.uid, pod.version),
        ShownWait::OfOthers => {}
    }
    let has_place = cluster.pod_is(&pod.uid, bound.as_ref());
    cluster.claim_is_from(&pod.uid, origin);
    cluster.pod_is_being_deleted(&pod.uid, pod.deleted_at.is_some());
    has_place
}

/// The mistake [`PlantedMistake::ForgottenInitContainer`].
fn forget_init_containers(bound: Option<&mut BoundPod>) {
    let pod = bound.and_then(|bound| bound.gpu_pod.as_mut());
    let Some(GpuPod { requests, claim: PodClaim::Given(claim), .. }) = pod else { return };
    for (_, shares) in requests.iter().zip(claim).filter(|(request, _)| request.role == ContainerRole::Init) {
        shares.clear();
    }
}

/// The mistake [`PlantedMistake::ProcessesIgnored`].
fn without_processes(pod: &mut ReportedPod) {
    (pod.has_containers, pod.uses) = (false, ReportedUses::default());
}

/// The mistake [`PlantedMistake::FreedMemoryStays`]; `known` is the report before.
fn keep_freed_memory(gpus: &mut BTreeMap<GpuUuid, ReportedGpu>, known: Option<(&AgentReport, Monotonic)>) {
    let Some((known, _)) = known else { return };
    for (uuid, gpu) in gpus {
        let before = known.gpus.get(uuid).filter(|before| gpu.memory_used.get() < before.memory_used.get());
        if let Some(before) = before {
            (gpu.memory_used, gpu.memory_listed) = (before.memory_used, before.memory_listed);
        }
    }
}

/// The word of a claim's state in metrics.
fn word(state: ClaimState) -> &'static str {
    match state {
        ClaimState::Assumed => "assumed",
        ClaimState::Bound => "bound",
        ClaimState::Started => "started",
    }
}

/// The moment before which filter calls are forgotten.
fn forgotten_before(now: Monotonic) -> Monotonic {
    Monotonic(now.0.saturating_sub(nanos(REMEMBERED)))
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::claim::{Claim, DeviceShare};
    use model::followed_node::{MAX_CLUSTER_NODES, NodeFacts};
    use model::id::ObjectUid;
    use model::registered::RegisteredGpu;
    use model::time::WallTime;
    use model::unit::{CorePercent, Mib};
    use serde_json::json;
    use std::collections::BTreeSet;
    use wire::annotation_keys::ALLOCATED;

    /// A running pod with a claim on a GPU of node n1.
    fn pod() -> Pod {
        let share =
            DeviceShare { device: GpuUuid::parse("GPU-0").unwrap(), memory: Some(Mib(1000).bytes()), cores: None };
        let claim = wire::claim::encode(ALLOCATED, &Claim(vec![vec![share]])).unwrap();
        let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000" });
        let pod = json!({
            "metadata": {
                "name": "train", "namespace": "ml", "uid": "1".repeat(32), "annotations": { ALLOCATED: claim },
            },
            "spec": { "nodeName": "n1", "containers": [{ "name": "main", "resources": { "limits": limits } }] },
            "status": { "phase": "Running" },
        });
        wire::pod::decode(pod.to_string().as_bytes()).unwrap()
    }

    fn cluster() -> LockedCluster {
        let lease = LeaseName::new("gpu", "gpu-steward-extender");
        LockedCluster::new(ClusterRules::default(), RequestRules::default(), lease)
    }

    /// The read has begun before the watch showed the end, and its answer comes after it.
    #[test]
    fn a_late_answer_to_a_read_does_not_bring_back_the_claim_of_a_pod_that_is_gone() {
        let (cluster, pod) = (cluster(), pod());
        let is_claimed = || cluster.claim_of(&pod.uid).is_some();
        cluster.pod_was_read(&pod);
        assert!(!is_claimed(), "the watch shows pods that have no order");
        cluster.unshown.lock().insert(pod.uid.clone(), None);
        cluster.pod_was_read(&pod);
        assert!(is_claimed());
        cluster.cluster.lock().pod_gone(&pod.uid);
        cluster.pod_was_read(&pod);
        assert!(!is_claimed(), "also where the pod is still marked as not shown");
        cluster.pod_gone(&pod.uid);
        cluster.pod_was_read(&pod);
        assert!(!is_claimed());
        // After a restore of etcd the watch shows the pod again.
        cluster.pod_is(&Arc::new(pod.clone()));
        assert!(is_claimed());
    }

    /// Otherwise the end of a pod that the watch never shows would not be noticed, and its node would stay closed.
    #[test]
    fn a_claim_that_was_overwritten_before_the_watch_showed_it_counts_as_not_shown() {
        let (cluster, pod) = (cluster(), pod());
        cluster.unshown.lock().insert(pod.uid.clone(), None);
        cluster.pod_was_read(&Pod { annotations: vec![(ALLOCATED.into(), "?;GPU-0".into())], ..pod.clone() });
        assert_eq!(cluster.claim_of(&pod.uid), None);
        assert!(cluster.claim_is_unshown(&pod.uid));
        cluster.pod_gone(&pod.uid);
        assert!(!cluster.claim_is_unshown(&pod.uid));
    }

    #[test]
    fn a_claim_counts_as_not_shown_until_the_watch_shows_it_or_it_is_released() {
        let (cluster, pod) = (cluster(), pod());
        for gone in [false, true] {
            cluster.unshown.lock().insert(pod.uid.clone(), None);
            cluster.pod_was_read(&pod);
            assert!(cluster.claim_is_unshown(&pod.uid), "{gone}");
            assert_eq!(cluster.watch_lag(), Duration::ZERO, "nothing is known to be written");
            cluster.bind_ended(&pod.uid, BindOutcome::Written);
            assert!(cluster.watch_lag() > Duration::ZERO && cluster.binding_is_written(&pod.uid));
            match gone {
                false => cluster.pod_is(&Arc::new(pod.clone())),
                true => cluster.cluster.lock().pod_gone(&pod.uid),
            }
            assert!(!cluster.claim_is_unshown(&pod.uid), "{gone}");
            assert!(cluster.unshown.lock().is_empty(), "{gone}");
            assert_eq!(cluster.watch_lag(), Duration::ZERO);
        }
    }

    #[test]
    fn others_use_the_state_between_two_steps_of_a_scrape() {
        let cluster = Arc::new(cluster());
        for number in 0..400 {
            let mut pod = pod();
            pod.uid = PodUid::parse(&format!("{number:032x}")).unwrap();
            pod.node = Some(NodeName::parse(&format!("n{number}")).unwrap());
            cluster.pod_is(&Arc::new(pod));
        }
        let (begin, begun) = std::sync::mpsc::channel();
        let used = Arc::<std::sync::atomic::AtomicBool>::default();
        let (other, uses) = (Arc::clone(&cluster), Arc::clone(&used));
        let user = std::thread::spawn(move || {
            begun.recv().unwrap();
            other.inspect(|_| uses.store(true, std::sync::atomic::Ordering::Relaxed));
        });
        let mut seen = 0;
        cluster.walk(|_, _| {
            seen += 1;
            let _ = begin.send(());
            if !used.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert!(used.load(std::sync::atomic::Ordering::Relaxed), "it has waited for all {seen} nodes");
        user.join().unwrap();
        assert_eq!(seen, 400);
        let (_, shares) = cluster.shares();
        assert!(shares.len() == 400 && shares.is_sorted_by_key(|share| &share.node));
    }

    /// The pod watch may be ahead of the watch of Nodes, after a restart too.
    #[test]
    fn a_claim_on_a_node_that_appears_after_too_many_names_of_nodes_counts_from_then_on() {
        let cluster = cluster();
        let on = |number: usize, node: &str| {
            let node = Some(NodeName::parse(node).unwrap());
            Arc::new(Pod { uid: uid(number), node, ..pod() })
        };
        (0..MAX_CLUSTER_NODES).for_each(|number| cluster.pod_is(&on(number, &format!("ghost-{number}"))));
        let [first, second, third, last] = [1, 2, 3, 4].map(|more| on(MAX_CLUSTER_NODES + more, "n1"));
        [&first, &second, &third, &last].into_iter().for_each(|pod| cluster.pod_is(pod));
        assert_eq!((cluster.counts().nodes, cluster.claim_of(&first.uid)), (MAX_CLUSTER_NODES, None));
        // Until the Node appears, one pod ends, one is gone, and one is bound to a node that is known.
        let ended = Pod { phase: model::pod::PodPhase::Failed, ..(*second).clone() };
        cluster.pod_is(&Arc::new(ended));
        cluster.pod_gone(&third.uid);
        cluster.pod_is(&on(MAX_CLUSTER_NODES + 4, "ghost-0"));
        cluster.node_is(&FollowedNode {
            uid: ObjectUid::parse("node-uid").unwrap(),
            name: NodeName::parse("n1").unwrap(),
            created_at: None,
            version: None,
            arrival: None,
            annotations: Vec::new(),
            annotations_left_out: 0,
            assumed: None,
        });
        let node = |pod: &Pod| cluster.claim_of(&pod.uid).map(|(node, _)| node.to_string());
        assert_eq!(
            [&first, &second, &third, &last].map(|pod| node(pod)),
            [Some("n1".into()), None, None, Some("ghost-0".into())]
        );
        // From now on the node is known.
        cluster.pod_is(&second);
        assert_eq!(node(&second), Some("n1".into()));
    }

    /// kube-scheduler writes each refusal into the status of the pod, so the watch shows a newer version. It shows no containers.
    #[test]
    fn a_refused_pod_waits_until_the_watch_shows_that_no_scheduler_may_place_it() {
        let cluster = cluster();
        let version = |version| Pod { node: None, version: Some(version), ..pod() };
        let asked = placement::of(&version(1), cluster.rules()).unwrap().unwrap();
        assert!(cluster.filter(asked, None, &["n1"]).fit.is_empty());
        cluster.pod_is(&Arc::new(Pod { containers: Vec::new(), ..version(2) }));
        assert_eq!(cluster.counts().refused, 1);
        cluster.pod_is(&Arc::new(Pod { gated: true, ..version(3) }));
        assert_eq!(cluster.counts().refused, 0);
    }

    #[test]
    fn the_watch_shows_for_which_pod_evictions_make_room() {
        let (cluster, node) = (cluster(), NodeName::parse("n1").unwrap());
        let gpu = RegisteredGpu {
            uuid: GpuUuid::parse("GPU-0").unwrap(),
            index: 0,
            slots: 10,
            memory: Mib(1500),
            cores: CorePercent(100),
            product: "NVIDIA H100".into(),
            numa: 0,
            mode: "hami-core".into(),
            healthy: true,
            mig_profiles: Vec::new(),
        };
        let (uid_of_node, cordoned, links) = (ObjectUid::parse("uid-1").unwrap(), BTreeSet::new(), BTreeMap::new());
        let register = Ok(vec![gpu]);
        let (name, handshake, assumed) = (node.clone(), None, None);
        let facts = NodeFacts { uid: uid_of_node, name, register, cordoned, handshake, assumed, links };
        cluster.cluster.lock().node_is(&facts);
        let waits = |number, priority| Pod { uid: uid(number), node: None, priority: Some(priority), ..pod() };
        let asked = |pod: &Pod| placement::of(pod, cluster.rules()).unwrap().unwrap();
        let (urgent, lower) = (Pod { nominated: Some(node), ..waits(9, 10) }, waits(5, 0));
        let is_kept = || cluster.filter(asked(&lower), None, &["n1"]).fit.is_empty();
        let victims = [uid(1)];
        assert_eq!(cluster.preempt(&asked(&urgent), None, &[("n1", &victims)]), PreemptVerdict::Offers(vec![0]));
        assert!(!is_kept());
        for over in [Pod { nominated: None, ..urgent.clone() }, Pod { deleted_at: Some(WallTime(1)), ..urgent.clone() }]
        {
            cluster.preempt(&asked(&urgent), None, &[("n1", &victims)]);
            cluster.pod_is(&Arc::new(urgent.clone()));
            assert!(is_kept());
            cluster.pod_is(&Arc::new(over));
            assert!(!is_kept());
        }
        cluster.preempt(&asked(&urgent), None, &[("n1", &victims)]);
        cluster.pod_is(&Arc::new(urgent.clone()));
        cluster.pod_is_left_out(&urgent.uid);
        assert!(is_kept(), "it still waits");
    }

    /// The versions in etcd begin lower than those that were shown before.
    #[test]
    fn after_a_restore_of_etcd_the_size_of_a_pod_is_known_only_once_it_is_shown_again() {
        let cluster = cluster();
        let version = |number, version, bytes| {
            Arc::new(Pod { uid: uid(number), node: None, version: Some(version), bytes, ..pod() })
        };
        let knows = |asked| cluster.large.lock().know(Some(asked));
        cluster.pod_is_watched(&version(1, 900, u32::MAX));
        cluster.pod_is_watched(&version(2, 901, 1));
        // The answer to a read of one pod is ahead of the watch, and says nothing of others.
        cluster.pod_is(&version(2, 950, 1));
        assert!(knows(901) && !knows(902));
        let held = [version(1, 400, 1), version(2, 450, 1), version(3, 500, u32::MAX)];
        held.iter().for_each(|pod| cluster.pod_is(pod));
        cluster.pods_are_listed(Some(500), held.iter());
        assert_eq!([1, 2, 3].map(|number| cluster.too_large(&uid(number)).is_some()), [false, false, true]);
        assert!(knows(500) && !knows(501) && !knows(900));
        cluster.pod_is_watched(&version(4, 501, 1));
        assert!(knows(501) && !knows(502));
    }

    /// Then its end may not be seen.
    #[test]
    fn the_size_of_a_pod_that_is_left_out_is_forgotten() {
        let cluster = cluster();
        let large = Pod { node: None, bytes: u32::MAX, ..pod() };
        cluster.pod_is_watched(&large);
        assert!(cluster.too_large(&large.uid).is_some());
        cluster.pod_is_left_out(&large.uid);
        assert_eq!(cluster.too_large(&large.uid), None);
    }

    fn uid(number: usize) -> PodUid {
        PodUid::parse(&format!("{number:032x}")).unwrap()
    }
}
