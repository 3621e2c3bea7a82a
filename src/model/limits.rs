//! What a container was promised of GPUs, once and for all: this is what limits it, and what it may read of itself.

use crate::id::{GpuUuid, PodRef, PodUid};
use crate::unit::{Bytes, CorePercent};
use std::sync::Arc;

/// The promise to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLimits {
    /// The pod's identity.
    pub uid: PodUid,
    /// The pod's names.
    pub pod: PodRef,
    /// The container's name.
    pub container: Arc<str>,
    /// In the order in which the container counts its devices.
    pub devices: Vec<DeviceLimits>,
    /// Priority among the containers of one GPU, if one was asked for: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

/// At most this many promises to pods are looked at: every pod that a node can have, each on all GPUs of a usual one.
pub const MAX_PROMISES: usize = 8192;

/// How much memory of one device the containers of a pod may hold together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodMemoryClaim {
    /// The pod, as kubelet calls it.
    pub pod: PodUid,
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// Memory.
    pub memory: Bytes,
}

/// The promise of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Which.
    pub uuid: GpuUuid,
    /// NVML's index on the node.
    pub index: u32,
    /// Marketing name.
    pub model: Arc<str>,
    /// Memory.
    pub memory: Bytes,
    /// Whether that is all there is, because nothing less was promised.
    pub unlimited: bool,
    /// Computing time; none is no limit.
    pub cores: Option<CorePercent>,
}
