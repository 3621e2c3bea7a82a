//! What the leading extender counts as taken of the devices of a node.

use crate::id::GpuUuid;
use crate::unit::Bytes;

/// What the claims of all pods take of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedDevice {
    /// The device.
    pub device: GpuUuid,
    /// Containers that share the device.
    pub containers: u64,
    /// Claimed memory.
    pub memory: Bytes,
    /// Claimed percent of SM time.
    pub cores: u64,
}
