//! The GPU request of one container.

use crate::unit::{Bytes, CorePercent, Mib};
use std::sync::Arc;

/// Memory of each of the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryRequest {
    /// This amount.
    Amount(Mib),
    /// This percentage of the memory that the GPU offers, 1 to 100.
    Percent(u8),
}

impl MemoryRequest {
    /// The whole of a GPU.
    pub const WHOLE: MemoryRequest = MemoryRequest::Percent(100);

    /// The memory that the container claims of a GPU that offers `total`. A percentage is rounded down to whole MiB,
    /// because a claim is written in MiB. The result is at least 1 MiB: in a claim, 0 means unlimited memory.
    #[must_use]
    pub fn of(self, total: Bytes) -> Mib {
        let Mib(amount) = match self {
            MemoryRequest::Amount(amount) => amount,
            MemoryRequest::Percent(share) => {
                let (hundredths, rest) = (total.0 / 100, total.0 % 100);
                let share = u64::from(share.min(100));
                Mib::within(Bytes(hundredths * share + rest * share / 100))
            }
        };
        Mib(amount.max(1))
    }
}

/// The request of one container. A container that requests no GPU has no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// Number of GPUs, at least one.
    pub count: u32,
    /// Memory of each GPU.
    pub memory: MemoryRequest,
    /// Percent of the SM time of each GPU, 0 to 100. With 0 the container claims no SM time and uses what is left, but
    /// it is not placed on a GPU whose SM time is fully claimed.
    pub cores: CorePercent,
    /// Priority among the containers of one GPU, if a priority is requested: 0 is high, 1 is low.
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
    /// When the container runs.
    pub role: ContainerRole,
    /// Number of slots that the container requests from the kubelet: 0 for a container that must see no GPU.
    pub slots: u32,
    /// Memory of each GPU, if the pod requests an amount.
    pub memory: Option<MemoryRequest>,
    /// Percent of SM time of each GPU, if the pod requests an amount.
    pub cores: Option<CorePercent>,
    /// Priority among the containers of one GPU, if the pod requests a priority: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_refers_to_the_memory_that_the_gpu_offers() {
        // The memory of an A100, an H100 and a T4, in MiB, and what each percentage of it is.
        for (share, total, expected) in [
            (25, 81_920, 20_480),
            (33, 81_920, 27_033),
            (100, 81_559, 81_559),
            (50, 81_559, 40_779),
            (1, 81_559, 815),
            (33, 15_360, 5_068),
            (33, 100, 33),
            (255, 7, 7),
        ] {
            assert_eq!(MemoryRequest::Percent(share).of(Mib(total).bytes()), Mib(expected), "{share} % of {total} MiB");
        }
        let odd = Bytes(Mib(81_559).bytes().0 + Bytes::MIB - 1);
        assert_eq!(MemoryRequest::WHOLE.of(odd), Mib(81_559), "part of a MiB cannot be claimed");
        assert_eq!(MemoryRequest::WHOLE.of(Bytes(u64::MAX)), Mib(u64::MAX >> 20));
        assert_eq!(MemoryRequest::Amount(Mib(3)).of(Bytes(1)), Mib(3));
    }

    #[test]
    fn no_request_is_rounded_to_0_which_would_mean_unlimited() {
        for (request, total) in [
            (MemoryRequest::Percent(1), Mib(99).bytes()),
            (MemoryRequest::Percent(0), Mib(81_559).bytes()),
            (MemoryRequest::WHOLE, Bytes(Bytes::MIB - 1)),
            (MemoryRequest::WHOLE, Bytes(0)),
            (MemoryRequest::Amount(Mib(0)), Mib(81_559).bytes()),
        ] {
            assert_eq!(request.of(total), Mib(1), "{request:?} of {total:?}");
        }
    }
}
