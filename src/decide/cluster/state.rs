//! The settings of the decisions, and the state of the leader.

use super::gang::Gangs;
use super::names::ByName;
use super::namespace_shares::NamespaceShares;
use super::node::NodeClaims;
use super::nominated::NominatedPods;
use super::real_memory::UsageChanges;
use super::recent_pods::RecentPods;
use super::recent_scores::RecentScores;
use super::verdicts::VerdictCache;
use super::version::NodeVersion;
use super::waiting::WaitingPods;
use super::wake::Wakes;
use crate::ledger::ClaimState;
use crate::placement::PlacementRules;
use model::id::{NodeName, PodRef, PodUid};
use model::placement::PlacementRequest;
use model::time::Monotonic;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Upper bound on the pods that are remembered between their filter call and their bind. kube-scheduler places one pod at a
/// time, while binds of earlier pods run in parallel; a few hundred pods wait at a gate of the scheduler.
pub const MAX_PENDING: usize = 20_000;
/// Upper bound on the bytes of the requests and proposals of these pods: 1.6 KiB for each of 20,000, and an ordinary pod takes
/// half a KiB. Anyone who may create pods can make requests of 54 KiB, and 20,000 such requests would take 1 GiB.
pub(super) const MAX_PENDING_BYTES: usize = 32 << 20;

/// The settings of the decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRules {
    /// How GPUs and nodes are chosen.
    pub placement: PlacementRules,
    /// Which nodes the filter names.
    pub node_choice: NodeChoice,
    /// Maximum number of nodes that the filter names.
    pub answered_nodes: AnsweredNodes,
    /// The difference between the scores of two neighbours in the order of the node policy.
    pub score_step: i64,
}

impl Default for ClusterRules {
    fn default() -> Self {
        ClusterRules {
            placement: PlacementRules::default(),
            node_choice: NodeChoice::Scheduler,
            answered_nodes: AnsweredNodes::Share,
            score_step: DEFAULT_SCORE_STEP,
        }
    }
}

/// kube-scheduler multiplies a score by the extender's weight and by 10. The plugins of kube-scheduler together give at most
/// 1,200 points with their default weights. With a step of 121, different scores differ by at least 1,210 points, so they decide.
/// Between nodes with the same score, the plugins decide.
pub const DEFAULT_SCORE_STEP: i64 = 121;

/// Which nodes the filter names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeChoice {
    /// The best nodes that fit: kube-scheduler chooses by the scores.
    #[default]
    Scheduler,
    /// Only the best node, as HAMi does.
    Extender,
}

/// Maximum number of fitting nodes that the filter names. kube-scheduler computes points for each named node, which takes most of
/// its time for a pod with thousands of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnsweredNodes {
    /// 5 % of the nodes in the call and at least 100: as many as kube-scheduler itself checks in a large cluster.
    #[default]
    Share,
    /// At most this number of nodes.
    AtMost(NonZeroUsize),
    /// All nodes that fit.
    All,
}

impl AnsweredNodes {
    /// Maximum number of nodes in the answer to a call about `asked` nodes.
    pub(super) fn most(self, asked: usize) -> usize {
        match self {
            AnsweredNodes::Share => asked.div_ceil(20).max(100),
            AnsweredNodes::AtMost(most) => most.get(),
            AnsweredNodes::All => usize::MAX,
        }
    }
}

/// A pod for which the filter has answered and that is not bound yet.
#[derive(Clone, Debug)]
pub(super) struct PendingPod {
    pub(super) request: PlacementRequest,
    /// The node that is expected to take the pod.
    pub(super) proposed: Option<NodeName>,
    /// When the filter answered last.
    pub(super) filtered: Monotonic,
    /// Bytes that the request and the proposal take.
    pub(super) bytes: usize,
}

/// The place of a pod that holds GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodLocation {
    pub(super) node: NodeName,
    pub(super) pod: PodRef,
    /// The version of the pod for which its order was made; `None` if the watch has shown the pod bound.
    pub(super) version: Option<u64>,
    /// Whether the pod's deletion was requested.
    pub(super) is_being_deleted: bool,
}

/// The nodes, claims and proposals of the cluster. One lock protects the whole state, because a decision reads and changes most
/// of it in one step. Each file of this module has the methods for one job.
#[derive(Debug)]
pub struct ClusterState {
    pub(super) rules: ClusterRules,
    pub(super) nodes: ByName<NodeClaims>,
    /// The location of each pod with a claim, readable or not.
    pub(super) locations: HashMap<PodUid, PodLocation>,
    /// Pods without a node, by their last filter call.
    pub(super) pending: HashMap<PodUid, PendingPod>,
    /// The members of gangs among the pods above.
    pub(super) gangs: Gangs,
    /// Pods that no node fits, and others that wait.
    pub(super) waiting: WaitingPods,
    /// Which waiting pods are woken.
    pub(super) wakes: Wakes,
    /// Pods that wait for room on their nominated nodes, because other pods there end.
    pub(super) nominated: NominatedPods,
    /// Pods that are gone, and get no proposal.
    pub(super) gone: RecentPods,
    /// Pods whose binding was refused.
    pub(super) unbound: RecentPods,
    /// The scores of the newest filter calls.
    pub(super) scores: RecentScores,
    /// Number of filter calls, by which nodes that suit equally take turns.
    pub(super) turn: u64,
    /// The order of the filter calls of the pending pods, oldest first.
    pub(super) order: BTreeSet<(Monotonic, PodUid)>,
    /// The bytes that the pending pods of each namespace take.
    pub(super) shares: NamespaceShares,
    /// Bytes that the requests and proposals of the pending pods take.
    pub(super) pending_bytes: usize,
    /// The epoch that this leader writes on its claims.
    pub(super) epoch: u64,
    /// Number of nodes that were ever known.
    pub(super) numbered: u64,
    /// The version of each node, which a call reads without the lock of the state. While a call reads the map, the next change
    /// of the names copies the map, which takes a tenth of a millisecond.
    pub(super) versions: Arc<ByName<Arc<NodeVersion>>>,
    /// Number of the changes of all nodes.
    pub(super) changes: Arc<AtomicU64>,
    /// Places of nodes that are no longer known.
    pub(super) free_places: Vec<usize>,
    /// The newest verdicts about the nodes.
    pub(super) verdicts: VerdictCache,
    /// Pods that cannot be read, by their UID at the API server, with the node that they are bound to, and with their names if
    /// these can be read. Bounded like the pods of the cluster.
    pub(super) unreadable: HashMap<PodUid, (NodeName, Option<PodRef>)>,
    /// Pods that are bound, have not ended and request no GPU, with their nodes. Their processes on a GPU count as processes of
    /// the host. Bounded like the pods of the cluster; each takes some 60 bytes.
    pub(super) pods_without_gpus: HashMap<PodUid, NodeName>,
    /// Whether there are pods that request GPUs, have no claim and are not followed.
    pub(super) unproven_left_out: bool,
    /// Nodes that may have been closed or opened since the last report of closings.
    pub(super) touched: BTreeSet<NodeName>,
    /// Nodes whose agents' streams were closed at this moment; the agents may soon open other streams.
    pub(super) closing: HashMap<NodeName, Monotonic>,
    /// Since when the watch of Nodes has not run; `None` while it runs.
    pub(super) unwatched_since: Option<Monotonic>,
    /// When silent agents were looked for last.
    pub(super) looked_for_silent: Monotonic,
    /// How reports have changed the memory in use.
    pub(super) usage_changes: UsageChanges,
}

/// The names of all nodes at one moment.
#[derive(Debug)]
pub struct NodeNames(Arc<ByName<Arc<NodeVersion>>>);

impl NodeNames {
    /// The names, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &NodeName> {
        self.0.keys()
    }

    /// Whether the node was known.
    #[must_use]
    pub fn has(&self, name: &NodeName) -> bool {
        self.0.contains_key(name)
    }

    /// The names with the versions of the nodes now, in no order. The version of a node changes with its claims and with its
    /// Node, and is never the version of an earlier node.
    pub fn versions(&self) -> impl Iterator<Item = (&NodeName, (u64, u64))> {
        self.0.iter().map(|(name, version)| (name, version.numbers()))
    }
}

impl ClusterState {
    /// A cluster about which nothing is known yet.
    #[must_use]
    pub fn new(rules: ClusterRules) -> ClusterState {
        ClusterState {
            rules,
            nodes: ByName::default(),
            locations: HashMap::new(),
            pending: HashMap::new(),
            gangs: Gangs::default(),
            waiting: WaitingPods::default(),
            wakes: Wakes::default(),
            nominated: NominatedPods::default(),
            gone: RecentPods::default(),
            unbound: RecentPods::default(),
            scores: RecentScores::default(),
            turn: 0,
            order: BTreeSet::new(),
            shares: NamespaceShares::default(),
            pending_bytes: 0,
            epoch: 0,
            numbered: 0,
            versions: Arc::default(),
            changes: Arc::default(),
            free_places: Vec::new(),
            verdicts: VerdictCache::default(),
            unreadable: HashMap::new(),
            pods_without_gpus: HashMap::new(),
            unproven_left_out: false,
            touched: BTreeSet::new(),
            closing: HashMap::new(),
            unwatched_since: None,
            looked_for_silent: Monotonic(0),
            usage_changes: UsageChanges::default(),
        }
    }

    /// The node of this name, as far as it is known.
    #[must_use]
    pub fn node(&self, name: &NodeName) -> Option<&NodeClaims> {
        self.nodes.get(name)
    }

    /// The node on which a pod has a claim and how far the claim has come; `None` for a pod without a claim that can be
    /// read.
    #[must_use]
    pub fn claim_of(&self, uid: &PodUid) -> Option<(&NodeName, ClaimState)> {
        let location = self.locations.get(uid)?;
        Some((&location.node, self.nodes.get(&location.node)?.ledger().get(uid)?.state))
    }

    /// The pod of this UID, if it holds GPUs.
    #[must_use]
    pub fn holder(&self, uid: &PodUid) -> Option<&PodRef> {
        self.locations.get(uid).map(|location| &location.pod)
    }

    /// The names of all nodes at this moment, which can be read without the lock of the state.
    #[must_use]
    pub fn node_names(&self) -> NodeNames {
        NodeNames(Arc::clone(&self.versions))
    }

    /// Whether a pod was found to be gone a short time ago, and has not been seen again.
    #[must_use]
    pub fn is_gone(&self, uid: &PodUid) -> bool {
        self.gone.has(uid)
    }

    /// All nodes, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeClaims> {
        self.nodes.values()
    }

    /// Number of pods for which the filter has named a node and that are not bound.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Number of pods that no node fitted at their last filter call and that still wait.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.waiting.refused()
    }

    /// No node fits a pod as it is now: its request cannot be read, or it has scheduling gates. A claim is not touched.
    pub fn is_refused(&mut self, uid: &PodUid, pod: &PodRef, now: Monotonic) {
        self.forget_proposal(uid);
        self.wake_is_asked(uid, false);
        // No event would remove a pod that was deleted during its call.
        if !self.gone.has(uid) {
            self.waiting.is_unplaceable(uid, pod, now);
        }
    }

    /// Sets the epoch that this leader writes on its claims: higher than any that was written before. It never becomes
    /// lower.
    pub fn lead(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }

    /// Forgets the proposals of pods whose last filter call is older than `before`: they were placed in another way, or given
    /// up. Their claims are not touched.
    pub fn forget_pending(&mut self, before: Monotonic) {
        self.waiting.forget_refused(before);
        while let Some((filtered, uid)) = self.order.first() {
            if *filtered >= before {
                break;
            }
            let uid = uid.clone();
            self.forget_proposal(&uid);
        }
    }

    /// A pod that may have been filtered requests no GPU now. A claim is not touched.
    pub fn is_not_pending(&mut self, uid: &PodUid) {
        self.forget_proposal(uid);
        self.does_not_wait(uid);
        self.nominated.remove(uid);
    }

    /// Removes the proposal of a pod and the memory of its filter call.
    pub(super) fn forget_proposal(&mut self, uid: &PodUid) -> Option<PlacementRequest> {
        let pending = self.pending.remove(uid)?;
        self.pending_bytes -= pending.bytes;
        self.scores.forget(uid);
        self.gangs.remove(&pending.request);
        let call = (pending.filtered, uid.clone());
        self.shares.remove(&pending.request.pod.namespace, &call, pending.bytes);
        self.order.remove(&call);
        if let Some(node) = pending.proposed.and_then(|name| self.nodes.get_mut(&name)) {
            node.withdraw(uid);
        }
        Some(pending.request)
    }
}
