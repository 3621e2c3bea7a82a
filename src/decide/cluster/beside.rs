//! What a node has for one pod: other pods that are not bound there count like claims for some pods only, the expected members of
//! a gang for its members, and nominated pods for pods that do not come before them.
//!
//! What must never happen here: the verdict about a node that is for one pod only is kept for other pods.

use super::filter::gpu_pod;
use super::names::ByName;
use super::node::NodeClaims;
use super::state::ClusterState;
use super::survey::{STEP, StateAccess};
use super::verdicts::{Judged, Verdict};
use crate::placement::{NodeRefusal, Placement, PlacementNode, RefusalReason};
use model::id::NodeName;
use model::placement::PlacementRequest;
use std::collections::BTreeSet;

impl ClusterState {
    /// The devices of a node as this pod may use them; `None` if they are those of the node as it is.
    pub(super) fn devices_for(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<PlacementNode> {
        let beside = self.beside_nominated(request, node);
        let of_gang = self.devices_beside_gang(request, beside.as_ref().unwrap_or(node));
        of_gang.or_else(|| beside.map(|node| node.devices().clone()))
    }

    /// Judges one node as this pod may use it.
    pub(super) fn judge_for(
        &self,
        request: &PlacementRequest,
        node: &NodeClaims,
    ) -> Result<(Judged, Placement), NodeRefusal> {
        match self.devices_for(request, node) {
            Some(devices) if node.closed().is_none() => self.judge_devices(request, &devices, node.has_proposals()),
            _ => self.judge(request, node),
        }
    }

    /// Leaves a proposal for the pod on this node.
    pub(super) fn propose_on(&mut self, request: &PlacementRequest, name: &str) -> Option<NodeName> {
        let node = self.nodes.get(name)?;
        let (_, placement) = self.judge_for(request, node).ok()?;
        let name = node.name().clone();
        self.nodes.get_mut(&name)?.propose(&gpu_pod(request), &placement.claim);
        self.gangs.add(request);
        Some(name)
    }
}

/// The verdicts about the nodes that have less room for this pod than their claims leave. They replace the kept verdicts, which
/// are the same for all pods with the same request.
pub(super) fn verdicts(state: &impl StateAccess, request: &PlacementRequest) -> ByName<Verdict> {
    let mut verdicts = ByName::default();
    let names: BTreeSet<NodeName> = state.with(|state| {
        let nominated = state.nominated_nodes(request).cloned();
        state.gang_nodes(request).into_iter().chain(nominated).collect()
    });
    let names: Vec<NodeName> = names.into_iter().collect();
    for names in names.chunks(STEP) {
        state.with(|state| {
            for name in names {
                let unknown = || Err(NodeRefusal::whole(RefusalReason::NodeUnregistered));
                let judged = |node| state.judge_for(request, node).map(|(judged, _)| judged);
                verdicts.insert(name.clone(), state.nodes.get(name).map_or_else(unknown, judged));
            }
        });
    }
    verdicts
}
