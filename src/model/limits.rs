//! The limits of a container on its GPUs: the limiter enforces them, and the container can read them in its limits
//! file. They do not change after the start.

use crate::claim::DeviceShare;
use crate::id::{ContainerKey, GpuUuid, PodRef, PodUid};
use crate::unit::{Bytes, CorePercent};
use std::sync::Arc;

/// The limits of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLimits {
    /// The container.
    pub holder: ContainerKey,
    /// Namespace and name of the pod.
    pub pod: PodRef,
    /// The container's devices, in the order in which the container numbers them.
    pub devices: Vec<DeviceLimits>,
    /// Priority among the containers of one GPU, if a priority is requested: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

impl ContainerLimits {
    /// The device shares that the limits were made from.
    #[must_use]
    pub fn device_shares(&self) -> Vec<DeviceShare> {
        self.devices.iter().map(DeviceLimits::device_share).collect()
    }
}

/// Upper bound on [`PodMemoryClaim`]s: enough for every pod that a node can have, each on all GPUs of a usual node.
pub const MAX_MEMORY_CLAIMS: usize = 8192;

/// The memory of one device that the containers of one pod may hold together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodMemoryClaim {
    /// The pod, by the UID that the kubelet uses.
    pub pod: PodUid,
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// Memory.
    pub memory: Bytes,
}

/// The limits on one GPU or MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The GPU or MIG instance.
    pub uuid: GpuUuid,
    /// NVML's index on the node.
    pub index: u32,
    /// Marketing name.
    pub model: Arc<str>,
    /// Memory.
    pub memory: Bytes,
    /// Whether `memory` is all memory of the device, because the claim names no smaller amount.
    pub unlimited: bool,
    /// Percent of SM time; `None` means no limit.
    pub cores: Option<CorePercent>,
}

impl DeviceLimits {
    /// The device share that the limits were made from.
    #[must_use]
    pub fn device_share(&self) -> DeviceShare {
        let memory = (!self.unlimited).then_some(self.memory);
        DeviceShare { device: self.uuid.clone(), memory, cores: self.cores }
    }
}
