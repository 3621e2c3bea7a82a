//! GPU pods: pods that are bound to this node and request GPUs.

use crate::claim::{Claim, PodClaim};
use crate::id::{NodeName, PodRef, PodUid};
use crate::request::ContainerRequest;
use crate::time::Arrival;

/// A pod that is bound to this node and requests GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPod {
    /// The identity.
    pub uid: PodUid,
    /// Namespace and name.
    pub pod: PodRef,
    /// The pod's place in the order in which pods came to this node; `None` while it is not known.
    pub arrival: Option<Arrival>,
    /// What the pod's containers request, init containers first.
    pub requests: Vec<ContainerRequest>,
    /// The claim on the pod, as far as the agent can read it.
    pub claim: PodClaim,
    /// Whether the pod states which GPUs it accepts. Its claim must then not move to other devices.
    pub chooses_gpus: bool,
    /// Whether this node's agent made the claim, because no scheduler had made one.
    pub placed_here: bool,
    /// Whether a container of the pod has ever started.
    pub started: bool,
    /// Whether the pod has succeeded or failed: it never starts a container again.
    pub finished: bool,
}

impl GpuPod {
    /// Whether `claim` gives every container as many devices as the container requests.
    #[must_use]
    pub fn is_whole(&self, claim: &Claim) -> bool {
        let mut containers = self.requests.iter().zip(claim);
        self.requests.len() == claim.len()
            && containers.all(|(request, own)| usize::try_from(request.slots) == Ok(own.len()))
    }
}

/// A pod that is bound to a node, as the pod watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    /// The node.
    pub node: NodeName,
    /// The pod's request and claim, with the UID at the API server; `None` if it requests no GPU.
    pub gpu_pod: Option<GpuPod>,
    /// Whether the pod has ended.
    pub ended: bool,
    /// For a static pod, the hash by which the agent of its node knows it.
    pub hash: Option<PodUid>,
}
