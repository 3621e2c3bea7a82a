//! What the annotations of a Node say about the load of its GPUs: Alnair's annotations, and the profile of each GPU.
//!
//! What must never happen here: a value that is not known as a value; it is `None`, and the annotation lacks the field.

use crate::id::GpuUuid;
use crate::time::WallTime;
use crate::unit::Mib;
use crate::workload_profile::{CyclePeriod, JobKind, ProfiledForecast, ProfiledQuantity, VerdictKind};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound on the processes of a GPU that are listed one by one: 16 take about 350 bytes, and the annotations of 64 GPUs must
/// fit into the 256 KiB of a Node. The number of processes counts all of them.
pub const MAX_LISTED: usize = 16;

/// What a Node says about the load of its GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeProfile {
    /// What the GPUs are; `None` if it is not known.
    pub facts: Option<GpuStatic>,
    /// The GPUs, ordered by index.
    pub gpus: Vec<ProfiledGpu>,
}

/// What a Node says about one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledGpu {
    /// The index that NVML gives the GPU; it is in the keys of the annotations.
    pub index: u32,
    /// Memory, processes and load. `None` if its memory or its load is not known.
    pub snapshot: Option<GpuSnapshot>,
    /// The kind of job; `None` if the load is not known.
    pub job: Option<JobKind>,
    /// Verdicts and forecasts; `None` if nothing is known.
    pub profile: Option<GpuProfile>,
}

impl ProfiledGpu {
    /// The highest memory-copy utilisation of the last two minutes in percent, which is shown of a cyclic load only.
    #[must_use]
    pub fn cyclic_maximum(&self) -> Option<f64> {
        let snapshot = self.snapshot.as_ref().filter(|_| self.job == Some(JobKind::Dlt));
        snapshot.and_then(|snapshot| snapshot.memory_copy_maximum)
    }
}

/// What the GPUs of a node are. As in Alnair, all of them count as equal to the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuStatic {
    /// The number of GPUs.
    pub count: u32,
    /// The model of the first GPU; simulated GPUs say so in their model.
    pub model: Arc<str>,
    /// Its memory in GiB, rounded up.
    pub memory_gib: u64,
    /// Generation and lanes of its current PCIe link. An idle GPU lowers the generation.
    pub pcie: Option<(u32, u32)>,
}

/// Memory, processes and load of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSnapshot {
    /// Memory in use in GiB, rounded up.
    pub memory_used_gib: u64,
    /// Memory that is left of all memory in GiB, rounded up.
    pub memory_free_gib: u64,
    /// The number of processes, if they can be seen.
    pub processes: Option<u32>,
    /// Processes and their memory: those with the lowest numbers, at most [`MAX_LISTED`], in order. A process whose memory is not
    /// known is not listed.
    pub listed: Vec<(u32, Mib)>,
    /// The period of the last two minutes, if they are cyclic.
    pub period: Option<Duration>,
    /// Highest memory-copy utilisation of the last two minutes in percent.
    pub memory_copy_maximum: Option<f64>,
    /// Highest utilisation of the last two minutes in percent.
    pub utilization_maximum: Option<f64>,
    /// Whether the values are simulated.
    pub simulated: bool,
}

/// Verdicts and forecasts of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuProfile {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The time from which the forecasts count, in whole seconds: that of the oldest of their analyses.
    pub at: WallTime,
    /// The time from which the forecasts of an hour and the maxima of the next hour count, likewise; `None` without one.
    pub hour_at: Option<WallTime>,
    /// Whether the values are simulated.
    pub simulated: bool,
    /// The quantities, in the order of [`ProfiledQuantity::OF_GPU`].
    pub quantities: Vec<QuantityProfile>,
}

/// Verdict and forecasts of one quantity of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantityProfile {
    /// The quantity.
    pub quantity: ProfiledQuantity,
    /// Whether it repeats; `None` until a verdict is published.
    pub verdict: Option<VerdictKind>,
    /// The period, if it repeats.
    pub period: Option<CyclePeriod>,
    /// Forecasts, ordered by horizon.
    pub forecasts: Vec<ProfiledForecast>,
    /// A value that the maximum of the next hour exceeds in about one of ten hours.
    pub next_hour_maximum: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_is_shown_of_a_cyclic_load_only() {
        let snapshot = GpuSnapshot {
            memory_used_gib: 11,
            memory_free_gib: 1,
            processes: Some(1),
            listed: vec![(18_477, Mib(11_094))],
            period: None,
            memory_copy_maximum: Some(66.0),
            utilization_maximum: None,
            simulated: false,
        };
        for (job, maximum) in [(JobKind::Dlt, Some(66.0)), (JobKind::Others, None), (JobKind::Empty, None)] {
            let gpu = ProfiledGpu { index: 0, snapshot: Some(snapshot.clone()), job: Some(job), profile: None };
            assert_eq!(gpu.cyclic_maximum(), maximum, "{job:?}");
        }
    }
}
