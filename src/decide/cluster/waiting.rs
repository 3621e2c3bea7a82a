//! The pods that wait for a node: pods that no node fitted at their last filter call, and pods that only the pod watch has shown.
//!
//! Pods of one Deployment or Job have the same request. So each kind of request has a list of the nodes where it may fit since a
//! change there, and a pod needs no list of its own.
//!
//! What must never happen here: the pods of one namespace push out the pods of another.

use super::namespace_shares::NamespaceShares;
use super::node_set::NodeSet;
use super::verdicts::Signature;
use model::id::{PodRef, PodUid};
use model::placement::PlacementRequest;
use model::pod_memory::MAX_WAITING_REQUEST_BYTES;
use model::request::{ContainerRequest, MemoryRequest};
use model::time::Monotonic;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// Maximum number of waiting pods: more than kube-scheduler can try again within its five minutes. Most take about a KiB. Without
/// [`MAX_WAITING_REQUEST_BYTES`], each pod could take 40 KiB with the lists of GPUs in its annotations, and all pods 800 MiB. In the
/// worst case each pod has the largest request, a kind of its own, and three sets of 5,000 nodes: 10 KiB, and 200 MiB in all.
pub(super) const MOST: usize = 20_000;
/// Maximum number of sets of nodes among which a call looks for an equal set. The calls for most pods name the same nodes.
const SETS: usize = 8;

/// The place of a pod among the pods of its kind and namespace: the higher priority first, then the older pod.
pub(super) type Rank = (Reverse<i32>, u64, PodUid);
/// The place of a pod among the pods of its kind: its namespace, and its rank there.
pub(super) type Member = (Arc<str>, Rank);

/// What the last filter call of a pod has seen.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The highest number of a node before the call began: nodes with a higher number are newer.
    pub(super) newest_node: u64,
    /// The nodes that the call named.
    pub(super) nodes: Arc<NodeSet>,
}

/// Why a pod waits.
#[derive(Clone, Debug)]
enum WaitState {
    /// The pod watch has shown the pod. kube-scheduler is about to ask for it.
    Shown,
    /// No call for the pod is known, but there may have been a call: it waited already when this leader began to decide, for example.
    Inherited,
    /// No node fitted at the pod's last filter call.
    Refused(Asked),
    /// A node fitted at the pod's last filter call.
    Passed,
    /// No node fits the pod as it is: its request cannot be read, or it has gates. A refused pod whose request is too large to keep
    /// counts the same: kube-scheduler tries it again after five minutes.
    Unplaceable,
}

/// A pod that waits.
#[derive(Clone, Debug)]
struct WaitingPod {
    namespace: Arc<str>,
    /// `None` if the pod is [`WaitState::Unplaceable`].
    request: Option<Box<PlacementRequest>>,
    /// The pod's last filter call, or when the watch has shown it first.
    at: Monotonic,
    state: WaitState,
}

/// The pods that may be woken and have the same kind of request.
#[derive(Debug)]
pub(super) struct WaitingKind {
    /// What each container needs.
    pub(super) needs: Box<[Need]>,
    /// The nodes that have changed since the kind was found not to fit there.
    pub(super) maybe: NodeSet,
    /// The nodes on which the kind would fit without the pods that are expected there.
    pub(super) blocked: NodeSet,
    /// The pods, by namespace.
    members: BTreeSet<Member>,
}

/// What one container needs: without a GPU that has all of this, no pod of a kind fits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// GPUs.
    pub(super) gpus: usize,
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Percent of SM time.
    pub(super) cores: u64,
}

/// The pods.
#[derive(Debug, Default)]
pub(super) struct WaitingPods {
    pods: HashMap<PodUid, WaitingPod>,
    /// The number of pods of each namespace.
    shares: NamespaceShares,
    kinds: BTreeMap<Arc<Signature>, WaitingKind>,
    /// Sets of nodes that newest calls have named.
    sets: Vec<Arc<NodeSet>>,
    /// The pods that no node fits, by their last filter call, oldest first.
    refused: BTreeSet<(Monotonic, PodUid)>,
}

impl Need {
    fn of(container: &ContainerRequest) -> Need {
        let memory = match container.memory {
            Some(MemoryRequest::Amount(amount)) => amount.bytes().0,
            Some(MemoryRequest::Percent(_)) | None => 0,
        };
        let gpus = usize::try_from(container.slots).unwrap_or(usize::MAX);
        Need { gpus, memory, cores: container.cores.map_or(0, |cores| cores.0.into()) }
    }

    fn all(request: &PlacementRequest) -> Box<[Need]> {
        request.requests.iter().filter(|container| container.slots > 0).map(Need::of).collect()
    }
}

impl Asked {
    /// Whether both calls knew the same nodes: then the same nodes count for both pods.
    pub(super) fn is_like(&self, other: &Asked) -> bool {
        self.newest_node == other.newest_node && Arc::ptr_eq(&self.nodes, &other.nodes)
    }
}

impl WaitState {
    fn may_be_woken(&self) -> bool {
        matches!(self, WaitState::Inherited | WaitState::Refused(_))
    }

    fn is_refused(&self) -> bool {
        matches!(self, WaitState::Refused(_) | WaitState::Unplaceable)
    }
}

impl WaitingPods {
    /// The pod watch shows a pod without a node that kube-scheduler may place. A newer filter call counts more. `returns`: the pod
    /// counted as gone before.
    pub(super) fn is_shown(&mut self, request: &PlacementRequest, returns: bool, now: Monotonic) {
        let known = self.pods.get(&request.uid);
        if let Some(own) = known.and_then(|known| known.request.as_deref())
            && (own.version > request.version || own.asks_the_same(request))
        {
            return;
        }
        // kube-scheduler asks about a new pod, and again about a pod that was changed. If it has done so before this leader knew
        // the pod as it is, it does not ask again by itself.
        let was_refused = self.is_known_unplaceable(&request.uid);
        let state = if returns || was_refused { WaitState::Inherited } else { WaitState::Shown };
        self.put(request.clone(), state, now);
    }

    /// No node fits a pod. `changed` are the nodes that have changed since its call began. Returns whether there are such nodes.
    pub(super) fn is_refused(
        &mut self,
        request: PlacementRequest,
        asked: Asked,
        changed: impl Iterator<Item = usize>,
        now: Monotonic,
    ) -> bool {
        let signature = Signature::of(&request);
        self.put(request, WaitState::Refused(asked), now);
        let Some(kind) = self.kinds.get_mut(&signature) else { return false };
        changed.fold(false, |_, place| {
            kind.maybe.insert(place);
            true
        })
    }

    /// A node fits a pod.
    pub(super) fn passes(&mut self, request: &PlacementRequest, now: Monotonic) {
        self.put(request.clone(), WaitState::Passed, now);
    }

    /// No node fits a pod as it is.
    pub(super) fn is_unplaceable(&mut self, uid: &PodUid, pod: &PodRef, now: Monotonic) {
        let namespace = Arc::clone(&pod.namespace);
        self.add(uid, WaitingPod { namespace, request: None, at: now, state: WaitState::Unplaceable });
    }

    /// All pods wait for a leader that was never asked about them.
    pub(super) fn are_inherited(&mut self) {
        self.kinds.clear();
        let mut members = Vec::new();
        for (uid, pod) in self.pods.iter_mut().filter(|(_, pod)| pod.request.is_some()) {
            self.refused.remove(&(pod.at, uid.clone()));
            pod.state = WaitState::Inherited;
            members.push(uid.clone());
        }
        members.iter().for_each(|uid| self.join_kind(uid));
    }

    /// Forgets pods that no node fitted and that had no filter call since `before`: kube-scheduler tries each pod every five
    /// minutes.
    pub(super) fn forget_refused(&mut self, before: Monotonic) {
        while let Some((_, uid)) = self.refused.first().filter(|(at, _)| *at < before).cloned() {
            self.remove(&uid);
        }
    }

    /// A pod does not wait any more.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        self.leave_kind(uid);
        if let Some(pod) = self.pods.remove(uid) {
            self.refused.remove(&(pod.at, uid.clone()));
            self.shares.remove(&pod.namespace, &(pod.at, uid.clone()), 1);
        }
    }

    /// Number of the pods that no node fitted at their last filter call.
    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Whether a pod of this UID waits.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// Whether the last call for a pod has shown that no node fits it as it is.
    pub(super) fn is_known_unplaceable(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.request.is_none())
    }

    /// Whether the last call for a pod was about a newer version than `version`.
    pub(super) fn is_known_newer(&self, uid: &PodUid, version: Option<u64>) -> bool {
        let known = self.pods.get(uid).and_then(|pod| pod.request.as_deref());
        known.is_some_and(|request| request.version > version)
    }

    /// Whether a pod waits that may be woken.
    pub(super) fn any_may_be_woken(&self) -> bool {
        !self.kinds.is_empty()
    }

    /// The request of a pod that may be woken, and what its last filter call has seen, if there was one.
    pub(super) fn may_be_woken(&self, uid: &PodUid) -> Option<(&PlacementRequest, Option<&Asked>)> {
        let pod = self.pods.get(uid)?;
        let asked = match &pod.state {
            WaitState::Refused(asked) => Some(asked),
            WaitState::Inherited => None,
            _ => return None,
        };
        Some((pod.request.as_deref()?, asked))
    }

    /// The kinds of requests of the pods that may be woken, from `first` on; `None`: all kinds.
    pub(super) fn kinds_from(
        &self,
        first: Option<&Signature>,
    ) -> impl Iterator<Item = (&Arc<Signature>, &WaitingKind)> {
        self.kinds.range::<Signature, _>(from(first))
    }

    /// Like [`WaitingPods::kinds_from`], mutable.
    pub(super) fn kinds_mut_from(
        &mut self,
        first: Option<&Signature>,
    ) -> impl Iterator<Item = (&Arc<Signature>, &mut WaitingKind)> {
        self.kinds.range_mut::<Signature, _>(from(first))
    }

    /// One kind.
    pub(super) fn kind(&self, signature: &Signature) -> Option<&WaitingKind> {
        self.kinds.get(signature)
    }

    /// One kind, mutable.
    pub(super) fn kind_mut(&mut self, signature: &Signature) -> Option<&mut WaitingKind> {
        self.kinds.get_mut(signature)
    }

    /// A set of nodes, shared with other pods whose calls named the same nodes.
    pub(super) fn shared(&mut self, nodes: NodeSet) -> Arc<NodeSet> {
        if let Some(known) = self.sets.iter().find(|known| ***known == nodes) {
            return Arc::clone(known);
        }
        if self.sets.len() >= SETS {
            self.sets.remove(0);
        }
        let nodes = Arc::new(nodes);
        self.sets.push(Arc::clone(&nodes));
        nodes
    }

    /// Whether pods of this namespace wait.
    pub(super) fn has_namespace(&self, namespace: &str) -> bool {
        self.shares.has(namespace)
    }

    fn put(&mut self, request: PlacementRequest, state: WaitState, now: Monotonic) {
        let (uid, namespace) = (request.uid.clone(), Arc::clone(&request.pod.namespace));
        if request.memory() <= MAX_WAITING_REQUEST_BYTES {
            self.add(&uid, WaitingPod { namespace, request: Some(Box::new(request)), at: now, state });
        } else if state.is_refused() {
            self.is_unplaceable(&uid, &request.pod, now);
        } else {
            self.remove(&uid);
        }
    }

    fn add(&mut self, uid: &PodUid, pod: WaitingPod) {
        self.remove(uid);
        if self.pods.len() >= MOST {
            self.drop_one();
        }
        if pod.state.is_refused() {
            self.refused.insert((pod.at, uid.clone()));
        }
        self.shares.add(&pod.namespace, (pod.at, uid.clone()), 1);
        self.pods.insert(uid.clone(), pod);
        self.join_kind(uid);
    }

    /// Forgets the oldest pod of the namespace with most pods.
    fn drop_one(&mut self) {
        if let Some(uid) = self.shares.first_to_forget().cloned() {
            self.remove(&uid);
        }
    }

    fn join_kind(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.get(uid).filter(|pod| pod.state.may_be_woken()) else { return };
        let Some(request) = pod.request.as_deref() else { return };
        let kind = self.kinds.entry(Arc::new(Signature::of(request))).or_insert_with(|| WaitingKind {
            needs: Need::all(request),
            maybe: NodeSet::default(),
            blocked: NodeSet::default(),
            members: BTreeSet::new(),
        });
        kind.members.insert((Arc::clone(&pod.namespace), rank(request)));
    }

    fn leave_kind(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.get(uid).filter(|pod| pod.state.may_be_woken()) else { return };
        let Some(request) = pod.request.as_deref() else { return };
        let signature = Signature::of(request);
        let Some(kind) = self.kinds.get_mut(&signature) else { return };
        kind.members.remove(&(Arc::clone(&pod.namespace), rank(request)));
        if kind.members.is_empty() {
            self.kinds.remove(&signature);
        }
    }
}

impl WaitingKind {
    /// The pods by namespace and rank, from `first` on; `None`: all pods.
    pub(super) fn members_from(&self, first: Option<&Member>) -> impl Iterator<Item = &Member> {
        self.members.range::<Member, _>(from(first))
    }

    /// Whether a pod has this kind.
    pub(super) fn has(&self, member: &Member) -> bool {
        self.members.contains(member)
    }
}

fn from<T>(first: Option<&T>) -> (Bound<&T>, Bound<&T>) {
    (first.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded)
}

fn rank(request: &PlacementRequest) -> Rank {
    (Reverse(request.priority), request.created.map_or(u64::MAX, |created| created.0), request.uid.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::slice;
    use crate::placement::tests::uuid;

    fn at(second: u64) -> Monotonic {
        Monotonic(second)
    }

    fn asked(places: &[usize]) -> Asked {
        Asked { newest_node: 9, nodes: Arc::new(places.iter().copied().collect()) }
    }

    fn refuse(pods: &mut WaitingPods, request: PlacementRequest, now: Monotonic) {
        pods.is_refused(request, asked(&[0]), std::iter::empty(), now);
    }

    fn in_namespace(n: u32, namespace: &str) -> PlacementRequest {
        let mut request = slice(n, 1000);
        request.pod.namespace = namespace.into();
        request
    }

    #[test]
    fn each_pod_counts_once_until_it_is_removed_or_old() {
        let mut pods = WaitingPods::default();
        refuse(&mut pods, slice(1, 1000), at(10));
        refuse(&mut pods, slice(2, 2000), at(20));
        refuse(&mut pods, slice(1, 1000), at(30));
        pods.is_unplaceable(&slice(3, 1).uid, &slice(3, 1).pod, at(40));
        assert_eq!((pods.refused(), pods.kinds.len()), (3, 2), "nothing wakes a pod that cannot be placed");
        pods.forget_refused(at(30));
        assert_eq!((pods.refused(), pods.kinds.len()), (2, 1), "the later call counts");
        pods.passes(&slice(1, 1000), at(50));
        assert_eq!((pods.refused(), pods.has(&slice(1, 1).uid), pods.kinds.len()), (1, true, 0));
        for n in [1, 1, 3] {
            pods.remove(&slice(n, 1).uid);
        }
        assert!(pods.pods.is_empty() && pods.shares.is_empty() && pods.refused() == 0);
    }

    #[test]
    fn the_namespace_with_most_pods_loses_its_oldest_one() {
        let mut pods = WaitingPods::default();
        refuse(&mut pods, in_namespace(0, "quiet"), at(0));
        let most = u32::try_from(MOST).unwrap();
        (1..most + 5).for_each(|n| refuse(&mut pods, in_namespace(n, "loud"), at(n.into())));
        assert_eq!((pods.pods.len(), pods.refused()), (MOST, MOST));
        let has = |n| pods.has(&slice(n, 1).uid);
        assert_eq!([has(0), has(1), has(5), has(6), has(most + 4)], [true, false, false, true, true]);
    }

    /// Anyone who may create pods decides how large a request is: 256 UUIDs fit into the annotations of a pod.
    #[test]
    fn a_refused_pod_with_a_large_request_is_counted_and_its_request_is_not_kept() {
        let mut pods = WaitingPods::default();
        let mut large = slice(1, 1000);
        large.selection.avoid_uuids = (0..256).map(uuid).collect();
        for n in 2..1000 {
            let changed = pods.is_refused(
                PlacementRequest { uid: slice(n, 1).uid, ..large.clone() },
                asked(&[0]),
                [0].into_iter(),
                at(1),
            );
            assert!(!changed, "nothing wakes it");
        }
        assert_eq!((pods.refused(), pods.kinds.len()), (998, 0));
        pods.are_inherited();
        assert!(!pods.any_may_be_woken() && pods.pods.values().all(|pod| pod.request.is_none()));
        refuse(&mut pods, large.clone(), at(2));
        assert_eq!(pods.refused(), 999);
        // A node fits it, so it does not count as refused.
        pods.passes(&large, at(3));
        assert_eq!((pods.refused(), pods.has(&large.uid)), (998, false));
        // Its owner shortens the list.
        refuse(&mut pods, large, at(4));
        pods.is_shown(&PlacementRequest { version: Some(9), ..slice(1, 1000) }, false, at(5));
        assert!(pods.may_be_woken(&slice(1, 1).uid).is_some() && pods.refused() == 998);
    }

    #[test]
    fn a_pod_that_the_watch_shows_is_woken_only_by_a_leader_that_was_never_asked_about_it() {
        let mut pods = WaitingPods::default();
        pods.is_shown(&slice(1, 1000), false, at(1));
        assert!(pods.may_be_woken(&slice(1, 1).uid).is_none(), "kube-scheduler is about to ask");
        refuse(&mut pods, slice(2, 1000), at(2));
        pods.is_shown(&slice(2, 1000), false, at(3));
        assert!(pods.may_be_woken(&slice(2, 1).uid).is_some_and(|(_, asked)| asked.is_some()), "nothing new");
        pods.is_shown(&PlacementRequest { version: Some(9), ..slice(2, 3000) }, false, at(4));
        assert!(pods.may_be_woken(&slice(2, 1).uid).is_none(), "it was changed, so kube-scheduler asks");
        pods.passes(&slice(3, 1000), at(5));
        pods.are_inherited();
        for n in 1..=3 {
            assert!(pods.may_be_woken(&slice(n, 1).uid).is_some_and(|(_, asked)| asked.is_none()), "{n}");
        }
        assert_eq!(pods.refused(), 0);
    }

    #[test]
    fn pods_of_one_kind_are_in_order_and_share_what_is_known_of_nodes() {
        let mut pods = WaitingPods::default();
        let later = model::time::WallTime(9);
        let pod = |n, priority, created| PlacementRequest { priority, created, ..slice(n, 1000) };
        for request in [pod(1, 0, Some(later)), pod(2, 0, None), pod(3, 7, Some(later)), pod(4, 0, Some(later))] {
            refuse(&mut pods, request, at(1));
        }
        let changed = pods.is_refused(pod(5, -1, None), asked(&[3]), [3, 70].into_iter(), at(2));
        let (_, kind) = pods.kinds_from(None).next().unwrap();
        let order = kind.members_from(None).map(|(_, (.., uid))| uid.clone());
        assert_eq!(order.collect::<Vec<_>>(), [3, 1, 4, 2, 5].map(|n| slice(n, 1).uid));
        assert!(changed && kind.maybe.has(3) && kind.maybe.has(70) && pods.kinds_from(None).count() == 1);
        let [one, other] = [asked(&[1, 2]), asked(&[2, 1])].map(|asked| pods.shared(NodeSet::clone(&asked.nodes)));
        assert!(Arc::ptr_eq(&one, &other));
    }
}
