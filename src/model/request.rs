//! What one container asks of GPUs.

use crate::unit::{CorePercent, Mib};

/// Memory of each of the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRequest {
    /// So much.
    Amount(Mib),
    /// This share of what the GPU offers, 1 to 100.
    Percent(u8),
}

impl MemoryRequest {
    /// The whole of a GPU.
    pub const WHOLE: MemoryRequest = MemoryRequest::Percent(100);

    /// How much that is of a GPU that offers `total`: a share is cut to whole MiB.
    #[must_use]
    pub fn of(self, total: Mib) -> Mib {
        match self {
            MemoryRequest::Amount(amount) => amount,
            MemoryRequest::Percent(share) => {
                let (hundredths, rest) = (total.0 / 100, total.0 % 100);
                let share = u64::from(share.min(100));
                Mib(hundredths * share + rest * share / 100)
            }
        }
    }
}

/// The request of one container. A container that asks for no GPU has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// How many GPUs, at least one.
    pub count: u32,
    /// Memory of each.
    pub memory: MemoryRequest,
    /// Computing time of each, 0 to 100. 0 is "as much as is left", and still no place on a GPU that is all given away.
    pub cores: CorePercent,
    /// Priority among the containers of one GPU, if one is asked for: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_what_the_gpu_offers() {
        for (share, total, expected) in
            [(25, 81_920, 20_480), (100, 81_559, 81_559), (33, 100, 33), (50, 81_559, 40_779), (1, 99, 0), (255, 7, 7)]
        {
            assert_eq!(MemoryRequest::Percent(share).of(Mib(total)), Mib(expected), "{share} % of {total}");
        }
        assert_eq!(MemoryRequest::Percent(100).of(Mib(u64::MAX)), Mib(u64::MAX));
        assert_eq!(MemoryRequest::Amount(Mib(3)).of(Mib(1)), Mib(3));
    }
}
