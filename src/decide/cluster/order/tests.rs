//! Tests of the stages of an order: each answer of the API server, and a simulated API server that carries out writes
//! late.

use super::*;
use crate::cluster::tests::{NOW, bound, cluster, large, name, names, slice};
use model::claim::PodClaim;
use proptest::prelude::*;

/// One node, and the order of a pod on it for version 1.
fn ordered() -> (ClusterState, OrderStages) {
    let (mut state, request) = (cluster(1, 1), slice(1, 1000));
    state.filter(request.clone(), names(1), NOW);
    let order = state.bind(&request.uid, &name(0)).unwrap();
    (state, OrderStages::new(order, Some(request)))
}

/// An order for a pod without GPUs.
fn plain() -> (ClusterState, OrderStages) {
    let (state, stages) = ordered();
    (state, OrderStages::without_gpus(stages.order().clone()))
}

/// The pod with this version, without a node, and with the request for which its GPUs were chosen.
fn unbound(version: u64) -> ReadPod {
    let requests = ReadRequest::Gpus(Box::new(slice(1, 1000)));
    ReadPod { node: None, version: Some(version), is_being_deleted: false, requests }
}

fn shown(pod: ReadPod) -> ReadAnswer {
    ReadAnswer::Pod(Box::new(pod))
}

fn conflict() -> PostAnswer {
    PostAnswer::Refused(409, "conflict".to_owned())
}

fn lost() -> PostAnswer {
    PostAnswer::NoAnswer("reset".to_owned())
}

/// The version of the pod that the next step writes the order for.
fn posted_version(step: &BindStep) -> Option<u64> {
    let BindStep::Post(order) = step else { panic!("{step:?}") };
    order.version
}

fn wait(millis: u64, unknown: Option<&str>) -> BindStep {
    BindStep::Wait { pause: Duration::from_millis(millis), unknown: unknown.map(str::to_owned) }
}

fn refused(why: &str) -> BindStep {
    BindStep::Ended { result: Err(why.into()), outcome: Some(BindOutcome::Refused) }
}

fn is_bound(outcome: Option<BindOutcome>) -> BindStep {
    BindStep::Ended { result: Ok(()), outcome }
}

fn after(millis: u64) -> Monotonic {
    NOW.after(Duration::from_millis(millis))
}

#[test]
fn an_order_is_written_and_has_ended_when_the_api_server_has_bound_the_pod() {
    for (mut state, mut stages) in [ordered(), plain()] {
        assert_eq!(posted_version(&stages.next(NOW, &mut state, true)), Some(1));
        stages.posted(NOW, PostAnswer::Bound);
        assert_eq!(stages.next(NOW, &mut state, true), is_bound(Some(BindOutcome::Written)));
    }
}

/// Anyone who may create pods decides how large a request is, and thousands of orders are open while the API server hangs.
#[test]
fn a_large_request_is_not_kept_so_its_pod_is_placed_again_if_it_was_changed() {
    let (mut state, request) = (cluster(1, 1), large(1));
    state.filter(request.clone(), names(1), NOW);
    let order = state.bind(&request.uid, &name(0)).unwrap();
    let mut stages = OrderStages::new(order, Some(request.clone()));
    assert!(matches!(stages.purpose, Purpose::Gpus(None)));
    assert_eq!(posted_version(&stages.next(NOW, &mut state, true)), Some(1));
    stages.posted(NOW, conflict());
    assert_eq!(stages.next(NOW, &mut state, true), BindStep::Read);
    let requests = ReadRequest::Gpus(Box::new(request));
    stages.read(NOW, &shown(ReadPod { requests, ..unbound(2) }));
    assert_eq!(stages.next(NOW, &mut state, true), refused(CHANGED));
}

#[test]
fn an_order_without_an_answer_is_written_again_after_growing_pauses() {
    let (mut state, mut stages) = ordered();
    let mut at = 0;
    for pause in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
        assert_eq!(posted_version(&stages.next(after(at), &mut state, true)), Some(1));
        stages.posted(after(at), lost());
        let unknown = Some("reset").filter(|_| at == 0);
        assert_eq!(stages.next(after(at), &mut state, true), wait(pause, unknown), "it is reported once");
        assert_eq!(stages.next(after(at + pause - 1), &mut state, true), wait(1, None));
        at += pause;
    }
}

#[test]
fn a_refusal_ends_an_order_only_while_no_write_of_it_is_open() {
    for answer in [PostAnswer::Refused(422, "no".to_owned()), PostAnswer::Unwritable("no".to_owned())] {
        let (mut state, mut stages) = ordered();
        stages.next(NOW, &mut state, true);
        stages.posted(NOW, answer.clone());
        assert_eq!(stages.next(NOW, &mut state, true), refused("no"));
        let (mut state, mut stages) = ordered();
        stages.next(NOW, &mut state, true);
        stages.posted(NOW, lost());
        stages.next(after(100), &mut state, true);
        stages.posted(after(100), answer);
        assert!(matches!(stages.next(after(100), &mut state, true), BindStep::Wait { .. }));
    }
}

#[test]
fn the_end_of_a_term_leaves_a_write_open_only_if_it_was_begun() {
    for (answer, expected) in [(PostAnswer::TermOver, refused(GIVEN_UP)), (PostAnswer::TermEnded, BindStep::Read)] {
        let (mut state, mut stages) = ordered();
        stages.next(NOW, &mut state, true);
        stages.posted(NOW, answer);
        assert_eq!(stages.next(NOW, &mut state, false), wait(100, Some(TERM_ENDED)));
        assert_eq!(stages.next(after(100), &mut state, false), expected);
    }
}

#[test]
fn after_a_conflict_the_pod_is_read_and_the_order_follows_what_it_shows() {
    let node = |n: u32| shown(ReadPod { node: Some(name(n)), ..unbound(2) });
    let deleted = shown(ReadPod { is_being_deleted: true, ..unbound(2) });
    let other = shown(ReadPod { requests: ReadRequest::Gpus(Box::new(slice(1, 2000))), ..unbound(2) });
    let unreadable = shown(ReadPod { requests: ReadRequest::Unreadable, ..unbound(2) });
    for (answer, expected) in [
        (node(0), is_bound(Some(BindOutcome::Written))),
        (node(1), refused("the pod is bound to node-1")),
        (ReadAnswer::Gone("the pod is gone"), refused("the pod is gone")),
        (deleted, refused("conflict")),
        (other, refused(CHANGED)),
        (unreadable, refused(CHANGED)),
        (shown(unbound(1)), refused("conflict")),
        (ReadAnswer::NoAnswer("reset".to_owned()), wait(100, Some("reset"))),
    ] {
        let (mut state, mut stages) = ordered();
        stages.next(NOW, &mut state, true);
        stages.posted(NOW, conflict());
        assert_eq!(stages.next(NOW, &mut state, true), BindStep::Read);
        stages.read(NOW, &answer);
        assert_eq!(stages.next(NOW, &mut state, true), expected, "{answer:?}");
    }
}

#[test]
fn a_changed_pod_is_bound_in_its_new_version_a_few_times() {
    let (mut state, mut stages) = ordered();
    for version in 1..=6 {
        assert_eq!(posted_version(&stages.next(NOW, &mut state, true)), Some(version), "without a pause");
        stages.posted(NOW, conflict());
        stages.read(NOW, &shown(unbound(version + 1)));
    }
    assert_eq!(stages.next(NOW, &mut state, true), refused("the pod changes faster than it can be bound"));
}

#[test]
fn an_order_that_must_not_be_written_any_more_is_fenced_and_ends_when_the_pod_has_left_the_version() {
    let (mut state, mut stages) = ordered();
    stages.next(NOW, &mut state, true);
    stages.posted(NOW, lost());
    state.node_is_unreadable(&name(0), &"no".into());
    assert_eq!(stages.next(after(100), &mut state, true), BindStep::Fence(1));
    assert_eq!(stages.next(after(100), &mut state, true), BindStep::Read);
    stages.read(after(100), &shown(unbound(1)));
    assert_eq!(
        stages.next(after(100), &mut state, true),
        wait(200, Some("reset")),
        "the lost write may still be carried out"
    );
    assert_eq!(
        stages.next(after(300), &mut state, false),
        BindStep::Read,
        "a process that does not lead writes nothing"
    );
    stages.read(after(300), &shown(unbound(2)));
    assert_eq!(stages.next(after(300), &mut state, true), refused(GIVEN_UP));
}

#[test]
fn an_order_that_was_never_written_ends_at_once_where_it_must_not_be() {
    let (mut state, mut stages) = ordered();
    assert_eq!(stages.next(NOW, &mut state, false), refused(GIVEN_UP));
    let (mut state, mut stages) = plain();
    assert_eq!(stages.next(NOW, &mut state, false), refused("this extender is no longer the leader"));
}

#[test]
fn what_the_pod_watch_shows_during_a_pause_ends_the_order() {
    let request = slice(1, 1000);
    let waiting = || {
        let (mut state, mut stages) = ordered();
        stages.next(NOW, &mut state, true);
        stages.posted(NOW, lost());
        (state, stages)
    };
    let (mut state, mut stages) = waiting();
    let claim = PodClaim::Given(stages.order().claim.clone());
    state.pod_is(&request.uid, Some(&bound(&request, &name(0), claim)));
    assert_eq!(stages.next(NOW, &mut state, true), wait(100, Some("reset")));
    assert_eq!(stages.next(after(100), &mut state, true), is_bound(None));
    let (mut state, mut stages) = waiting();
    state.pod_gone(&request.uid);
    let gone = Err("the pod is gone, has ended, or is bound without this claim".into());
    assert_eq!(stages.next(after(100), &mut state, true), BindStep::Ended { result: gone, outcome: None });
}

#[test]
fn a_pod_without_gpus_is_bound_in_a_new_version_while_it_requests_none() {
    for (requests, expected) in
        [(ReadRequest::Nothing, None), (ReadRequest::Gpus(Box::new(slice(1, 1))), Some(refused(CHANGED)))]
    {
        let (mut state, mut stages) = plain();
        stages.next(NOW, &mut state, true);
        stages.posted(NOW, conflict());
        stages.read(NOW, &shown(ReadPod { requests, ..unbound(2) }));
        let step = stages.next(NOW, &mut state, true);
        match expected {
            Some(expected) => assert_eq!(step, expected),
            None => assert_eq!(posted_version(&step), Some(2)),
        }
    }
}

#[test]
fn a_repeated_bind_is_answered_by_what_a_read_shows() {
    let node = |n: u32| shown(ReadPod { node: Some(name(n)), ..unbound(2) });
    let deleted = shown(ReadPod { is_being_deleted: true, ..unbound(2) });
    for (answer, expected) in [
        (node(0), RepeatedBind::Bound),
        (node(1), RepeatedBind::Refused("the pod is bound to node-1".into())),
        (ReadAnswer::NoAnswer("reset".to_owned()), RepeatedBind::Refused("reset".into())),
        (deleted, RepeatedBind::Refused("the pod is being deleted".into())),
        (shown(unbound(1)), RepeatedBind::TakenBack),
    ] {
        assert_eq!(answer.repeated(&name(0)), expected, "{answer:?}");
    }
}

#[test]
fn a_pod_that_the_watch_does_not_show_is_read_after_growing_pauses() {
    let mut confirmation = Confirmation::new(NOW);
    let mut at = 0;
    for pause in [20_000, 30_000, 30_000] {
        let left = Duration::from_millis(pause);
        assert_eq!(confirmation.next(after(at), true), ConfirmStep::Wait(left));
        at += pause;
        assert_eq!(confirmation.next(after(at), true), ConfirmStep::Read);
    }
    assert_eq!(confirmation.next(after(at), false), ConfirmStep::Confirmed);
}

/// A pod at an API server that loses answers and carries writes out late.
#[derive(Debug, Default)]
struct Pod {
    version: u64,
    is_bound: bool,
    /// The versions of the writes that were lost and may be carried out.
    late: Vec<u64>,
}

impl Pod {
    fn write(&mut self, version: u64) -> PostAnswer {
        if self.is_bound || self.version != version {
            return conflict();
        }
        self.is_bound = true;
        self.version += 1;
        PostAnswer::Bound
    }

    fn read(&self) -> ReadAnswer {
        let node = self.is_bound.then(|| name(0));
        shown(ReadPod { node, ..unbound(self.version) })
    }
}

proptest! {
    /// Whatever is lost, late or changed: an order that has ended as refused is never carried out afterwards.
    #[test]
    fn no_refused_order_is_carried_out_later(chances in prop::collection::vec((0..4_u8, 0..3_u8, any::<bool>()), 1..60)) {
        let (mut state, mut stages) = ordered();
        let mut pod = Pod { version: 1, ..Pod::default() };
        let mut now = NOW;
        for (answer, happens, may_write) in chances {
            match happens {
                0 if !pod.is_bound => pod.version += 1,
                1 => {
                    let late = pod.late.pop();
                    late.into_iter().for_each(|version| drop(pod.write(version)));
                }
                _ => {}
            }
            match stages.next(now, &mut state, may_write) {
                BindStep::Post(order) => {
                    let version = order.version.unwrap();
                    let answer = match answer {
                        0 => {
                            pod.late.push(version);
                            lost()
                        }
                        1 => {
                            let _ = pod.write(version);
                            lost()
                        }
                        _ => pod.write(version),
                    };
                    stages.posted(now, answer);
                }
                BindStep::Fence(version) => pod.version += u64::from(answer > 0 && pod.version == version && !pod.is_bound),
                BindStep::Read if answer == 0 => stages.read(now, &ReadAnswer::NoAnswer("reset".to_owned())),
                BindStep::Read => stages.read(now, &pod.read()),
                BindStep::Wait { pause, .. } => now = now.after(pause),
                BindStep::Ended { result, .. } => {
                    let possible = pod.late.contains(&pod.version);
                    prop_assert!(pod.is_bound == result.is_ok() && (pod.is_bound || !possible), "{result:?}: {pod:?}");
                }
            }
        }
    }
}
