//! What a container was promised of GPUs, once and for all: this is what limits it, and what it may read of itself.

use crate::id::{GpuUuid, PodRef, PodUid};
use crate::unit::{Bytes, CorePercent};
use std::sync::Arc;

/// The promise to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPromise {
    /// The pod's identity.
    pub uid: PodUid,
    /// The pod's names.
    pub pod: PodRef,
    /// The container's name.
    pub container: Arc<str>,
    /// In the order in which the container counts its devices.
    pub devices: Vec<DevicePromise>,
    /// Priority among the containers of one GPU, if one was asked for: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

/// The promise of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePromise {
    /// Which.
    pub uuid: GpuUuid,
    /// NVML's index on the node.
    pub index: u32,
    /// Marketing name.
    pub model: Arc<str>,
    /// Memory.
    pub memory: Bytes,
    /// Computing time; none is no limit.
    pub cores: Option<CorePercent>,
}
