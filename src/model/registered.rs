//! The register: what a node offers to the scheduler, one entry for each GPU, or for each MIG
//! instance of a GPU in MIG mode.

use crate::id::GpuUuid;
use crate::unit::{CorePercent, Mib};
use std::sync::Arc;

/// One GPU as it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredGpu {
    /// The identity.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// Number of containers that may share the GPU.
    pub slots: u32,
    /// Memory that the node offers: the GPU's memory times the memory scaling.
    pub memory: Mib,
    /// SM time that the node offers: 100 times the core scaling.
    pub cores: CorePercent,
    /// The product name, beginning with `NVIDIA`; users select GPUs by it.
    pub product: Arc<str>,
    /// NUMA node; 0 if it is not known.
    pub numa: u32,
    /// The sharing mode: `hami-core`, `mig`, or another mode that pods may request.
    pub mode: Arc<str>,
    /// Whether new containers may be placed on the GPU.
    pub healthy: bool,
    /// The MIG profiles that can be created on the GPU, if it is shared by MIG.
    pub mig_profiles: Vec<MigProfile>,
}

/// A MIG profile: one size of MIG instance that can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// The name, such as `1g.10gb`.
    pub name: Arc<str>,
    /// Memory of the instance.
    pub memory: Mib,
    /// The instance's percentage of the SM time.
    pub cores: CorePercent,
    /// Number of compute slices that the instance takes.
    pub slices: u32,
    /// The placements at which the instance can be created.
    pub placements: Vec<MigPlacement>,
}

/// A placement of a MIG instance, in memory slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigPlacement {
    /// The first memory slice.
    pub start: u32,
    /// The number of memory slices.
    pub size: u32,
}
