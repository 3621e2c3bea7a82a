//! What one container requests of GPUs.

use crate::unit::{Bytes, CorePercent, Mib};
use std::sync::Arc;

/// Memory of each of the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRequest {
    /// This amount.
    Amount(Mib),
    /// This percentage of the memory that the GPU offers, 1 to 100.
    Percent(u8),
}

impl MemoryRequest {
    /// The whole of a GPU.
    pub const WHOLE: MemoryRequest = MemoryRequest::Percent(100);

    /// The request in bytes, for a GPU that offers `total`. A percentage is rounded down to whole bytes.
    #[must_use]
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            MemoryRequest::Amount(amount) => amount.bytes(),
            MemoryRequest::Percent(share) => {
                let (hundredths, rest) = (total.0 / 100, total.0 % 100);
                let share = u64::from(share.min(100));
                Bytes(hundredths * share + rest * share / 100)
            }
        }
    }
}

/// The request of one container. A container that requests no GPU has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// Number of GPUs, at least one.
    pub count: u32,
    /// Memory of each GPU.
    pub memory: MemoryRequest,
    /// Percent of the SM time of each GPU, 0 to 100. 0 requests whatever is left; it still gets no place on a GPU whose
    /// SM time is all claimed.
    pub cores: CorePercent,
    /// Priority among the containers of one GPU, if one is requested: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

/// When a container runs in the life of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerRole {
    /// Runs to its end before the others start.
    Init,
    /// An init container that keeps running (`restartPolicy: Always`).
    Sidecar,
    /// Runs at the same time as the other app containers.
    App,
}

/// One container of a pod, in the order of the pod's spec with init containers first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// The container's name.
    pub container: Arc<str>,
    /// When it runs.
    pub role: ContainerRole,
    /// Number of slots that the container requests from the kubelet: 0 for a container that must see no GPU.
    pub slots: u32,
    /// Memory of each GPU, if the pod requests an amount.
    pub memory: Option<MemoryRequest>,
    /// Percent of SM time of each GPU, if the pod requests an amount.
    pub cores: Option<CorePercent>,
    /// Priority among the containers of one GPU, if the pod requests one: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_refers_to_the_memory_that_the_gpu_offers() {
        for (share, total, expected) in
            [(25, 81_920, 20_480), (100, 81_559, 81_559), (33, 100, 33), (50, 81_559, 40_779), (1, 99, 0), (255, 7, 7)]
        {
            assert_eq!(MemoryRequest::Percent(share).of(Bytes(total)), Bytes(expected), "{share} % of {total}");
        }
        assert_eq!(MemoryRequest::Percent(100).of(Bytes(u64::MAX)), Bytes(u64::MAX));
        assert_eq!(MemoryRequest::Amount(Mib(3)).of(Bytes(1)), Mib(3).bytes());
    }
}
