//! A claim moves only where the devices have room for all claims, and only its devices change.

use crate::allocator::tests::{allocator, device, device_share, filled, ids, row, shared_gpu, single};
use crate::allocator::{NodeAllocator, SharedDevice};
use model::claim::DeviceShare;
use model::gpu_pod::GpuPod;
use model::id::GpuUuid;
use model::slot::Slot;
use model::unit::Bytes;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A GPU on a NUMA node of its own.
fn apart(n: u32) -> SharedDevice {
    SharedDevice { numa: Some(n), ..shared_gpu(n, 10) }
}

fn following(gpu_pods: Vec<model::gpu_pod::GpuPod>) -> NodeAllocator {
    let mut allocator = allocator(gpu_pods);
    allocator.set_devices(vec![apart(0), apart(1)]);
    allocator.follow_topology(true);
    allocator
}

#[test]
fn a_claim_moves_to_the_devices_that_the_kubelet_chose_if_it_fits_there() {
    let mut allocator = following(vec![single(1, device_share(1, 8, 30)), single(2, device_share(0, 70, 30))]);
    for (n, pod, slots) in [(7, 1, [(0, 3)]), (8, 2, [(1, 4)])] {
        allocator.issue(model::id::Ticket::of_random([n; 16]), &ids(&slots));
        let bound =
            filled(allocator.start(&ids(&slots), Some(&[row(1, "main", &[(0, 3)], 7), row(pod, "main", &slots, n)])));
        let changes = allocator.take_changes();
        assert_eq!((bound[0].limits.devices[0].uuid.clone(), changes.moved), (device(slots[0].0), 1), "{n}");
        assert_eq!(changes.claims[0].1, vec![bound[0].limits.device_shares()].into());
        assert!(!bound[0].differs);
    }
}

#[test]
fn a_claim_does_not_move_to_devices_where_it_does_not_fit() {
    let one = [(0, 3)];
    for (gpu_pods, why) in [
        (
            vec![single(1, device_share(1, 20, 30)), single(2, device_share(0, 70, 30))],
            "memory, of a pod that has not started",
        ),
        (vec![single(1, device_share(1, 20, 80)), single(2, device_share(0, 7, 30))], "SM time"),
        (
            vec![single(1, device_share(1, 20, 30)), single(2, device_share(0, 7, 100))],
            "a pod that has the device for itself",
        ),
        (
            vec![single(1, device_share(1, 20, 100)), single(2, device_share(0, 7, 0))],
            "the moved claim would need the device for itself",
        ),
    ] {
        let mut allocator = following(gpu_pods);
        allocator.issue(model::id::Ticket::of_random([7; 16]), &ids(&one));
        let bound = filled(allocator.start(&ids(&one), Some(&[row(1, "main", &one, 7)])));
        assert_eq!(bound[0].limits.devices[0].uuid, device(1), "{why}");
        assert_eq!(allocator.take_changes().claims, [], "{why}");
    }
    let chooser = GpuPod { chooses_gpus: true, ..single(1, device_share(1, 8, 30)) };
    let mut allocator = following(vec![chooser]);
    allocator.issue(model::id::Ticket::of_random([7; 16]), &ids(&one));
    let bound = filled(allocator.start(&ids(&one), Some(&[row(1, "main", &one, 7)])));
    assert_eq!(bound[0].limits.devices[0].uuid, device(1), "it accepts only some GPUs");
    let mut allocator = following(vec![single(1, device_share(1, 8, 30))]);
    allocator.set_devices(vec![SharedDevice { healthy: false, ..apart(0) }, apart(1)]);
    allocator.issue(model::id::Ticket::of_random([7; 16]), &ids(&one));
    assert_eq!(
        filled(allocator.start(&ids(&one), Some(&[row(1, "main", &one, 7)])))[0].limits.devices[0].uuid,
        device(1)
    );
}

#[test]
fn a_claim_stays_on_the_numa_node_that_the_kubelet_chose() {
    let one = [(0, 3)];
    for (numa, place) in [(Some(4), 1), (None, 0)] {
        let mut allocator = following(vec![single(1, device_share(1, 8, 30))]);
        allocator
            .set_devices(vec![SharedDevice { numa, ..shared_gpu(0, 10) }, SharedDevice { numa, ..shared_gpu(1, 10) }]);
        allocator.issue(model::id::Ticket::of_random([7; 16]), &ids(&one));
        let bound = filled(allocator.start(&ids(&one), Some(&[row(1, "main", &one, 7)])));
        assert_eq!(bound[0].limits.devices[0].uuid, device(place), "{numa:?}");
    }
}

#[test]
fn a_container_that_has_started_does_not_move() {
    let one = [(0, 3)];
    let checkpoint = [row(1, "main", &one, 7)];
    let mut allocator = allocator(vec![single(1, device_share(1, 8, 30))]);
    allocator.issue(model::id::Ticket::of_random([7; 16]), &ids(&one));
    filled(allocator.start(&ids(&one), Some(&checkpoint)));
    allocator.follow_topology(true);
    assert_eq!(filled(allocator.start(&ids(&one), Some(&checkpoint)))[0].limits.devices[0].uuid, device(1));
}

#[test]
fn a_moved_claim_is_known_after_a_restart_even_if_it_was_never_written() {
    let one = [(0, 3)];
    let checkpoint = [row(1, "main", &one, 7)];
    let mut before = following(vec![single(1, device_share(1, 8, 30))]);
    before.issue(model::id::Ticket::of_random([7; 16]), &ids(&one));
    filled(before.start(&ids(&one), Some(&checkpoint)));
    let kept = before.take_changes().tickets;
    let mut allocator = NodeAllocator::new(crate::allocator::WithoutClaim::Refuse, true);
    allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
    allocator.recall_tickets(kept);
    allocator.set_gpu_pods(vec![single(1, device_share(1, 8, 30))]);
    assert_eq!(filled(allocator.start(&ids(&one), Some(&checkpoint)))[0].limits.devices[0].uuid, device(0));
    assert_eq!(allocator.take_changes().claims.len(), 1, "and is written now");
    allocator.set_gpu_pods(vec![single(1, device_share(0, 8, 30))]);
    filled(allocator.start(&ids(&one), Some(&checkpoint)));
    assert_eq!(allocator.take_changes().claims, [], "once");
}

proptest! {
    #[test]
    fn a_move_changes_only_devices_and_only_to_the_kubelets_numa_nodes(
        own in prop::collection::vec((0_u32..4, 1_u64..9, 0_u32..9), 1..4),
        slots in prop::collection::btree_set((0_u32..4, 0_u16..4), 1..4),
    ) {
        let own: Vec<DeviceShare> = own.into_iter().map(|(n, gib, cores)| device_share(n, gib, cores)).collect();
        let slots: Vec<(u32, u16)> = slots.into_iter().collect();
        let mut allocator = allocator(Vec::new());
        let devices: Vec<SharedDevice> = (0..4).map(|n| shared_gpu(n, 10)).collect();
        let numa = |device: &GpuUuid| devices.iter().find(|gpu| gpu.device == *device).unwrap().numa;
        allocator.set_devices(devices.clone());
        let nodes = |of: &mut dyn Iterator<Item = &GpuUuid>| {
            let mut nodes: Vec<_> = of.map(numa).collect();
            nodes.sort();
            nodes
        };
        let chosen: Vec<_> = ids(&slots).iter().map(|id| Slot::parse(id).unwrap().device).collect();
        let devices = |of: &[DeviceShare]| of.iter().map(|device_share| device_share.device.clone()).collect::<Vec<_>>();
        match allocator.moved_to_kubelet_choice(&own, &ids(&slots)) {
            Some(moved) => {
                prop_assert_eq!(nodes(&mut devices(&moved).iter()), nodes(&mut chosen.iter()));
                for (now, before) in devices(&moved).iter().zip(devices(&own)) {
                    prop_assert!(*now == before || chosen.contains(now));
                }
                let numbers = |of: &[DeviceShare]| of.iter().map(|p| (p.memory, p.cores)).collect::<Vec<(Option<Bytes>, _)>>();
                prop_assert_eq!(numbers(&moved), numbers(&own));
            }
            None => prop_assert!(
                chosen.len() != own.len() || nodes(&mut chosen.iter()) == nodes(&mut devices(&own).iter())
                    || chosen.iter().collect::<BTreeSet<_>>().len() < own.iter().map(|p| &p.device).collect::<BTreeSet<_>>().len()
            ),
        }
    }
}
