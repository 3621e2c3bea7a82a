//! Preemption: on which nodes the evictions that kube-scheduler plans make room for a pod, and when no pod must be evicted.
//!
//! ```text
//!   kube-scheduler evicts V on node A for P, and nominates A ──▶ V is gone, its processes still run: A has no room yet
//!   P is tried again and refused; kube-scheduler plans to evict W on node B
//!   /preempt ──▶ A gets room once V's processes have ended: nothing is offered for a while ──▶ W stays
//! ```
//!
//! What must never happen here: a pod waits without a bound for processes that never end.

use super::node::NodeClaims;
use super::nominated::Offer;
use super::state::ClusterState;
use crate::placement::{CountedClaims, place};
use model::id::{NodeName, PodUid};
use model::placement::PlacementRequest;
use model::time::Monotonic;

/// The answer to a question of kube-scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreemptVerdict {
    /// The evictions on the nodes at these places of the call make room for the pod.
    Offers(Vec<usize>),
    /// No pod must be evicted: this node, for which kube-scheduler has evicted pods, gets room as soon as they have ended.
    Waits(NodeName),
}

impl ClusterState {
    /// Whether the pod fits this node once these pods are gone from it. Proposals count only for members of their gang.
    /// A pod that holds GPUs of another node, for example by a binding whose outcome is not known, does not fit this
    /// node.
    #[must_use]
    pub fn fits_without(&self, request: &PlacementRequest, name: &str, victims: &[PodUid]) -> bool {
        if self.locations.get(&request.uid).is_some_and(|location| location.node.as_str() != name) {
            return false;
        }
        let Some(mut node) = self.nodes.get(name).filter(|node| node.closed().is_none()).cloned() else { return false };
        victims.iter().for_each(|uid| node.is_without(uid));
        node.find_memory_in_use();
        self.has_room(request, node)
    }

    /// Which of the planned evictions are carried out: each node with the pods to evict there. `nominated` is the node on which
    /// kube-scheduler has evicted pods for this pod before.
    pub fn preempt(
        &mut self,
        request: &PlacementRequest,
        nominated: Option<&NodeName>,
        nodes: &[(&str, &[PodUid])],
        now: Monotonic,
    ) -> PreemptVerdict {
        if let Some(nominated) = nominated
            && self.waits_for_ends(request, nominated, now)
        {
            return PreemptVerdict::Waits(nominated.clone());
        }
        let helps =
            |place: &usize| nodes.get(*place).is_some_and(|(name, victims)| self.fits_without(request, name, victims));
        let places: Vec<usize> = (0..nodes.len()).filter(helps).collect();
        let offered = places.iter().filter_map(|place| nodes.get(*place));
        let offer =
            offered.filter_map(|(name, victims)| Some((self.nodes.get(*name)?.name().clone(), victims.to_vec())));
        let offer: Offer = offer.collect();
        self.nominated.is_at(now);
        self.nominated.offers(request, offer);
        PreemptVerdict::Offers(places)
    }

    /// Whether the pod must wait for room on its nominated node. It waits if it fits there without the pods that have ended, are
    /// being deleted, or are evicted for it, because these pods will release their GPUs. The node may be closed for a moment.
    /// `false` once the pod has waited for a minute.
    fn waits_for_ends(&mut self, request: &PlacementRequest, nominated: &NodeName, now: Monotonic) -> bool {
        self.nominated.is_at(now);
        let node = self.nodes.get(nominated);
        if !node.is_some_and(|node| self.has_room(request, self.after_ends(request, node))) {
            self.nominated.leave(&request.uid);
            return false;
        }
        self.nominated.add(request, nominated);
        self.nominated.waits(&request.uid, nominated)
    }

    /// Whether the deletion of a pod that holds GPUs was requested.
    #[must_use]
    pub fn is_being_deleted(&self, uid: &PodUid) -> bool {
        self.locations.get(uid).is_some_and(|location| location.is_being_deleted)
    }

    /// Sets whether the deletion of a pod was requested. The pod keeps its GPUs until it has ended.
    pub fn pod_is_being_deleted(&mut self, uid: &PodUid, is_being_deleted: bool) {
        if let Some(location) = self.locations.get_mut(uid) {
            location.is_being_deleted = is_being_deleted;
        }
    }

    /// Whether the pod fits this changed copy of a node.
    fn has_room(&self, request: &PlacementRequest, mut node: NodeClaims) -> bool {
        node.withdraw(&request.uid);
        let own = self.devices_for(request, &node);
        place(request, own.as_ref().unwrap_or_else(|| node.devices()), &self.rules.placement, CountedClaims::Claims)
            .is_ok()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cluster::StreamId;
    use crate::cluster::nominated::{MOST, NominatedPods, OFFERS, Offer};
    use crate::cluster::tests::{bound, cluster, name, slice};
    use crate::placement::tests::uuid;
    use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportedGpu, ReportedPod, ReportedUse};
    use model::claim::{Claim, DeviceShare, PodClaim};
    use model::reported_reading::ReportedReading;
    use model::unit::Mib;

    pub(in crate::cluster) const WHOLE: u64 = 80 * 1024;

    pub(in crate::cluster) fn second(second: u64) -> Monotonic {
        Monotonic(second * 1_000_000_000)
    }

    /// Two nodes with one GPU each, which pod 0 and pod 1 hold.
    pub(in crate::cluster) fn full() -> ClusterState {
        let mut cluster = cluster(2, 1);
        for n in 0..2 {
            holds(&mut cluster, n, n);
        }
        cluster
    }

    /// Pod `n` holds the GPU of this node.
    pub(in crate::cluster) fn holds(cluster: &mut ClusterState, n: u32, node: u32) {
        let share = DeviceShare { device: uuid(node * 100), memory: Some(Mib(WHOLE).bytes()), cores: None };
        let pod = slice(n, WHOLE);
        cluster.pod_is(&pod.uid, Some(&bound(&pod, &name(node), PodClaim::Given(Claim(vec![vec![share]])))));
    }

    /// The agent of node 0 reports this number of processes of pod 0.
    pub(in crate::cluster) fn processes(cluster: &mut ClusterState, processes: u32) {
        let gpu = ReportedGpu {
            healthy: true,
            memory_total: ReportedReading::UNKNOWN,
            memory_used: ReportedReading::UNKNOWN,
            memory_listed: ReportedReading::UNKNOWN,
            memory_unattributed: ReportedReading::UNKNOWN,
            processes: ReportedReading::Measured(0, None),
            ..ReportedGpu::default()
        };
        let mut report = AgentReport { phase: AgentPhase::Serving, ..AgentReport::of(name(0)) };
        report.gpus = [(uuid(0), gpu)].into();
        if processes > 0 {
            let used = ReportedUse { processes, memory_used: ReportedReading::UNKNOWN };
            let uses = [(uuid(0), used)].into_iter().collect();
            let pod = ReportedPod { stage: PodStage::Started, has_containers: false, uses };
            report.pods.insert(slice(0, 1).uid, pod);
        }
        cluster.agent_reports(StreamId(1), report, second(0)).unwrap();
    }

    #[test]
    fn a_pod_waits_for_the_processes_of_its_victim_and_no_other_pod_is_evicted() {
        let mut cluster = full();
        processes(&mut cluster, 1);
        let urgent = slice(9, WHOLE);
        assert!(!cluster.waits_for_ends(&urgent, &name(0), second(0)), "nothing ends there");
        // kube-scheduler evicts pod 0, whose processes linger.
        cluster.pod_is_being_deleted(&slice(0, 1).uid, true);
        assert!(cluster.waits_for_ends(&urgent, &name(0), second(1)), "it is being deleted");
        cluster.pod_gone(&slice(0, 1).uid);
        assert!(!cluster.fits_without(&urgent, "node-0", &[]), "the claim is kept");
        assert!(cluster.waits_for_ends(&urgent, &name(0), second(2)));
        assert!(!cluster.waits_for_ends(&urgent, &name(1), second(3)), "nothing ends on the other node");
        // The processes have ended: there is room, so no eviction is needed either.
        processes(&mut cluster, 0);
        assert!(cluster.fits_without(&urgent, "node-0", &[]));
        assert!(cluster.waits_for_ends(&urgent, &name(0), second(4)));
        // Another pod gets that room.
        holds(&mut cluster, 5, 0);
        assert!(!cluster.waits_for_ends(&urgent, &name(0), second(5)));
    }

    #[test]
    fn a_leader_that_never_saw_the_claim_of_the_victim_waits_for_its_processes() {
        let mut cluster = cluster(2, 1);
        holds(&mut cluster, 1, 1);
        processes(&mut cluster, 1);
        let urgent = slice(9, WHOLE);
        assert!(!cluster.fits_without(&urgent, "node-0", &[]), "the processes of a pod without a claim");
        assert!(cluster.waits_for_ends(&urgent, &name(0), second(1)));
        assert!(!cluster.waits_for_ends(&urgent, &name(0), second(62)), "they do not end");
    }

    #[test]
    fn a_victim_whose_end_the_watch_has_not_shown_yet_counts_as_ending() {
        let mut cluster = full();
        let (urgent, victims) = (slice(9, WHOLE), [slice(0, 1).uid, slice(1, 1).uid]);
        let plan = [("node-0", &victims[..1]), ("node-1", &victims[1..]), ("node-7", &victims[..])];
        let first = cluster.preempt(&urgent, None, &plan, second(0));
        assert_eq!(first, PreemptVerdict::Offers(vec![0, 1]));
        // kube-scheduler evicts on the first node, and knows the end of the victim before the leader does.
        let nominated = name(0);
        let again = cluster.preempt(&urgent, Some(&nominated), &plan[1..2], second(1));
        assert_eq!(again, PreemptVerdict::Waits(nominated.clone()));
        // For another pod nothing was evicted there.
        let other = cluster.preempt(&slice(8, WHOLE), Some(&nominated), &plan[1..2], second(1));
        assert_eq!(other, PreemptVerdict::Offers(vec![0]));
        // The eviction has failed, so another eviction is planned after a minute.
        let late = cluster.preempt(&urgent, Some(&nominated), &plan[1..2], second(61));
        assert_eq!(late, PreemptVerdict::Offers(vec![0]));
    }

    #[test]
    fn a_pod_waits_for_a_minute_only_and_for_each_node_anew() {
        let mut cluster = full();
        for n in 0..2 {
            cluster.pod_is_being_deleted(&slice(n, 1).uid, true);
        }
        let urgent = slice(9, WHOLE);
        for (at, node, waits) in [
            (0, 0, true),
            (59, 0, true),
            (60, 0, false),
            (500, 0, false),
            (501, 1, true),
            (560, 1, true),
            (561, 1, false),
        ] {
            assert_eq!(cluster.waits_for_ends(&urgent, &name(node), second(at)), waits, "{at} s, node {node}");
        }
        assert!(cluster.waits_for_ends(&slice(8, WHOLE), &name(0), second(501)), "another pod has its own minute");
        // A newer version of the victim is not marked.
        holds(&mut cluster, 0, 0);
        assert!(!cluster.waits_for_ends(&slice(7, WHOLE), &name(0), second(502)));
    }

    #[test]
    fn ends_that_make_too_little_room_are_not_waited_for() {
        let mut cluster = full();
        cluster.pod_is_being_deleted(&slice(0, 1).uid, true);
        assert!(!cluster.waits_for_ends(&slice(9, WHOLE + 1), &name(0), second(0)));
        let mut two = slice(9, 1000);
        two.requests[0].slots = 2;
        assert!(!cluster.waits_for_ends(&two, &name(0), second(0)));
        assert!(!cluster.waits_for_ends(&slice(9, WHOLE), &name(7), second(0)), "not known");
    }

    #[test]
    fn the_memory_of_waiting_pods_is_bounded_and_ends_with_them() {
        let mut cluster = full();
        cluster.pod_is_being_deleted(&slice(0, 1).uid, true);
        let kept = |cluster: &ClusterState| cluster.nominated.kept();
        for n in 0..u32::try_from(MOST).unwrap() + 10 {
            // Among pods of one priority only the first would wait for the one GPU.
            let pod = PlacementRequest { priority: i32::try_from(n).unwrap(), ..slice(100 + n, WHOLE) };
            cluster.preempt(&pod, None, &[("node-1", &[slice(1, 1).uid])], second(n.into()));
            assert!(cluster.waits_for_ends(&pod, &name(0), second(n.into())));
        }
        assert_eq!(kept(&cluster), (MOST, OFFERS));
        cluster.pod_gone(&slice(100 + u32::try_from(MOST).unwrap(), 1).uid);
        assert_eq!(kept(&cluster), (MOST - 1, OFFERS - 1));
    }

    #[test]
    fn the_bytes_of_offers_are_bounded() {
        let mut nominated = NominatedPods::default();
        let victims: Vec<PodUid> = (0..1000).map(|n| slice(n, 1).uid).collect();
        let offer = |nodes: u32| (0..nodes).map(|n| (name(n), victims.clone())).collect::<Offer>();
        for n in 0..10 {
            nominated.offers(&slice(5000 + n, 1), offer(40));
        }
        assert_eq!(nominated.kept().1, 2, "3.2 MB each");
        assert!(nominated.has_offered(&slice(5009, 1).uid, &name(39), &slice(999, 1).uid), "the newest stay");
        nominated.offers(&slice(6000, 1), offer(120));
        assert_eq!(nominated.kept().1, 0, "one that is larger than the bound is not kept");
    }
}
