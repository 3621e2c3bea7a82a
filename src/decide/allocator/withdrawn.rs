//! Devices that this node had, or has, and does not offer: a GPU that was lost, replaced or hidden by the device configuration, a
//! MIG instance that was destroyed. A claim on such a device does not count on any device that is offered.
//!
//! A device that this agent has no record of is not withdrawn: the claim that names it may be for any GPU of the node. The
//! leading extender then places no pod on the node until the pod with the claim has ended.

use super::state::NodeAllocator;
use model::agent_stream::MAX_WITHDRAWN;
use model::id::GpuUuid;
use model::slot::Slot;
use std::collections::BTreeSet;

/// Upper bound on the devices that are remembered without a claim on them. A node has at most [`MAX_WITHDRAWN`] at a time;
/// with each new division of a GPU its MIG instances get new UUIDs.
const MAX_SEEN: usize = 4 * MAX_WITHDRAWN;

/// The devices that the node has or had.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenDevices {
    /// The devices that this process has offered at some time.
    offered: BTreeSet<GpuUuid>,
    /// The GPUs that the driver lists without MIG instances, including GPUs that are not offered.
    whole: BTreeSet<GpuUuid>,
    /// The records of earlier processes are not read yet, so the node may have had a device that is not recorded here.
    without_records: bool,
}

impl NodeAllocator {
    /// Sets the GPUs that the driver lists without MIG instances, including GPUs that are not offered. Returns whether the
    /// kubelet's list of slots changes.
    pub fn whole_gpus_are(&mut self, gpus: BTreeSet<GpuUuid>) -> bool {
        if gpus == self.seen.whole {
            return false;
        }
        let before = self.list();
        self.seen.whole = gpus;
        self.find_taken();
        self.list() != before
    }

    /// Call this to make a list of slots before the records of earlier processes are read. Until then, a claim on a device
    /// without a record does not count on any device that is offered.
    pub fn is_without_records(&mut self) {
        self.seen.without_records = true;
    }

    /// Remembers the devices that are offered now.
    pub(super) fn note_offered(&mut self) {
        self.seen.offered.extend(self.devices.keys().cloned());
        if self.seen.offered.len() > MAX_SEEN {
            let claimed = |device: &GpuUuid| self.ledger.pods_on(device).next().is_some();
            self.seen.offered.retain(|device| self.devices.contains_key(device) || claimed(device));
        }
    }

    /// The devices that pods claim, that this node has or had, and that it does not offer. At most [`MAX_WITHDRAWN`].
    #[must_use]
    pub fn withdrawn(&self) -> BTreeSet<GpuUuid> {
        let withdrawn = self.ledger.devices().filter(|device| self.is_withdrawn(device));
        withdrawn.take(MAX_WITHDRAWN).cloned().collect()
    }

    /// Whether the node has or had this device and does not offer it. A GPU that is divided into MIG instances is not withdrawn:
    /// its holder may hold the instances.
    pub(super) fn is_withdrawn(&self, device: &GpuUuid) -> bool {
        !self.devices.contains_key(device) && self.instances_of(device).next().is_none() && self.was_here(device)
    }

    /// The MIG instances of a GPU that are offered.
    pub(super) fn instances_of<'a>(&'a self, gpu: &'a GpuUuid) -> impl Iterator<Item = &'a GpuUuid> {
        self.devices.values().filter(move |device| device.parent.as_ref() == Some(gpu)).map(|device| &device.device)
    }

    /// Whether there is a record of the device on this node: the driver lists it, this process has offered it, or an earlier
    /// process gave it to a container.
    fn was_here(&self, device: &GpuUuid) -> bool {
        let of_ids = |ids: &[std::sync::Arc<str>]| {
            ids.iter().filter_map(|id| Slot::parse(id)).any(|slot| slot.device == *device)
        };
        let in_files = || self.claims.in_limits_files.values().flatten().any(|share| share.device == *device);
        self.seen.without_records
            || self.seen.offered.contains(device)
            || self.seen.whole.contains(device)
            || in_files()
            || self.tickets.iter().any(|issued| of_ids(&issued.ids))
    }
}

#[cfg(test)]
mod tests {
    use super::super::SharedDevice;
    use super::super::tests::{allocator, device, device_share, shared_gpu, single};
    use super::*;
    use model::gpu_pod::GpuPod;

    fn started(n: u32, gpu: u32) -> GpuPod {
        GpuPod { started: true, ..single(n, device_share(gpu, 8, 10)) }
    }

    #[test]
    fn a_lost_gpu_is_withdrawn_while_a_pod_claims_it_and_one_that_was_never_here_is_not() {
        let mut allocator = allocator(vec![started(1, 1), started(2, 5)]);
        assert!(allocator.withdrawn().is_empty(), "one is offered, and the other one was never here");
        allocator.set_devices(vec![shared_gpu(0, 10)]);
        assert_eq!(allocator.withdrawn(), BTreeSet::from([device(1)]));
        allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
        assert!(allocator.withdrawn().is_empty(), "it is back");
        allocator.set_devices(vec![shared_gpu(0, 10)]);
        allocator.set_gpu_pods(vec![started(2, 5)]);
        assert!(allocator.withdrawn().is_empty(), "nobody claims it");
        allocator.whole_gpus_are([device(0), device(5)].into());
        assert_eq!(allocator.withdrawn(), BTreeSet::from([device(5)]), "it is listed and not offered");
    }

    #[test]
    fn an_agent_that_starts_knows_a_lost_gpu_by_its_tickets() {
        let mut allocator = allocator(vec![started(2, 5)]);
        let ticket = model::id::Ticket::of_random([1; 16]);
        allocator.issue(ticket, &super::super::tests::ids(&[(5, 3)]));
        assert_eq!(allocator.withdrawn(), BTreeSet::from([device(5)]));
    }

    #[test]
    fn a_gpu_that_is_divided_now_is_not_withdrawn() {
        let mut allocator = allocator(vec![started(1, 1)]);
        let instance = SharedDevice { parent: Some(device(1)), ..shared_gpu(100, 10) };
        allocator.set_devices(vec![shared_gpu(0, 10), instance]);
        assert!(allocator.withdrawn().is_empty(), "its claim may hold the instance");
    }

    #[test]
    fn the_number_of_remembered_devices_is_bounded() {
        let mut allocator = allocator(vec![started(1, 1)]);
        for n in 0..u32::try_from(2 * MAX_SEEN).unwrap() {
            allocator.set_devices(vec![shared_gpu(10 + n, 1)]);
        }
        assert!(allocator.seen.offered.len() <= MAX_SEEN);
        assert_eq!(allocator.withdrawn(), BTreeSet::from([device(1)]));
    }
}
