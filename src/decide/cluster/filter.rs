//! The filter and the scores: which of the nodes fit a pod, and how well.

use super::rank::{self, Suitability};
use super::state::{ClusterState, MAX_PENDING, NodeChoice, PendingPod};
use crate::placement::{CountedClaims, NodeRefusal, Placement, RefusalReason, place};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::PodUid;
use model::placement::PlacementRequest;
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
    /// The nodes that do not fit.
    pub refused: Vec<RefusedNode>,
    /// The place of the node that is expected to take the pod.
    pub proposed: Option<usize>,
}

impl ClusterState {
    /// Decides which of these nodes fit the pod, and leaves a proposal on the best one, which counts in the scores of
    /// other pods until the pod is bound, filtered again or gone. A pod whose bind has no known outcome fits only the
    /// node where it may be bound.
    pub fn filter(&mut self, request: PlacementRequest, nodes: &[&str], now: Monotonic) -> FilterVerdict {
        self.forget_proposal(&request.uid);
        let assumed = self.homes.get(&request.uid).cloned();
        let mut verdict = FilterVerdict::default();
        let (mut suits, mut best) = (Vec::new(), None::<(Suitability, usize, Placement)>);
        for (place, name) in nodes.iter().enumerate() {
            let judged = match &assumed {
                Some(home) if home.node.as_str() != *name => Err(NodeRefusal::whole(RefusalReason::NodeClosed)),
                Some(_) => {
                    verdict.fit.push(place);
                    suits.push(Suitability::ONLY);
                    continue;
                }
                None => self.judge(&request, name),
            };
            match judged {
                Ok((suitability, placement)) => {
                    verdict.fit.push(place);
                    suits.push(suitability);
                    // Of equal nodes the first by name, whatever the order of the question.
                    let better = best.as_ref().is_none_or(|(most, at, _)| {
                        suitability > *most || (suitability == *most && nodes.get(*at).is_some_and(|best| name < best))
                    });
                    if better {
                        best = Some((suitability, place, placement));
                    }
                }
                Err(why) => verdict.refused.push(RefusedNode { place, why }),
            }
        }
        verdict.scores = rank::scores(&suits, self.rules.score_step);
        if let Some((_, place, placement)) = best {
            verdict.proposed = Some(place);
            self.propose(request, nodes.get(place).copied(), &placement, now);
            if self.rules.node_choice == NodeChoice::Extender {
                verdict.fit = vec![place];
                verdict.scores = vec![0];
            }
        }
        verdict
    }

    /// The scores of these nodes for a pod, in their order. A node that does not fit any more has the lowest score.
    pub fn score(&mut self, request: &PlacementRequest, nodes: &[&str]) -> Vec<i64> {
        // The own proposal must not count against the node that it is for.
        let proposed = self.pending.get(&request.uid).and_then(|pending| pending.proposed.clone());
        let taken =
            proposed.as_ref().and_then(|name| self.nodes.get_mut(name)).and_then(|node| node.lift(&request.uid));
        let judged: Vec<Option<Suitability>> =
            nodes.iter().map(|name| self.judge(request, name).ok().map(|(suitability, _)| suitability)).collect();
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

    fn judge(&self, request: &PlacementRequest, name: &str) -> Result<(Suitability, Placement), NodeRefusal> {
        let node = self.nodes.get(name).ok_or_else(|| NodeRefusal::whole(RefusalReason::NodeUnregistered))?;
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
        Ok((Suitability::new(beside_proposals, placement.fill, policy), placement))
    }

    fn propose(&mut self, request: PlacementRequest, name: Option<&str>, placement: &Placement, now: Monotonic) {
        if self.pending.len() >= MAX_PENDING
            && let Some((_, oldest)) = self.order.first().cloned()
        {
            self.forget_proposal(&oldest);
        }
        let node = name.and_then(|name| self.nodes.get_mut(name));
        let proposed = node.map(|node| {
            node.propose(&gpu_pod(&request), &placement.claim);
            node.name().clone()
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
