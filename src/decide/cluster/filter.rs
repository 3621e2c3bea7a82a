//! The filter and the scores: which of the nodes fit a pod, and how well.

use super::node::NodeClaims;
use super::rank::{self, Suitability};
use super::state::{ClusterState, Home, MAX_PENDING, NodeChoice, PendingPod};
use super::verdicts::{Judged, Verdict, Verdicts};
use crate::placement::{CountedClaims, FillTerms, NodeRefusal, Placement, RefusalReason, place};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::PodUid;
use model::placement::{NodePolicy, PlacementRequest, ScoreWeights};
use model::time::Monotonic;

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

impl ClusterState {
    /// Decides which of these nodes fit the pod, and leaves a proposal on the best one, which counts in the scores of
    /// other pods until the pod is bound, filtered again or gone. A pod whose bind has no known outcome fits only the
    /// node where it may be bound.
    pub fn filter(&mut self, request: PlacementRequest, nodes: &[&str], now: Monotonic) -> FilterVerdict {
        self.forget_proposal(&request.uid);
        if let Some(home) = self.homes.get(&request.uid) {
            return self.only(home, nodes);
        }
        let mut verdict = FilterVerdict {
            fit: Vec::with_capacity(nodes.len()),
            explained: Vec::with_capacity(nodes.len()),
            scoring: self.scoring(&request),
            ..FilterVerdict::default()
        };
        let (mut suits, mut best) = (Vec::with_capacity(nodes.len()), None::<(Suitability, usize)>);
        let mut kept = self.verdicts.take(&request);
        for (place, name) in nodes.iter().enumerate() {
            match self.verdict(&mut kept, &request, name) {
                Ok(Judged { suitability, terms }) => {
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
                Err(why) => verdict.refused.push(RefusedNode { place, why }),
            }
        }
        self.verdicts.put_back(kept);
        verdict.scores = rank::scores(&suits, self.rules.score_step);
        verdict.proposed = best.map(|(_, place)| place);
        if let Some(place) = verdict.proposed {
            self.propose(request, nodes.get(place).copied(), now);
            if self.rules.node_choice == NodeChoice::Extender {
                let at = verdict.fit.iter().position(|fit| *fit == place);
                verdict.explained = at.and_then(|at| verdict.explained.get(at).copied()).into_iter().collect();
                verdict.fit = vec![place];
                verdict.scores = vec![0];
            }
        }
        verdict
    }

    /// The verdict for a pod that may be bound already.
    fn only(&self, home: &Home, nodes: &[&str]) -> FilterVerdict {
        let mut verdict = FilterVerdict::default();
        for (place, name) in nodes.iter().enumerate() {
            if home.node.as_str() == *name {
                verdict.fit.push(place);
                verdict.scores.push(0);
                verdict.explained.push(ExplainedScore { beside_proposals: true, terms: FillTerms::default() });
            } else {
                verdict.refused.push(RefusedNode { place, why: NodeRefusal::whole(RefusalReason::NodeClosed) });
            }
        }
        verdict
    }

    fn scoring(&self, request: &PlacementRequest) -> Scoring {
        let rules = &self.rules.placement;
        Scoring {
            policy: rules.node_policy(&request.preference),
            weights: rules.weights(&request.preference),
            step: self.rules.score_step,
        }
    }

    /// The scores of these nodes for a pod, in their order. A node that does not fit any more has the lowest score.
    pub fn score(&mut self, request: &PlacementRequest, nodes: &[&str]) -> Vec<i64> {
        // The own proposal must not count against the node that it is for.
        let proposed = self.pending.get(&request.uid).and_then(|pending| pending.proposed.clone());
        let taken =
            proposed.as_ref().and_then(|name| self.nodes.get_mut(name)).and_then(|node| node.lift(&request.uid));
        let mut kept = self.verdicts.take(request);
        let judged: Vec<Option<Suitability>> = nodes
            .iter()
            .map(|name| self.verdict(&mut kept, request, name).ok().map(|judged| judged.suitability))
            .collect();
        self.verdicts.put_back(kept);
        if let (Some(name), Some(taken)) = (proposed, taken)
            && let Some(node) = self.nodes.get_mut(&name)
        {
            node.lower(&request.uid, taken);
        }
        let fitting: Vec<Suitability> = judged.iter().flatten().copied().collect();
        let mut scores = rank::scores(&fitting, self.rules.score_step).into_iter();
        judged.iter().map(|one| one.and_then(|_| scores.next()).unwrap_or(0)).collect()
    }

    /// Whether the pod fits this node once these pods are gone from it. Proposals do not count.
    #[must_use]
    pub fn fits_without(&self, request: &PlacementRequest, name: &str, victims: &[PodUid]) -> bool {
        let Some(node) = self.nodes.get(name).filter(|node| node.closed().is_none()) else { return false };
        let mut node = node.clone();
        victims.iter().for_each(|uid| node.release(uid));
        place(request, node.devices(), &self.rules.placement, CountedClaims::Claims).is_ok()
    }

    /// The verdict about one node: the kept one where the node has not changed since.
    fn verdict(&self, kept: &mut Verdicts, request: &PlacementRequest, name: &str) -> Verdict {
        let node = self.nodes.get(name).ok_or_else(|| NodeRefusal::whole(RefusalReason::NodeUnregistered))?;
        kept.of(node.identity().place, node.version(), || self.judge(request, node).map(|(judged, _)| judged))
    }

    fn judge(&self, request: &PlacementRequest, node: &NodeClaims) -> Result<(Judged, Placement), NodeRefusal> {
        if node.closed().is_some() {
            return Err(NodeRefusal::whole(RefusalReason::NodeClosed));
        }
        if node.devices().devices.is_empty() {
            return Err(NodeRefusal::whole(RefusalReason::NodeUnregistered));
        }
        let rules = &self.rules.placement;
        let (beside_proposals, placement) =
            match place(request, node.devices(), rules, CountedClaims::ClaimsAndProposals) {
                Ok(placement) => (true, placement),
                // The refusal must not depend on proposals, which are only expectations.
                Err(why) if !node.has_proposals() => return Err(why),
                Err(_) => (false, place(request, node.devices(), rules, CountedClaims::Claims)?),
            };
        let policy = rules.node_policy(&request.preference);
        let suitability = Suitability::new(beside_proposals, placement.fill, policy);
        Ok((Judged { suitability, terms: placement.terms }, placement))
    }

    fn propose(&mut self, request: PlacementRequest, name: Option<&str>, now: Monotonic) {
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
        placed_here: false,
        started: false,
        finished: false,
    }
}
