//! What a node offers to the scheduler: one entry for each physical GPU, however many containers may share it.

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
    /// How many containers may share it.
    pub slots: u32,
    /// Memory that is offered: what the card has, scaled.
    pub memory: Mib,
    /// Computing time that is offered: 100, scaled.
    pub cores: CorePercent,
    /// What users select by: the product's name, beginning with `NVIDIA`.
    pub product: Arc<str>,
    /// NUMA node; 0 also where it is not known.
    pub numa: u32,
    /// How the GPU is shared: `hami-core`, `mig`, or another word that pods may ask for.
    pub mode: Arc<str>,
    /// Whether new containers may be placed on it.
    pub healthy: bool,
    /// The MIG profiles that may be made on it, where it is shared by MIG.
    pub mig_profiles: Vec<MigProfile>,
}

/// A shape of MIG instance that may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// `1g.10gb`.
    pub name: Arc<str>,
    /// Its memory.
    pub memory: Mib,
    /// Its share of the computing time.
    pub cores: CorePercent,
    /// How many slices of computing it takes.
    pub slices: u32,
    /// Where it may be put.
    pub placements: Vec<MigPlacement>,
}

/// A place for a MIG instance: slices of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigPlacement {
    /// The first.
    pub start: u32,
    /// How many.
    pub size: u32,
}
