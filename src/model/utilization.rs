//! NVML's own samples of a GPU's utilisation, each with NVML's stamp. The agent reads them with each process list; between two
//! readings nothing is lost, while a reading once a second sees one of several samples.

use crate::id::GpuUuid;
use crate::time::{Monotonic, WallTime};
use crate::unit::Percent;

/// Upper bound on the samples of one reading: NVML's buffers hold about 120, the samples of 20 s to two minutes.
pub const MAX_UTILIZATION_SAMPLES: usize = 1024;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UtilizationSample {
    /// NVML's stamp: the wall clock, as the driver sees it.
    pub stamp: WallTime,
    /// Percentage of time in which the GPU ran a kernel, over the time since the sample before.
    pub percent: Percent,
}

/// The samples that are new since the last reading.
#[derive(Clone, Debug, PartialEq)]
pub struct UtilizationSamples {
    /// The GPU.
    pub gpu: GpuUuid,
    /// When the samples were read.
    pub read_at: Monotonic,
    /// The samples within the physical range, ordered by their stamps, each stamp once; at most [`MAX_UTILIZATION_SAMPLES`].
    pub samples: Vec<UtilizationSample>,
}
