//! Tests of the guarantee that the rest of the agent depends on: no container gets another container's devices.

use super::*;
use model::checkpoint::CheckpointEntry;
use model::claim::{DeviceShare, PodClaim};
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodRef, PodUid, Ticket};
use model::limits::{ContainerLimits, DeviceLimits};
use model::request::{ContainerRequest, ContainerRole, MemoryRequest};
use model::slot::Slot;
use model::ticket::IssuedTicket;
use model::time::Arrival;
use model::unit::{Bytes, CorePercent, Mib};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) const GIB: u64 = 1 << 30;

pub(super) fn device(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{n:08x}-0000-4000-8000-000000000000")).unwrap()
}

pub(super) fn uid(n: u32) -> PodUid {
    PodUid::parse(&format!("{n:08x}-0000-4000-8000-000000000000")).unwrap()
}

pub(super) fn shared_gpu(n: u32, slots: u16) -> SharedDevice {
    SharedDevice {
        device: device(n),
        parent: None,
        index: n,
        minor: Some(n),
        model: "NVIDIA H100".into(),
        slots,
        memory: Bytes(80 * GIB),
        cores: 100,
        numa: Some(n / 2),
        healthy: true,
    }
}

pub(super) fn request(container: &str, role: ContainerRole, slots: u32) -> ContainerRequest {
    ContainerRequest { container: container.into(), role, slots, memory: None, cores: None, priority: None }
}

pub(super) fn device_share(n: u32, gib: u64, cores: u32) -> DeviceShare {
    DeviceShare { device: device(n), memory: Some(Bytes(gib * GIB)), cores: Some(CorePercent(cores)) }
}

pub(super) fn gpu_pod(n: u32, requests: Vec<ContainerRequest>, claim: PodClaim) -> GpuPod {
    let pod = PodRef { namespace: "ml".into(), name: format!("pod-{n}").into() };
    let arrival = Some(Arrival(n.into()));
    GpuPod {
        uid: uid(n),
        pod,
        arrival,
        requests,
        claim,
        chooses_gpus: false,
        placed_here: false,
        started: false,
        finished: false,
    }
}

/// A pod with one container `main`, whose claim has one device share.
pub(super) fn single(n: u32, share: DeviceShare) -> GpuPod {
    gpu_pod(n, vec![request("main", ContainerRole::App, 1)], PodClaim::Given(vec![vec![share]].into()))
}

pub(super) fn ids(slots: &[(u32, u16)]) -> Vec<Arc<str>> {
    slots.iter().map(|(n, number)| Slot { device: device(*n), number: *number }.to_string().into()).collect()
}

pub(super) fn row(pod: u32, container: &str, slots: &[(u32, u16)], ticket: u8) -> CheckpointEntry {
    CheckpointEntry {
        holder: ContainerKey { pod: uid(pod), container: container.into() },
        ids: ids(slots),
        ticket: (ticket != 0).then(|| Ticket::of_random([ticket; 16])),
        foreign: false,
        early: false,
    }
}

pub(super) fn allocator(gpu_pods: Vec<GpuPod>) -> NodeAllocator {
    let mut allocator = NodeAllocator::new(WithoutClaim::Auto, false);
    allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
    allocator.set_gpu_pods(gpu_pods);
    allocator
}

pub(super) fn filled(verdict: StartVerdict) -> Vec<BoundContainer> {
    match verdict {
        StartVerdict::Fill { bound, .. } => bound,
        other => panic!("not filled: {other:?}"),
    }
}

pub(super) fn refused(verdict: StartVerdict) -> Refusal {
    match verdict {
        StartVerdict::Refuse { why, .. } => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_claim_overrides_the_ids_that_the_kubelet_chose() {
    let mut allocator = allocator(vec![single(1, device_share(1, 8, 30))]);
    let bound = filled(allocator.start(&ids(&[(0, 3)]), Some(&[row(1, "main", &[(0, 3)], 7)])));
    assert_eq!(bound.len(), 1);
    assert_eq!(bound[0].limits.device_shares(), vec![device_share(1, 8, 30)]);
    assert_eq!(bound[0].ticket, Ticket::of_random([7; 16]));
    assert!(bound[0].differs);
}

#[test]
fn without_a_limit_the_limits_name_all_memory_of_the_device() {
    let requests = vec![ContainerRequest { priority: Some(1), ..request("main", ContainerRole::App, 1) }];
    let share = DeviceShare { memory: None, ..device_share(1, 0, 30) };
    let claim = PodClaim::Given(vec![vec![share.clone()]].into());
    let mut allocator = allocator(vec![gpu_pod(1, requests, claim)]);
    let checkpoint = [row(1, "main", &[(1, 3)], 7)];
    let expect = ContainerLimits {
        holder: checkpoint[0].holder.clone(),
        pod: PodRef { namespace: "ml".into(), name: "pod-1".into() },
        devices: vec![DeviceLimits {
            uuid: device(1),
            index: 1,
            model: "NVIDIA H100".into(),
            memory: Bytes(80 * GIB),
            unlimited: true,
            cores: Some(CorePercent(30)),
        }],
        priority: Some(1),
    };
    let bound = filled(allocator.start(&ids(&[(1, 3)]), Some(&checkpoint)));
    assert_eq!((bound[0].limits.clone(), bound[0].limits.device_shares()), (expect, vec![share]));
}

#[test]
fn a_start_waits_until_checkpoint_and_pod_are_known() {
    let mut allocator = allocator(vec![]);
    let row = row(1, "main", &[(0, 3)], 7);
    assert_eq!(allocator.start(&ids(&[(0, 3)]), Some(&[])), StartVerdict::Wait(WaitReason::Checkpoint));
    assert_eq!(allocator.start(&ids(&[(0, 3)]), Some(std::slice::from_ref(&row))), StartVerdict::Wait(WaitReason::Pod));
    allocator.set_gpu_pod(single(1, device_share(0, 8, 30)));
    assert!(matches!(allocator.start(&ids(&[(0, 3)]), Some(&[row])), StartVerdict::Fill { .. }));
}

#[test]
fn an_unreadable_checkpoint_does_not_count_as_empty() {
    let mut allocator = allocator(vec![single(1, device_share(1, 8, 30)), single(2, device_share(0, 8, 30))]);
    let checkpoint = [row(1, "main", &[(0, 3)], 7)];
    filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
    allocator.set_devices(vec![shared_gpu(0, 10), SharedDevice { healthy: false, ..shared_gpu(1, 10) }]);
    let before = allocator.list();
    assert!(before.iter().any(|listed| !listed.healthy && listed.slot.device == device(0)));
    for ids in [ids(&[(0, 3)]), ids(&[(0, 4)])] {
        assert_eq!(allocator.start(&ids, None), StartVerdict::Wait(WaitReason::Checkpoint));
    }
    assert_eq!(allocator.list(), before, "the holders are still known");
    filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
}

#[test]
fn containers_that_share_ids_are_filled_together_each_with_its_own_devices() {
    let requests = vec![request("warm", ContainerRole::Init, 1), request("main", ContainerRole::App, 1)];
    let given = PodClaim::Given(vec![vec![device_share(0, 2, 10)], vec![device_share(1, 8, 30)]].into());
    let mut allocator = allocator(vec![gpu_pod(1, requests, given)]);
    let checkpoint = [row(1, "main", &[(0, 3)], 8), row(1, "warm", &[(0, 3)], 7), row(2, "main", &[(0, 4)], 9)];
    let bound = filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
    let got: Vec<_> = bound.iter().map(|b| (&*b.limits.holder.container, b.limits.devices[0].uuid.clone())).collect();
    assert_eq!(got, [("main", device(1)), ("warm", device(0))]);
}

#[test]
fn a_second_pod_that_does_not_fit_beside_the_first_does_not_start_and_the_first_may_restart() {
    let mut allocator = allocator(vec![single(1, device_share(0, 50, 30)), single(2, device_share(0, 50, 30))]);
    let checkpoint = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
    filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    let why = refused(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint)));
    assert_eq!(
        why,
        Refusal::DoesNotFit {
            device: device(0),
            what: ScarceResource::Memory,
            total: 80 * GIB,
            claimed: 50 * GIB,
            requested: 50 * GIB
        }
    );
    filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    allocator.remove_gpu_pod(&uid(1));
    filled(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint)));
}

/// After an etcd restore an ended pod is placed again, and may claim the devices that it had, which another pod has now.
#[test]
fn a_pod_that_has_ended_and_comes_back_starts_only_beside_those_that_run() {
    let (first, second) = (single(1, device_share(0, 50, 30)), single(2, device_share(0, 50, 30)));
    let mut allocator = allocator(vec![first.clone(), second]);
    let checkpoint = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
    filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    allocator.set_gpu_pod(GpuPod { started: true, finished: true, ..first.clone() });
    filled(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint)));
    allocator.set_gpu_pod(first);
    let why = refused(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    assert!(matches!(why, Refusal::DoesNotFit { claimed, .. } if claimed == 50 * GIB), "{why}");
}

#[test]
fn a_running_pod_keeps_its_claim_when_the_annotation_changes() {
    let requests = || vec![request("main", ContainerRole::App, 1), request("late", ContainerRole::App, 1)];
    let first = vec![vec![device_share(0, 40, 10)], vec![device_share(0, 10, 10)]];
    let pod = |claim| gpu_pod(1, requests(), claim);
    let checkpoint = [row(1, "main", &[(0, 0)], 1), row(1, "late", &[(0, 1)], 2), row(2, "main", &[(0, 2)], 3)];
    let start = |allocator: &mut NodeAllocator, slot| allocator.start(&ids(&[(0, slot)]), Some(&checkpoint));
    let second = |allocator: &mut NodeAllocator| refused(start(allocator, 2));
    let mut allocator = allocator(vec![pod(PodClaim::Given(first.clone().into())), single(2, device_share(0, 50, 30))]);
    filled(start(&mut allocator, 0));
    let larger = vec![vec![device_share(0, 79, 10)], vec![device_share(0, 10, 10)]];
    let smaller = vec![vec![device_share(0, 5, 10)], vec![device_share(0, 5, 10)]];
    let elsewhere = vec![vec![device_share(1, 40, 10)], vec![device_share(0, 10, 10)]];
    let torn = PodClaim::Unreadable("torn".into());
    let given = |shares: Vec<Vec<DeviceShare>>| PodClaim::Given(shares.into());
    for written in
        [torn.clone(), PodClaim::None, given(larger.clone()), given(smaller.clone()), given(elsewhere.clone())]
    {
        allocator.set_gpu_pods(vec![pod(written.clone()), single(2, device_share(0, 50, 30))]);
        match second(&mut allocator) {
            Refusal::DoesNotFit { claimed, .. } => assert_eq!(claimed, 50 * GIB, "{written:?}"),
            other => panic!("{written:?}: {other}"),
        }
    }
    // While the claim cannot be read, a container gets the devices that it had.
    allocator.set_gpu_pods(vec![pod(torn), single(2, device_share(0, 20, 30))]);
    assert_eq!(filled(start(&mut allocator, 0))[0].limits.device_shares(), first[0]);
    filled(start(&mut allocator, 2));
    // A larger claim is judged alongside the running pods; a smaller one takes effect container by container.
    allocator.set_gpu_pod(pod(given(larger)));
    assert!(matches!(refused(start(&mut allocator, 0)), Refusal::DoesNotFit { claimed, .. } if claimed == 20 * GIB));
    let unlimited = vec![vec![DeviceShare { memory: None, ..device_share(0, 0, 10) }], vec![device_share(0, 10, 10)]];
    allocator.set_gpu_pod(pod(given(unlimited)));
    assert!(
        matches!(refused(start(&mut allocator, 0)), Refusal::DoesNotFit { requested, .. } if requested == 80 * GIB)
    );
    allocator.set_gpu_pod(pod(given(smaller)));
    filled(start(&mut allocator, 0));
    assert_eq!(allocator.ledger.started_beside(&device(0), &uid(2)).memory, 15 * GIB);
    filled(start(&mut allocator, 1));
    assert_eq!(allocator.ledger.started_beside(&device(0), &uid(2)).memory, 10 * GIB);
}

#[test]
fn a_claim_of_all_sm_time_has_its_device_to_itself() {
    let free = |n| DeviceShare { cores: None, ..device_share(n, 8, 0) };
    let checkpoint = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
    for (first, second, refuses) in [
        (device_share(0, 8, 100), free(0), Some(false)),
        (free(0), device_share(0, 8, 100), Some(true)),
        (device_share(0, 8, 100), free(1), None),
        (device_share(0, 8, 99), free(0), None),
    ] {
        let mut allocator = allocator(vec![single(1, first.clone()), single(2, second)]);
        filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
        let verdict = allocator.start(&ids(&[(0, 1)]), Some(&checkpoint));
        match refuses {
            Some(own) => assert_eq!(refused(verdict), Refusal::NotAlone { device: device(0), own }),
            None => drop(filled(verdict)),
        }
        filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    }
    // Where pods may claim more than 100 % of SM time, a claim of 100 % is not exclusive.
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 100)), single(2, free(0))]);
    allocator.set_devices(vec![SharedDevice { cores: 200, ..shared_gpu(0, 10) }]);
    filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    filled(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint)));
}

#[test]
fn a_pod_without_a_claim_gets_devices_only_on_a_node_that_no_scheduler_served() {
    let requests =
        vec![ContainerRequest { memory: Some(MemoryRequest::Percent(50)), ..request("main", ContainerRole::App, 1) }];
    let checkpoint = [row(1, "main", &[(0, 3)], 7)];
    let free = gpu_pod(1, requests, PodClaim::None);
    let mut allocator = self::allocator(vec![free.clone()]);
    match allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)) {
        StartVerdict::Fill { bound, shared: true } => {
            assert_eq!(
                bound[0].limits.device_shares(),
                vec![DeviceShare { device: device(0), memory: Some(Bytes(40 * GIB)), cores: None }]
            );
        }
        other => panic!("{other:?}"),
    }
    let torn = gpu_pod(3, vec![request("main", ContainerRole::App, 1)], PodClaim::Unreadable("torn".into()));
    let mut allocator = self::allocator(vec![free.clone(), torn]);
    assert!(!allocator.served_by_scheduler(), "an unreadable claim need not come from a scheduler");
    assert!(matches!(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)), StartVerdict::Fill { shared: true, .. }));
    let mut allocator = self::allocator(vec![free.clone(), single(2, device_share(0, 8, 30))]);
    assert_eq!(refused(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint))), Refusal::NotPlaced);
    let mut allocator = NodeAllocator::new(WithoutClaim::Share, true);
    allocator.set_devices(vec![shared_gpu(0, 10)]);
    allocator.set_gpu_pods(vec![free]);
    assert!(matches!(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)), StartVerdict::Fill { shared: true, .. }));
}

/// A claim of 0 MiB would mean that the container has no limit.
#[test]
fn a_small_percentage_of_a_small_gpu_is_1_mib_and_never_unlimited() {
    let small = ContainerRequest { memory: Some(MemoryRequest::Percent(1)), ..request("main", ContainerRole::App, 1) };
    let mut allocator = NodeAllocator::new(WithoutClaim::Share, true);
    allocator.set_devices(vec![SharedDevice { memory: Bytes(50 << 20), ..shared_gpu(0, 10) }]);
    allocator.set_gpu_pods(vec![gpu_pod(1, vec![small], PodClaim::None)]);
    let bound = filled(allocator.start(&ids(&[(0, 3)]), Some(&[row(1, "main", &[(0, 3)], 7)])));
    let share = DeviceShare { device: device(0), memory: Some(Bytes(1 << 20)), cores: None };
    assert_eq!(bound[0].limits.device_shares(), [share]);
}

/// A start is judged again if the agent cannot answer it yet because the files are not ready.
#[test]
fn a_claim_stays_due_for_writing_when_its_start_is_judged_again() {
    let checkpoint = [row(1, "main", &[(0, 3)], 7)];
    let mut allocator = self::allocator(vec![gpu_pod(1, vec![request("main", ContainerRole::App, 1)], PodClaim::None)]);
    for _ in 0..3 {
        assert!(matches!(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)), StartVerdict::Fill { shared: true, .. }));
    }
    allocator.claim_is_written(&uid(1));
    assert!(matches!(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)), StartVerdict::Fill { shared: false, .. }));
}

#[test]
fn every_container_of_a_pod_without_a_claim_gets_its_own_devices_and_may_restart() {
    let requests = || {
        vec![
            request("side", ContainerRole::Sidecar, 1),
            request("none", ContainerRole::App, 0),
            request("one", ContainerRole::App, 1),
            request("two", ContainerRole::App, 2),
        ]
    };
    let free = |n| DeviceShare { device: device(n), memory: None, cores: None };
    let claim = vec![vec![free(0)], vec![], vec![free(1)], vec![free(0), free(1)]];
    let slots: [(&str, &[(u32, u16)]); 3] = [("side", &[(0, 0)]), ("one", &[(1, 0)]), ("two", &[(0, 1), (1, 1)])];
    let checkpoint: Vec<CheckpointEntry> =
        (1..).zip(&slots).map(|(n, (container, slots))| row(1, container, slots, n)).collect();
    let mut allocator = allocator(vec![gpu_pod(1, requests(), PodClaim::None)]);
    let mut written = Vec::new();
    let mut start =
        |allocator: &mut NodeAllocator, slots: &[(u32, u16)]| match allocator.start(&ids(slots), Some(&checkpoint)) {
            StartVerdict::Fill { bound, shared } => {
                if shared {
                    written.push(allocator.claim(&uid(1)).unwrap());
                    allocator.claim_is_written(&uid(1));
                }
                bound
            }
            other => panic!("{slots:?}: {other:?}"),
        };
    for (container, slots) in slots.iter().chain(&slots) {
        let bound = start(&mut allocator, slots);
        assert_eq!(
            (bound.len(), &*bound[0].limits.holder.container, bound[0].limits.devices.len()),
            (1, *container, slots.len())
        );
        assert!(!bound[0].differs);
    }
    // The watch shows the claim as it was written; the first pod that a scheduler places does not change it.
    allocator.set_gpu_pods(vec![
        gpu_pod(1, requests(), PodClaim::Given(claim.clone().into())),
        single(2, device_share(1, 8, 30)),
    ]);
    for (_, slots) in slots {
        start(&mut allocator, slots);
    }
    assert_eq!(written, [claim.into()], "written once, and complete");
}

#[test]
fn invalid_claims_and_requests_are_refused_with_their_reason() {
    let one = |claim| gpu_pod(1, vec![request("main", ContainerRole::App, 1)], claim);
    let given = |device_shares| one(PodClaim::Given(vec![device_shares].into()));
    let checkpoint = [row(1, "main", &[(0, 3)], 7)];
    for (gpu_pod, refusal, word) in [
        (given(vec![device_share(7, 8, 30)]), Refusal::NoSuchDevice(device(7)), "this node has no such GPU"),
        (one(PodClaim::Unreadable("torn".into())), Refusal::Unreadable("torn".into()), "torn"),
        (one(PodClaim::BadRequest("150".into())), Refusal::BadRequest("150".into()), "150"),
        (
            given(vec![]),
            Refusal::Count { claimed: 0, given: 1 },
            "names 0 GPUs for this container, and the kubelet allocated 1",
        ),
        (GpuPod { finished: true, ..given(vec![device_share(0, 8, 30)]) }, Refusal::Finished, "finished"),
    ] {
        let pod = gpu_pod.pod.clone();
        let verdict = allocator(vec![gpu_pod]).start(&ids(&[(0, 3)]), Some(&checkpoint));
        assert!(refusal.to_string().contains(word), "{refusal}");
        assert_eq!(verdict, StartVerdict::Refuse { uid: uid(1), pod, container: "main".into(), why: refusal });
    }
    // If two containers share the ids and the reason concerns the pod, the refusal names both.
    let requests = vec![request("warm", ContainerRole::Init, 1), request("main", ContainerRole::App, 1)];
    let mut allocator = allocator(vec![gpu_pod(1, requests, PodClaim::Unreadable("torn".into()))]);
    let checkpoint = [row(1, "warm", &[(0, 3)], 7), row(1, "main", &[(0, 3)], 8)];
    let verdict = allocator.start(&ids(&[(0, 3)]), Some(&checkpoint));
    assert!(matches!(&verdict, StartVerdict::Refuse { container, .. } if **container == *"warm, main"), "{verdict:?}");
}

#[test]
fn ids_of_an_earlier_plugin_are_left_alone() {
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 30))]);
    let old = CheckpointEntry { ids: vec!["GPU-old::3".into()], ..row(1, "main", &[], 0) };
    assert_eq!(allocator.start(&["GPU-old::3".into()], Some(&[old])), StartVerdict::Foreign);
    // Another plugin's ids may look like the agent's, but its answers differ.
    let alike = CheckpointEntry { foreign: true, ..row(1, "main", &[(0, 3)], 0) };
    assert_eq!(allocator.start(&ids(&[(0, 3)]), Some(&[alike])), StartVerdict::Foreign);
}

#[test]
fn a_ticket_starts_no_container_if_cdi_is_known_to_have_no_effect() {
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 30)), single(2, device_share(0, 8, 30))]);
    let checkpoint = [row(1, "main", &[(0, 3)], 7), row(2, "main", &[(0, 4)], 8)];
    filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
    allocator.set_tickets_lost(true);
    for slot in [3, 4] {
        assert_eq!(refused(allocator.start(&ids(&[(0, slot)]), Some(&checkpoint))), Refusal::WithoutCdi);
    }
    assert!(Refusal::WithoutCdi.for_good(), "the kubelet does not allocate these ids again");
    let ran: Vec<ContainerKey> = allocator.started_by_ticket().into_iter().map(|(key, _)| key).collect();
    assert_eq!(ran, [checkpoint[0].holder.clone()], "a container that waits has no devices that could be missing");
    allocator.set_tickets_lost(false);
    filled(allocator.start(&ids(&[(0, 4)]), Some(&checkpoint)));
}

#[test]
fn a_ticket_starts_no_container_while_the_runtime_would_refuse_its_spec() {
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 30))]);
    let checkpoint = [row(1, "main", &[(0, 3)], 7)];
    let why: Arc<str> = "netDevices needs CDI 1.1.0".into();
    allocator.set_unreadable_specs(Some(Arc::clone(&why)));
    assert_eq!(refused(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint))), Refusal::RuntimeTooOld(why));
    allocator.set_unreadable_specs(None);
    filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
}

/// An earlier release gave containers their devices in the answer to `Allocate`, where the runtime had no CDI.
#[test]
fn containers_with_devices_of_an_earlier_release_start_again_where_cdi_has_no_effect() {
    let (own, other) = (device_share(0, 8, 30), device_share(1, 8, 30));
    let early = |pod, slot, ticket| CheckpointEntry { early: true, ..row(pod, "main", &[(0, slot)], ticket) };
    let checkpoint = [early(1, 3, 7), early(2, 4, 8), early(3, 5, 9), early(4, 6, 10)];
    let holder = |at: usize| Some(checkpoint[at].holder.clone());
    let issued = |ticket: u8, at: usize, holder, given: &DeviceShare| IssuedTicket {
        ticket: Ticket::of_random([ticket; 16]),
        order: ticket.into(),
        ids: checkpoint[at].ids.clone(),
        expected: Some(checkpoint[0].holder.clone()),
        holder,
        given: Some(vec![given.clone()]),
    };
    let mut allocator = allocator((1..=4).map(|n| GpuPod { started: n < 4, ..single(n, own.clone()) }).collect());
    // There is no record of the fourth.
    allocator.recall_tickets(vec![issued(7, 0, holder(0), &own), issued(8, 1, None, &own), issued(9, 2, None, &other)]);
    allocator.set_tickets_lost(true);
    assert!(allocator.close(true));
    for (slot, expect) in [(3, None), (4, None), (5, Some(Refusal::Forgotten)), (6, Some(Refusal::Forgotten))] {
        match (allocator.start(&ids(&[(0, slot)]), Some(&checkpoint)), expect) {
            (StartVerdict::Fill { bound, .. }, None) => {
                assert!(bound[0].early);
                assert_eq!(bound[0].limits.device_shares(), std::slice::from_ref(&own));
            }
            (verdict, expect) => assert_eq!(Some(refused(verdict)), expect, "{slot}"),
        }
    }
    assert!(Refusal::Forgotten.for_good());
    assert_eq!(allocator.early_tickets().len(), 4);
    let (used, free): (Vec<_>, Vec<_>) = allocator
        .list()
        .into_iter()
        .partition(|listed| listed.slot.device == device(0) && (3..7).contains(&listed.slot.number));
    assert!(used.iter().all(|listed| listed.healthy), "containers keep their slots");
    assert!(free.iter().all(|listed| !listed.healthy), "no slot is free");
    assert_eq!(allocator.memory_claims().len(), 3, "they are counted");
    allocator.set_gpu_pods(vec![GpuPod { finished: true, ..single(1, own) }]);
    assert!(allocator.early_tickets().is_empty());
}

#[test]
fn a_lost_answer_does_not_count_as_another_plugins_answer() {
    let requests = vec![request("warm", ContainerRole::Init, 1), request("main", ContainerRole::App, 1)];
    let claim = vec![vec![device_share(0, 2, 10)], vec![device_share(0, 8, 30)]];
    let mut allocator = allocator(vec![gpu_pod(1, requests, PodClaim::Given(claim.into()))]);
    // It is not known which of the two starts.
    for (warm, main, lost) in [(0, 7, "warm"), (7, 0, "main"), (0, 0, "warm")] {
        let checkpoint = [row(1, "warm", &[(0, 3)], warm), row(1, "main", &[(0, 3)], main)];
        match allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)) {
            StartVerdict::Refuse { container, why, .. } => assert_eq!((&*container, why), (lost, Refusal::AnswerLost)),
            other => panic!("{other:?}"),
        }
    }
    assert!(Refusal::AnswerLost.for_good(), "the kubelet does not call Allocate twice");
}

#[test]
fn claims_of_pods_that_have_not_ended_are_listed_with_and_without_a_scheduler() {
    let requests = vec![request("none", ContainerRole::App, 0), request("main", ContainerRole::App, 1)];
    let two = gpu_pod(2, requests, PodClaim::Given(vec![vec![], vec![device_share(1, 8, 30)]].into()));
    let over = GpuPod { finished: true, ..single(3, device_share(0, 8, 30)) };
    let mut allocator = allocator(vec![two, single(1, device_share(0, 24, 50)), over]);
    let shown = |allocator: &NodeAllocator| -> Vec<(PodUid, String, Vec<DeviceShare>)> {
        let claims = allocator.claims().into_iter();
        claims.map(|claim| (claim.holder.pod, claim.holder.container.to_string(), claim.device_shares)).collect()
    };
    let main = |n, device_shares| (uid(n), "main".to_owned(), device_shares);
    assert_eq!(shown(&allocator), [main(1, vec![device_share(0, 24, 50)]), main(2, vec![device_share(1, 8, 30)])]);
    allocator.remove_gpu_pod(&uid(1));
    assert_eq!(shown(&allocator), [main(2, vec![device_share(1, 8, 30)])]);

    // The claim of a pod that no scheduler placed is what it got at its start, without limits that it did not request.
    let mut alone = NodeAllocator::new(WithoutClaim::Share, false);
    alone.set_devices(vec![shared_gpu(0, 10)]);
    alone.set_gpu_pods(vec![gpu_pod(4, vec![request("main", ContainerRole::App, 1)], PodClaim::None)]);
    assert_eq!(shown(&alone), []);
    filled(alone.start(&ids(&[(0, 3)]), Some(&[row(4, "main", &[(0, 3)], 7)])));
    assert_eq!(shown(&alone), [main(4, vec![DeviceShare { device: device(0), memory: None, cores: None }])]);
}

#[test]
fn an_unfit_gpu_loses_as_many_slots_as_it_has_starting_with_those_of_its_claims() {
    let mut allocator = allocator(vec![single(1, device_share(1, 8, 30))]);
    // The pod's claim is on GPU 1; the kubelet counts it as slot 3 of GPU 0.
    let checkpoint = [row(1, "main", &[(0, 3)], 7)];
    filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)));
    allocator.set_devices(vec![shared_gpu(0, 10), SharedDevice { healthy: false, ..shared_gpu(1, 10) }]);
    let unhealthy: Vec<String> =
        allocator.list().into_iter().filter(|listed| !listed.healthy).map(|listed| listed.slot.to_string()).collect();
    assert_eq!(unhealthy.len(), 10);
    assert!(unhealthy.contains(&format!("{}-3", device(0))), "the id that stands for a claim on it");
    assert_eq!(unhealthy.iter().filter(|id| id.starts_with(device(1).as_str())).count(), 9);
    assert!(allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]), "healthy again, and the list changes");
    assert!(allocator.list().iter().all(|listed| listed.healthy));
}

#[test]
fn only_a_changed_checkpoint_changes_the_list_of_slots() {
    let mut allocator = allocator(vec![single(1, device_share(1, 8, 30))]);
    allocator.set_cordoned([device(1)].into());
    let checkpoint = |slot| [row(1, "main", &[(1, slot)], 7)];
    assert!(allocator.set_checkpoint(&checkpoint(3)), "the slot that it uses is not taken from it");
    let list = allocator.list();
    assert!(!allocator.set_checkpoint(&checkpoint(3)));
    assert_eq!(allocator.list(), list);
    assert!(allocator.set_checkpoint(&checkpoint(4)), "it uses another slot");
    assert!(allocator.set_checkpoint(&[]));
}

#[test]
fn a_start_belongs_to_the_entry_with_exactly_its_ids_in_any_order() {
    let two = vec![vec![device_share(0, 8, 30), device_share(1, 8, 30)]];
    let mut allocator = allocator(vec![
        gpu_pod(1, vec![request("main", ContainerRole::App, 2)], PodClaim::Given(two.into())),
        single(2, device_share(0, 8, 30)),
    ]);
    let checkpoint = [row(2, "main", &[(0, 2)], 8), row(1, "main", &[(0, 1), (1, 1)], 7)];
    let holder_of =
        |allocator: &mut NodeAllocator, slots: &[(u32, u16)]| match allocator.start(&ids(slots), Some(&checkpoint)) {
            StartVerdict::Fill { bound, .. } => bound.first().map(|bound| bound.limits.holder.pod.clone()),
            _ => None,
        };
    assert_eq!(holder_of(&mut allocator, &[(1, 1), (0, 1)]), Some(uid(1)));
    assert_eq!(holder_of(&mut allocator, &[(0, 2)]), Some(uid(2)));
    for slots in [&[(0, 1)][..], &[(0, 1), (1, 1), (0, 2)], &[]] {
        assert_eq!(holder_of(&mut allocator, slots), None, "{slots:?}");
    }
}

#[test]
fn a_cordoned_gpu_offers_no_slot_and_keeps_its_running_containers() {
    let mut allocator = allocator(vec![single(1, device_share(1, 8, 30)), single(2, device_share(0, 8, 30))]);
    // The claim of pod 1 is on GPU 1 and counted as slot 3 of GPU 0; pod 2 has claim and slot on GPU 0. Pod 9 is gone.
    let checkpoint = [row(1, "main", &[(0, 3)], 7), row(2, "main", &[(0, 4)], 8), row(9, "main", &[(1, 0)], 9)];
    allocator.set_checkpoint(&checkpoint);
    assert!(allocator.set_cordoned([device(1), device(7)].into()), "the list changes");
    let marked = |allocator: &NodeAllocator| -> Vec<String> {
        allocator.list().into_iter().filter(|listed| !listed.healthy).map(|listed| listed.slot.to_string()).collect()
    };
    let now = marked(&allocator);
    assert_eq!(now.len(), 9, "one of ten is in use: {now:?}");
    assert!(now.iter().all(|id| id.starts_with(device(1).as_str())), "{now:?}");
    let tally: Vec<_> =
        allocator.tally().into_iter().map(|one| (one.free, one.used, one.unhealthy, one.cordoned)).collect();
    assert_eq!(tally, [(8, 2, 0, false), (1, 0, 9, true)]);
    // If GPU 1 is also unhealthy, the slot of the pod on it becomes unhealthy too.
    allocator.set_devices(vec![shared_gpu(0, 10), SharedDevice { healthy: false, ..shared_gpu(1, 10) }]);
    assert_eq!(marked(&allocator).len(), 10);
    allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
    assert!(allocator.set_cordoned(BTreeSet::new()) && marked(&allocator).is_empty());
    // If the node is closed, no device gets new containers, and none is reported as cordoned.
    assert!(allocator.close(true) && !allocator.close(true));
    let tally: Vec<_> =
        allocator.tally().into_iter().map(|one| (one.free, one.used, one.unhealthy, one.cordoned)).collect();
    assert_eq!((marked(&allocator).len(), tally), (18, vec![(0, 2, 8, false), (0, 0, 10, false)]));
    assert!(allocator.close(false) && marked(&allocator).is_empty());
}

#[test]
fn preferred_slots_are_those_of_the_waiting_claim_else_of_the_emptiest_gpus() {
    let all: Vec<Slot> = (0..2).flat_map(|n| (0..4).map(move |number| Slot { device: device(n), number })).collect();
    let allocator = allocator(vec![single(1, device_share(1, 8, 30))]);
    assert_eq!(allocator.prefer(&all, &[], 1)[0].device, device(1));
    let two = self::allocator(vec![]).prefer(&all[1..], &[], 2);
    assert_eq!(two.iter().map(|slot| slot.device.clone()).collect::<Vec<_>>(), [device(1), device(0)]);
    let must = [all[0].clone()];
    assert_eq!(self::allocator(vec![]).prefer(&all, &must, 1), must);
    assert_eq!(self::allocator(vec![]).prefer(&all[..1], &[], 3).len(), 1);
}

/// The kubelet's slots of a container and its claim may be on different GPUs. Both count, and the advice names no fully
/// claimed GPU while another has room.
#[test]
fn preferred_slots_are_of_gpus_that_have_room_for_the_request() {
    let mut allocator = NodeAllocator::new(WithoutClaim::Share, false);
    allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
    let whole = single(1, device_share(0, 80, 100));
    let half = ContainerRequest { memory: Some(MemoryRequest::Percent(50)), ..request("main", ContainerRole::App, 1) };
    allocator.set_gpu_pods(vec![whole, gpu_pod(2, vec![half.clone()], PodClaim::None)]);
    // The claim is on GPU 0, but the kubelet took a slot of GPU 1, so more slots of GPU 0 are free.
    let checkpoint = [row(1, "main", &[(1, 0)], 7)];
    filled(allocator.start(&ids(&[(1, 0)]), Some(&checkpoint)));
    let left: Vec<Slot> = (0..2)
        .flat_map(|n| (0..10).map(move |number| Slot { device: device(n), number }))
        .filter(|slot| *slot != Slot { device: device(1), number: 0 })
        .collect();
    assert_eq!(allocator.prefer(&left, &[], 1)[0].device, device(1));
    // The advice is the same while the agent has not seen the pod.
    allocator.remove_gpu_pod(&uid(2));
    assert_eq!(allocator.prefer(&left, &[], 1)[0].device, device(1));
    // If 60 of 80 GiB of one GPU are claimed and the other GPU has more containers, the request decides.
    let runs = |n, device_share| GpuPod { started: true, ..single(n, device_share) };
    let many: Vec<GpuPod> =
        (3..6).map(|n| runs(n, device_share(0, 1, 0))).chain([runs(1, device_share(1, 60, 0))]).collect();
    for (memory, advised) in [(MemoryRequest::Percent(50), 0), (MemoryRequest::Amount(Mib(1024)), 1)] {
        let request = ContainerRequest { memory: Some(memory), ..half.clone() };
        let next = gpu_pod(2, vec![request], PodClaim::None);
        let mut allocator = NodeAllocator::new(WithoutClaim::Share, false);
        allocator.set_devices(vec![shared_gpu(0, 10), shared_gpu(1, 10)]);
        allocator.set_gpu_pods(many.iter().cloned().chain([next]).collect());
        assert_eq!(allocator.prefer(&left, &[], 1)[0].device, device(advised), "{memory:?}");
    }
}

#[test]
fn preferred_slots_count_tickets_that_the_checkpoint_does_not_have_yet() {
    let slots = || (0..2).flat_map(|n| (0..4).map(move |number| Slot { device: device(n), number }));
    let mut allocator = allocator(vec![
        single(1, device_share(1, 8, 30)),
        single(2, device_share(0, 8, 30)),
        single(3, device_share(1, 8, 30)),
    ]);
    // The kubelet allocates for pod 2 before its checkpoint has the slots of pod 1, but no longer offers those slots.
    allocator.issue(Ticket::of_random([7; 16]), &ids(&[(1, 0)]));
    let left: Vec<Slot> = slots().filter(|slot| *slot != Slot { device: device(1), number: 0 }).collect();
    assert_eq!(allocator.prefer(&left, &[], 1)[0].device, device(0));
    // When the checkpoint has the entry of pod 1, nothing changes.
    allocator.set_checkpoint(&[row(1, "main", &[(1, 0)], 7)]);
    assert_eq!(allocator.prefer(&left, &[], 1)[0].device, device(0));
    // If the kubelet offers a slot again, no container holds it, even if a ticket was issued for it.
    allocator.set_checkpoint(&[]);
    let all: Vec<Slot> = slots().collect();
    assert_eq!(allocator.prefer(&all, &[], 1)[0].device, device(1));
    // If the kubelet took slots that match no claim, they count for the first pod that waits.
    allocator.issue(Ticket::of_random([8; 16]), &ids(&[(0, 3)]));
    allocator.issue(Ticket::of_random([9; 16]), &ids(&[(0, 2)]));
    let left: Vec<Slot> = all.into_iter().filter(|slot| slot.device == device(1) || slot.number < 2).collect();
    assert_eq!(allocator.next_claim(&left, 1), [device(1)], "pods 1 and 2 are served");
}

proptest! {
    /// Promise 33 in docs/specification.md: whatever slots the kubelet chose, an unhealthy GPU marks as many slots as
    /// it has, a cordoned GPU as many as it has free, and no slot of a pod on a healthy GPU is marked.
    #[test]
    fn unfit_and_cordoned_gpus_lose_only_their_own_slots(
        pods in prop::collection::vec((0_u32..3, 0_u32..3), 0..12),
        unhealthy in 0_u32..4,
        cordoned in 0_u32..4,
    ) {
        let devices = |unhealthy: u32| -> Vec<SharedDevice> {
            (0..3).map(|n| SharedDevice { healthy: n != unhealthy, ..shared_gpu(n, 8) }).collect()
        };
        let mut allocator = NodeAllocator::new(WithoutClaim::Refuse, true);
        allocator.set_devices(devices(9));
        let number = |n: usize| u32::try_from(n).unwrap();
        // A scheduler that knows slots places at most eight pods on a GPU.
        let fits = |n: usize| pods[..n].iter().filter(|(claim, _)| *claim == pods[n].0).count() < 8;
        let kept: Vec<usize> = (0..pods.len()).filter(|n| fits(*n)).collect();
        allocator.set_gpu_pods(kept.iter().map(|n| single(number(*n), device_share(pods[*n].0, 1, 1))).collect());
        let mut next = [0_u16; 3];
        let mut checkpoint = Vec::new();
        for n in &kept {
            let counted = (0..3).map(|turn| (pods[*n].1 + turn) % 3).find(|gpu| next[*gpu as usize] < 8).unwrap();
            checkpoint.push(row(number(*n), "main", &[(counted, next[counted as usize])], 1));
            next[counted as usize] += 1;
        }
        allocator.set_checkpoint(&checkpoint);
        allocator.set_devices(devices(unhealthy));
        allocator.set_cordoned([device(cordoned)].into());
        let marked: BTreeSet<Slot> =
            allocator.list().into_iter().filter(|listed| !listed.healthy).map(|listed| listed.slot).collect();
        let on = |gpu: u32| kept.iter().filter(|n| pods[**n].0 == gpu).count();
        let of_unhealthy = if unhealthy < 3 { 8 } else { 0 };
        let of_cordoned = if cordoned < 3 && cordoned != unhealthy { 8 - on(cordoned) } else { 0 };
        prop_assert_eq!(marked.len(), of_unhealthy + of_cordoned);
        for (n, row) in kept.iter().zip(&checkpoint) {
            let slot = Slot::parse(&row.ids[0]).unwrap();
            prop_assert_eq!(marked.contains(&slot), pods[*n].0 == unhealthy, "{}", slot);
        }
    }

    /// Promise 28 in docs/specification.md: in whatever order pods, checkpoint and starts come, each ticket is filled
    /// from the claim of the pod that holds it by the checkpoint, and started pods never claim more than a GPU has.
    #[test]
    fn no_order_of_calls_gives_a_container_another_containers_devices(
        pods in prop::collection::vec((0_u32..3, 1_u64..60, 0_u32..60), 1..12),
        order in prop::collection::vec((0_u8..12, any::<bool>()), 1..60),
    ) {
        let mut allocator = NodeAllocator::new(WithoutClaim::Refuse, true);
        allocator.set_devices(vec![shared_gpu(0, 4), shared_gpu(1, 10)]);
        allocator.set_gpu_pods(vec![]);
        let number = |n: u8| u32::from(n);
        let count = u8::try_from(pods.len()).unwrap();
        let of = |n: u8| pods[usize::from(n)];
        let checkpoint: Vec<CheckpointEntry> =
            (0..count).map(|n| row(number(n), "main", &[(number(n) % 2, u16::from(n))], n + 1)).collect();
        let mut running: BTreeSet<u8> = BTreeSet::new();
        for (n, leaves) in order {
            let n = n % count;
            let (gpu, gib, cores) = of(n);
            if leaves {
                allocator.remove_gpu_pod(&uid(number(n)));
                running.remove(&n);
                continue;
            }
            let own = &checkpoint[usize::from(n)];
            allocator.set_gpu_pod(single(number(n), device_share(gpu, gib, cores)));
            match allocator.start(&own.ids, Some(&checkpoint)) {
                StartVerdict::Fill { bound, .. } => {
                    prop_assert_eq!(bound.len(), 1);
                    prop_assert_eq!(&bound[0].limits.holder.pod, &uid(number(n)));
                    prop_assert_eq!(Some(&bound[0].ticket), own.ticket.as_ref());
                    prop_assert_eq!(bound[0].limits.device_shares(), vec![device_share(gpu, gib, cores)]);
                    running.insert(n);
                }
                StartVerdict::Refuse { .. } => {}
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert_eq!(&allocator.ledger, &allocator.ledger_from_nothing());
            for gpu in 0..2 {
                let on: Vec<u8> = running.iter().copied().filter(|n| of(*n).0 == gpu).collect();
                let (memory, cores) = on.iter().fold((0, 0), |sum, n| (sum.0 + of(*n).1, sum.1 + of(*n).2));
                prop_assert!(memory <= 80 && cores <= 100);
                prop_assert!(gpu != 0 || on.len() <= 4);
            }
        }
    }
}

/// Use is compared with the memory that a pod's containers claim together at any one moment, if all of them are
/// limited, from the pod's first start until it finishes.
#[test]
fn memory_claims_count_started_pods_with_limits() {
    let requests = vec![
        request("side", ContainerRole::Sidecar, 1),
        request("warm", ContainerRole::Init, 1),
        request("main", ContainerRole::App, 2),
    ];
    let given = vec![
        vec![device_share(0, 1, 0)],
        vec![device_share(0, 9, 0)],
        vec![device_share(0, 4, 0), device_share(1, 2, 0)],
    ];
    let free = DeviceShare { memory: None, ..device_share(1, 0, 0) };
    let mut allocator = allocator(vec![
        GpuPod { started: true, ..gpu_pod(1, requests, PodClaim::Given(given.into())) },
        GpuPod { started: true, ..single(2, free) },
        single(3, device_share(0, 8, 30)),
        GpuPod { started: true, finished: true, ..single(4, device_share(0, 8, 30)) },
    ]);
    let memory_claims = |allocator: &NodeAllocator| -> Vec<(PodUid, GpuUuid, u64)> {
        allocator.memory_claims().iter().map(|one| (one.pod.clone(), one.device.clone(), one.memory.0 / GIB)).collect()
    };
    assert_eq!(memory_claims(&allocator), [(uid(1), device(0), 10), (uid(1), device(1), 2)]);
    allocator.remove_gpu_pod(&uid(1));
    assert_eq!(memory_claims(&allocator), []);
}

/// An agent ends before it can write a moved claim on the pod.
#[test]
fn a_moved_claim_is_due_for_writing_after_a_restart_before_any_start() {
    let one = [(0, 3)];
    let devices = || {
        vec![SharedDevice { numa: Some(0), ..shared_gpu(0, 10) }, SharedDevice { numa: Some(1), ..shared_gpu(1, 10) }]
    };
    let mut before = allocator(vec![single(1, device_share(1, 8, 30))]);
    before.set_devices(devices());
    before.follow_topology(true);
    before.issue(model::id::Ticket::of_random([7; 16]), &ids(&one));
    filled(before.start(&ids(&one), Some(&[row(1, "main", &one, 7)])));
    let mut allocator = NodeAllocator::new(WithoutClaim::Refuse, true);
    allocator.set_devices(devices());
    allocator.recall_tickets(before.take_changes().tickets);
    for due in [1, 0] {
        allocator.set_gpu_pods(vec![single(1, device_share(1, 8, 30))]);
        let claims = allocator.take_changes().claims;
        assert_eq!(claims.len(), due);
        assert!(claims.iter().all(|(_, claim)| claim[0][0].device == device(0)));
    }
}
