//! A device that is shared, and a slot of it as kubelet is told of it.

use model::id::GpuUuid;
use model::slot::Slot;
use model::unit::Bytes;
use std::sync::Arc;

/// A GPU or MIG instance that is shared on this node, after every scaling of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedDevice {
    /// Which.
    pub device: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// The model, as the register annotation spells it.
    pub model: Arc<str>,
    /// How many containers may share it.
    pub slots: u16,
    /// Memory that may be promised: the GPU's, times the scaling.
    pub memory: Bytes,
    /// Percent of SM time that may be promised: 100 times the scaling.
    pub cores: u32,
    /// NUMA node, where the machine tells one.
    pub numa: Option<u32>,
    /// Whether it can be trusted with new work.
    pub healthy: bool,
}

/// One slot as kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSlot {
    /// Which.
    pub slot: Slot,
    /// Whether kubelet may hand it out.
    pub healthy: bool,
    /// NUMA node of its device.
    pub numa: Option<u32>,
}
