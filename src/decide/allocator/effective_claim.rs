//! The effective claim of each pod, which the ledger counts: the devices that a started pod was given, otherwise its
//! claim.

use super::state::NodeAllocator;
use crate::ledger::ClaimState;
use model::claim::{Claim, PodClaim};
use model::gpu_pod::GpuPod;
use model::id::PodUid;
use std::sync::Arc;

/// The claim that holds for a pod, or the reason why there is no claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EffectiveClaim<'a> {
    /// The device shares.
    Given(&'a Claim),
    /// No scheduler that knows GPUs placed this pod, and it was given nothing.
    None,
    /// The claim cannot be read; the sentence is the reason.
    Unreadable(&'a Arc<str>),
    /// The pod requests something that no GPU has; the sentence names it.
    BadRequest(&'a Arc<str>),
}

impl<'a> EffectiveClaim<'a> {
    /// The device shares, if there are any.
    pub(super) fn given(self) -> Option<&'a Claim> {
        match self {
            EffectiveClaim::Given(claim) => Some(claim),
            EffectiveClaim::None | EffectiveClaim::Unreadable(_) | EffectiveClaim::BadRequest(_) => None,
        }
    }
}

impl NodeAllocator {
    /// The claim that holds for a pod: the devices that its containers really have; without these, the claim in its
    /// annotation; without that, the claim that this agent made.
    pub(super) fn effective_claim<'a>(&'a self, gpu_pod: &'a GpuPod) -> EffectiveClaim<'a> {
        if let Some(moved) = self.claims.moved.get(&gpu_pod.uid) {
            return EffectiveClaim::Given(moved);
        }
        let given = || self.claims.given.get(&gpu_pod.uid).filter(|claim| gpu_pod.is_whole(claim));
        match (&gpu_pod.claim, given()) {
            (PodClaim::Given(claim), _) | (_, Some(claim)) => EffectiveClaim::Given(claim),
            (PodClaim::None, None) => EffectiveClaim::None,
            (PodClaim::Unreadable(why), None) => EffectiveClaim::Unreadable(why),
            (PodClaim::BadRequest(why), None) => EffectiveClaim::BadRequest(why),
        }
    }

    /// Writes into the ledger what a pod holds now. The allocator calls it after every change of the pod or its claim,
    /// and when the pod starts.
    pub(super) fn enter(&mut self, uid: &PodUid) {
        let Some(gpu_pod) = self.pods.by_uid.get(uid).filter(|gpu_pod| !gpu_pod.finished) else {
            self.ledger.remove(uid);
            return;
        };
        // A started pod keeps what it was given, even if the claim on the pod has changed since.
        let held = self.claims.given.get(uid).or_else(|| self.effective_claim(gpu_pod).given()).cloned();
        let state = if self.pods.started.contains(uid) { ClaimState::Started } else { ClaimState::Bound };
        match held {
            Some(claim) => self.ledger.set(gpu_pod, state, &claim),
            None => self.ledger.remove(uid),
        }
    }

    /// The ledger built again from all pods; the ledger that is kept must be equal to it.
    #[cfg(test)]
    pub(super) fn ledger_from_nothing(&self) -> crate::ledger::Ledger {
        let mut copy = self.clone();
        copy.ledger = crate::ledger::Ledger::default();
        for uid in self.pods.by_uid.keys() {
            copy.enter(uid);
        }
        copy.ledger
    }
}
