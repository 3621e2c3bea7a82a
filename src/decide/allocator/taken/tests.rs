//! Devices that another owner holds: no slot, no preference and no start gives them to another pod.

use super::*;
use crate::allocator::tests::{
    GIB, allocator, device, device_share, filled, gpu_pod, ids, refused, request, row, shared_gpu, single, uid,
};
use crate::allocator::{Refusal, SharedDevice, StartVerdict, WithoutClaim};
use model::agent_stream::PodStage;
use model::checkpoint::CheckpointEntry;
use model::claim::{DeviceShare, PodClaim};
use model::id::Ticket;
use model::limits::ContainerLimits;
use model::request::ContainerRole;
use model::slot::Slot;
use model::ticket::IssuedTicket;
use model::unit::Bytes;
use proptest::prelude::*;

fn holding(n: u32, own_resource: bool, devices: &[&str]) -> OtherHolding {
    let pod = PodRef { namespace: "ml".into(), name: format!("pod-{n}").into() };
    let devices = devices.iter().map(|name| Arc::from(*name)).collect();
    OtherHolding { uid: uid(n), pod, own_resource, devices, nodes: Vec::new() }
}

fn free_slots(allocator: &NodeAllocator) -> Vec<(GpuUuid, u32, bool)> {
    allocator.tally().into_iter().map(|slots| (slots.device, slots.free, slots.taken)).collect()
}

fn preferred(allocator: &NodeAllocator) -> GpuUuid {
    let all: Vec<Slot> = [0, 1].map(|n| Slot { device: device(n), number: 0 }).into();
    allocator.prefer(&all, &[], 1).remove(0).device
}

/// A pod that got its GPU from NVIDIA's device plugin, so it has no claim.
fn stranger(n: u32) -> GpuPod {
    GpuPod { started: true, ..gpu_pod(n, vec![request("main", ContainerRole::App, 1)], PodClaim::None) }
}

#[test]
fn a_gpu_that_another_plugin_gave_counts_as_taken_until_the_pod_ends() {
    let mig = format!("MIG-{}/1/0", device(0));
    let whole = device(0).to_string();
    let [slice, slot, other, another, third] = ["::4", "-4", "__1", "-_-3", "_3"].map(|end| format!("{whole}{end}"));
    for (own_resource, name) in [
        (true, &whole),
        (true, &slice),
        (true, &slot),
        (true, &other),
        (true, &another),
        (true, &third),
        (false, &whole),
        (false, &mig),
        (false, &other),
    ] {
        let mut allocator = allocator(vec![stranger(9), single(1, device_share(0, 8, 30))]);
        assert!(allocator.set_other_holdings(vec![holding(9, own_resource, &[name])]), "{name}");
        assert_eq!(free_slots(&allocator), [(device(0), 0, true), (device(1), 10, false)], "{name}");
        let checkpoint = [row(1, "main", &[(1, 0)], 1)];
        let why = refused(allocator.start(&ids(&[(1, 0)]), Some(&checkpoint)));
        assert_eq!(why, Refusal::HeldByOther { device: device(0), holder: holding(9, true, &[]).pod }, "{name}");
        assert!(!allocator.set_other_holdings(vec![holding(9, own_resource, &[name])]), "nothing new");
        assert!(allocator.set_other_holdings(Vec::new()), "the pod has ended");
        assert_eq!(free_slots(&allocator), [(device(0), 10, false), (device(1), 9, false)], "one slot is held");
        filled(allocator.start(&ids(&[(1, 0)]), Some(&checkpoint)));
    }
}

#[test]
fn a_gpu_that_another_plugin_gave_is_not_preferred() {
    let mut allocator = allocator(vec![stranger(9)]);
    assert_eq!(preferred(&allocator), device(0), "equal GPUs are taken in order");
    allocator.set_other_holdings(vec![holding(9, true, &[device(0).as_str()])]);
    assert_eq!(preferred(&allocator), device(1));
}

#[test]
fn a_container_that_runs_on_a_taken_device_keeps_it_and_restarts() {
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 30)), stranger(9)]);
    let checkpoint = [row(1, "main", &[(0, 0)], 1)];
    filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    allocator.set_other_holdings(vec![holding(9, true, &[device(0).as_str()])]);
    assert_eq!(free_slots(&allocator)[0], (device(0), 0, true));
    let healthy = allocator.list().into_iter().filter(|listed| listed.slot.device == device(0) && listed.healthy);
    assert_eq!(healthy.map(|listed| listed.slot.number).collect::<Vec<_>>(), [0], "the slot of the running container");
    filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
}

#[test]
fn names_that_stand_for_no_known_gpu_take_every_device_of_the_agents_resource() {
    for (own_resource, names, taken) in [
        (true, &["nvidia0"][..], 2),
        (true, &[], 2),
        (false, &["nvidia0"], 0),
        // There is no record of these GPUs.
        (true, &["GPU-77777777-0000-4000-8000-000000000000"], 2),
        (true, &["MIG-77777777-0000-4000-8000-000000000000"], 2),
        (true, &["GPU-77777777-0000-4000-8000-000000000000__1"], 2),
        (false, &["GPU-77777777-0000-4000-8000-000000000000"], 0),
    ] {
        let mut allocator = allocator(vec![stranger(9)]);
        allocator.set_other_holdings(vec![holding(9, own_resource, names)]);
        assert_eq!(allocator.taken().count(), taken, "{own_resource} {names:?}");
    }
}

#[test]
fn a_device_node_shows_which_gpu_a_pod_has_whatever_its_name_is() {
    for (own_resource, names, node, taken) in [
        (true, &["nvidia0"][..], 0, vec![device(0)]),
        (false, &[], 0, vec![device(0)]),
        (true, &["GPU-0"], 1, vec![device(1)]),
        (true, &["GPU-00000000-0000-4000-8000-000000000000"], 1, vec![device(0), device(1)]),
        // A GPU that is not offered.
        (true, &["nvidia7"], 7, vec![]),
    ] {
        let mut allocator = allocator(vec![stranger(9)]);
        allocator.set_other_holdings(vec![OtherHolding { nodes: vec![node], ..holding(9, own_resource, names) }]);
        let found: Vec<GpuUuid> = allocator.taken().map(|(device, _)| device.clone()).collect();
        assert_eq!(found, taken, "{own_resource} {names:?} {node}");
    }
}

#[test]
fn the_device_node_of_a_divided_gpu_takes_all_its_instances_unless_one_is_named() {
    let instance = |n: u32| SharedDevice { parent: Some(device(5)), minor: Some(5), ..shared_gpu(n, 10) };
    let named = device(50);
    for (names, taken) in [(&[named.as_str()][..], vec![device(50)]), (&[], vec![device(50), device(51)])] {
        let mut allocator = allocator(vec![stranger(9)]);
        allocator.set_devices(vec![shared_gpu(0, 10), instance(50), instance(51)]);
        allocator.set_other_holdings(vec![OtherHolding { nodes: vec![5], ..holding(9, true, names) }]);
        let found: Vec<GpuUuid> = allocator.taken().map(|(device, _)| device.clone()).collect();
        assert_eq!(found, taken, "{names:?}");
    }
}

#[test]
fn a_name_of_a_gpu_that_was_lost_takes_nothing_of_the_others() {
    let mut allocator = allocator(vec![stranger(9)]);
    allocator.set_devices(vec![shared_gpu(0, 10)]);
    for end in ["", "::1", "__1"] {
        allocator.set_other_holdings(vec![holding(9, true, &[&format!("{}{end}", device(1))])]);
        assert_eq!(allocator.taken().count(), 0, "{end}");
    }
}

#[test]
fn ids_like_the_agents_own_are_another_plugins_if_the_container_has_neither_ticket_nor_limits_file() {
    let key = |n: u32| ContainerKey { pod: uid(n), container: "main".into() };
    let mut allocator = allocator(vec![stranger(9), single(1, device_share(0, 8, 30))]);
    let own = ids(&[(0, 3), (0, 4)]);
    assert!(!allocator.may_have_given(&key(9), &own));
    let issued = allocator.issue(Ticket::of_random([7; 16]), &own);
    assert!(allocator.may_have_given(&key(9), &own), "nobody knows yet which container holds the ticket");
    assert!(!allocator.may_have_given(&key(9), &ids(&[(0, 3), (1, 4)])), "ids that were not given together");
    allocator.recall_tickets(vec![IssuedTicket { holder: Some(key(1)), ..issued }]);
    assert!(allocator.may_have_given(&key(1), &own) && !allocator.may_have_given(&key(9), &own));
    // The checkpoint, while it could be read, had a ticket that was forgotten since.
    allocator.set_checkpoint(&[row(9, "main", &[(0, 3), (0, 4)], 8)]);
    assert!(allocator.may_have_given(&key(9), &own));
    allocator.set_checkpoint(&[row(9, "main", &[(0, 3), (0, 4)], 0)]);
    assert!(!allocator.may_have_given(&key(9), &own));
    // An earlier process wrote the file.
    let pod = PodRef { namespace: "ml".into(), name: "pod-9".into() };
    allocator.recall_limits(vec![ContainerLimits { holder: key(9), pod, devices: Vec::new(), priority: None }]);
    assert!(allocator.may_have_given(&key(9), &own));
}

/// HAMi's plugin gives the GPUs of the claim, and the kubelet counts ids of others.
#[test]
fn a_pod_of_hamis_plugin_holds_what_its_claim_says_and_others_may_share_the_gpu() {
    let waiting = single(9, device_share(0, 60, 30));
    let mut allocator = allocator(vec![waiting, single(1, device_share(0, 30, 30)), single(2, device_share(0, 8, 30))]);
    let foreign = CheckpointEntry { foreign: true, ..row(9, "main", &[(1, 3)], 0) };
    let checkpoint = [foreign, row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
    allocator.set_checkpoint(&checkpoint);
    allocator.set_other_holdings(vec![holding(9, true, &[device(0).as_str()])]);
    assert_eq!(allocator.taken().count(), 0);
    assert_eq!(allocator.stages()[&uid(9)], PodStage::Started, "its container may run at any moment");
    let why = refused(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    assert!(matches!(why, Refusal::DoesNotFit { claimed, .. } if claimed == 60 * GIB), "{why:?}");
    filled(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint)));
    // The answer of the plugin names another GPU than the claim.
    allocator.set_other_holdings(vec![holding(9, true, &[device(0).as_str(), device(1).as_str()])]);
    assert_eq!(allocator.taken().map(|(device, _)| device.clone()).collect::<Vec<_>>(), [device(1)]);
}

#[test]
fn a_claim_on_a_divided_gpu_holds_its_instances_and_one_on_an_unknown_gpu_holds_all() {
    let instance = |n: u32, gpu: u32| SharedDevice { parent: Some(device(gpu)), ..shared_gpu(n, 10) };
    let started = |share: DeviceShare| GpuPod { started: true, ..single(9, share) };
    for (share, taken) in [
        (device_share(5, 10, 14), vec![device(50), device(51)]),
        (device_share(77, 10, 14), vec![device(0), device(50), device(51)]),
        (device_share(0, 10, 14), vec![]),
    ] {
        let mut allocator = NodeAllocator::new(WithoutClaim::Auto, false);
        allocator.set_gpu_pods(vec![started(share.clone()), single(1, device_share(50, 1, 1))]);
        allocator.set_devices(vec![shared_gpu(0, 10), instance(50, 5), instance(51, 5)]);
        assert_eq!(allocator.taken().map(|(device, _)| device.clone()).collect::<Vec<_>>(), taken, "{share:?}");
        let start = allocator.start(&ids(&[(50, 0)]), Some(&[row(1, "main", &[(50, 0)], 1)]));
        assert_eq!(matches!(start, StartVerdict::Fill { .. }), taken.is_empty(), "{share:?}");
        allocator.set_gpu_pods(vec![single(1, device_share(50, 1, 1))]);
        assert_eq!(allocator.taken().count(), 0, "the pod has ended");
    }
}

#[test]
fn a_claim_on_a_gpu_that_was_lost_takes_nothing_of_the_others() {
    let lost = GpuPod { started: true, ..single(9, device_share(1, 10, 14)) };
    let mut allocator = allocator(vec![lost]);
    allocator.set_devices(vec![shared_gpu(0, 10)]);
    assert_eq!(allocator.taken().count(), 0);
    assert_eq!(free_slots(&allocator), [(device(0), 10, false)]);
}

proptest! {
    /// Whatever pods hold, however it is named: no start gives a container a device that another owner holds.
    #[test]
    fn no_start_gives_a_device_that_another_owner_holds(
        names in prop::collection::vec((0..3_u32, 0..6_u8), 0..4), nodes in prop::collection::vec(0..3_u32, 0..2),
        own_resource: bool, gpu in 0..2_u32,
    ) {
        let name = |(n, kind): &(u32, u8)| match kind {
            0 => device(*n).to_string(),
            1 => format!("{}::1", device(*n)),
            2 => format!("{}-1", device(*n)),
            3 => format!("MIG-{}/1/0", device(*n)),
            4 => format!("{}__1", device(*n)),
            _ => format!("nvidia{n}"),
        };
        let texts: Vec<String> = names.iter().map(name).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut allocator = allocator(vec![stranger(9), single(1, DeviceShare { memory: Some(Bytes(GIB)), ..device_share(gpu, 1, 1) })]);
        allocator.set_other_holdings(vec![OtherHolding { nodes: nodes.clone(), ..holding(9, own_resource, &texts) }]);
        let held = nodes.contains(&gpu) || names.iter().any(|(n, kind)| *kind < 5 && *n == gpu);
        // The node has no third GPU.
        let unnamed = names.is_empty() || names.iter().any(|(n, kind)| *kind == 5 || *n == 2);
        let unknown = own_resource && nodes.is_empty() && unnamed;
        let start = allocator.start(&ids(&[(gpu, 0)]), Some(&[row(1, "main", &[(gpu, 0)], 1)]));
        prop_assert_eq!(matches!(start, StartVerdict::Refuse { .. }), held || unknown, "{:?}", start);
        // The pod itself has the first slot.
        let free = allocator.list().into_iter().filter(|listed| listed.slot.device == device(gpu) && listed.slot.number > 0);
        let free = free.filter(|listed| listed.healthy).count();
        prop_assert_eq!(free == 0, held || unknown);
    }
}
