//! The rules of a placement, and its result.

use super::score::{Fill, FillTerms};
use model::claim::Claim;
use model::placement::{GpuPolicy, NodePolicy, PlacementPreference, ScoreWeights};
use model::realtime::CheckRules;

/// The cluster's defaults, for pods that state no preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRules {
    /// Which nodes are preferred.
    pub node_policy: NodePolicy,
    /// Which GPUs of a node are preferred.
    pub gpu_policy: GpuPolicy,
    /// The weights of slots, SM time and memory.
    pub weights: ScoreWeights,
    /// The real-time check.
    pub check: CheckRules,
}

impl PlacementRules {
    /// The node policy of a pod.
    #[must_use]
    pub fn node_policy(&self, preference: &PlacementPreference) -> NodePolicy {
        preference.node_policy.unwrap_or(self.node_policy)
    }

    /// The GPU policy of a pod.
    #[must_use]
    pub fn gpu_policy<'a>(&'a self, preference: &'a PlacementPreference) -> &'a GpuPolicy {
        preference.gpu_policy.as_ref().unwrap_or(&self.gpu_policy)
    }

    /// The weights of a pod.
    #[must_use]
    pub fn weights(&self, preference: &PlacementPreference) -> ScoreWeights {
        preference.weights.unwrap_or(self.weights)
    }
}

/// Which claims count when a pod is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedClaims {
    /// The claims of pods that are bound, or that this scheduler binds now. They decide whether a pod fits.
    Claims,
    /// The claims, and the proposals: the places on nodes that the filter expects for pods that are not bound yet.
    ClaimsAndProposals,
}

/// The placement of a pod on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The device shares of each container, init containers first.
    pub claim: Claim,
    /// How full each part of the node is with this pod.
    pub terms: FillTerms,
    /// How full the node is with this pod: the terms by the pod's weights.
    pub fill: Fill,
    /// What the real-time check has found on the chosen GPUs.
    pub check: CheckResult,
}

/// What the real-time check has found on one node for a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckResult {
    /// Nothing: the check was not made, or the node does not fit for another reason.
    #[default]
    Unchecked,
    /// The memory that the pod requests is really free.
    Passed,
    /// The memory is free as far as is known: of a chosen GPU only the claims, or only the memory of all processes, is known.
    Fallback,
    /// On a chosen GPU less memory is really free than the pod requests, and the check only warns of it.
    Warned,
    /// The claims leave room on a GPU, and less memory is really free there than the pod requests.
    Refused,
}
