//! GPU time and energy of pods, counted from the start of the agent.

use crate::id::{GpuUuid, PodUid};
use crate::unit::{Millijoules, Nanos};

/// Upper bound on the counted pairs of pod and GPU: 512 GPU pods on a node, each on four GPUs.
pub const MAX_TALLIES: usize = 2048;

/// The GPU time and energy of one pod on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuTally {
    /// The pod.
    pub pod: PodUid,
    /// The GPU.
    pub gpu: GpuUuid,
    /// GPU time: each second of the GPU is divided among its holders, so that the sums of all holders never exceed the
    /// time that passed.
    pub held: Nanos,
    /// The pod's part of the energy that the GPU drew.
    pub energy: Millijoules,
}
