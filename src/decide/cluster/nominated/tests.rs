use super::*;
use crate::cluster::preempt::tests::{WHOLE, full, holds, processes, second};
use crate::cluster::tests::{cluster, large, name, names, slice};
use crate::cluster::{BindRefusal, FilterVerdict, PreemptVerdict};

/// Pod `n` of this priority, which needs a whole GPU.
fn whole(n: u32, priority: i32) -> PlacementRequest {
    PlacementRequest { priority, ..slice(n, WHOLE) }
}

/// The filter's verdict about the first two nodes.
fn asked(cluster: &mut ClusterState, request: &PlacementRequest, at: u64) -> FilterVerdict {
    cluster.filter(request.clone(), names(2), second(at))
}

/// Which of the first two nodes fit; nothing stays expected.
fn fit(cluster: &mut ClusterState, request: &PlacementRequest, at: u64) -> Vec<usize> {
    let fit = asked(cluster, request, at).fit;
    cluster.forget_proposal(&request.uid);
    fit
}

/// Whether the first node fits; nothing stays expected.
fn fits(cluster: &mut ClusterState, request: &PlacementRequest, at: u64) -> bool {
    let fit = cluster.filter(request.clone(), names(1), second(at)).fit;
    cluster.forget_proposal(&request.uid);
    fit == [0]
}

/// The pod watch shows this nomination.
fn shown(cluster: &mut ClusterState, request: &PlacementRequest, node: Option<u32>, at: u64) {
    let node = node.map(name);
    cluster.nomination_is(&request.uid, node.as_ref(), Some(2), second(at));
}

/// Both GPUs are held, and kube-scheduler evicts pod 0 on node 0 for the urgent pod 9.
fn evicting() -> (ClusterState, PlacementRequest) {
    let (mut cluster, urgent) = (full(), whole(9, 100));
    let victims = [slice(0, 1).uid, slice(1, 1).uid];
    let plan = [("node-0", &victims[..1]), ("node-1", &victims[1..])];
    assert_eq!(fit(&mut cluster, &urgent, 0), [0_usize; 0]);
    assert_eq!(cluster.preempt(&urgent, None, &plan, second(0)), PreemptVerdict::Offers(vec![0, 1]));
    shown(&mut cluster, &urgent, Some(0), 1);
    (cluster, urgent)
}

/// As [`evicting`], and the evicted pod has ended.
fn preempted() -> (ClusterState, PlacementRequest) {
    let (mut cluster, urgent) = evicting();
    cluster.pod_gone(&slice(0, 1).uid);
    (cluster, urgent)
}

#[test]
fn a_nomination_that_kube_scheduler_takes_back_while_the_evicted_pod_ends_counts_for_its_minute() {
    let (mut cluster, urgent) = evicting();
    shown(&mut cluster, &urgent, None, 2);
    cluster.pod_gone(&slice(0, 1).uid);
    assert_eq!(fit(&mut cluster, &whole(5, 0), 60), [0_usize; 0], "no other pod takes the room");
    assert_eq!(fit(&mut cluster, &urgent, 60), [0]);
    assert_eq!(fit(&mut cluster, &whole(5, 0), 61), [0]);
    // Without an end to wait for, the nomination is over.
    let (mut cluster, urgent) = evicting();
    shown(&mut cluster, &urgent, None, 61);
    assert!(!cluster.nominated.waits(&urgent.uid, &name(0)));
}

#[test]
fn the_room_that_preemption_makes_is_kept_for_its_pod_from_pods_of_no_higher_priority() {
    let (mut cluster, urgent) = preempted();
    for priority in [-5, 0, 100] {
        assert_eq!(fit(&mut cluster, &whole(5, priority), 2), [0_usize; 0], "{priority}");
        assert!(!cluster.fits_without(&whole(5, priority), "node-0", &[]), "{priority}");
    }
    assert_eq!(fit(&mut cluster, &whole(6, 101), 2), [0], "a pod of higher priority comes first");
    // So nothing is evicted on the other node, and the pod gets its room.
    let (victim, nominated) = ([slice(1, 1).uid], name(0));
    let plan = [("node-1", &victim[..])];
    let again = cluster.preempt(&urgent, Some(&nominated), &plan, second(3));
    assert_eq!(again, PreemptVerdict::Waits(nominated.clone()));
    assert_eq!(asked(&mut cluster, &urgent, 4).fit, [0]);
    assert_eq!(fit(&mut cluster, &whole(5, 0), 4), [0_usize; 0], "also between its filter call and its bind");
    assert!(cluster.bind(&urgent.uid, &nominated).is_ok());
    let node = cluster.node(&nominated).unwrap();
    assert!(cluster.beside_nominated(&whole(5, 0), node).is_none(), "its claim counts by now");
}

#[test]
fn a_pod_that_passed_the_filter_before_the_nomination_is_not_bound_into_the_kept_room() {
    let (mut cluster, urgent) = (cluster(1, 1), whole(9, 100));
    let (early, nominated) = (whole(5, 0), name(0));
    assert_eq!(cluster.filter(early.clone(), names(1), second(0)).fit, [0]);
    cluster.is_nominated(&urgent, &nominated, second(1));
    assert!(matches!(cluster.bind(&early.uid, &nominated), Err(BindRefusal::NoFit { .. })));
    assert_eq!(cluster.pending(), 1, "its filter call is still known");
    cluster.nominations_at(second(61));
    assert!(cluster.bind(&early.uid, &nominated).is_ok());
}

#[test]
fn room_is_kept_for_a_minute_and_only_while_the_pod_is_nominated() {
    let lower = whole(5, 0);
    let (mut cluster, urgent) = preempted();
    shown(&mut cluster, &urgent, Some(0), 50);
    assert_eq!(fit(&mut cluster, &lower, 60), [0_usize; 0]);
    assert_eq!(fit(&mut cluster, &lower, 61), [0], "a repetition of the nomination does not prolong the minute");
    shown(&mut cluster, &urgent, Some(0), 62);
    cluster.is_nominated(&urgent, &name(0), second(63));
    assert_eq!(fit(&mut cluster, &lower, 64), [0]);
    for nomination in [None, Some(1)] {
        let (mut cluster, urgent) = preempted();
        shown(&mut cluster, &urgent, nomination, 2);
        assert_eq!(fit(&mut cluster, &lower, 3), [0], "{nomination:?}");
    }
    let (mut cluster, urgent) = preempted();
    cluster.pod_gone(&urgent.uid);
    assert_eq!(fit(&mut cluster, &lower, 3), [0]);
    assert_eq!(cluster.nominated.kept(), (0, 0));
}

#[test]
fn other_victims_on_the_same_node_begin_a_new_minute() {
    // The first victim does not end, so kube-scheduler evicts another pod there.
    let (mut cluster, urgent, nominated) = (cluster(1, 2), whole(9, 100), name(0));
    holds(&mut cluster, 0, 0);
    cluster.pod_is_being_deleted(&slice(0, 1).uid, true);
    let other = whole(6, 0);
    cluster.filter(other.clone(), names(1), second(0));
    cluster.bind(&other.uid, &nominated).unwrap();
    cluster.is_nominated(&urgent, &nominated, second(0));
    let (victim, lower) = ([other.uid], whole(5, 0));
    let plan = [("node-0", &victim[..])];
    for at in [59, 61, 62] {
        let verdict = cluster.preempt(&urgent, Some(&nominated), &plan, second(at));
        assert_eq!(verdict == PreemptVerdict::Offers(vec![0]), at == 61, "{at} s");
    }
    cluster.pod_gone(&victim[0]);
    assert!(!fits(&mut cluster, &lower, 120) && fits(&mut cluster, &lower, 121));
}

/// kube-scheduler also writes where it expects a pod that waits at Permit, and others may nominate pods.
#[test]
fn a_nomination_without_an_eviction_keeps_no_room_for_a_pod_that_fits() {
    let (mut cluster, gang) = (cluster(2, 1), whole(9, 100));
    assert_eq!(asked(&mut cluster, &gang, 0).fit, [0, 1]);
    shown(&mut cluster, &gang, Some(0), 1);
    assert_eq!(fit(&mut cluster, &whole(5, 0), 2), [0, 1]);
}

#[test]
fn an_older_version_of_a_pod_does_not_end_its_nomination() {
    let mut cluster = cluster(1, 1);
    let urgent = PlacementRequest { version: Some(7), ..whole(9, 100) };
    cluster.is_nominated(&urgent, &name(0), second(0));
    for (version, kept) in [(6, true), (7, false)] {
        cluster.nomination_is(&urgent.uid, None, Some(version), second(1));
        assert_eq!(!fits(&mut cluster, &whole(5, 0), 1), kept, "{version}");
    }
}

#[test]
fn two_nominated_pods_do_not_wait_for_each_other() {
    let mut cluster = cluster(1, 1);
    let (first, next, urgent) = (whole(7, 10), whole(6, 10), whole(8, 11));
    cluster.is_nominated(&first, &name(0), second(0));
    cluster.is_nominated(&next, &name(0), second(1));
    let each = |cluster: &mut ClusterState| [&urgent, &first, &next].map(|one| fits(cluster, one, 2));
    assert_eq!(each(&mut cluster), [true, true, false]);
    cluster.is_nominated(&urgent, &name(0), second(2));
    assert_eq!(each(&mut cluster), [true, false, false]);
}

#[test]
fn only_what_the_pod_requests_is_kept_and_on_gpus_that_are_free() {
    let mut cluster = cluster(1, 2);
    holds(&mut cluster, 0, 0);
    cluster.pod_is_being_deleted(&slice(0, 1).uid, true);
    cluster.is_nominated(&PlacementRequest { priority: 100, ..slice(9, WHOLE / 2) }, &name(0), second(0));
    let beside = [WHOLE / 2, WHOLE / 2 + 1].map(|mib| fits(&mut cluster, &slice(5, mib), 1));
    assert_eq!(beside, [true, false], "half of the second GPU is kept");
    // A pod that would not get room there keeps none.
    cluster.is_nominated(&PlacementRequest { priority: 100, ..slice(9, WHOLE + 1) }, &name(0), second(0));
    assert!(fits(&mut cluster, &whole(5, 0), 1));
}

/// To judge a node beside nominated pods takes copies of it, and a user may have many pods nominated to nodes that stay full.
#[test]
fn a_node_that_does_not_fit_by_its_claims_is_not_judged_beside_nominated_pods() {
    let mut cluster = cluster(1, 2);
    holds(&mut cluster, 0, 0);
    cluster.is_nominated(&whole(9, 100), &name(0), second(0));
    let mut two = whole(5, 0);
    two.requests[0].slots = 2;
    let verdict = cluster.filter(two, names(1), second(1));
    // The second GPU is kept, and counts as free in this verdict.
    assert_eq!(verdict.refused[0].why.to_string(), "AllocatedCardsInsufficientRequest, CardInsufficientMemory");
    assert_eq!(fit(&mut cluster, &whole(6, 0), 1), [0_usize; 0], "a node that fits is judged beside them");
}

#[test]
fn room_that_is_not_there_yet_is_kept_too() {
    let (mut cluster, urgent) = (full(), whole(9, 100));
    processes(&mut cluster, 1);
    cluster.pod_gone(&slice(0, 1).uid);
    cluster.is_nominated(&urgent, &name(0), second(0));
    assert_eq!(fit(&mut cluster, &whole(5, 0), 1), [0_usize; 0], "the processes are there");
    processes(&mut cluster, 0);
    assert_eq!(fit(&mut cluster, &whole(5, 0), 2), [0_usize; 0]);
    assert_eq!(fit(&mut cluster, &urgent, 2), [0]);
}

#[test]
fn the_owner_of_a_pod_is_told_why_free_gpus_are_kept() {
    let (mut cluster, _) = preempted();
    let lower = whole(5, 0);
    let verdict = asked(&mut cluster, &lower, 2);
    assert!(verdict.refused.iter().all(|node| !node.why.is_lasting()));
    assert_eq!(
        cluster.refusal_details(&lower, &verdict.refused, names(2)),
        [
            "node-0 keeps its room for at most 60 s for a pod of the same or a higher priority, for which others there are evicted"
        ]
    );
}

/// Anyone who may create pods decides how large a request is.
#[test]
fn the_requests_of_nominated_pods_are_bounded_in_bytes_and_large_ones_are_forgotten_first() {
    let (mut cluster, node) = (cluster(1, 1), name(0));
    cluster.is_nominated(&slice(1, 100), &node, second(1));
    for n in 2..200 {
        cluster.is_nominated(&large(n), &node, second(2));
        assert!(cluster.nominated.bytes <= MOST_BYTES, "{n}");
    }
    let kept = cluster.nominated.kept().0;
    assert!((50..150).contains(&kept), "{kept}");
    assert!(cluster.nominated.waits(&slice(1, 100).uid, &node) && cluster.nominated.waits(&large(199).uid, &node));
    // Its owner makes the annotations of a nominated pod longer.
    cluster.is_nominated(&large(1), &node, second(3));
    assert!(cluster.nominated.bytes <= MOST_BYTES);
    for n in 1..200 {
        cluster.pod_gone(&slice(n, 100).uid);
    }
    assert_eq!((cluster.nominated.kept(), cluster.nominated.bytes), ((0, 0), 0));
}
