//! Shared devices, and their slots as the kubelet's list holds them.

use model::id::GpuUuid;
use model::slot::Slot;
use model::unit::Bytes;
use std::sync::Arc;

/// A GPU or MIG instance that is shared on this node, after every scaling of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedDevice {
    /// The UUID.
    pub device: GpuUuid,
    /// The GPU of a MIG instance.
    pub parent: Option<GpuUuid>,
    /// The index that NVML gives the device.
    pub index: u32,
    /// The `N` of the GPU's `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// The model, as the register annotation spells it.
    pub model: Arc<str>,
    /// Number of slots: how many containers may share the device.
    pub slots: u16,
    /// Memory that pods may claim: the GPU's memory times the scaling.
    pub memory: Bytes,
    /// Percent of SM time that pods may claim: 100 times the scaling.
    pub cores: u32,
    /// The NUMA node, if the machine reports it.
    pub numa: Option<u32>,
    /// Whether the device is fit for new containers.
    pub healthy: bool,
}

/// One slot in the list for the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSlot {
    /// The slot.
    pub slot: Slot,
    /// Whether the kubelet may allocate the slot.
    pub healthy: bool,
    /// The NUMA node of the slot's device.
    pub numa: Option<u32>,
}
