//! What pods have had of GPUs since they came: counters that outlive the program.

use crate::id::{GpuUuid, PodUid};
use crate::unit::{Millijoules, Nanos};

/// Pods and GPUs that are counted: 512 pods with GPUs on a node, each on four of them.
pub const MAX_TALLIES: usize = 2048;

/// What one pod has had of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuTally {
    /// Whose.
    pub pod: PodUid,
    /// Of which card.
    pub gpu: GpuUuid,
    /// GPU time: a second of the card is divided among those who hold it, so that all of them together have no more.
    pub held: Nanos,
    /// Its part of what the card drew meanwhile.
    pub energy: Millijoules,
}
