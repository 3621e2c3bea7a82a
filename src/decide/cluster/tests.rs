//! Tests of the cluster's state: proposals, reservations, evidence, and a live state that equals a rebuilt one.

use super::beside::MOST_EXPECTED;
use super::state::MAX_PENDING_BYTES;
use super::*;
use crate::ledger::ClaimState;
use crate::placement::RefusalReason;
use crate::placement::tests::{container, pod, uuid};
use model::claim::{BindOrder, Claim, ClaimOrigin, DeviceShare, PodClaim};
use model::followed_node::{MAX_CLUSTER_NODES, NodeFacts};
use model::gpu_pod::{BoundPod, GpuPod};
use model::id::{NodeName, ObjectUid, PodUid};
use model::placement::PlacementRequest;
use model::registered::RegisteredGpu;
use model::request::ContainerRole;
use model::time::{Monotonic, WallTime};
use model::unit::{CorePercent, Mib};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

pub(super) const NOW: Monotonic = Monotonic(1_000_000);

/// The state, for one call at a time.
struct Alone<'a>(RefCell<&'a mut ClusterState>);

impl StateAccess for Alone<'_> {
    fn with<R>(&self, step: impl FnOnce(&mut ClusterState) -> R) -> R {
        step(&mut self.0.borrow_mut())
    }
}

impl ClusterState {
    pub(super) fn filter(&mut self, request: PlacementRequest, nodes: &[&str], now: Monotonic) -> FilterVerdict {
        filter(&Alone(RefCell::new(self)), request, nodes, now)
    }

    pub(super) fn score(&mut self, uid: &PodUid, nodes: &[&str]) -> Vec<i64> {
        score(&Alone(RefCell::new(self)), uid, nodes)
    }
}

pub(super) fn name(n: u32) -> NodeName {
    NodeName::parse(&format!("node-{n}")).unwrap()
}

pub(super) fn names(count: usize) -> &'static [&'static str] {
    &["node-0", "node-1", "node-2", "node-3", "node-4"][..count]
}

pub(super) fn facts(n: u32, gpus: u32) -> NodeFacts {
    let gpu = |index: u32| RegisteredGpu {
        uuid: uuid(n * 100 + index),
        index,
        slots: 10,
        memory: Mib(80 * 1024),
        cores: CorePercent(100),
        product: "NVIDIA H100".into(),
        numa: 0,
        mode: "hami-core".into(),
        healthy: true,
        mig_profiles: Vec::new(),
    };
    NodeFacts {
        uid: ObjectUid::parse(&format!("uid-{n}")).unwrap(),
        name: name(n),
        register: Ok((0..gpus).map(gpu).collect()),
        cordoned: BTreeSet::new(),
        handshake: None,
        assumed: None,
        links: BTreeMap::new(),
    }
}

pub(super) fn cluster(nodes: u32, gpus: u32) -> ClusterState {
    let mut cluster = ClusterState::new(ClusterRules::default());
    (0..nodes).for_each(|n| cluster.node_is(&facts(n, gpus)));
    cluster.lead(7);
    cluster
}

pub(super) fn slice(n: u32, mib: u64) -> PlacementRequest {
    pod(n, vec![container(ContainerRole::App, 1, mib, 0)])
}

pub(super) fn bound(request: &PlacementRequest, node: &NodeName, claim: PodClaim) -> BoundPod {
    let gpu_pod = GpuPod { claim, ..filter::gpu_pod(request) };
    BoundPod { node: node.clone(), gpu_pod: Some(gpu_pod), ended: false, hash: None }
}

fn claimed_mib(cluster: &ClusterState, node: &NodeName) -> u64 {
    let devices = cluster.node(node).into_iter().flat_map(|node| &node.devices().devices);
    devices.map(|device| device.claimed.memory >> 20).sum()
}

#[test]
fn the_filter_answers_every_node_that_fits_and_a_reason_for_each_other_one() {
    let mut cluster = cluster(2, 1);
    cluster.node_is(&NodeFacts { register: Ok(Vec::new()), ..facts(2, 0) });
    cluster.node_is(&NodeFacts { register: Err("byte 3: no".into()), ..facts(3, 1) });
    let verdict = cluster.filter(slice(1, 1000), names(5), NOW);
    assert_eq!(verdict.fit, [0, 1]);
    let why: Vec<(usize, String)> = verdict.refused.iter().map(|node| (node.place, node.why.to_string())).collect();
    let unregistered = "NodeUnfitPod: NodeUnregistered";
    let expected = [(2, unregistered), (3, "NodeUnfitPod: NodeClosed"), (4, unregistered)];
    assert_eq!(why, expected.map(|(place, why)| (place, why.to_owned())));
}

#[test]
fn a_proposal_counts_in_the_scores_and_not_in_the_fit() {
    let mut cluster = cluster(2, 1);
    cluster.rules.placement.node_policy = model::placement::NodePolicy::Spread;
    let first = cluster.filter(slice(1, 60 * 1024), names(2), NOW);
    assert_eq!((first.fit.clone(), first.scores, first.proposed), (vec![0, 1], vec![0, 0], Some(0)));
    // The next pod fits alongside the expected one only on the other node; the first node comes last and still fits.
    let next = cluster.filter(slice(2, 60 * 1024), names(2), NOW);
    assert_eq!((next.fit, next.scores, next.proposed), (vec![0, 1], vec![0, DEFAULT_SCORE_STEP], Some(1)));
    let third = cluster.filter(slice(3, 60 * 1024), names(2), NOW);
    assert_eq!((third.fit, third.scores), (vec![0, 1], vec![0, 0]), "both nodes are expected to be full");
    // kube-scheduler gets the same scores in its prioritize call.
    assert_eq!(cluster.score(&slice(2, 1).uid, names(2)), [0, DEFAULT_SCORE_STEP]);
    assert_eq!(cluster.pending(), 3);
    cluster.forget_pending(Monotonic(NOW.0 + 1));
    assert_eq!(cluster.pending(), 0);
    assert_eq!(cluster.filter(slice(4, 1000), names(2), NOW).scores, [0, 0], "no pod is expected any longer");
}

/// Calls of kube-scheduler and news of the watch about a pod come in any order.
#[test]
fn a_pod_that_is_deleted_during_its_filter_call_leaves_no_proposal() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 60 * 1024);
    cluster.pod_gone(&pod.uid);
    assert_eq!(cluster.filter(pod.clone(), names(1), NOW).fit, [0]);
    assert_eq!((cluster.pending(), cluster.bind(&pod.uid, &name(0)).is_err()), (0, true));
    // After an etcd restore the pod exists again.
    cluster.pod_is(&pod.uid, None);
    assert_eq!(cluster.filter(pod, names(1), NOW).fit, [0]);
    assert_eq!(cluster.pending(), 1);
}

#[test]
fn binpack_fills_a_node_and_spread_takes_the_emptiest() {
    for (policy, expected) in [(model::placement::NodePolicy::Binpack, 1), (model::placement::NodePolicy::Spread, 0)] {
        let mut cluster = cluster(2, 2);
        let there = Claim(vec![vec![DeviceShare { device: uuid(100), memory: Some(Mib(5000).bytes()), cores: None }]]);
        let other = slice(9, 5000);
        cluster.pod_is(&other.uid, Some(&bound(&other, &name(1), PodClaim::Given(there))));
        cluster.rules.placement.node_policy = policy;
        let verdict = cluster.filter(slice(1, 1000), names(2), NOW);
        assert_eq!(verdict.proposed, Some(expected), "{policy:?}");
        let best = verdict.scores.iter().max().unwrap();
        assert_eq!(verdict.scores.iter().position(|score| score == best), Some(expected), "{policy:?}");
    }
}

#[test]
fn an_eviction_helps_only_where_its_pods_make_room_on_the_right_gpu() {
    let mut cluster = cluster(1, 2);
    for n in 0..2 {
        let there = slice(n, 50 * 1024);
        let share = DeviceShare { device: uuid(n), memory: Some(Mib(50 * 1024).bytes()), cores: None };
        let there = (there.uid.clone(), bound(&there, &name(0), PodClaim::Given(Claim(vec![vec![share]]))));
        cluster.pod_is(&there.0, Some(&there.1));
        assert_eq!(cluster.claim_of(&there.0), Some((&name(0), ClaimState::Bound)));
    }
    let [one, other] = [slice(0, 1).uid, slice(1, 1).uid];
    let asks = slice(9, 60 * 1024);
    assert!(
        !cluster.fits_without(&asks, "node-0", &[])
            && cluster.fits_without(&asks, "node-0", std::slice::from_ref(&one))
    );
    let mut two = asks.clone();
    two.requests[0].slots = 2;
    assert!(
        !cluster.fits_without(&two, "node-0", std::slice::from_ref(&one))
            && cluster.fits_without(&two, "node-0", &[one, other])
    );
    assert!(!cluster.fits_without(&asks, "node-1", &[]), "not known");
    assert_eq!((cluster.claim_of(&asks.uid), claimed_mib(&cluster, &name(0))), (None, 100 * 1024));
    // A pod whose binding may still be carried out needs no room elsewhere.
    let mut cluster = self::cluster(2, 1);
    assert!(cluster.fits_without(&asks, "node-1", &[]));
    cluster.filter(asks.clone(), names(2), NOW);
    assert!(cluster.bind(&asks.uid, &name(0)).is_ok());
    assert!(!cluster.fits_without(&asks, "node-1", &[]));
}

#[test]
fn bind_reserves_at_once_and_repeats_its_order() {
    let mut cluster = cluster(1, 1);
    let big = slice(1, 60 * 1024);
    assert_eq!(cluster.bind(&big.uid, &name(0)), Err(BindRefusal::NotFiltered));
    cluster.filter(big.clone(), names(1), NOW);
    cluster.filter(slice(2, 60 * 1024), names(1), NOW);
    let order = cluster.bind(&big.uid, &name(0)).unwrap();
    assert_eq!((order.epoch, order.claim.shares().count()), (7, 1));
    assert_eq!(cluster.bind(&big.uid, &name(0)), Ok(order.clone()), "a repeated call");
    assert_eq!(cluster.bind(&big.uid, &name(1)), Err(BindRefusal::Undecided(name(0))));
    let refused = cluster.bind(&slice(2, 1).uid, &name(0)).unwrap_err();
    assert_eq!(refused.to_string(), "node node-0 no longer fits: CardInsufficientMemory");
    assert_eq!(claimed_mib(&cluster, &name(0)), 60 * 1024);
}

#[test]
fn an_order_is_written_again_with_the_epoch_of_the_term_and_only_where_it_has_room() {
    let (first, second) = (slice(1, 60 * 1024), slice(2, 60 * 1024));
    let mut cluster = cluster(1, 1);
    assert_eq!(cluster.order_again(&first.uid), None, "no reservation");
    cluster.filter(first.clone(), names(1), NOW);
    let order = cluster.bind(&first.uid, &name(0)).unwrap();
    cluster.lead(9);
    assert_eq!(cluster.order_again(&first.uid), Some(BindOrder { epoch: 9, ..order.clone() }));
    // Another leader has given the GPU to another pod.
    cluster.pod_is(&second.uid, Some(&bound(&second, &name(0), PodClaim::Given(order.claim.clone()))));
    assert_eq!(cluster.order_again(&first.uid), None);
    cluster.pod_gone(&second.uid);
    assert!(cluster.order_again(&first.uid).is_some());
    // Another pod holds GPUs of the node, but it is not known which.
    cluster.pod_is(&second.uid, Some(&bound(&second, &name(0), PodClaim::None)));
    assert_eq!(cluster.order_again(&first.uid), None);
    cluster.pod_gone(&second.uid);
    cluster.node_gone(&name(0), &facts(0, 1).uid);
    assert!(cluster.order_again(&first.uid).is_some(), "the node may never open again");
}

#[test]
fn a_restore_of_etcd_takes_back_a_claim_but_not_the_reservation_of_an_order_under_way() {
    let request = slice(1, 1000);
    let mut cluster = cluster(1, 1);
    cluster.filter(request.clone(), names(1), NOW);
    let order = cluster.bind(&request.uid, &name(0)).unwrap();
    cluster.pod_is_unbound(&request.uid);
    assert_eq!(claimed_mib(&cluster, &name(0)), 1000, "assumed");
    cluster.pod_is(&request.uid, Some(&bound(&request, &name(0), PodClaim::Given(order.claim))));
    cluster.pod_is_unbound(&request.uid);
    assert_eq!((claimed_mib(&cluster, &name(0)), cluster.claim_of(&request.uid)), (0, None));
    cluster.filter(request.clone(), names(1), NOW);
    assert!(cluster.bind(&request.uid, &name(0)).is_ok(), "it is placed again");
    // A pod whose claim cannot be read no longer closes its node.
    let other = slice(2, 1000);
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), PodClaim::None)));
    assert!(cluster.node(&name(0)).unwrap().closed().is_some());
    cluster.pod_is_unbound(&other.uid);
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), None);
}

#[test]
fn only_evidence_releases_a_reservation() {
    let request = slice(1, 1000);
    let reserved = || {
        let mut cluster = cluster(2, 1);
        cluster.filter(request.clone(), names(1), NOW);
        let order = cluster.bind(&request.uid, &name(0)).unwrap();
        (cluster, order)
    };
    for (outcome, left) in [(None, 1000), (Some(BindOutcome::Written), 1000), (Some(BindOutcome::Refused), 0)] {
        let (mut cluster, _) = reserved();
        if let Some(outcome) = outcome {
            cluster.bind_ended(&request.uid, outcome);
        }
        cluster.forget_pending(Monotonic(u64::MAX));
        cluster.pod_is(&request.uid, None);
        assert_eq!(claimed_mib(&cluster, &name(0)), left, "{outcome:?}");
    }
    // After a lost answer, a new filter call finds the pod only where it may be bound.
    let (mut cluster, order) = reserved();
    assert_eq!(cluster.filter(request.clone(), names(2), NOW).fit, [0]);
    // The watch shows the pod as bound. A late refusal of an older write changes nothing.
    cluster.pod_is(&request.uid, Some(&bound(&request, &name(0), PodClaim::Given(order.claim.clone()))));
    cluster.bind_ended(&request.uid, BindOutcome::Refused);
    assert_eq!(claimed_mib(&cluster, &name(0)), 1000);
    // Another leader has bound the pod to another node: the reservation moves with it.
    let (mut cluster, order) = reserved();
    let elsewhere: Claim = Claim(vec![vec![DeviceShare { device: uuid(100), ..order.claim[0][0].clone() }]]);
    cluster.pod_is(&request.uid, Some(&bound(&request, &name(1), PodClaim::Given(elsewhere))));
    assert_eq!((claimed_mib(&cluster, &name(0)), claimed_mib(&cluster, &name(1))), (0, 1000));
    // The pod has ended, or is gone.
    let mut ended = bound(&request, &name(1), PodClaim::None);
    if let Some(pod) = &mut ended.gpu_pod {
        pod.finished = true;
    }
    cluster.pod_is(&request.uid, Some(&ended));
    assert_eq!(claimed_mib(&cluster, &name(1)), 0);
    let (mut cluster, _) = reserved();
    cluster.pod_gone(&request.uid);
    assert_eq!(claimed_mib(&cluster, &name(0)), 0);
}

#[test]
fn a_pod_without_a_readable_claim_closes_its_node_until_the_claim_is_known() {
    let mut cluster = cluster(1, 1);
    let other = slice(9, 1000);
    for claim in [PodClaim::None, PodClaim::Unreadable("byte 0".into()), PodClaim::BadRequest("too much".into())] {
        cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), claim)));
        let verdict = cluster.filter(slice(1, 1000), names(1), NOW);
        assert_eq!(verdict.refused[0].why, crate::placement::NodeRefusal::whole(RefusalReason::NodeClosed));
        assert_eq!(cluster.node(&name(0)).unwrap().closed(), Some(ClosedReason::UnknownClaim(other.uid.clone())));
    }
    let share = DeviceShare { device: uuid(0), memory: Some(Mib(1000).bytes()), cores: None };
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), PodClaim::Given(Claim(vec![vec![share]])))));
    assert_eq!(cluster.filter(slice(1, 1000), names(1), NOW).fit, [0]);
    // The node closes again when the pod's claim is lost, and opens when the pod is gone.
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), PodClaim::None)));
    assert!(cluster.node(&name(0)).unwrap().closed().is_some());
    cluster.pod_gone(&other.uid);
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), None);
}

fn given(n: u32) -> PodClaim {
    PodClaim::Given(Claim(vec![vec![DeviceShare { device: uuid(n), memory: Some(Mib(1000).bytes()), cores: None }]]))
}

/// HAMi 2.5 to 2.9 name a MIG instance by its GPU and a template; the decoder returns the GPU.
#[test]
fn a_claim_on_a_device_that_nobody_knows_closes_its_node_and_names_the_pod() {
    let mut cluster = cluster(1, 1);
    let other = slice(9, 1000);
    let closed = |cluster: &ClusterState| cluster.node(&name(0)).unwrap().closed();
    let unknown = |n: u32| Some(ClosedReason::UnknownDevice(other.uid.clone(), uuid(n)));
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), given(77))));
    assert_eq!(closed(&cluster), unknown(77));
    assert_eq!(cluster.filter(slice(1, 1000), names(1), NOW).refused[0].why.to_string(), "NodeUnfitPod: NodeClosed");
    let changes = cluster.take_closings();
    let text = changes[0].closed.as_ref().unwrap().to_string();
    assert!(
        text.starts_with(&format!("the pod {} on this node claims {}, and neither", other.pod, uuid(77))),
        "{text}"
    );
    // A claim of the same pod on a GPU of the node.
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), given(0))));
    assert_eq!(closed(&cluster), None);
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), given(77))));
    cluster.pod_gone(&other.uid);
    assert_eq!(closed(&cluster), None, "the pod has ended");
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), given(77))));
    cluster.node_is(&NodeFacts { register: Ok(Vec::new()), ..facts(0, 0) });
    assert_eq!(closed(&cluster), None, "no pod can be placed here anyway");
    cluster.node_is(&facts(0, 1));
    assert_eq!(closed(&cluster), unknown(77));
    cluster.node_is(&facts(0, 78));
    assert_eq!(closed(&cluster), None, "the agent has found the GPU");
    cluster.node_is(&facts(0, 1));
    assert_eq!(closed(&cluster), None, "the GPU was removed, and the claim on it takes nothing of the others");
    assert_eq!(cluster.filter(slice(1, 1000), names(1), NOW).fit, [0]);
    // Another machine has the name of the node.
    cluster.node_is(&NodeFacts { uid: ObjectUid::parse("uid-other").unwrap(), ..facts(0, 1) });
    assert_eq!(closed(&cluster), unknown(77));
}

#[test]
fn a_reservation_on_a_gpu_that_is_removed_meanwhile_does_not_close_its_node() {
    let mut cluster = cluster(1, 2);
    let pod = slice(1, 1000);
    cluster.filter(pod.clone(), names(1), NOW);
    let order = cluster.bind(&pod.uid, &name(0)).unwrap();
    let device = &order.claim.shares().next().unwrap().device;
    let mut left = facts(0, 2);
    left.register.as_mut().unwrap().retain(|gpu| gpu.uuid != *device);
    cluster.node_is(&left);
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), None);
    cluster.pod_is(&pod.uid, Some(&bound(&pod, &name(0), PodClaim::Given(order.claim.clone()))));
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), None, "the register listed it");
}

#[test]
fn a_pod_that_cannot_be_read_closes_its_node_until_it_can_be_read_or_is_gone() {
    let mut cluster = cluster(2, 1);
    let (bad, held) = (slice(9, 1000), slice(8, 1000));
    cluster.pod_is(&held.uid, Some(&bound(&held, &name(0), given(0))));
    cluster.take_closings();
    cluster.pod_is_unreadable(&bad.uid, None, &name(0));
    assert_eq!(cluster.filter(slice(1, 1000), names(2), NOW).fit, [1]);
    let closed = cluster.node(&name(0)).unwrap().closed();
    assert_eq!(closed, Some(ClosedReason::UnreadablePod(bad.uid.clone())));
    // A newer version of the pod is bound to another node. The same version again changes nothing.
    cluster.pod_is_unreadable(&bad.uid, None, &name(1));
    cluster.pod_is_unreadable(&bad.uid, None, &name(1));
    assert_eq!(cluster.filter(slice(1, 1000), names(2), NOW).fit, [0]);
    cluster.pod_is_settled(&bad.uid);
    assert_eq!(cluster.filter(slice(1, 1000), names(2), NOW).fit, [0, 1]);
    // A pod whose newest version cannot be read keeps what it is known to hold.
    cluster.pod_is_unreadable(&held.uid, None, &name(0));
    assert_eq!((claimed_mib(&cluster, &name(0)), cluster.node(&name(0)).unwrap().closed().is_some()), (1000, true));
    cluster.pod_is_settled(&held.uid);
    // On a node that is not known, the pod is remembered until the Node appears.
    cluster.pod_is_unreadable(&bad.uid, None, &name(4));
    cluster.node_is(&facts(4, 1));
    assert!(cluster.node(&name(4)).unwrap().closed().is_some());
    cluster.pod_is_settled(&bad.uid);
    assert_eq!(cluster.node(&name(4)).unwrap().closed(), None);
    assert!(cluster.unreadable.is_empty());
}

/// Anyone who may create pods can bind them to nodes that do not exist.
#[test]
fn pods_get_entries_for_no_more_names_of_nodes_than_there_may_be_nodes() {
    let mut cluster = cluster(1, 1);
    let most = u32::try_from(MAX_CLUSTER_NODES).unwrap();
    for n in 1..most {
        assert!(cluster.pod_is(&slice(n, 1).uid, Some(&bound(&slice(n, 1), &name(n), PodClaim::None))));
    }
    let late = slice(most, 1000);
    let (on_new, on_known) = (bound(&late, &name(most), given(most * 100)), bound(&late, &name(0), given(0)));
    // It was assumed on a node that is known, and is bound to another one.
    assert!(cluster.pod_is(&late.uid, Some(&on_known)));
    assert!(!cluster.pod_is(&late.uid, Some(&on_new)));
    assert_eq!((claimed_mib(&cluster, &name(0)), cluster.nodes.len()), (0, MAX_CLUSTER_NODES));
    let plain = BoundPod { gpu_pod: None, ..on_new.clone() };
    let is_static = BoundPod { hash: Some(late.uid.clone()), ..plain.clone() };
    let finished =
        BoundPod { gpu_pod: on_new.gpu_pod.clone().map(|pod| GpuPod { finished: true, ..pod }), ..on_new.clone() };
    for (pod, has_place) in [(&plain, true), (&is_static, false), (&finished, true), (&on_new, false)] {
        assert_eq!(cluster.pod_is(&late.uid, Some(pod)), has_place, "{pod:?}");
    }
    let bad = slice(most + 1, 1).uid;
    cluster.pod_is_unreadable(&bad, None, &name(most));
    assert_eq!(cluster.nodes.len(), MAX_CLUSTER_NODES);
    // A Node always gets an entry.
    cluster.node_is(&facts(most, 1));
    assert_eq!(cluster.node(&name(most)).unwrap().closed(), Some(ClosedReason::UnreadablePod(bad.clone())));
    cluster.pod_is_settled(&bad);
    assert!(cluster.pod_is(&late.uid, Some(&on_new)));
    assert_eq!(claimed_mib(&cluster, &name(most)), 1000);
}

#[test]
fn a_node_whose_newest_version_cannot_be_read_is_closed_until_it_can() {
    let mut cluster = cluster(1, 1);
    cluster.node_is_unreadable(&name(0), &"not JSON".into());
    cluster.node_is_unreadable(&name(3), &"not JSON".into());
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), Some(ClosedReason::Unreadable("not JSON".into())));
    assert!(cluster.node(&name(3)).is_none(), "nothing was known about the node");
    cluster.node_is(&facts(0, 1));
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), None);
}

#[test]
fn a_node_that_comes_back_takes_no_pods_until_its_agent_has_registered_its_gpus() {
    let mut cluster = cluster(1, 1);
    let there = slice(9, 60 * 1024);
    cluster.pod_is(&there.uid, Some(&bound(&there, &name(0), given(0))));
    cluster.node_gone(&name(0), &facts(0, 1).uid);
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), Some(ClosedReason::Gone));
    let again = NodeFacts { uid: ObjectUid::parse("uid-again").unwrap(), ..facts(0, 1) };
    cluster.node_is(&NodeFacts { register: Ok(Vec::new()), ..again.clone() });
    let verdict = cluster.filter(slice(1, 1000), names(1), NOW);
    assert_eq!((verdict.fit.len(), verdict.refused[0].why.to_string()), (0, "NodeUnfitPod: NodeUnregistered".into()));
    cluster.node_is(&again);
    assert_eq!(cluster.filter(slice(1, 1000), names(1), NOW).fit, [0]);
    assert_eq!(claimed_mib(&cluster, &name(0)), 1000, "the pod that was there holds its GPU");
}

/// A node with these pods, whose claims are from these schedulers.
fn cluster_of(pods: &[PlacementRequest], origins: &[ClaimOrigin]) -> ClusterState {
    let mut cluster = cluster(1, 4);
    // A verdict from before must not outlive the change.
    cluster.filter(slice(9, 1000), names(1), NOW);
    for (pod, origin) in pods.iter().zip(origins) {
        cluster.pod_is(&pod.uid, Some(&bound(pod, &name(0), given(0))));
        cluster.claim_is_from(&pod.uid, Some(origin.clone()));
    }
    cluster
}

#[test]
fn another_scheduler_that_places_pods_beside_this_one_closes_the_node() {
    let pods: Vec<PlacementRequest> = (0..4).map(|n| slice(n, 1000)).collect();
    use ClaimOrigin::{Other, OtherLease, Own};
    let at = |second: u64| Some(WallTime(second * 1_000_000));
    let lease = |second: u64| OtherLease(at(second), "b/gpu-steward-extender".into());
    for (origins, closed) in [
        (vec![Other(at(1)), Other(at(9))], None),
        (vec![Own(at(1)), Own(at(9))], None),
        // Pods of an earlier scheduler, which this one has replaced.
        (vec![Other(at(1)), Other(at(5)), Own(at(6))], None),
        (vec![Other(at(1)), Own(at(6)), Other(at(7))], Some("two_schedulers")),
        (vec![Other(None)], None),
        (vec![Own(at(6)), Other(None)], Some("two_schedulers")),
        (vec![Own(None), Other(at(1))], Some("two_schedulers")),
        // Another installation, and this installation under a former name of its Lease.
        (vec![lease(1), lease(9)], None),
        (vec![lease(1), lease(5), Own(at(6))], None),
        (vec![Own(at(6)), lease(7)], Some("two_leases")),
        // The times are whole seconds.
        (vec![Own(at(6)), lease(6)], Some("two_leases")),
        (vec![lease(1), Own(at(6)), lease(7), Other(at(2))], Some("two_leases")),
        (vec![Own(at(6)), lease(7), Other(at(8))], Some("two_schedulers")),
        (vec![Own(at(6)), OtherLease(None, "b/x".into())], Some("two_leases")),
    ] {
        let mut cluster = cluster_of(&pods, &origins);
        let why = |cluster: &ClusterState| cluster.node(&name(0)).unwrap().closed().map(|why| why.word());
        assert_eq!(why(&cluster), closed, "{origins:?}");
        let fits = cluster.filter(slice(9, 1000), names(1), NOW).fit.len();
        assert_eq!(fits == 0, closed.is_some(), "{origins:?}");
        // The node opens when all pods of either scheduler are gone.
        for own in [false, true] {
            let mut cluster = cluster_of(&pods, &origins);
            for (pod, _) in pods.iter().zip(&origins).filter(|(_, origin)| matches!(origin, Own(_)) == own) {
                cluster.pod_gone(&pod.uid);
            }
            assert_eq!(why(&cluster), None, "{origins:?}");
            assert_eq!(cluster.filter(slice(9, 1000), names(1), NOW).fit, [0], "{origins:?}");
        }
    }
}

#[test]
fn each_closing_and_opening_is_told_once() {
    let mut cluster = cluster(2, 1);
    assert_eq!(cluster.take_closings(), [], "open nodes are not reported");
    let other = slice(9, 1000);
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), PodClaim::None)));
    let told = |cluster: &mut ClusterState| -> Vec<(String, Option<&'static str>)> {
        let all = cluster.take_closings().into_iter();
        all.map(|change| (change.node.to_string(), change.closed.map(|why| why.reason.word()))).collect()
    };
    assert_eq!(told(&mut cluster), [("node-0".into(), Some("unknown_claim"))]);
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), PodClaim::None)));
    assert_eq!(told(&mut cluster), []);
    // Closed and opened in between: nothing has changed.
    cluster.pod_is_unreadable(&slice(8, 1).uid, None, &name(1));
    cluster.pod_is_settled(&slice(8, 1).uid);
    cluster.pod_gone(&other.uid);
    assert_eq!(told(&mut cluster), [("node-0".into(), None)]);
    cluster.node_gone(&name(0), &facts(0, 0).uid);
    assert_eq!(told(&mut cluster), []);
}

#[test]
fn claims_outlive_their_node_and_their_gpus_and_hold_nothing_elsewhere() {
    let mut cluster = cluster(2, 1);
    let other = slice(9, 1000);
    let share = DeviceShare { device: uuid(0), memory: Some(Mib(1000).bytes()), cores: None };
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), PodClaim::Given(Claim(vec![vec![share]])))));
    // The GPU has moved to the other node: the claim stays on the pod's node.
    cluster.node_is(&NodeFacts { register: Ok(Vec::new()), ..facts(0, 0) });
    cluster.node_is(&NodeFacts { register: facts(0, 1).register, ..facts(1, 1) });
    assert_eq!(claimed_mib(&cluster, &name(1)), 0);
    assert_eq!(cluster.node(&name(0)).unwrap().ledger().claims().count(), 1);
    cluster.node_gone(&name(0), &facts(1, 0).uid);
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), None, "that was another Node of the name");
    cluster.node_gone(&name(0), &facts(0, 0).uid);
    assert_eq!(cluster.node(&name(0)).unwrap().closed(), Some(ClosedReason::Gone));
    cluster.node_is(&facts(0, 1));
    assert_eq!(claimed_mib(&cluster, &name(0)), 1000, "the node is back, and so is the pod that holds its GPU");
    cluster.node_gone(&name(0), &facts(0, 0).uid);
    cluster.pod_gone(&other.uid);
    assert!(cluster.node(&name(0)).is_none(), "nothing names it any longer");
}

#[test]
fn with_the_choice_of_the_extender_the_best_node_is_the_only_answer() {
    let mut cluster = cluster(3, 1);
    cluster.rules.node_choice = NodeChoice::Extender;
    let first = cluster.filter(slice(1, 1000), names(3), NOW);
    assert_eq!((first.fit.len(), first.more, first.proposed), (1, 2, first.fit.first().copied()));
    let next = cluster.filter(slice(2, 1000), names(3), NOW);
    assert_eq!((next.fit, next.more), (first.fit, 2), "binpack, alongside the expected pod");
}

fn many_nodes(nodes: u32, most: usize) -> (ClusterState, Vec<NodeName>) {
    let mut cluster = cluster(nodes, 1);
    cluster.rules.answered_nodes = AnsweredNodes::AtMost(NonZeroUsize::new(most).unwrap());
    (cluster, (0..nodes).map(name).collect())
}

#[test]
fn the_best_nodes_are_named_with_the_proposed_one_and_the_others_are_counted() {
    let (mut cluster, nodes) = many_nodes(20, 4);
    let nodes: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    // Binpack: node 11 has one pod, node 5 two and node 17 three. The last node is full.
    for (n, node) in [(1, 11), (2, 5), (3, 5), (4, 17), (5, 17), (6, 17)] {
        let held = slice(n, 1000);
        cluster.pod_is(&held.uid, Some(&bound(&held, &name(node), given(node * 100))));
    }
    let full = slice(7, 1000);
    let share = DeviceShare { device: uuid(1900), memory: Some(Mib(80 * 1024).bytes()), cores: None };
    cluster.pod_is(&full.uid, Some(&bound(&full, &name(19), PodClaim::Given(Claim(vec![vec![share]])))));
    let mut fourth = BTreeSet::new();
    for n in 100..140 {
        let verdict = cluster.filter(slice(n, 1000), &nodes, NOW);
        assert_eq!((verdict.fit.len(), verdict.more, verdict.refused.len(), verdict.proposed), (4, 15, 1, Some(17)));
        assert!(verdict.fit.is_sorted() && [5, 11, 17].iter().all(|best| verdict.fit.contains(best)), "{verdict:?}");
        assert_eq!(verdict.scores.len(), 4);
        assert_eq!(verdict.explained.len(), 4);
        let named: Vec<&str> = verdict.fit.iter().map(|place| nodes[*place]).collect();
        assert_eq!(cluster.score(&slice(n, 1).uid, &named), verdict.scores);
        fourth.extend(verdict.fit);
        cluster.pod_gone(&slice(n, 1).uid);
    }
    assert_eq!(fourth, (0..19).collect(), "nodes that tie for the last place take turns");
    let none = cluster.score(&slice(99, 1).uid, &nodes);
    assert!(none.iter().all(|score| *score == 0), "no filter call: {none:?}");
}

#[test]
fn on_empty_nodes_the_proposal_is_on_one_that_is_named() {
    for policy in [model::placement::NodePolicy::Binpack, model::placement::NodePolicy::Spread] {
        let (mut cluster, nodes) = many_nodes(20, 3);
        cluster.rules.placement.node_policy = policy;
        let nodes: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
        let mut proposed = BTreeSet::new();
        for n in 0..10 {
            let verdict = cluster.filter(slice(n, 1000), &nodes, NOW);
            let place = verdict.proposed.unwrap();
            assert!(verdict.fit.len() == 3 && verdict.fit.contains(&place), "{policy:?} {verdict:?}");
            let best = verdict.scores.iter().max();
            let at = verdict.fit.iter().position(|fit| *fit == place).unwrap();
            assert_eq!(verdict.scores.get(at), best);
            proposed.insert(place);
        }
        let expected = if policy == model::placement::NodePolicy::Binpack { 1 } else { 10 };
        assert_eq!(proposed.len(), expected, "{policy:?}: {proposed:?}");
    }
}

#[test]
fn all_nodes_are_named_for_pods_that_prefer_some_and_for_those_that_come_back_unbound() {
    let (mut cluster, nodes) = many_nodes(20, 3);
    let nodes: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    let mut named = |request: &PlacementRequest| {
        let verdict = cluster.filter(request.clone(), &nodes, NOW);
        assert_eq!(verdict.fit.len() + verdict.more, 20);
        verdict.fit.len()
    };
    let prefers = PlacementRequest { prefers_nodes: true, ..slice(1, 1000) };
    assert_eq!((named(&prefers), named(&prefers)), (20, 20));
    // kube-scheduler got the names but did not bind the pod: a volume was missing, or a gang was not complete.
    let waits = slice(2, 1000);
    assert_eq!((named(&waits), named(&waits), named(&waits)), (3, 20, 20));
    // The API server has refused its binding.
    let refused = slice(3, 1000);
    assert_eq!(named(&refused), 3);
    let node = cluster.pending.get(&refused.uid).unwrap().proposed.clone().unwrap();
    assert!(cluster.bind(&refused.uid, &node).is_ok());
    cluster.bind_ended(&refused.uid, BindOutcome::Refused);
    assert_eq!(cluster.filter(refused, &nodes, NOW).fit.len(), 20);
    // A pod that found no node before counts as filtered for the first time: kube-scheduler had no node to choose from.
    let huge = slice(4, 81 * 1024);
    assert!(cluster.filter(huge, &nodes, NOW).fit.is_empty());
    assert_eq!(cluster.filter(slice(4, 1000), &nodes, NOW).fit.len(), 3);
}

#[test]
fn a_twentieth_of_the_nodes_and_at_least_a_hundred_are_named() {
    for (asked, most) in [(0, 100), (1000, 100), (2000, 100), (2001, 101), (5000, 250)] {
        assert_eq!(AnsweredNodes::Share.most(asked), most, "{asked}");
    }
    assert_eq!(AnsweredNodes::All.most(5000), usize::MAX);
}

#[test]
fn what_is_remembered_of_pods_is_bounded() {
    let mut cluster = cluster(1, 1);
    for n in 0..u32::try_from(MAX_PENDING).unwrap() + 10 {
        cluster.filter(slice(n, 100), names(1), Monotonic(u64::from(n)));
    }
    assert_eq!(cluster.pending(), MAX_PENDING);
    assert_eq!(cluster.bind(&slice(0, 100).uid, &name(0)), Err(BindRefusal::NotFiltered));
}

/// One namespace cannot make the extender forget the pods of another, however small its own pods are.
#[test]
fn a_namespace_with_many_pods_does_not_push_out_the_pods_of_another() {
    let mut cluster = cluster(1, 1);
    let most = u32::try_from(MAX_PENDING).unwrap();
    for n in 0..10 {
        cluster.filter(in_namespace("other", slice(n, 100)), names(1), Monotonic(n.into()));
    }
    for n in 10..most + 10 {
        cluster.filter(slice(n, 100), names(1), Monotonic(n.into()));
    }
    assert_eq!(cluster.pending(), MAX_PENDING);
    let is_asked = |n| cluster.asked(&slice(n, 100).uid).is_some();
    assert_eq!([0, 9, 10, 19, 20, most + 9].map(is_asked), [true, true, false, false, true, true]);
    assert!(cluster.bind(&slice(0, 100).uid, &name(0)).is_ok());
}

fn in_namespace(namespace: &str, mut request: PlacementRequest) -> PlacementRequest {
    request.pod.namespace = namespace.into();
    request
}

/// A pod with a request of about 96 KiB.
pub(super) fn large(n: u32) -> PlacementRequest {
    let mut request = slice(n, 100);
    request.selection.avoid_uuids = (1000..3000).map(uuid).collect();
    request
}

/// Anyone who may create pods decides how large a request is.
#[test]
fn what_is_remembered_of_pods_is_bounded_in_bytes_and_the_largest_namespace_loses_its_oldest_pod() {
    let mut cluster = cluster(1, 1);
    let at = |n: u32| Monotonic(u64::from(n));
    // A pod of another namespace may be as large as the others.
    cluster.filter(in_namespace("other", large(1)), names(1), at(1));
    for n in 2..600 {
        cluster.filter(large(n), names(1), at(n));
        assert!(cluster.pending_bytes <= MAX_PENDING_BYTES, "{n}");
    }
    assert!(cluster.pending_bytes > MAX_PENDING_BYTES - 200_000 && cluster.pending() < 500);
    let is_asked = |cluster: &ClusterState, n| cluster.asked(&slice(n, 100).uid).is_some();
    assert_eq!([1, 2, 100, 599].map(|n| is_asked(&cluster, n)), [true, false, false, true]);
    // kube-scheduler tries it again.
    assert_eq!(cluster.bind(&slice(2, 100).uid, &name(0)), Err(BindRefusal::NotFiltered));
    cluster.filter(large(2), names(1), at(600));
    assert!(cluster.bind(&slice(2, 100).uid, &name(0)).is_ok());
    cluster.forget_pending(at(601));
    assert_eq!((cluster.pending(), cluster.pending_bytes), (0, 0));
    assert_eq!(cluster.shares.first_to_forget(), None);
}

#[test]
fn the_newest_pods_are_expected_on_a_node_up_to_a_bound_and_the_others_are_bound_all_the_same() {
    let mut cluster = cluster(1, 1);
    let most = u32::try_from(MOST_EXPECTED).unwrap();
    cluster.filter(in_namespace("other", slice(0, 100)), names(1), Monotonic(0));
    for n in 1..most + 10 {
        cluster.filter(slice(n, 100), names(1), Monotonic(n.into()));
    }
    let node = cluster.node(&name(0)).unwrap();
    let is_expected = |n| node.expected().any(|uid| *uid == slice(n, 100).uid);
    assert_eq!(node.expected().count(), MOST_EXPECTED);
    // The pod of the other namespace stays.
    assert_eq!([0, 1, 10, 11, most + 9].map(is_expected), [true, false, false, true, true]);
    assert_eq!(node.devices().devices[0].proposed.containers, u64::from(most));
    assert!(cluster.bind(&slice(1, 100).uid, &name(0)).is_ok());
}

#[test]
fn members_of_a_gang_stay_expected_while_others_come_and_have_a_bound_of_their_own() {
    let mut cluster = cluster(1, 1);
    let most = u32::try_from(MOST_EXPECTED).unwrap();
    let member = |n, gang: &str| PlacementRequest { gang: Some(gang.into()), ..slice(n, 100) };
    cluster.filter(member(0, "ml/train"), names(1), Monotonic(0));
    for n in 1..=300 {
        cluster.filter(slice(n, 100), names(1), Monotonic(n.into()));
    }
    assert_eq!(cluster.gang_nodes(&member(1, "ml/train")), BTreeSet::from([name(0)]));
    assert_eq!(cluster.node(&name(0)).unwrap().expected().count(), MOST_EXPECTED + 1);
    for n in 1000..1000 + most {
        cluster.filter(member(n, &format!("ml/{n}")), names(1), Monotonic(n.into()));
    }
    let node = cluster.node(&name(0)).unwrap();
    assert_eq!(node.expected().count(), 2 * MOST_EXPECTED);
    let is_expected = |n| node.expected().any(|uid| *uid == slice(n, 100).uid);
    assert_eq!([0, 300, 1000].map(is_expected), [false, true, true]);
}

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Filter(u32, u64),
    Bind(u32, u32),
    Refused(u32),
    Seen(u32),
    Started(u32),
    Gone(u32),
    Node(u32),
    NodeGone(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pods = || 0..12_u32;
    let step = prop_oneof![
        3 => (pods(), proptest::sample::select(vec![900_u64, 20_000, 50_000])).prop_map(|(pod, mib)| Step::Filter(pod, mib)),
        4 => (pods(), 0..3_u32).prop_map(|(pod, node)| Step::Bind(pod, node)),
        1 => pods().prop_map(Step::Refused),
        2 => pods().prop_map(Step::Seen),
        2 => pods().prop_map(Step::Started),
        2 => pods().prop_map(Step::Gone),
        1 => (0..3_u32).prop_map(Step::Node),
        1 => (0..3_u32).prop_map(Step::NodeGone),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    /// The pods that the API server would show after the orders rebuild the same claims, and no GPU is given twice.
    #[test]
    fn no_gpu_is_given_twice_and_a_state_built_anew_is_the_same(steps in steps()) {
        let mut cluster = cluster(3, 2);
        let mut orders: BTreeMap<PodUid, (BindOrder, PlacementRequest, bool)> = BTreeMap::new();
        let mut asked: BTreeMap<u32, PlacementRequest> = BTreeMap::new();
        let mut present = [true; 3];
        for (at, step) in steps.into_iter().enumerate() {
            let now = Monotonic(u64::try_from(at).unwrap());
            let shown = |(order, request, started): &(BindOrder, PlacementRequest, bool)| {
                let mut pod = bound(request, &order.node, PodClaim::Given(order.claim.clone()));
                pod.gpu_pod.as_mut().unwrap().started = *started;
                pod
            };
            match step {
                Step::Filter(n, mib) => {
                    let request = slice(n, mib);
                    // A pod that was gone exists again.
                    cluster.pod_is(&request.uid, None);
                    if !orders.contains_key(&request.uid) {
                        let verdict = cluster.filter(request.clone(), names(3), now);
                        // The kept verdicts of earlier calls equal new verdicts about each node.
                        cluster.verdicts = verdicts::VerdictCache::default();
                        prop_assert_eq!(cluster.filter(request.clone(), names(3), now), verdict);
                        asked.insert(n, request);
                    }
                }
                Step::Bind(n, node) => {
                    if let (Some(request), Ok(order)) = (asked.get(&n), cluster.bind(&slice(n, 1).uid, &name(node))) {
                        orders.entry(order.uid.clone()).or_insert((order, request.clone(), false));
                    }
                }
                Step::Refused(n) => {
                    let uid = slice(n, 1).uid;
                    let seen = cluster.locations.get(&uid).and_then(|location| {
                        Some(cluster.node(&location.node)?.ledger().get(&uid)?.state > ClaimState::Assumed)
                    });
                    cluster.bind_ended(&uid, BindOutcome::Refused);
                    if seen != Some(true) {
                        orders.remove(&uid);
                    }
                }
                Step::Seen(n) => {
                    if let Some(order) = orders.get(&slice(n, 1).uid) {
                        cluster.pod_is(&order.0.uid, Some(&shown(order)));
                    }
                }
                Step::Started(n) => {
                    if let Some(order) = orders.get_mut(&slice(n, 1).uid) {
                        order.2 = true;
                        let pod = shown(order);
                        cluster.pod_is(&order.0.uid, Some(&pod));
                    }
                }
                Step::Gone(n) => {
                    let uid = slice(n, 1).uid;
                    cluster.pod_gone(&uid);
                    orders.remove(&uid);
                    asked.remove(&n);
                }
                Step::Node(n) => {
                    cluster.node_is(&facts(n, 2));
                    present[n as usize] = true;
                }
                Step::NodeGone(n) => {
                    cluster.node_gone(&name(n), &facts(n, 0).uid);
                    present[n as usize] = false;
                }
            }
            for node in cluster.nodes() {
                for device in &node.devices().devices {
                    prop_assert!(device.claimed.memory <= device.capacity.memory);
                    prop_assert!(device.claimed.containers <= device.capacity.slots);
                    prop_assert_eq!(device.claimed, node.ledger().claimed(&device.uuid));
                }
            }
        }
        // All objects are shown again to the live state, and for the first time to a new state.
        let mut anew = ClusterState::new(ClusterRules::default());
        for n in (0..3).filter(|n| present[*n as usize]) {
            anew.node_is(&facts(n, 2));
        }
        for order in orders.values() {
            let mut pod = bound(&order.1, &order.0.node, PodClaim::Given(order.0.claim.clone()));
            pod.gpu_pod.as_mut().unwrap().started = order.2;
            cluster.pod_is(&order.0.uid, Some(&pod));
            anew.pod_is(&order.0.uid, Some(&pod));
        }
        cluster.forget_pending(Monotonic(u64::MAX));
        for n in 0..3 {
            let ledger = |cluster: &ClusterState| cluster.node(&name(n)).map(|node| node.ledger().clone());
            prop_assert_eq!(ledger(&cluster).filter(|ledger| !ledger.is_empty()), ledger(&anew).filter(|ledger| !ledger.is_empty()));
            let devices = |cluster: &ClusterState| cluster.node(&name(n)).filter(|node| node.closed().is_none()).map(|node| node.devices().clone());
            if present[n as usize] {
                prop_assert_eq!(devices(&cluster), devices(&anew));
            }
        }
    }
}
