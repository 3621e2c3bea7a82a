//! The filter and the scores: which of the nodes fit a pod, and how well.

use super::beside;
use super::names::ByName;
use super::rank;
use super::recent_scores::{self, NamedScores};
use super::state::{ClusterState, MAX_PENDING, MAX_PENDING_BYTES, NodeChoice, PendingPod, PodLocation};
use super::survey::{StateAccess, Verdicts};
use super::verdicts::{Judged, Verdict};
use super::waiting::Asked;
use crate::ledger::{ClaimState, DeviceDemand};
use crate::placement::{CheckResult, FillTerms, NodeRefusal, RefusalReason};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::{GpuUuid, PodUid};
use model::placement::{NodePolicy, PlacementRequest, ScoreWeights};
use model::time::Monotonic;
use std::ops::ControlFlow;

/// A node that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedNode {
    /// The node's place in the list of the call.
    pub place: usize,
    /// Why.
    pub why: NodeRefusal,
}

/// Which nodes fit a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterVerdict {
    /// The places, in the list of the call, of the nodes that the answer names.
    pub fit: Vec<usize>,
    /// The score of each node in `fit`.
    pub scores: Vec<i64>,
    /// How each score was made.
    pub explained: Vec<ExplainedScore>,
    /// The policy and the weights of the scores.
    pub scoring: Scoring,
    /// Number of nodes that also fit but that the answer does not name.
    pub more: usize,
    /// The nodes that do not fit.
    pub refused: Vec<RefusedNode>,
    /// The place of the node that is expected to take the pod.
    pub proposed: Option<usize>,
    /// What the real-time check has found.
    pub checks: CheckCounts,
}

/// Number of nodes of one call by the result of the real-time check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Nodes where the requested memory is really free.
    pub passed: u64,
    /// Nodes that are refused although the claims on a GPU leave room.
    pub refused: u64,
    /// Nodes that come last because less memory is really free.
    pub warned: u64,
    /// Nodes that were checked by their claims, or by the memory of all processes together.
    pub fallback: u64,
}

impl CheckCounts {
    fn count(&mut self, result: CheckResult) {
        match result {
            CheckResult::Unchecked => {}
            CheckResult::Passed => self.passed += 1,
            CheckResult::Fallback => self.fallback += 1,
            CheckResult::Warned => self.warned += 1,
            CheckResult::Refused => self.refused += 1,
        }
    }
}

/// The policy and weights of all scores of one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scoring {
    /// Whether a fuller node is better, or an emptier node.
    pub policy: NodePolicy,
    /// The weight of each term.
    pub weights: ScoreWeights,
    /// The difference between the scores of neighbours in the order of the nodes.
    pub step: i64,
}

/// How the score of one node was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExplainedScore {
    /// Whether the pod also fits alongside the pods that are expected there.
    pub beside_proposals: bool,
    /// How full the node is with the pod.
    pub terms: FillTerms,
    /// What the real-time check has found.
    pub check: CheckResult,
}

/// Decides which of these nodes fit the pod, names the best nodes, and leaves a proposal on the very best. Until the pod is
/// bound, filtered again or gone, the proposal counts in the scores of other pods, and like a claim for members of the pod's
/// gang. Room that evictions make for a nominated pod is kept for it. A pod whose bind has no known outcome fits only the
/// node where it may be bound. Two calls at the same moment may propose the same node.
pub fn filter(state: &impl StateAccess, request: PlacementRequest, nodes: &[&str], now: Monotonic) -> FilterVerdict {
    let begun = state.with(|state| {
        state.nominations_at(now);
        let answered = state.answered(&request, nodes.len());
        state.forget_proposal(&request.uid);
        match state.placed(&request, nodes, now) {
            Some(verdict) => ControlFlow::Break(verdict),
            None => {
                let for_itself = request.gang.is_some() || state.has_nominated();
                let known = (answered, for_itself, state.known_changes());
                ControlFlow::Continue((state.survey(&request), state.scoring(&request), known))
            }
        }
    });
    let (survey, scoring, (answered, for_itself, known)) = match begun {
        ControlFlow::Continue(begun) => begun,
        ControlFlow::Break(verdict) => return verdict,
    };
    let verdicts = survey.verdicts(state, &request, nodes);
    let fitting = nodes.iter().zip(verdicts.iter()).filter(|(_, verdict)| verdict.is_ok()).map(|(name, _)| *name);
    let own = if for_itself { beside::verdicts(state, &request, fitting) } else { ByName::default() };
    let verdict = ranked((&verdicts, &own), nodes, scoring, answered);
    let best = verdict.proposed.and_then(|place| nodes.get(place)).copied();
    let scores = named_scores(&verdict, nodes);
    // Most calls name a node, and looking up thousands of names takes a tenth of a millisecond.
    let refused_by = best.is_none().then(|| survey.places(nodes));
    let bound = state.with(|state| {
        // The pod may have been bound or filtered again in between.
        if let Some(verdict) = state.placed(&request, nodes, now) {
            return Some(verdict);
        }
        state.forget_proposal(&request.uid);
        match refused_by {
            None => {
                state.passes(&request, now);
                state.propose(request, best, scores, now);
            }
            Some(places) => {
                let nodes = state.waiting.shared(places);
                let (changes, newest_node) = known;
                state.refuse(request, Asked { newest_node, nodes }, changes, now);
            }
        }
        None
    });
    bound.unwrap_or(verdict)
}

/// The scores of these nodes for a pod, in their order, from its newest filter call. They are 0 for a node that the call did
/// not name, and for all nodes if the call is not remembered.
pub fn score(state: &impl StateAccess, uid: &PodUid, nodes: &[&str]) -> Vec<i64> {
    match state.with(|state| state.scores.of(uid)) {
        Some(scores) => recent_scores::in_order(&scores, nodes),
        None => vec![0; nodes.len()],
    }
}

/// Maximum number of nodes that a call names, and the number of its turn, which selects among nodes that tie.
#[derive(Clone, Copy, Debug)]
struct Answered {
    most: usize,
    turn: u64,
}

/// Combines the verdicts about the nodes into the verdict of the call.
fn ranked(
    (verdicts, own): (&Verdicts<'_>, &ByName<Verdict>),
    nodes: &[&str],
    scoring: Scoring,
    answered: Answered,
) -> FilterVerdict {
    let mut verdict = FilterVerdict { scoring, ..FilterVerdict::default() };
    let (mut fitting, mut suits) = (Vec::with_capacity(nodes.len()), Vec::with_capacity(nodes.len()));
    for (place, judged) in verdicts.iter().enumerate() {
        let own = if own.is_empty() { None } else { nodes.get(place).and_then(|name| own.get(*name)) };
        match own.unwrap_or(judged) {
            Ok(judged) => {
                verdict.checks.count(judged.check);
                fitting.push((place, judged));
                suits.push(judged.suitability);
            }
            Err(why) => {
                verdict.checks.count(why.check);
                verdict.refused.push(RefusedNode { place, why: why.clone() });
            }
        }
    }
    let mut is_named = rank::best(&suits, answered.most, answered.turn);
    fitting.retain(|(_, judged)| is_named(judged.suitability));
    verdict.more = suits.len() - fitting.len();
    suits.clear();
    suits.extend(fitting.iter().map(|(_, judged)| judged.suitability));
    verdict.scores = rank::scores(&suits, scoring.step);
    verdict.proposed = proposed(&fitting, nodes);
    verdict.fit = fitting.iter().map(|(place, _)| *place).collect();
    let explained = |(_, Judged { suitability, terms, check }): &(usize, &Judged)| ExplainedScore {
        beside_proposals: suitability.beside_proposals(),
        terms: *terms,
        check: *check,
    };
    verdict.explained = fitting.iter().map(explained).collect();
    verdict
}

/// The place of the best named node; among equal nodes, the first by name, whatever the order in the call.
fn proposed(named: &[(usize, &Judged)], nodes: &[&str]) -> Option<usize> {
    let best = named.iter().map(|(_, judged)| judged.suitability).max()?;
    let best = named.iter().filter(|(_, judged)| judged.suitability == best).map(|(place, _)| *place);
    best.min_by_key(|place| nodes.get(*place))
}

/// The nodes that the verdict names, with their scores.
fn named_scores(verdict: &FilterVerdict, nodes: &[&str]) -> NamedScores {
    let name = |place: &usize| nodes.get(*place).copied().unwrap_or_default().into();
    verdict.fit.iter().map(name).zip(verdict.scores.iter().copied()).collect()
}

/// The verdict for a pod that may be bound already.
fn only(location: &PodLocation, nodes: &[&str]) -> FilterVerdict {
    let mut verdict = FilterVerdict::default();
    for (place, name) in nodes.iter().enumerate() {
        if location.node.as_str() == *name {
            verdict.fit.push(place);
            verdict.scores.push(0);
            verdict.explained.push(ExplainedScore { beside_proposals: true, ..ExplainedScore::default() });
        } else {
            verdict.refused.push(RefusedNode { place, why: NodeRefusal::whole(RefusalReason::PodPlacedElsewhere) });
        }
    }
    verdict
}

impl ClusterState {
    /// The verdict for a pod that may be bound already; `None` for other pods.
    fn placed(&mut self, request: &PlacementRequest, nodes: &[&str], now: Monotonic) -> Option<FilterVerdict> {
        let verdict = only(self.locations.get(&request.uid)?, nodes);
        let fits = !verdict.fit.is_empty();
        // A call that does not name the pod's node may only be older than the binding; then the pod does not wait. If the watch
        // has not shown the binding yet, or the pod is ending, the pod may fit elsewhere, and waits.
        let may_fit_elsewhere = self.claim_of(&request.uid).is_some_and(|(node, state)| {
            state == ClaimState::Assumed || self.nodes.get(node).is_some_and(|node| node.is_ending(&request.uid))
        });
        if fits || !may_fit_elsewhere {
            self.wake_is_asked(&request.uid, fits);
        } else {
            self.refuse_elsewhere(request, nodes, now);
        }
        Some(verdict)
    }

    /// Maximum number of nodes that a call for this pod names; `asked` is the number of nodes in the call.
    fn answered(&mut self, request: &PlacementRequest, asked: usize) -> Answered {
        self.turn = self.turn.wrapping_add(1);
        // The reason that kept the pod from the named nodes, such as a volume, may not hold for the others.
        let comes_back = self.pending.contains_key(&request.uid) || self.unbound.has(&request.uid);
        let most = match self.rules.node_choice {
            NodeChoice::Extender => 1,
            // The next member must see where this member goes.
            NodeChoice::Scheduler if request.gang.is_some() && !comes_back => 1,
            NodeChoice::Scheduler if request.prefers_nodes || comes_back => usize::MAX,
            NodeChoice::Scheduler => self.rules.answered_nodes.most(asked),
        };
        Answered { most, turn: self.turn }
    }

    fn scoring(&self, request: &PlacementRequest) -> Scoring {
        let rules = &self.rules.placement;
        Scoring {
            policy: rules.node_policy(&request.preference),
            weights: rules.weights(&request.preference),
            step: self.rules.score_step,
        }
    }

    fn propose(&mut self, request: PlacementRequest, name: Option<&str>, scores: NamedScores, now: Monotonic) {
        // The pod was deleted during the call, so no event would remove the proposal.
        if self.gone.has(&request.uid) {
            return;
        }
        let bytes = memory(&request);
        self.make_room(bytes);
        let proposed = name.and_then(|name| self.propose_on(&request, name));
        let uid = request.uid.clone();
        self.order.insert((now, uid.clone()));
        self.pending_bytes += bytes;
        self.scores.keep(&uid, scores);
        let pending = PendingPod { request, proposed, filtered: now, bytes };
        self.shares.add(&pending.request.pod.namespace, (now, uid.clone()), bytes);
        self.pending.insert(uid, pending);
    }

    /// Forgets filter calls until there is room for one more pod, whose request and proposal take this many bytes: the oldest call
    /// of the namespace that takes most bytes. A user who makes many or large pods must not keep the gangs and the volumes of
    /// others from being bound. The bind of a pod whose call is forgotten is refused ([`super::BindRefusal::NotFiltered`]), and
    /// kube-scheduler tries the pod again.
    fn make_room(&mut self, bytes: usize) {
        while self.pending.len() >= MAX_PENDING || self.pending_bytes.saturating_add(bytes) > MAX_PENDING_BYTES {
            let Some(uid) = self.shares.first_to_forget().cloned() else { return };
            self.forget_proposal(&uid);
        }
    }
}

/// Approximate number of bytes that the request of a pod and its proposal take.
fn memory(request: &PlacementRequest) -> usize {
    let gpus = request.requests.iter().map(|one| usize::try_from(one.slots).unwrap_or(usize::MAX));
    let proposal = gpus.fold(0, usize::saturating_add).saturating_mul(size_of::<(GpuUuid, DeviceDemand)>());
    request.memory().saturating_add(proposal)
}

/// The GPU pod that a request becomes when it is bound.
pub(super) fn gpu_pod(request: &PlacementRequest) -> GpuPod {
    GpuPod {
        uid: request.uid.clone(),
        pod: request.pod.clone(),
        arrival: None,
        requests: request.requests.clone(),
        claim: PodClaim::None,
        chooses_gpus: request.chooses_gpus(),
        placed_here: false,
        started: false,
        finished: false,
    }
}
