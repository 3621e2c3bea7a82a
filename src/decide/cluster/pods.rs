//! Updates nodes and pods as the watches show them.

use super::closed::UnknownClaim;
use super::node::NodeClaims;
use super::planted::{PlantedMistake, planted};
use super::state::{ClusterState, PodLocation};
use super::version::CountedVersion;
use crate::ledger::ClaimState;
use crate::placement::DeviceKind;
use model::claim::PodClaim;
use model::followed_node::{MAX_CLUSTER_NODES, NodeFacts};
use model::gpu_pod::BoundPod;
use model::id::{NodeName, ObjectUid, PodUid};
use model::registered::RegisteredGpu;
use std::collections::HashMap;
use std::sync::Arc;

impl ClusterState {
    /// Sets the current version of a Node.
    pub fn node_is(&mut self, facts: &NodeFacts) {
        let mut kinds: HashMap<(Arc<str>, Arc<str>), Arc<DeviceKind>> = HashMap::new();
        // The GPUs of a node are usually of one kind: they share its texts.
        let mut kind = |gpu: &RegisteredGpu| {
            let key = (Arc::clone(&gpu.product), Arc::clone(&gpu.mode));
            let made = || DeviceKind { product: gpu.product.to_lowercase().into(), mode: Arc::clone(&gpu.mode) };
            Arc::clone(kinds.entry(key).or_insert_with(|| Arc::new(made())))
        };
        let is_new = self.nodes.get(&facts.name).is_none_or(|node| node.uid().is_none());
        self.node_entry(&facts.name).is(facts, &mut kind);
        if is_new {
            self.find_unreadable_pods(&facts.name);
        }
        self.look_for_unknown_device(&facts.name);
        // A GPU that the Node no longer registers was removed: no report has its processes, so no claim on it waits for one.
        self.take_evidence(&facts.name);
        self.touch(&facts.name);
    }

    /// The Node of this UID is known to be gone from the API server. Another Node of the same name may exist by now.
    pub fn node_gone(&mut self, name: &NodeName, uid: &ObjectUid) {
        let mut ended: Vec<PodUid> = Vec::new();
        if let Some(node) = self.nodes.get_mut(name) {
            node.gone(uid);
            if node.agent().is_none() {
                ended.extend(node.ending().cloned());
            }
        }
        ended.iter().for_each(|pod| self.release_at(name, pod));
        self.touch(name);
        self.forget_empty(name);
    }

    /// Sets the current version of a pod, by its UID at the API server. A pod without a node changes nothing: its proposal stays.
    /// Returns false if the state has no place for the pod, because there are too many names of Nodes that do not exist: the caller
    /// must repeat the call once there is a Node of this name.
    pub fn pod_is(&mut self, uid: &PodUid, bound: Option<&BoundPod>) -> bool {
        self.gone.remove(uid);
        let has_place = bound.is_none_or(|bound| !needs_entry(bound) || self.has_place(&bound.node));
        let plain = bound.filter(|bound| bound.gpu_pod.is_none() && !bound.ended);
        self.pod_without_gpus_is(uid, plain.filter(|_| has_place));
        let Some(bound) = bound else { return true };
        self.is_not_pending(uid);
        let holds = bound.gpu_pod.as_ref().filter(|pod| !pod.finished);
        if let Some(location) =
            self.locations.get(uid).filter(|location| location.node != bound.node || holds.is_none()).cloned()
        {
            // The pod was assumed on another node and is bound here, or it no longer holds GPUs.
            if location.node != bound.node || !self.holds_after_end(uid) {
                self.release_at(&location.node, uid);
            }
        }
        let Some(pod) = holds.filter(|_| has_place) else { return has_place };
        let node = self.node_entry(&bound.node);
        match &pod.claim {
            PodClaim::Given(claim) => {
                node.static_pod_is(uid, bound.hash.as_ref());
                if !planted(PlantedMistake::ReadableClaimStaysUnknown) {
                    node.claim_is_known(uid);
                }
                let state = if pod.started { ClaimState::Started } else { ClaimState::Bound };
                node.claim(pod, state, claim);
            }
            // The pod holds GPUs, because the kubelet allocates the GPUs that it requests, but it is not known which.
            PodClaim::None | PodClaim::Unreadable(_) | PodClaim::BadRequest(_) => {
                // A new version of such a pod is mostly about something else.
                node.has_no_claim(uid);
                node.static_pod_is(uid, bound.hash.as_ref());
                let may_be_refused = !pod.started && !matches!(pod.claim, PodClaim::Unreadable(_));
                let claim = if may_be_refused { UnknownClaim::NotStarted } else { UnknownClaim::Other };
                node.claim_is_unknown(uid, claim);
            }
        }
        let (node, pod) = (bound.node.clone(), pod.pod.clone());
        self.locations.insert(uid.clone(), PodLocation { node, pod, version: None, is_being_deleted: false });
        self.look_for_unknown_device(&bound.node);
        self.touch(&bound.node);
        if bound.hash.is_some() {
            let before = self.nodes.get(&bound.node).map(|node| node.predecessors(uid)).unwrap_or_default();
            before.iter().for_each(|other| self.release_at(&bound.node, other));
        }
        self.may_explain(&bound.node);
        true
    }

    /// Whether there is an entry for this node, or room for another entry. Anyone who may create pods can bind them to any number of
    /// Nodes that do not exist. Such names get no more entries than there may be Nodes.
    pub(super) fn has_place(&self, name: &NodeName) -> bool {
        self.nodes.len() < MAX_CLUSTER_NODES || self.nodes.contains_key(name)
    }

    /// Records a pod that is bound, has not ended and requests no GPU; `None` removes its record.
    fn pod_without_gpus_is(&mut self, uid: &PodUid, bound: Option<&BoundPod>) {
        // Most new versions of such a pod are about something else.
        if self.pods_without_gpus.get(uid) == bound.map(|bound| &bound.node) {
            return;
        }
        if let Some(before) = self.pods_without_gpus.remove(uid) {
            if let Some(node) = self.nodes.get_mut(&before) {
                node.static_pod_is(uid, None);
            }
            self.find_used_gpus(&before);
            self.forget_empty(&before);
        }
        let Some(bound) = bound else { return };
        self.pods_without_gpus.insert(uid.clone(), bound.node.clone());
        if bound.hash.is_some() {
            self.node_entry(&bound.node).static_pod_is(uid, bound.hash.as_ref());
        }
        self.may_explain(&bound.node);
    }

    /// A pod is not followed any more, because others matter more: its end will not be seen, so it no longer explains processes on a
    /// GPU and no longer closes its node. An order that is being written keeps its reservation, and a pod that has ended the GPUs
    /// that its agent still sees in use.
    pub fn pod_is_left_out(&mut self, uid: &PodUid) {
        self.does_not_wait(uid);
        self.pod_without_gpus_is(uid, None);
        let Some(node) = self.locations.get(uid).map(|location| location.node.clone()) else { return };
        if self.nodes.get(&node).is_none_or(|claims| claims.ledger().get(uid).is_none()) {
            self.release_at(&node, uid);
        }
    }

    /// Sets whether there are pods that request GPUs, have no claim and are not followed. Their nodes are not known, so they close
    /// all nodes on which such a pod may start. Call it before [`ClusterState::pod_is_left_out`].
    pub fn leaves_out_unproven_pods(&mut self, any: bool) {
        if self.unproven_left_out == any {
            return;
        }
        self.unproven_left_out = any;
        self.nodes.values_mut().for_each(|node| node.leaves_out_unproven_pods(any));
    }

    /// A pod that was bound is at the API server without a node: etcd was restored to an older state. An order that is being
    /// written keeps its reservation, and a pod whose processes the agent sees keeps its GPUs until the processes have ended.
    pub fn pod_is_unbound(&mut self, uid: &PodUid) {
        let Some(location) = self.locations.get(uid).cloned() else { return };
        let state = self.nodes.get(&location.node).and_then(|node| node.ledger().get(uid)).map(|claim| claim.state);
        if state != Some(ClaimState::Assumed) && !self.holds_after_end(uid) {
            self.release_at(&location.node, uid);
        }
    }

    /// A pod is known to be gone from the API server.
    pub fn pod_gone(&mut self, uid: &PodUid) {
        self.gone.add(uid);
        self.pod_without_gpus_is(uid, None);
        self.is_not_pending(uid);
        if self.holds_after_end(uid) {
            return;
        }
        if let Some(location) = self.locations.get(uid).cloned() {
            self.release_at(&location.node, uid);
        }
    }

    pub(super) fn release_at(&mut self, name: &NodeName, uid: &PodUid) {
        self.locations.remove(uid);
        self.is_released(uid);
        if let Some(node) = self.nodes.get_mut(name) {
            node.release(uid);
        }
        self.look_for_unknown_device(name);
        // The pod has no claim any more that its processes could belong to.
        self.find_used_gpus(name);
        self.touch(name);
        self.forget_empty(name);
    }

    /// See [`NodeClaims::look_for_unknown_device`].
    pub(super) fn look_for_unknown_device(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.look_for_unknown_device();
        }
    }

    pub(super) fn node_entry(&mut self, name: &NodeName) -> &mut NodeClaims {
        let (places, numbered, next) = (&mut self.free_places, &mut self.numbered, self.nodes.len());
        let (versions, changes, margin) = (&mut self.versions, &self.changes, self.rules.placement.check.margin);
        let unproven = self.unproven_left_out;
        self.nodes.entry(name.clone()).or_insert_with(|| {
            *numbered += 1;
            // If no place is free, the nodes fill all places before `next`.
            let version = CountedVersion::new(*numbered, places.pop().unwrap_or(next), changes);
            Arc::make_mut(versions).insert(name.clone(), version.shared());
            let mut node = NodeClaims::named(name.clone(), version, margin);
            node.leaves_out_unproven_pods(unproven);
            node
        })
    }

    pub(super) fn forget_empty(&mut self, name: &NodeName) {
        if self.nodes.get(name).is_some_and(NodeClaims::is_empty) {
            let gone = self.nodes.remove(name);
            Arc::make_mut(&mut self.versions).remove(name);
            self.free_places.extend(gone.map(|node| node.version().place()));
        }
    }
}

/// Whether the pod is recorded at its node: it holds GPUs, or its agent knows it by its hash.
fn needs_entry(bound: &BoundPod) -> bool {
    match &bound.gpu_pod {
        Some(pod) => !pod.finished,
        None => bound.hash.is_some() && !bound.ended,
    }
}
