//! What a node has for one pod: other pods that are not bound there count like claims for some pods only, the expected members of
//! a gang for its members, and nominated pods for pods that do not come before them.
//!
//! What must never happen here: the verdict about a node that is for one pod only is kept for other pods.

use super::filter::gpu_pod;
use super::names::ByName;
use super::node::NodeClaims;
use super::state::ClusterState;
use super::survey::StateAccess;
use super::verdicts::{Judged, Verdict};
use crate::placement::{NodeRefusal, Placement, PlacementNode, RefusalReason};
use model::id::{NodeName, PodUid};
use model::placement::PlacementRequest;
use std::collections::BTreeMap;

/// Number of nodes that are judged in one step: each takes up to 80 us, because it is copied to add nominated pods.
const JUDGED: usize = 8;
/// Upper bound on the members of gangs that are expected on one node, and on the other pods there: the kubelet starts 110 by
/// default. Each filter call for an expected pod looks at all of them, and each copy of the node copies them. Pods that pass the
/// filter again and again and are never bound could otherwise be thousands.
pub(super) const MOST_EXPECTED: usize = 256;

impl ClusterState {
    /// The devices of a node as this pod may use them; `None` if no pod changes what it may use.
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

    /// Leaves a proposal for the pod on this node. If too many pods are expected there, one of them is no longer expected: it may
    /// still be bound there.
    pub(super) fn propose_on(&mut self, request: &PlacementRequest, name: &str) -> Option<NodeName> {
        let node = self.nodes.get(name)?;
        let (_, placement) = self.judge_for(request, node).ok()?;
        let name = node.name().clone();
        let pushed_out = self.pushed_out(request, node);
        pushed_out.iter().for_each(|uid| self.is_not_expected(&name, uid));
        self.nodes.get_mut(&name)?.propose(&gpu_pod(request), &placement.claim);
        self.gangs.add(request);
        Some(name)
    }

    /// The pod that makes room for one more expected pod on this node; `None` if there is room. Pods without a gang never push out
    /// members of gangs: another member would then pass for the same GPU. The pods of one namespace do not push out those of a
    /// namespace with fewer.
    fn pushed_out(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<PodUid> {
        let is_member = request.gang.is_some();
        let expected = node.expected().filter_map(|uid| self.pending.get_key_value(uid));
        let mut namespaces: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for (uid, pending) in expected.filter(|(_, pending)| pending.request.gang.is_some() == is_member) {
            namespaces.entry(&pending.request.pod.namespace).or_default().push((pending.filtered, uid));
        }
        if namespaces.values().map(Vec::len).sum::<usize>() < MOST_EXPECTED {
            return None;
        }
        let (_, oldest) = namespaces.values().max_by_key(|pods| pods.len())?.iter().min()?;
        Some((*oldest).clone())
    }

    /// A pod is no longer expected on this node. Its filter call stays known.
    fn is_not_expected(&mut self, name: &NodeName, uid: &PodUid) {
        if let Some(pending) = self.pending.get_mut(uid) {
            pending.proposed = None;
            self.gangs.remove(&pending.request);
        }
        if let Some(node) = self.nodes.get_mut(name) {
            node.withdraw(uid);
        }
    }
}

/// The verdicts about the nodes that have less room for this pod than their claims leave. They replace the kept verdicts, which are
/// the same for all pods with the same request. `fitting` are the nodes of the call that fit by their claims; other nodes never have
/// more room.
pub(super) fn verdicts<'a>(
    state: &impl StateAccess,
    request: &PlacementRequest,
    fitting: impl Iterator<Item = &'a str>,
) -> ByName<Verdict> {
    let names: ByName<()> = state.with(|state| {
        let nominated = state.nominated_nodes(request).cloned();
        state.gang_nodes(request).into_iter().chain(nominated).map(|name| (name, ())).collect()
    });
    let mut verdicts = ByName::default();
    if names.is_empty() {
        return verdicts;
    }
    let names: Vec<&NodeName> = fitting.filter_map(|name| names.get_key_value(name)).map(|(name, ())| name).collect();
    for names in names.chunks(JUDGED) {
        state.with(|state| {
            for name in names.iter().copied() {
                let unknown = || Err(NodeRefusal::whole(RefusalReason::NodeUnregistered));
                let judged = |node| state.judge_for(request, node).map(|(judged, _)| judged);
                verdicts.insert(name.clone(), state.nodes.get(name).map_or_else(unknown, judged));
            }
        });
    }
    verdicts
}
