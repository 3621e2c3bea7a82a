//! GPU pods: pods that are bound to this node and request GPUs.

use crate::claim::{Claim, PodClaim};
use crate::id::{PodRef, PodUid};
use crate::request::ContainerRequest;
use crate::time::Arrival;

/// A pod that is bound to this node and asks for GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPod {
    /// The identity.
    pub uid: PodUid,
    /// The names, for people and for the API.
    pub pod: PodRef,
    /// When it came to this node, beside the others.
    pub arrival: Option<Arrival>,
    /// What its containers request, init containers first.
    pub requests: Vec<ContainerRequest>,
    /// What was promised.
    pub claim: PodClaim,
    /// Whether the claim is what this node gave it without a scheduler.
    pub placed_here: bool,
    /// Whether a container of it has ever started.
    pub started: bool,
    /// Whether it has succeeded or failed: it will never start a container again.
    pub finished: bool,
}

impl GpuPod {
    /// Whether `claim` has for every container as many devices as it asks for.
    #[must_use]
    pub fn is_whole(&self, claim: &Claim) -> bool {
        let mut containers = self.requests.iter().zip(claim);
        self.requests.len() == claim.len()
            && containers.all(|(request, own)| usize::try_from(request.slots) == Ok(own.len()))
    }
}
