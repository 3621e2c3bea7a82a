//! The devices of a node, as placement sees them.

use super::reality::BeyondClaims;
use super::score::{Capacity, Fill};
use crate::ledger::DeviceDemand;
use model::id::GpuUuid;
use model::realtime::NodeCheck;
use model::unit::{Bytes, CorePercent};
use std::sync::Arc;

/// One GPU or MIG instance of a node, with the sum of the claims on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementDevice {
    /// The UUID.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// NUMA node.
    pub numa: u32,
    /// What the device offers.
    pub capacity: Capacity,
    /// The device's product and mode.
    pub kind: Arc<DeviceKind>,
    /// Whether the device may get new containers, and if not, why.
    pub fitness: DeviceFitness,
    /// The sum of the claims.
    pub claimed: DeviceDemand,
    /// The sum of the proposals.
    pub proposed: DeviceDemand,
    /// Memory in use beyond the claims.
    pub beyond: BeyondClaims,
}

/// Product and sharing mode, which many GPUs have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// The product name in lower case.
    pub product: Arc<str>,
    /// The sharing mode.
    pub mode: Arc<str>,
}

/// Whether a device may get new containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFitness {
    /// The device may get new containers.
    Fit,
    /// The device is unhealthy.
    Unhealthy,
    /// An operator cordoned the device.
    Cordoned,
    /// Processes of a pod without a claim use the device.
    InUse,
}

/// The devices of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementNode {
    /// The devices.
    pub devices: Vec<PlacementDevice>,
    /// How well each device is connected to each other device, row by row; empty if not known.
    pub links: Box<[u32]>,
    /// What the node's agent says about the real-time check.
    pub check: NodeCheck,
}

impl PlacementNode {
    /// How well two devices are connected; more is better, 0 if not known.
    pub(super) fn link(&self, one: usize, other: usize) -> u64 {
        if one == other {
            return 0;
        }
        self.links.get(one * self.devices.len() + other).copied().map_or(0, u64::from)
    }
}

/// A device that passed every test for one container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) device: &'a PlacementDevice,
    /// The device's place in the node's list.
    pub(super) place: usize,
    /// How full the device is with the container.
    pub(super) fill: Fill,
    /// Memory and SM time that the container takes.
    pub(super) share: (Bytes, CorePercent),
    /// Less memory is really free than the container requests.
    pub(super) lacks_memory: bool,
}
