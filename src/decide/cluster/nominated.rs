//! Nominated pods: kube-scheduler has evicted other pods for them, and they wait for that room on their nominated nodes.
//!
//! ```text
//!   kube-scheduler evicts V on node A for P, and nominates A ──▶ V has ended: A has room, and P waits for its next try
//!   Q, of lower priority, is tried first ──▶ on A, P counts like a claim for Q ──▶ P gets the room
//! ```
//!
//! kube-scheduler does the same with the resources that it counts itself: it checks a pod together with the pods of equal or
//! higher priority that are nominated to the node. Without this, P would find no room, and other pods would be evicted for it too.
//!
//! What must never happen here: a pod that is not bound keeps GPUs from others without a bound; two nominated pods wait for each
//! other.

use super::filter::gpu_pod;
use super::node::NodeClaims;
use super::state::ClusterState;
use crate::ledger::ClaimState;
use crate::placement::{CountedClaims, place};
use model::claim::Claim;
use model::id::{NodeName, PodUid};
use model::placement::PlacementRequest;
use model::pod_memory::MAX_WAITING_REQUEST_BYTES;
use model::time::Monotonic;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// How long a pod waits for room on its nominated node, and how long that room is kept for it. Processes of the evicted pods end
/// within the grace period, 30 s unless a pod names another, and the agent shows that within six seconds. kube-scheduler tries the
/// pod again within ten seconds. A longer grace period or processes that are stuck in the driver must not extend this time: the
/// owner of an evicted pod could then keep a pod of higher priority waiting, and a pod that is never bound could keep GPUs idle.
const ROOM_WITHIN: Duration = Duration::from_secs(60);
/// Upper bound on the pods that wait. kube-scheduler preempts for one pod at a time, and for some pods in a second.
pub(super) const MOST: usize = 1024;
/// Upper bound on the bytes of their requests: 8 KiB for each of 1,024. The largest requests, 54 KiB each, would take 55 MiB.
const MOST_BYTES: usize = 8 << 20;

/// Upper bound on the pods whose last offer is remembered. An offer has a few hundred nodes with some pods each: 50 KiB, and the
/// request of the pod takes at most as much.
pub(super) const OFFERS: usize = 64;
/// Upper bound on the bytes of all offers. A pod that needs most of a node has all pods of 500 nodes as victims: some 2 MiB.
const OFFER_BYTES: usize = 8 << 20;
/// Bytes of a victim: its UID of 36 characters, the counts of its shared text, and the pointer to it.
const VICTIM_BYTES: usize = 80;

/// The nodes that were offered for a pod, with the pods that are evicted there if kube-scheduler chooses the node.
pub(super) type Offer = Vec<(NodeName, Vec<PodUid>)>;

/// A pod that waits for room on its nominated node.
#[derive(Debug)]
struct Nomination {
    request: PlacementRequest,
    node: NodeName,
    /// When the nomination was first seen.
    since: Monotonic,
    /// Bytes that the request takes.
    bytes: usize,
}

/// The pods for which kube-scheduler evicts others.
#[derive(Debug, Default)]
pub(super) struct NominatedPods {
    waiting: HashMap<PodUid, Nomination>,
    /// Bytes that the requests of the waiting pods take.
    bytes: usize,
    /// The waiting pods of each node.
    on_node: HashMap<NodeName, BTreeSet<PodUid>>,
    /// The last offers, oldest first, each with the pod that it was made for.
    offers: VecDeque<(PlacementRequest, Offer)>,
    /// The nodes on which less room is kept now, until [`NominatedPods::take_ended`].
    ended: BTreeSet<NodeName>,
    /// The newest moment that is known.
    now: Monotonic,
}

impl Nomination {
    /// The order in which nominated pods get room on one node: the highest priority first, then the earliest nomination.
    fn turn(&self) -> (Reverse<i32>, Monotonic, &PodUid) {
        (Reverse(self.request.priority), self.since, &self.request.uid)
    }
}

/// Bytes that an offer takes.
fn offer_bytes(offer: &Offer) -> usize {
    offer.iter().map(|(_, victims)| size_of::<(NodeName, Vec<PodUid>)>() + victims.len() * VICTIM_BYTES).sum()
}

impl NominatedPods {
    /// These evictions are offered for the pod. If other pods than before are to be evicted on its nominated node, its wait begins
    /// anew.
    pub(super) fn offers(&mut self, request: &PlacementRequest, offer: Offer) {
        let uid = &request.uid;
        let is_new = |(node, victims): &(NodeName, Vec<PodUid>)| {
            let is_nominated = self.waiting.get(uid).is_some_and(|own| own.node == *node);
            is_nominated && victims.iter().any(|victim| !self.has_offered(uid, node, victim))
        };
        if offer.iter().any(is_new)
            && let Some(own) = self.waiting.get_mut(uid)
        {
            own.since = self.now;
        }
        self.offers.retain(|(other, _)| other.uid != *uid);
        let bytes = offer_bytes(&offer);
        let mut total: usize = self.offers.iter().map(|(_, other)| offer_bytes(other)).sum();
        while (self.offers.len() >= OFFERS || total + bytes > OFFER_BYTES)
            && let Some((_, oldest)) = self.offers.pop_front()
        {
            total -= offer_bytes(&oldest);
        }
        if bytes <= OFFER_BYTES {
            self.offers.push_back((request.clone(), offer));
        }
    }

    /// Whether the eviction of `victim` on this node was offered for the pod. The pod watch may not have shown it yet.
    pub(super) fn has_offered(&self, uid: &PodUid, node: &NodeName, victim: &PodUid) -> bool {
        let offers = self.offers.iter().filter(|(pod, _)| pod.uid == *uid).flat_map(|(_, offer)| offer);
        offers.filter(|(name, _)| name == node).any(|(_, victims)| victims.contains(victim))
    }

    /// The pod that evictions on this node were offered for.
    fn offered(&self, uid: &PodUid, node: &NodeName) -> Option<&PlacementRequest> {
        let (request, offer) = self.offers.iter().find(|(pod, _)| pod.uid == *uid)?;
        offer.iter().any(|(name, _)| name == node).then_some(request)
    }

    /// The time has come to this moment.
    pub(super) fn is_at(&mut self, now: Monotonic) {
        if now <= self.now {
            return;
        }
        let ends = |one: &&Nomination| self.counts(one) && now.since(one.since) >= ROOM_WITHIN;
        let ended: Vec<NodeName> = self.waiting.values().filter(ends).map(|one| one.node.clone()).collect();
        self.ended.extend(ended);
        self.now = now;
    }

    /// The nodes on which less room is kept since this was last called: other pods may fit there now, although nothing else has
    /// changed.
    fn take_ended(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.ended)
    }

    /// The pod waits for room on this node. A repetition does not begin its wait anew.
    pub(super) fn add(&mut self, request: &PlacementRequest, node: &NodeName) {
        let (uid, bytes) = (&request.uid, request.memory());
        let since = self.waiting.get(uid).filter(|own| own.node == *node).map(|own| own.since);
        if since.is_none() {
            self.leave(uid);
        }
        self.bytes -= self.waiting.remove(uid).map_or(0, |before| before.bytes);
        while (self.waiting.len() >= MOST || self.bytes + bytes > MOST_BYTES)
            && let Some(first) = self.first_to_leave()
        {
            self.leave(&first);
        }
        self.bytes += bytes;
        self.on_node.entry(node.clone()).or_default().insert(uid.clone());
        let (request, node, since) = (request.clone(), node.clone(), since.unwrap_or(self.now));
        self.waiting.insert(request.uid.clone(), Nomination { request, node, since, bytes });
    }

    /// The pod that gives way to another pod: the pod with a large request that was nominated first, or else the first of all pods.
    fn first_to_leave(&self) -> Option<PodUid> {
        let order = |one: &&Nomination| (one.bytes <= MAX_WAITING_REQUEST_BYTES, one.since);
        self.waiting.values().min_by_key(order).map(|one| one.request.uid.clone())
    }

    /// Whether the pod waits for room on this node and its time is not over.
    pub(super) fn waits(&self, uid: &PodUid, node: &NodeName) -> bool {
        self.waiting.get(uid).is_some_and(|own| own.node == *node && self.counts(own))
    }

    fn counts(&self, nomination: &Nomination) -> bool {
        self.now.since(nomination.since) < ROOM_WITHIN
    }

    /// The pods that get room on this node before this pod, in their order: pods of higher priority, and pods of the same priority
    /// unless this pod was nominated to the node earlier.
    fn before(&self, request: &PlacementRequest, node: &NodeName) -> Vec<&Nomination> {
        let here = |uid: &PodUid| self.waiting.get(uid).filter(|one| one.node == *node && self.counts(one));
        let own = here(&request.uid).map(Nomination::turn);
        let is_before = |one: &&Nomination| match &own {
            Some(own) => one.turn() < *own,
            None => one.request.priority >= request.priority && one.request.uid != request.uid,
        };
        let mut before: Vec<&Nomination> =
            self.on_node.get(node).into_iter().flatten().filter_map(here).filter(is_before).collect();
        before.sort_by(|one, other| one.turn().cmp(&other.turn()));
        before
    }

    /// The pod is no longer nominated, or to another node.
    pub(super) fn leave(&mut self, uid: &PodUid) {
        let Some(Nomination { node, bytes, .. }) = self.waiting.remove(uid) else { return };
        self.bytes -= bytes;
        if let Some(pods) = self.on_node.get_mut(&node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.on_node.remove(&node);
            }
        }
        self.ended.insert(node);
    }

    /// The pod is bound or gone.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        self.leave(uid);
        self.offers.retain(|(pod, _)| pod.uid != *uid);
    }

    /// Number of waiting pods and of offers.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        assert_eq!(self.on_node.values().map(BTreeSet::len).sum::<usize>(), self.waiting.len());
        assert_eq!(self.waiting.values().map(|one| one.bytes).sum::<usize>(), self.bytes);
        (self.waiting.len(), self.offers.len())
    }
}

impl ClusterState {
    /// The time has come to this moment: the room of pods that were nominated too long ago is no longer kept.
    pub fn nominations_at(&mut self, now: Monotonic) {
        self.nominated.is_at(now);
    }

    /// Counts a change of each node on which less room is kept for nominated pods now: pods that wait may fit there.
    pub(super) fn count_ended_nominations(&mut self, now: Monotonic) {
        self.nominated.is_at(now);
        for name in self.nominated.take_ended() {
            if let Some(node) = self.nodes.get_mut(&name) {
                node.is_changed();
            }
        }
    }

    /// No node of its filter call fits a pod, and kube-scheduler has nominated it to this node.
    pub fn is_nominated(&mut self, request: &PlacementRequest, node: &NodeName, now: Monotonic) {
        self.nominated.is_at(now);
        // No event would remove a pod that was deleted during its call.
        if !self.gone.has(&request.uid) {
            self.nominated.add(request, node);
        }
    }

    /// The pod watch shows, in this version of a pod, the node to which kube-scheduler has nominated it; `None` if there is no such
    /// node, or the pod does not wait for it any more. The watch does not show what the pod requests, so the nomination counts only
    /// if evictions were offered there. Pods are also nominated to nodes on which they are only expected, for example while they
    /// wait at Permit: for such pods no room is kept.
    pub fn nomination_is(&mut self, uid: &PodUid, node: Option<&NodeName>, version: Option<u64>, now: Monotonic) {
        let own = self.nominated.waiting.get(uid);
        let Some(node) = node else {
            // kube-scheduler may already have asked about a newer version of the pod.
            let is_older = |own: &Nomination| version.zip(own.request.version).is_some_and(|(one, asked)| one < asked);
            if own.is_some_and(|own| !is_older(own) && !self.victims_hold(own, now)) {
                self.nominated.remove(uid);
            }
            return;
        };
        if own.is_some_and(|own| own.node != *node) {
            self.nominated.leave(uid);
        }
        if let Some(request) = self.nominated.offered(uid, node).cloned() {
            self.nominated.is_at(now);
            self.nominated.add(&request, node);
        }
    }

    /// Whether a pod that is evicted for this pod still has its claim. kube-scheduler tries the pod again meanwhile, finds no other
    /// pod to evict, and takes the nomination back. Without the room, another pod would be evicted for it later.
    fn victims_hold(&self, own: &Nomination, now: Monotonic) -> bool {
        let uid = &own.request.uid;
        let is_here = |victim: &PodUid| self.claim_of(victim).is_some_and(|(node, _)| *node == own.node);
        let offers = self.nominated.offers.iter().filter(|(pod, _)| pod.uid == *uid).flat_map(|(_, offer)| offer);
        let mut victims = offers.filter(|(name, _)| *name == own.node).flat_map(|(_, victims)| victims);
        now.since(own.since) < ROOM_WITHIN && victims.any(is_here)
    }

    /// Whether room on this node is kept for another pod.
    #[must_use]
    pub fn keeps_room_for_another(&self, uid: &PodUid, node: &NodeName) -> bool {
        let here = self.nominated.on_node.get(node).into_iter().flatten();
        here.filter(|one| *one != uid).any(|one| self.nominated.waits(one, node))
    }

    /// Whether there are nominated pods.
    pub(super) fn has_nominated(&self) -> bool {
        !self.nominated.waiting.is_empty()
    }

    /// The nodes on which other pods get room before this pod.
    pub(super) fn nominated_nodes(&self, request: &PlacementRequest) -> impl Iterator<Item = &NodeName> {
        self.nominated.on_node.keys().filter(|node| !self.nominated.before(request, node).is_empty())
    }

    /// A copy of a node on which the pods that get room there before this pod count like claims; `None` if there are no such pods.
    pub(super) fn beside_nominated(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<NodeClaims> {
        // A pod that has a claim by now counts by its claim.
        let waits = |one: &&Nomination| !self.locations.contains_key(&one.request.uid);
        let before: Vec<&Nomination> = self.nominated.before(request, node.name()).into_iter().filter(waits).collect();
        if before.is_empty() {
            return None;
        }
        let mut beside = node.clone();
        for Nomination { request, .. } in before {
            beside.withdraw(&request.uid);
            if let Some(claim) = self.expected_gpus(request, &beside) {
                beside.claim(&gpu_pod(request), ClaimState::Assumed, &claim);
            }
        }
        Some(beside)
    }

    /// The GPUs that a nominated pod is expected to get on a node: free GPUs, otherwise GPUs that become free. `None`: it gets no
    /// room there, so nothing is kept for it.
    fn expected_gpus(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<Claim> {
        let on = |node: &NodeClaims| place(request, node.devices(), &self.rules.placement, CountedClaims::Claims);
        let placement = on(node).or_else(|_| on(&self.after_ends(request, node))).ok()?;
        Some(placement.claim)
    }

    /// A copy of a node without the pods that will release their GPUs there: pods that have ended, are being deleted, or are
    /// evicted for this pod. Processes of pods without a claim end too: a leader that has won since then has never seen the claim
    /// of the evicted pod, only its processes.
    pub(super) fn after_ends(&self, request: &PlacementRequest, node: &NodeClaims) -> NodeClaims {
        let ends = |uid: &&PodUid| {
            let is_evicted = || self.nominated.has_offered(&request.uid, node.name(), uid);
            self.is_being_deleted(uid) || node.is_ending(uid) || is_evicted()
        };
        let unclaimed = self.unclaimed_users(node).map(|(named, _)| named);
        let ending = node.ledger().claims().map(|(uid, _)| uid).filter(ends).chain(unclaimed);
        let ending: Vec<PodUid> = ending.cloned().collect();
        let mut after = node.clone();
        ending.iter().for_each(|uid| after.is_without(uid));
        after.ignore_use();
        after.find_memory_in_use();
        after
    }

    /// Why a node does not fit the pod, if it would fit without the room that is kept on it for nominated pods.
    pub(super) fn kept_for_nominated(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<String> {
        let is_kept = self.beside_nominated(request, node).is_some() && self.judge(request, node).is_ok();
        is_kept.then(|| {
            format!(
                "{} keeps its room for at most {} s for a pod of the same or a higher priority, for which others there are evicted",
                node.name(),
                ROOM_WITHIN.as_secs()
            )
        })
    }
}

#[cfg(test)]
mod tests;
