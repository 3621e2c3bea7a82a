//! The filter and the scores: which of the nodes fit a pod, and how well.

use super::rank::{self, Suitability};
use super::state::{ClusterState, Home, MAX_PENDING, NodeChoice, PendingPod};
use super::survey::{StateAccess, Verdicts};
use super::verdicts::{Judged, Verdict};
use crate::placement::{CountedClaims, FillTerms, NodeRefusal, RefusalReason, place};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::PodUid;
use model::placement::{NodePolicy, PlacementRequest, ScoreWeights};
use model::time::Monotonic;
use std::ops::ControlFlow;

/// A node that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedNode {
    /// Its place in the list of the question.
    pub place: usize,
    /// Why.
    pub why: NodeRefusal,
}

/// Which nodes fit a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterVerdict {
    /// The places, in the list of the question, of the nodes that the answer names.
    pub fit: Vec<usize>,
    /// The score of each of them.
    pub scores: Vec<i64>,
    /// How each score was made.
    pub explained: Vec<ExplainedScore>,
    /// The policy and the weights of the scores.
    pub scoring: Scoring,
    /// The nodes that do not fit.
    pub refused: Vec<RefusedNode>,
    /// The place of the node that is expected to take the pod.
    pub proposed: Option<usize>,
}

/// What the scores of one pod have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scoring {
    /// Whether a fuller node is better, or an emptier one.
    pub policy: NodePolicy,
    /// How much each term counts.
    pub weights: ScoreWeights,
    /// The difference between the scores of neighbours in the order of the nodes.
    pub step: i64,
}

/// How the score of one node was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExplainedScore {
    /// Whether the pod fits also beside the pods that are expected there.
    pub beside_proposals: bool,
    /// How full the node is with the pod.
    pub terms: FillTerms,
}

/// Decides which of these nodes fit the pod, and leaves a proposal on the best one, which counts in the scores of
/// other pods until the pod is bound, filtered again or gone. A pod whose bind has no known outcome fits only the
/// node where it may be bound. Of calls at the same moment two may propose the same node.
pub fn filter(state: &impl StateAccess, request: PlacementRequest, nodes: &[&str], now: Monotonic) -> FilterVerdict {
    let begun = state.with(|state| {
        state.forget_proposal(&request.uid);
        match state.homes.get(&request.uid) {
            Some(home) => ControlFlow::Break(only(home, nodes)),
            None => ControlFlow::Continue((state.survey(&request), state.scoring(&request))),
        }
    });
    let (survey, scoring) = match begun {
        ControlFlow::Continue(begun) => begun,
        ControlFlow::Break(verdict) => return verdict,
    };
    let mut verdict = ranked(&survey.verdicts(state, &request, nodes), nodes, scoring);
    let best = verdict.proposed.and_then(|place| nodes.get(place)).copied();
    let choice = state.with(|state| {
        // The pod may have been bound meanwhile, or asked for once more.
        if let Some(home) = state.homes.get(&request.uid) {
            return ControlFlow::Break(only(home, nodes));
        }
        state.forget_proposal(&request.uid);
        if best.is_some() {
            state.propose(request, best, now);
        }
        ControlFlow::Continue(state.rules.node_choice)
    });
    match choice {
        ControlFlow::Break(only) => return only,
        ControlFlow::Continue(NodeChoice::Scheduler) => {}
        ControlFlow::Continue(NodeChoice::Extender) => verdict.keep_proposed(),
    }
    verdict
}

/// The scores of these nodes for a pod, in their order. A node that does not fit any more has the lowest score.
pub fn score(state: &impl StateAccess, request: &PlacementRequest, nodes: &[&str]) -> Vec<i64> {
    // The own proposal must not count against the node that it is for.
    let (survey, step) = state.with(|state| (state.survey_without_own_proposal(request), state.rules.score_step));
    let verdicts = survey.verdicts(state, request, nodes);
    let suits = |verdict: &Verdict| verdict.as_ref().ok().map(|judged| judged.suitability);
    let fitting: Vec<Suitability> = verdicts.iter().filter_map(suits).collect();
    let mut scores = rank::scores(&fitting, step).into_iter();
    verdicts.iter().map(|verdict| suits(verdict).and_then(|_| scores.next()).unwrap_or(0)).collect()
}

/// The verdict of a call by those about its nodes.
fn ranked(verdicts: &Verdicts<'_>, nodes: &[&str], scoring: Scoring) -> FilterVerdict {
    let mut verdict = FilterVerdict {
        fit: Vec::with_capacity(nodes.len()),
        explained: Vec::with_capacity(nodes.len()),
        scoring,
        ..FilterVerdict::default()
    };
    let (mut suits, mut best) = (Vec::with_capacity(nodes.len()), None::<(Suitability, usize)>);
    for ((place, name), judged) in nodes.iter().enumerate().zip(verdicts.iter()) {
        match judged {
            Ok(Judged { suitability, terms }) => {
                let (suitability, terms) = (*suitability, *terms);
                verdict.fit.push(place);
                verdict.explained.push(ExplainedScore { beside_proposals: suitability.beside_proposals(), terms });
                suits.push(suitability);
                // Of equal nodes the first by name, whatever the order of the question.
                let better = best.is_none_or(|(most, at)| {
                    suitability > most || (suitability == most && nodes.get(at).is_some_and(|best| name < best))
                });
                if better {
                    best = Some((suitability, place));
                }
            }
            Err(why) => verdict.refused.push(RefusedNode { place, why: why.clone() }),
        }
    }
    verdict.scores = rank::scores(&suits, scoring.step);
    verdict.proposed = best.map(|(_, place)| place);
    verdict
}

/// The verdict for a pod that may be bound already.
fn only(home: &Home, nodes: &[&str]) -> FilterVerdict {
    let mut verdict = FilterVerdict::default();
    for (place, name) in nodes.iter().enumerate() {
        if home.node.as_str() == *name {
            verdict.fit.push(place);
            verdict.scores.push(0);
            verdict.explained.push(ExplainedScore { beside_proposals: true, terms: FillTerms::default() });
        } else {
            verdict.refused.push(RefusedNode { place, why: NodeRefusal::whole(RefusalReason::PodPlacedElsewhere) });
        }
    }
    verdict
}

impl FilterVerdict {
    /// Leaves the node that is expected to take the pod as the only one that fits.
    fn keep_proposed(&mut self) {
        let Some(place) = self.proposed else { return };
        let at = self.fit.iter().position(|fit| *fit == place);
        self.explained = at.and_then(|at| self.explained.get(at).copied()).into_iter().collect();
        self.fit = vec![place];
        self.scores = vec![0];
    }
}

impl ClusterState {
    fn scoring(&self, request: &PlacementRequest) -> Scoring {
        let rules = &self.rules.placement;
        Scoring {
            policy: rules.node_policy(&request.preference),
            weights: rules.weights(&request.preference),
            step: self.rules.score_step,
        }
    }

    /// Whether the pod fits this node once these pods are gone from it. Proposals do not count. A pod that holds GPUs of another
    /// node, such as by a binding whose outcome is not known, fits nowhere else.
    #[must_use]
    pub fn fits_without(&self, request: &PlacementRequest, name: &str, victims: &[PodUid]) -> bool {
        if self.homes.get(&request.uid).is_some_and(|home| home.node.as_str() != name) {
            return false;
        }
        let Some(node) = self.nodes.get(name).filter(|node| node.closed().is_none()) else { return false };
        let mut node = node.clone();
        victims.iter().for_each(|uid| node.release(uid));
        place(request, node.devices(), &self.rules.placement, CountedClaims::Claims).is_ok()
    }

    fn propose(&mut self, request: PlacementRequest, name: Option<&str>, now: Monotonic) {
        // It was deleted while the call was under way, and nothing would take the proposal back.
        if self.gone.has(&request.uid) {
            return;
        }
        if self.pending.len() >= MAX_PENDING
            && let Some((_, oldest)) = self.order.first().cloned()
        {
            self.forget_proposal(&oldest);
        }
        let placed = name.and_then(|name| self.nodes.get(name)).and_then(|node| {
            let (_, placement) = self.judge(&request, node).ok()?;
            Some((node.name().clone(), placement.claim))
        });
        let proposed = placed.and_then(|(name, claim)| {
            self.nodes.get_mut(&name)?.propose(&gpu_pod(&request), &claim);
            Some(name)
        });
        self.order.insert((now, request.uid.clone()));
        let uid = request.uid.clone();
        self.pending.insert(uid, PendingPod { request, proposed, filtered: now });
    }
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
