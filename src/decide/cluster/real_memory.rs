//! What the leader knows about the memory that is really in use: what reports have changed, on which GPUs the check of a pod
//! fails, and why a GPU is checked by its claims only.

use super::agent_link::LinkState;
use super::node::NodeClaims;
use super::state::ClusterState;
use crate::placement::{BeyondClaims, MemoryBasis, PlacementDevice, requested};
use model::agent_stream::MemoryUser;
use model::id::{GpuUuid, NodeName};
use model::placement::PlacementRequest;
use model::reading::Absence;
use model::unit::Bytes;
use std::fmt;

/// Upper bound on the changes that wait to be taken. They are taken after each report, and a report has at most 176 GPUs.
const MOST: usize = 256;

/// A change in the memory of a GPU, by a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageChange {
    /// The node.
    pub node: NodeName,
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// Sum of the claims on the device.
    pub claimed: Bytes,
    /// Memory in use.
    pub used: Bytes,
    /// The GPU's utilisation in percent; `None` if not known.
    pub utilization: Option<u32>,
    /// Number of processes; `None` if there is no list.
    pub processes: Option<u32>,
}

/// The changes that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct UsageChanges(Vec<UsageChange>);

/// A GPU whose claims leave room for a container and on which less memory is really free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCheck {
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// Memory that the container requests.
    pub requested: Bytes,
    /// Memory that the claims leave free.
    pub free: Bytes,
    /// Memory that is really free.
    pub really_free: Bytes,
    /// Memory that pods may claim.
    pub total: Bytes,
    /// What is known of the memory beyond the claims.
    pub beyond: BeyondClaims,
    /// The users of most of the GPU's memory without a claim. Only operators may see them.
    pub users: Box<[MemoryUser]>,
}

/// Why the memory of the processes on a GPU is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownMemory {
    /// No agent reports for the node.
    NoAgent,
    /// The agent has sent nothing for a while.
    Silent,
    /// The agent does not report this GPU.
    NoDevice(GpuUuid),
    /// There is no reading; `None` if the agent gives no reason.
    NoReading(Option<Absence>),
    /// The list of processes does not show what a pod uses.
    NoAmount,
}

/// The texts of NVML, which people search for.
impl fmt::Display for UnknownMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownMemory::NoAgent => f.write_str("no agent reports for the node"),
            UnknownMemory::Silent => f.write_str("the agent of the node has sent nothing for 25 s"),
            UnknownMemory::NoDevice(uuid) => {
                write!(f, "failed to get device handle for UUID {uuid}: NVML_ERROR_NOT_FOUND")
            }
            UnknownMemory::NoReading(None) => f.write_str("the agent does not report it"),
            UnknownMemory::NoReading(Some(Absence::NotYet)) => f.write_str("NVML not initialized"),
            UnknownMemory::NoReading(Some(Absence::DriverNotLoaded)) => {
                f.write_str("failed to initialize NVML: NVML_ERROR_DRIVER_NOT_LOADED")
            }
            UnknownMemory::NoReading(Some(Absence::LibraryNotFound)) => {
                f.write_str("failed to initialize NVML: NVML_ERROR_LIBRARY_NOT_FOUND")
            }
            UnknownMemory::NoReading(Some(Absence::NoPermission)) => {
                f.write_str("failed to get device handle: NVML_ERROR_NO_PERMISSION")
            }
            UnknownMemory::NoReading(Some(why)) => write!(f, "{why}"),
            UnknownMemory::NoAmount => f.write_str("the driver does not show how much memory a process uses"),
        }
    }
}

impl UsageChanges {
    pub(super) fn add(&mut self, changes: impl Iterator<Item = UsageChange>) {
        self.0.extend(changes.take(MOST.saturating_sub(self.0.len())));
    }
}

impl ClusterState {
    /// What the reports since this was last called have changed.
    pub fn take_usage_changes(&mut self) -> Vec<UsageChange> {
        std::mem::take(&mut self.usage_changes.0)
    }

    /// The GPUs of a node on which the check fails for a container of the pod.
    #[must_use]
    pub fn failed_checks(&self, request: &PlacementRequest, name: &str) -> Vec<FailedCheck> {
        let Some(node) = self.nodes.get(name) else { return Vec::new() };
        node.devices().devices.iter().filter_map(|device| failed_check(request, node, device)).collect()
    }

    /// A GPU of this node whose processes are not known, and why.
    #[must_use]
    pub fn unknown_memory(&self, name: &str) -> Option<(GpuUuid, UnknownMemory)> {
        let node = self.nodes.get(name)?;
        let mut devices = node.devices().devices.iter();
        let device = devices.find(|device| device.beyond.basis != MemoryBasis::Processes)?;
        Some((device.uuid.clone(), node.unknown_memory(&device.uuid)))
    }
}

impl NodeClaims {
    /// Why the memory of the processes on this device is not known.
    fn unknown_memory(&self, device: &GpuUuid) -> UnknownMemory {
        let Some(link) = self.agent().filter(|link| link.state != LinkState::Away) else {
            return UnknownMemory::NoAgent;
        };
        if link.is_silent {
            return UnknownMemory::Silent;
        }
        let Some(gpu) = link.report.gpus.get(device) else { return UnknownMemory::NoDevice(device.clone()) };
        let readings = [&gpu.memory_total, &gpu.memory_used, &gpu.memory_listed];
        let absent = readings.into_iter().find_map(|reading| reading.absence());
        absent.map_or(UnknownMemory::NoAmount, UnknownMemory::NoReading)
    }

    /// What the report says of these devices now.
    pub(super) fn usage<'a>(
        &'a self,
        devices: impl Iterator<Item = &'a GpuUuid> + 'a,
    ) -> impl Iterator<Item = UsageChange> + 'a {
        devices.filter_map(|uuid| {
            let gpu = self.agent()?.report.gpus.get(uuid)?;
            let device = self.devices().devices.iter().find(|device| device.uuid == *uuid)?;
            Some(UsageChange {
                node: self.name().clone(),
                device: uuid.clone(),
                claimed: Bytes(device.claimed.memory),
                used: gpu.memory_used.get()?,
                utilization: gpu.utilization.get(),
                processes: gpu.processes.get(),
            })
        })
    }
}

/// The first container of the pod for which the check fails on this device.
fn failed_check(request: &PlacementRequest, node: &NodeClaims, device: &PlacementDevice) -> Option<FailedCheck> {
    let free = Bytes(device.capacity.memory.saturating_sub(device.claimed.memory));
    let really_free = free.less(device.beyond.taken);
    let asked = request.requests.iter().filter(|container| container.slots > 0);
    let mut asked = asked.map(|container| requested(container, device.capacity));
    let requested = asked.find(|memory| memory.0 <= free.0 && memory.0 > really_free.0)?;
    let reported = node.agent().and_then(|link| link.report.gpus.get(&device.uuid));
    Some(FailedCheck {
        device: device.uuid.clone(),
        index: device.index,
        requested,
        free,
        really_free,
        total: Bytes(device.capacity.memory),
        beyond: device.beyond,
        users: reported.map(|gpu| gpu.users.clone()).unwrap_or_default(),
    })
}

/// For operators: what uses the memory.
impl fmt::Display for FailedCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: Bytes| bytes.0 >> 20;
        let requested = self.requested.0.div_ceil(1 << 20);
        write!(f, "GPU {}: {requested} MiB requested, claims leave {} MiB", self.index, mib(self.free))?;
        write!(f, ", {} MiB are really free", mib(self.really_free))?;
        match self.beyond.basis {
            MemoryBasis::Processes => write!(f, "; {} MiB are used without a claim", mib(self.beyond.strangers))?,
            MemoryBasis::Sums | MemoryBasis::Claims => f.write_str("; it is not known which processes use it")?,
        }
        for (number, user) in self.users.iter().enumerate() {
            write!(f, "{} {} ({} MiB)", if number == 0 { ", most by" } else { "," }, user.name, mib(user.memory))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod replay;
#[cfg(test)]
mod tests;
