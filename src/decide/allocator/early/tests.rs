//! Tests of early binding, one case each.

use crate::allocator::tests::{
    device, device_share, filled, gpu_pod, ids, refused, request, row, shared_gpu, single, uid,
};
use crate::allocator::{NodeAllocator, Refusal, SharedDevice, StartVerdict, WaitReason, WithoutClaim};
use model::checkpoint::CheckpointEntry;
use model::claim::{DeviceShare, PodClaim};
use model::gpu_pod::GpuPod;
use model::id::Ticket;
use model::request::{ContainerRole, MemoryRequest};
use model::slot::Slot;
use model::time::Arrival;
use model::unit::Mib;

pub(super) fn early(gpu_pods: Vec<GpuPod>) -> NodeAllocator {
    let mut allocator = NodeAllocator::new(WithoutClaim::Refuse, true);
    allocator.set_early_binding(true);
    allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
    allocator.set_gpu_pods(gpu_pods);
    allocator
}

/// Calls `allocate` and issues the ticket. Returns the row as the kubelet would write it for `pod`.
fn allocate(
    allocator: &mut NodeAllocator,
    (pod, container): (u32, &str),
    slots: &[(u32, u16)],
    n: u8,
    checkpoint: &[CheckpointEntry],
) -> CheckpointEntry {
    let matched = allocator.allocate(&ids(slots), Some(checkpoint), true).expect("a container waits");
    allocator.issue(Ticket::of_random([n; 16]), &ids(slots), Some(matched));
    CheckpointEntry { early: true, ..row(pod, container, slots, n) }
}

#[test]
fn claims_with_equal_amounts_are_exchanged_if_the_kubelet_admits_another_pod() {
    let mut allocator = early(vec![single(1, device_share(0, 8, 30)), single(2, device_share(1, 8, 30))]);
    // The agent expects the first pod, and the kubelet admits the second.
    let mut checkpoint = vec![allocate(&mut allocator, (2, "main"), &[(0, 3)], 7, &[])];
    checkpoint.push(allocate(&mut allocator, (1, "main"), &[(0, 4)], 8, &checkpoint));
    let second = filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
    let first = filled(allocator.start(&ids(&[(0, 4)]), Some(&checkpoint)));
    assert_eq!((second[0].holder.pod.clone(), second[0].device_shares.clone()), (uid(2), vec![device_share(0, 8, 30)]));
    assert_eq!((first[0].holder.pod.clone(), first[0].device_shares.clone()), (uid(1), vec![device_share(1, 8, 30)]));
    let changes = allocator.take_changes();
    assert_eq!((changes.exchanged, changes.claims.len()), (1, 2), "both claims are written anew");
}

/// The kubelet admits the second pod where the agent expected the first one. A pod that accepts any GPU moves to what it was given; one
/// that accepts some only is made again, and its devices go to nobody else.
#[test]
fn a_pod_that_accepts_some_gpus_only_gets_its_own_devices_or_none() {
    for chooser in [1, 2] {
        let pod = |n, device| GpuPod { chooses_gpus: n == chooser, ..single(n, device_share(device, 8, 30)) };
        let mut allocator = early(vec![pod(1, 0), pod(2, 1)]);
        let mut checkpoint = vec![allocate(&mut allocator, (2, "main"), &[(0, 3)], 7, &[])];
        checkpoint.push(allocate(&mut allocator, (1, "main"), &[(0, 4)], 8, &checkpoint));
        let [second, first] = [(0, 3), (0, 4)].map(|slot| allocator.start(&ids(&[slot]), Some(&checkpoint)));
        match chooser {
            1 => assert_eq!(filled(second)[0].device_shares, [device_share(0, 8, 30)]),
            _ => assert!(matches!(refused(second), Refusal::Mistaken { .. })),
        }
        assert_eq!(filled(first)[0].device_shares, [device_share(0, 8, 30)]);
        assert_eq!(allocator.take_changes().exchanged, 0, "{chooser}");
    }
}

#[test]
fn pods_are_expected_in_the_order_of_their_arrival_and_not_of_their_uids() {
    let came = |place: u64, pod: GpuPod| GpuPod { arrival: Some(Arrival(place)), ..pod };
    let mut allocator = early(vec![
        came(7, single(1, device_share(0, 8, 30))),
        came(5, single(2, device_share(1, 9, 30))),
        came(6, single(3, device_share(0, 10, 30))),
    ]);
    let mut checkpoint = Vec::new();
    for (n, pod) in [(1, 2), (2, 3), (3, 1)] {
        let slot = [(0, u16::from(n))];
        let matched = allocator.allocate(&ids(&slot), Some(&checkpoint), true).expect("a container waits");
        assert_eq!(matched.holder.pod, uid(pod));
        allocator.issue(Ticket::of_random([n; 16]), &ids(&slot), Some(matched));
        checkpoint.push(CheckpointEntry { early: true, ..row(pod, "main", &slot, n) });
    }
}

#[test]
fn running_pods_are_not_expected_again_after_a_lost_checkpoint() {
    let two = || vec![request("warm", ContainerRole::Init, 1), request("main", ContainerRole::App, 1)];
    let claim = |gib: u64| PodClaim::Given(vec![vec![device_share(0, gib, 1)], vec![device_share(0, gib, 1)]].into());
    let mut allocator = early(vec![gpu_pod(1, two(), claim(8))]);
    let mut checkpoint = Vec::new();
    for (n, container) in [(7, "warm"), (8, "main")] {
        checkpoint.push(allocate(&mut allocator, (1, container), &[(0, 3)], n, &checkpoint));
    }
    filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
    allocator.set_gpu_pods(vec![GpuPod { started: true, ..gpu_pod(1, two(), claim(8)) }, gpu_pod(2, two(), claim(9))]);
    // The checkpoint that was read last lacks the newest row, and now there is no checkpoint.
    allocator.set_checkpoint(&checkpoint[..1]);
    let mut checkpoint: Option<Vec<CheckpointEntry>> = None;
    for (n, container) in [(9, "warm"), (10, "main")] {
        let matched = allocator.allocate(&ids(&[(0, 3)]), checkpoint.as_deref(), true).expect("a container waits");
        assert_eq!((matched.holder.pod.clone(), &*matched.holder.container), (uid(2), container));
        allocator.issue(Ticket::of_random([n; 16]), &ids(&[(0, 3)]), Some(matched));
        checkpoint.get_or_insert_default().push(CheckpointEntry { early: true, ..row(2, container, &[(0, 3)], n) });
    }
}

#[test]
fn a_pod_with_other_amounts_than_expected_does_not_start_and_the_next_pod_is_expected_correctly() {
    let mut allocator = early(vec![
        single(1, device_share(0, 8, 30)),
        single(2, device_share(0, 9, 30)),
        single(3, device_share(0, 9, 30)),
    ]);
    let mut checkpoint = vec![allocate(&mut allocator, (2, "main"), &[(0, 3)], 7, &[])];
    checkpoint.push(allocate(&mut allocator, (1, "main"), &[(0, 4)], 8, &checkpoint));
    checkpoint.push(allocate(&mut allocator, (3, "main"), &[(0, 5)], 9, &checkpoint));
    let why = refused(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
    assert_eq!(why, Refusal::Mistaken { what: "memory or SM time" });
    assert!(why.for_good());
    filled(allocator.start(&ids(&[(0, 4)]), Some(&checkpoint)));
    filled(allocator.start(&ids(&[(0, 5)]), Some(&checkpoint)));
    assert_eq!(allocator.take_changes().claims, []);
}

#[test]
fn containers_of_a_pod_are_expected_in_order_and_before_those_of_the_next_pod() {
    let requests = || {
        vec![
            request("warm", ContainerRole::Init, 1),
            request("none", ContainerRole::App, 0),
            request("both", ContainerRole::App, 2),
            request("one", ContainerRole::App, 1),
        ]
    };
    let claim = |gib: u64| {
        let two = vec![device_share(0, gib + 1, 1), device_share(1, gib + 2, 1)];
        PodClaim::Given(vec![vec![device_share(0, gib, 1)], vec![], two, vec![device_share(1, gib + 3, 1)]].into())
    };
    let mut allocator = early(vec![gpu_pod(1, requests(), claim(10)), gpu_pod(2, requests(), claim(20))]);
    let mut checkpoint = Vec::new();
    let mut next = |allocator: &mut NodeAllocator, slots: &[(u32, u16)], holder: (u32, &str)| {
        let n = u8::try_from(checkpoint.len()).unwrap() + 1;
        let matched = allocator.allocate(&ids(slots), Some(&checkpoint), true).expect("a container waits");
        assert_eq!((matched.holder.pod.clone(), &*matched.holder.container), (uid(holder.0), holder.1));
        allocator.issue(Ticket::of_random([n; 16]), &ids(slots), Some(matched));
        checkpoint.push(CheckpointEntry { early: true, ..row(holder.0, holder.1, slots, n) });
    };
    for pod in 1..3 {
        let first = u16::try_from(pod).unwrap() * 3 - 3;
        next(&mut allocator, &[(0, first)], (pod, "warm"));
        next(&mut allocator, &[(0, first), (1, first)], (pod, "both"));
        next(&mut allocator, &[(0, first + 1)], (pod, "one"));
    }
    assert_eq!(allocator.allocate(&ids(&[(0, 9)]), Some(&checkpoint), true), None, "no container is left");
}

#[test]
fn a_start_is_refused_if_its_ticket_has_no_record() {
    let mut allocator = early(vec![single(1, device_share(0, 8, 30))]);
    let row = CheckpointEntry { early: true, ..row(1, "main", &[(0, 3)], 7) };
    let why = refused(allocator.start(&ids(&[(0, 3)]), Some(&[row])));
    assert!(why == Refusal::Forgotten && why.for_good());
}

#[test]
fn a_pod_without_a_claim_gets_the_devices_of_its_slots() {
    let mut free = gpu_pod(1, vec![request("main", ContainerRole::App, 1)], PodClaim::None);
    free.requests[0].memory = Some(MemoryRequest::Percent(33));
    let mut allocator = NodeAllocator::new(WithoutClaim::Share, false);
    allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
    allocator.set_gpu_pods(vec![free.clone()]);
    let checkpoint = [allocate(&mut allocator, (1, "main"), &[(1, 3)], 7, &[])];
    match allocator.start(&ids(&[(1, 3)]), Some(&checkpoint)) {
        StartVerdict::Fill { bound, shared: true } => {
            let own = DeviceShare { device: device(1), memory: Some(Mib(27_033).bytes()), cores: None };
            assert_eq!(bound[0].device_shares, [own], "33 % of 80 GiB, in whole MiB as it is written");
            free.claim = PodClaim::Given(vec![bound[0].device_shares.clone()].into());
        }
        other => panic!("{other:?}"),
    }
    // The watch shows the claim as it was written, so it is not written again.
    let _ = allocator.take_changes();
    allocator.set_gpu_pods(vec![free]);
    filled(allocator.start(&ids(&[(1, 3)]), Some(&checkpoint)));
    assert_eq!(allocator.take_changes().claims, []);
}

/// Two of the pod's containers request a GPU; both get nothing, and the refusal has the reason.
#[test]
fn a_pod_that_must_not_start_gets_no_devices_and_is_refused_at_its_start() {
    let unreadable = PodClaim::Unreadable("x".into());
    for (claim, expect) in [(PodClaim::None, "NotPlaced"), (unreadable, "UnreadableClaim")] {
        let requests = vec![request("warm", ContainerRole::Init, 1), request("main", ContainerRole::App, 1)];
        let mut allocator = early(vec![gpu_pod(1, requests, claim), single(2, device_share(0, 8, 30))]);
        // The agent expects another pod first, and a call that may wait does not pick a pod that may not start.
        let mut checkpoint = vec![allocate(&mut allocator, (2, "main"), &[(0, 1)], 1, &[])];
        for (n, container, slot) in [(2, "warm", [(0, 2)]), (3, "main", [(0, 3)])] {
            if container == "warm" {
                assert_eq!(allocator.allocate(&ids(&slot), Some(&checkpoint), true), None);
            }
            let matched = allocator.allocate(&ids(&slot), Some(&checkpoint), false).expect("the pod waits");
            assert_eq!((&matched.holder.pod, &*matched.holder.container), (&uid(1), container));
            assert_eq!(matched.device_shares, []);
            allocator.issue(Ticket::of_random([n; 16]), &ids(&slot), Some(matched));
            checkpoint.push(CheckpointEntry { early: true, ..row(1, container, &slot, n) });
        }
        let why = refused(allocator.start(&ids(&[(0, 2)]), Some(&checkpoint)));
        assert!(why.code() == expect && !why.for_good(), "{why:?}");
        filled(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint)));
    }
}

#[test]
fn slots_on_the_devices_of_the_expected_pod_are_preferred() {
    let mut allocator = early(vec![single(1, device_share(1, 8, 30)), single(2, device_share(0, 9, 30))]);
    let all: Vec<Slot> = (0..2).flat_map(|n| (0..4).map(move |number| Slot { device: device(n), number })).collect();
    assert_eq!(allocator.prefer(&all, &[], 1)[0].device, device(1));
    let checkpoint = [allocate(&mut allocator, (1, "main"), &[(1, 0)], 7, &[])];
    assert!(allocator.start(&ids(&[(1, 9)]), Some(&checkpoint)) == StartVerdict::Wait(WaitReason::Checkpoint));
    assert_eq!(allocator.prefer(&all, &[], 1)[0].device, device(0));
}

#[test]
fn a_claim_moves_to_the_devices_of_the_kubelets_topology_if_it_fits_there() {
    let mut allocator = early(vec![single(1, device_share(0, 8, 30)), single(2, device_share(1, 70, 30))]);
    allocator.set_devices((0..2).map(|n| SharedDevice { numa: Some(n), ..shared_gpu(n, 10) }).collect());
    allocator.follow_topology(true);
    let mut checkpoint = vec![allocate(&mut allocator, (1, "main"), &[(1, 3)], 7, &[])];
    assert_eq!(filled(allocator.start(&ids(&[(1, 3)]), Some(&checkpoint)))[0].device_shares[0].device, device(1));
    assert_eq!(allocator.take_changes().reassigned, 1);
    checkpoint.push(allocate(&mut allocator, (2, "main"), &[(1, 4)], 8, &checkpoint));
    assert_eq!(filled(allocator.start(&ids(&[(1, 4)]), Some(&checkpoint)))[0].device_shares[0].device, device(1));
}
