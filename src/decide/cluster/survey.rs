//! The verdicts for a call about many nodes, found without holding the lock of the state for long.
//!
//! ```text
//!   survey   (locked: microseconds)          the kept verdicts of this kind of request, the versions of the nodes
//!   look up  (not locked)                    the verdicts that still hold
//!   judge    (locked, some nodes at a time)  the other nodes, mostly one or two that have changed since the last call
//! ```
//!
//! Other calls and changes come between these steps, so the verdicts of one call may be of different moments. That does no harm,
//! because verdicts reserve nothing: a bind checks its node again.

use super::names::ByName;
use super::node::NodeClaims;
use super::node_set::NodeSet;
use super::rank::Suitability;
use super::state::ClusterState;
use super::verdicts::{Judged, KeptVerdicts, MadeVerdict, Signature, Verdict};
use super::version::NodeVersion;
use crate::placement::{CheckResult, CountedClaims, NodeRefusal, Placement, PlacementNode, RefusalReason, place};
use model::placement::PlacementRequest;
use std::sync::Arc;

/// Number of nodes that are judged in one step for a pod of one container, which takes about 0.2 ms. The first call of a new kind
/// judges all nodes.
const STEP: usize = 256;

/// Gives access to the state for one step. Between the steps other callers use it.
pub trait StateAccess {
    /// Lets `step` read and change the state.
    fn with<R>(&self, step: impl FnOnce(&mut ClusterState) -> R) -> R;
}

/// The kept verdicts and versions at the start of a call.
#[derive(Debug)]
pub(super) struct Survey {
    signature: Signature,
    versions: Arc<ByName<Arc<NodeVersion>>>,
    kept: KeptVerdicts,
    unknown: Verdict,
}

/// The verdicts about the nodes of a call, in its order.
#[derive(Debug)]
pub(super) struct Verdicts<'a> {
    kept: Vec<Option<&'a Verdict>>,
    /// The other verdicts, in the same order.
    made: Vec<MadeVerdict>,
}

impl ClusterState {
    /// The kept verdicts for requests of this kind, and the versions of all nodes.
    pub(super) fn survey(&mut self, request: &PlacementRequest) -> Survey {
        let signature = Signature::of(request);
        Survey {
            kept: self.verdicts.of(&signature),
            signature,
            versions: Arc::clone(&self.versions),
            unknown: Err(NodeRefusal::whole(RefusalReason::NodeUnregistered)),
        }
    }

    /// Judges one node.
    pub(super) fn judge(
        &self,
        request: &PlacementRequest,
        node: &NodeClaims,
    ) -> Result<(Judged, Placement), NodeRefusal> {
        if node.closed().is_some() {
            return Err(NodeRefusal::whole(RefusalReason::NodeClosed));
        }
        self.judge_devices(request, node.devices(), node.has_proposals())
    }

    /// Judges these devices of a node.
    pub(super) fn judge_devices(
        &self,
        request: &PlacementRequest,
        devices: &PlacementNode,
        has_proposals: bool,
    ) -> Result<(Judged, Placement), NodeRefusal> {
        if devices.devices.is_empty() {
            return Err(NodeRefusal::whole(RefusalReason::NodeUnregistered));
        }
        let rules = &self.rules.placement;
        let (beside_proposals, placement) = match place(request, devices, rules, CountedClaims::ClaimsAndProposals) {
            Ok(placement) => (true, placement),
            // The refusal must not depend on proposals, which are only expectations.
            Err(why) if !has_proposals => return Err(why),
            Err(_) => (false, place(request, devices, rules, CountedClaims::Claims)?),
        };
        let policy = rules.node_policy(&request.preference);
        let really_free = placement.check != CheckResult::Warned;
        let suitability = Suitability::new(really_free, beside_proposals, placement.fill, policy);
        Ok((Judged { suitability, terms: placement.terms, check: placement.check }, placement))
    }

    /// The verdicts about these nodes: verdicts that other calls have made since the survey, and new verdicts, which are kept.
    fn judge_all(&mut self, request: &PlacementRequest, signature: &Signature, names: &[&str]) -> Vec<MadeVerdict> {
        let kept = self.verdicts.of(signature);
        let judged = |name: &&str| {
            let Some(node) = self.nodes.get(*name) else {
                return MadeVerdict { about: None, verdict: Err(NodeRefusal::whole(RefusalReason::NodeUnregistered)) };
            };
            let (place, version) = (node.version().place(), node.version().numbers());
            match kept.of(place, version) {
                Some(verdict) => MadeVerdict { about: None, verdict: verdict.clone() },
                None => MadeVerdict {
                    about: Some((place, version)),
                    verdict: self.judge(request, node).map(|(judged, _)| judged),
                },
            }
        };
        let made: Vec<MadeVerdict> = names.iter().map(judged).collect();
        // While this copy exists, `keep` would have to copy the parts that it shares.
        drop(kept);
        self.verdicts.keep(signature, &made);
        made
    }
}

impl Survey {
    /// The verdicts about these nodes.
    pub(super) fn verdicts<'a>(
        &'a self,
        state: &impl StateAccess,
        request: &PlacementRequest,
        nodes: &[&str],
    ) -> Verdicts<'a> {
        let kept: Vec<Option<&Verdict>> = nodes.iter().map(|name| self.known(name)).collect();
        let missing: Vec<&str> =
            nodes.iter().zip(&kept).filter(|(_, kept)| kept.is_none()).map(|(name, _)| *name).collect();
        let mut made = Vec::with_capacity(missing.len());
        let containers = request.requests.iter().filter(|container| container.slots > 0).count();
        for names in missing.chunks((STEP / containers.max(1)).max(1)) {
            made.extend(state.with(|state| state.judge_all(request, &self.signature, names)));
        }
        Verdicts { kept, made }
    }

    /// The places of these nodes, as far as the nodes are known.
    pub(super) fn places(&self, nodes: &[&str]) -> NodeSet {
        nodes.iter().filter_map(|name| self.versions.get(*name)).map(|version| version.place()).collect()
    }

    fn known(&self, name: &str) -> Option<&Verdict> {
        let Some(version) = self.versions.get(name) else { return Some(&self.unknown) };
        self.kept.of(version.place(), version.numbers())
    }
}

impl Verdicts<'_> {
    /// Each verdict.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Verdict> {
        let mut made = self.made.iter().map(|made| &made.verdict);
        self.kept.iter().filter_map(move |kept| kept.or_else(|| made.next()))
    }
}
