//! Starts without the kubelet's checkpoint: the agent decides if PodResources allows only one assignment, and waits if
//! it allows several.

use crate::allocator::tests::{allocator, device, device_share, filled, gpu_pod, ids, request, row, single, uid};
use crate::allocator::{HolderDisagreement, NodeAllocator, StartVerdict, WaitReason};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::{PodRef, Ticket};
use model::observation::ContainerDevices;
use model::request::ContainerRole;

fn listed(pod: u32, container: &str, slots: &[(u32, u16)]) -> ContainerDevices {
    ContainerDevices {
        namespace: "ml".into(),
        pod: format!("pod-{pod}").into(),
        container: container.into(),
        resource: "nvidia.com/gpu".into(),
        ids: ids(slots),
    }
}

fn issue(allocator: &mut NodeAllocator, ticket: u8, slots: &[(u32, u16)]) {
    allocator.issue(Ticket::of_random([ticket; 16]), &ids(slots));
}

/// A pod with an init container and an app container that takes over its ids.
fn two(n: u32) -> GpuPod {
    let requests = vec![request("warm", ContainerRole::Init, 1), request("main", ContainerRole::App, 1)];
    gpu_pod(n, requests, PodClaim::Given(vec![vec![device_share(0, 2, 10)], vec![device_share(1, 8, 30)]].into()))
}

#[test]
fn tickets_belong_to_containers_in_the_order_in_which_they_were_issued() {
    let mut allocator = allocator(vec![two(1), single(2, device_share(0, 8, 30))]);
    issue(&mut allocator, 7, &[(0, 3)]);
    issue(&mut allocator, 9, &[(0, 4)]);
    issue(&mut allocator, 8, &[(0, 3)]);
    let bound = filled(
        allocator.start_by_listing(&ids(&[(0, 3)]), &[listed(1, "main", &[(0, 3)]), listed(2, "main", &[(0, 4)])]),
    );
    let got: Vec<_> = bound
        .iter()
        .map(|b| (&*b.limits.holder.container, b.ticket.clone(), b.limits.devices[0].uuid.clone()))
        .collect();
    assert_eq!(got, [("warm", Ticket::of_random([7; 16]), device(0)), ("main", Ticket::of_random([8; 16]), device(1))]);
    assert_eq!(allocator.take_changes().tickets.len(), 2, "the holders are saved");
    // The container starts again after it ended.
    filled(allocator.start_by_listing(&ids(&[(0, 3)]), &[listed(1, "main", &[(0, 3)])]));
}

#[test]
fn an_app_container_with_ids_of_its_own_has_its_own_ticket() {
    let requests = vec![
        request("warm", ContainerRole::Init, 1),
        request("one", ContainerRole::App, 1),
        request("two", ContainerRole::App, 1),
    ];
    let claim = vec![vec![device_share(0, 2, 10)], vec![device_share(0, 4, 10)], vec![device_share(1, 8, 10)]];
    let mut allocator = allocator(vec![gpu_pod(1, requests, PodClaim::Given(claim.into()))]);
    for (ticket, slot) in [(7, (0, 3)), (8, (0, 3)), (9, (0, 4))] {
        issue(&mut allocator, ticket, &[slot]);
    }
    let listed = [listed(1, "one", &[(0, 3)]), listed(1, "two", &[(0, 4)])];
    let two = filled(allocator.start_by_listing(&ids(&[(0, 4)]), &listed));
    assert_eq!(
        (two.len(), &*two[0].limits.holder.container, two[0].ticket.clone()),
        (1, "two", Ticket::of_random([9; 16]))
    );
    assert_eq!(filled(allocator.start_by_listing(&ids(&[(0, 3)]), &listed)).len(), 2);
}

#[test]
fn a_pod_without_a_claim_gets_the_known_devices_of_each_container() {
    let requests = vec![
        request("warm", ContainerRole::Init, 2),
        request("one", ContainerRole::App, 1),
        request("two", ContainerRole::App, 1),
    ];
    let mut allocator = allocator(vec![gpu_pod(1, requests, PodClaim::None)]);
    for (ticket, slots) in [(7, &[(0, 1), (0, 2)][..]), (8, &[(0, 3)]), (9, &[(1, 4)])] {
        issue(&mut allocator, ticket, slots);
    }
    let listed = [listed(1, "one", &[(0, 3)]), listed(1, "two", &[(1, 4)])];
    // The slots of the init container are not known, so the incomplete claim is not written.
    for (name, slot, device) in
        [("one", (0, 3), device(0)), ("two", (1, 4), self::device(1)), ("one", (0, 3), self::device(0))]
    {
        match allocator.start_by_listing(&ids(&[slot]), &listed) {
            StartVerdict::Fill { bound, shared: false } => {
                assert_eq!((&*bound[0].limits.holder.container, &bound[0].limits.devices[0].uuid), (name, &device));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(allocator.claim(&uid(1)), None);
    // The kubelet's checkpoint can be read again.
    let rows = [row(1, "warm", &[(0, 1), (0, 2)], 7), row(1, "one", &[(0, 3)], 8), row(1, "two", &[(1, 4)], 9)];
    assert!(matches!(allocator.start(&ids(&[(1, 4)]), Some(&rows)), StartVerdict::Fill { shared: true, .. }));
    assert_eq!(allocator.claim(&uid(1)).unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
}

#[test]
fn a_start_waits_while_several_assignments_are_possible() {
    let start = |allocator: &mut NodeAllocator, listed: &[ContainerDevices]| {
        allocator.start_by_listing(&ids(&[(0, 3)]), listed)
    };
    let wait = StartVerdict::Wait(WaitReason::Checkpoint);
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 30)), single(2, device_share(0, 8, 30))]);
    let own = listed(1, "main", &[(0, 3)]);
    assert_eq!(start(&mut allocator, std::slice::from_ref(&own)), wait, "no ticket is known for it");
    issue(&mut allocator, 7, &[(0, 3)]);
    assert_eq!(start(&mut allocator, &[]), wait, "no container is listed");
    assert_eq!(start(&mut allocator, &[listed(9, "main", &[(0, 3)])]), wait, "a pod that was not seen");
    assert_eq!(start(&mut allocator, &[own.clone(), listed(2, "main", &[(0, 3)])]), wait, "two pods");
    // The ids were issued twice: ticket 7 was for a pod that the kubelet then dropped. The last ticket counts.
    issue(&mut allocator, 8, &[(0, 3)]);
    assert_eq!(filled(start(&mut allocator, std::slice::from_ref(&own)))[0].ticket, Ticket::of_random([8; 16]));
    // Two init containers and an app container, with one ticket too few for the three.
    let requests = vec![
        request("a", ContainerRole::Init, 1),
        request("b", ContainerRole::Init, 1),
        request("main", ContainerRole::App, 1),
    ];
    let claim = vec![vec![device_share(0, 2, 10)]; 3];
    allocator.set_gpu_pods(vec![gpu_pod(3, requests, PodClaim::Given(claim.into()))]);
    issue(&mut allocator, 9, &[(0, 5)]);
    issue(&mut allocator, 10, &[(0, 5)]);
    let start = allocator.start_by_listing(&ids(&[(0, 5)]), &[listed(3, "main", &[(0, 5)])]);
    assert_eq!(start, wait, "one of three containers had other ids, and it is not known which");
}

#[test]
fn a_successor_of_the_same_name_does_not_get_the_devices_of_its_predecessor() {
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 30))]);
    issue(&mut allocator, 7, &[(0, 3)]);
    filled(allocator.start_by_listing(&ids(&[(0, 3)]), &[listed(1, "main", &[(0, 3)])]));
    // Its successor of the same name is admitted with other ids, and the agent's watch is late.
    issue(&mut allocator, 8, &[(0, 4)]);
    let successor = [listed(1, "main", &[(0, 4)])];
    assert_eq!(allocator.start_by_listing(&ids(&[(0, 4)]), &successor), StartVerdict::Wait(WaitReason::Checkpoint));
    let mut new = single(2, device_share(1, 8, 30));
    new.pod = PodRef { namespace: "ml".into(), name: "pod-1".into() };
    allocator.set_gpu_pods(vec![new]);
    let bound = filled(allocator.start_by_listing(&ids(&[(0, 4)]), &successor));
    assert_eq!((bound[0].limits.holder.pod.clone(), bound[0].ticket.clone()), (uid(2), Ticket::of_random([8; 16])));
}

#[test]
fn tickets_survive_a_restart() {
    let mut before = allocator(vec![two(1)]);
    let tickets = [7, 8].map(|n| before.issue(Ticket::of_random([n; 16]), &ids(&[(0, 3)])));
    let mut allocator = allocator(vec![two(1)]);
    allocator.recall_tickets(tickets.to_vec());
    assert_eq!(filled(allocator.start_by_listing(&ids(&[(0, 3)]), &[listed(1, "main", &[(0, 3)])])).len(), 2);
}

#[test]
fn a_difference_between_checkpoint_and_pod_resources_is_reported_and_the_checkpoint_counts() {
    let mut allocator = allocator(vec![single(1, device_share(0, 8, 30)), single(2, device_share(1, 8, 30))]);
    let checkpoint = [row(1, "main", &[(0, 3)], 7)];
    assert_eq!(filled(allocator.start(&ids(&[(0, 3)]), Some(&checkpoint)))[0].limits.holder.pod, uid(1));
    assert_eq!(allocator.disagreements(&[listed(1, "main", &[(0, 3)]), listed(2, "main", &[(0, 4)])]), []);
    let name = |n: u32| PodRef { namespace: "ml".into(), name: format!("pod-{n}").into() };
    let disagreements = allocator.disagreements(&[listed(2, "main", &[(0, 3)])]);
    assert_eq!(disagreements, [HolderDisagreement { checkpoint: name(1), listed: name(2), ids: ids(&[(0, 3)]) }]);
    allocator.set_gpu_pod(GpuPod { finished: true, ..single(2, device_share(1, 8, 30)) });
    assert_eq!(allocator.disagreements(&[listed(2, "main", &[(0, 3)])]), [], "old kubelets list pods that have ended");
}
