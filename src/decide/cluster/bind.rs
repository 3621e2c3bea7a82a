//! Binds: chooses the devices on the node that kube-scheduler chose, reserves them, and keeps them until the outcome of
//! the write is known.

use super::closed::ClosedReason;
use super::filter::gpu_pod;
use super::planted::devices_of_bind;
use super::state::{ClusterState, PodLocation};
use crate::ledger::ClaimState;
use crate::placement::{CountedClaims, NodeRefusal, place};
use model::claim::{BindOrder, DeviceShare};
use model::id::{NodeName, PodUid};
use model::placement::PlacementRequest;

/// Why a pod is not bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindRefusal {
    /// No filter call for this pod is remembered.
    #[error("there was no recent filter call for this pod: it must be scheduled again")]
    NotFiltered,
    /// The node is not known.
    #[error("node {0} is not known")]
    UnknownNode(NodeName),
    /// The node takes no new claims.
    #[error("node {node} takes no new claims: {why}")]
    Closed {
        /// The node.
        node: NodeName,
        /// Why, for the owner of the pod.
        why: String,
    },
    /// Other pods have taken the GPUs since the filter answered.
    #[error("node {node} no longer fits: {why}")]
    NoFit {
        /// The node.
        node: NodeName,
        /// Why.
        why: NodeRefusal,
    },
    /// The outcome of an earlier bind of the pod to another node is not known.
    #[error("the outcome of an earlier bind to node {0} is not known yet")]
    Undecided(NodeName),
    /// The pod has lost its node in an etcd restore, and its processes still use its GPUs.
    #[error(
        "the pod was on node {0} before, and its processes still use GPUs there: it is placed when they have ended"
    )]
    StillRuns(NodeName),
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindOutcome {
    /// The API server has bound the pod as ordered.
    Written,
    /// The API server has refused, or the pod was read unbound after a refusal: this order has not bound the pod, and never
    /// will.
    Refused,
}

impl ClusterState {
    /// The request of a pod at its last filter call, which a bind uses; `None` if no call is remembered.
    #[must_use]
    pub fn asked(&self, uid: &PodUid) -> Option<&PlacementRequest> {
        self.pending.get(uid).map(|pending| &pending.request)
    }

    /// Chooses the devices of a pod on this node and reserves them. A pod that has a reservation on this node gets the
    /// same order again, so that a repeated call does no harm.
    ///
    /// # Errors
    /// [`BindRefusal`]; nothing is reserved then.
    pub fn bind(&mut self, uid: &PodUid, name: &NodeName) -> Result<BindOrder, BindRefusal> {
        let epoch = self.epoch;
        if let Some(location) = self.locations.get(uid) {
            return self.bind_again(uid, name, location);
        }
        let request = self.pending.get(uid).map(|pending| pending.request.clone()).ok_or(BindRefusal::NotFiltered)?;
        if let Some(closing) = self.closing(name.as_str()) {
            let why = closing.told_in(&request.pod.namespace);
            return Err(BindRefusal::Closed { node: name.clone(), why });
        }
        let mut beside = self.nodes.get(name).and_then(|node| self.beside_nominated(&request, node));
        let node = self.nodes.get_mut(name).ok_or_else(|| BindRefusal::UnknownNode(name.clone()))?;
        // The processes are from before an etcd restore; this leader has not seen their claim.
        if node.runs(uid) {
            return Err(BindRefusal::StillRuns(name.clone()));
        }
        // The first try leaves room for the pods that are expected here. Where that fails, the second try ignores them.
        let own = node.take_proposal(uid);
        let placed = {
            // Where room is kept for nominated pods, both tries leave it to them.
            if let Some(beside) = &mut beside {
                beside.withdraw(uid);
            }
            let devices = devices_of_bind(beside.as_ref().unwrap_or(node).devices(), own.as_deref());
            place(&request, &devices, &self.rules.placement, CountedClaims::ClaimsAndProposals)
                .or_else(|_| place(&request, &devices, &self.rules.placement, CountedClaims::Claims))
        };
        let placement = match placed {
            Ok(placement) => placement,
            Err(why) => {
                if let Some(own) = own {
                    node.restore_proposal(uid, own);
                }
                return Err(BindRefusal::NoFit { node: name.clone(), why });
            }
        };
        node.claim(&gpu_pod(&request), ClaimState::Assumed, &placement.claim);
        self.forget_proposal(uid);
        let (node, pod, version, claim) = (name.clone(), request.pod, request.version, placement.claim);
        let location = PodLocation { node: node.clone(), pod: pod.clone(), version, is_being_deleted: false };
        self.locations.insert(uid.clone(), location);
        Ok(BindOrder { uid: uid.clone(), pod, node, claim, epoch, version })
    }

    /// A pod that has a reservation on this node gets the same order again.
    fn bind_again(&self, uid: &PodUid, name: &NodeName, location: &PodLocation) -> Result<BindOrder, BindRefusal> {
        let at = self.nodes.get(&location.node);
        if at.is_some_and(|node| node.is_ending(uid)) {
            return Err(BindRefusal::StillRuns(location.node.clone()));
        }
        let reserved = at.and_then(|node| node.ledger().get(uid)).filter(|_| location.node == *name);
        let Some(reserved) = reserved else { return Err(BindRefusal::Undecided(location.node.clone())) };
        Ok(BindOrder {
            uid: uid.clone(),
            pod: location.pod.clone(),
            node: name.clone(),
            claim: reserved.claim.clone(),
            epoch: self.epoch,
            version: location.version,
        })
    }

    /// The order of a reservation again, with the epoch of this term. `None` if the order must not be written now: the pod has no
    /// reservation; the pod is gone and its processes still run; its node takes no new claims; or another leader has since placed
    /// pods that leave no room for it. If the Node is gone, the order is still written, because the node may never open again:
    /// Kubernetes then deletes the pod together with the other pods of that node.
    #[must_use]
    pub fn order_again(&self, uid: &PodUid) -> Option<BindOrder> {
        let location = self.locations.get(uid)?;
        let node = self.nodes.get(&location.node)?;
        let held = node.ledger().get(uid).filter(|_| !node.is_ending(uid))?;
        if node.closed().is_some_and(|why| why != ClosedReason::Gone) {
            return None;
        }
        let mut others = node.clone();
        others.release(uid);
        let has_room = |share: &DeviceShare| {
            // No other pod holds a device that is gone.
            let Some(device) = others.devices().devices.iter().find(|device| device.uuid == share.device) else {
                return true;
            };
            let (own, mut sum, capacity) = (held.demand(&share.device), device.claimed, device.capacity);
            sum.add(own);
            let cores = u32::try_from(capacity.cores).unwrap_or(u32::MAX);
            sum.memory <= capacity.memory
                && sum.cores <= capacity.cores
                && sum.containers <= capacity.slots
                && !own.clashes_with(device.claimed, cores)
        };
        let PodLocation { node, pod, version, .. } = location.clone();
        let (claim, epoch) = (held.claim.clone(), self.epoch);
        let room = claim.shares().all(has_room);
        room.then(|| BindOrder { uid: uid.clone(), pod, node, claim, epoch, version })
    }

    /// Takes in the outcome of a write. Only a refusal releases the reservation; after a lost answer the same order must be
    /// written again until its outcome is known. An earlier write may have bound the pod, and the pod may have run before the
    /// watch showed it. Then the pod holds its GPUs until its processes have ended.
    pub fn bind_ended(&mut self, uid: &PodUid, outcome: BindOutcome) {
        let Some(location) = self.locations.get(uid).filter(|_| outcome == BindOutcome::Refused).cloned() else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&location.node) else { return };
        // What the pod watch has shown since then counts more than the answer to an older write.
        let assumed = node.ledger().get(uid).is_some_and(|claim| claim.state == ClaimState::Assumed);
        if assumed && (node.is_ending(uid) || node.runs(uid)) {
            node.ends(uid);
        } else if assumed {
            self.release_at(&location.node, uid);
            self.unbound.add(uid);
        }
    }
}
