use super::*;
use crate::cluster::tests::{bound, cluster, facts, name, names, slice};
use crate::cluster::{BindOutcome, StreamId};
use crate::placement::tests::{container, pod, uuid};
use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportedGpu, ReportedPod, ReportedUse};
use model::claim::{Claim, DeviceShare, PodClaim};
use model::followed_node::NodeFacts;
use model::id::ObjectUid;
use model::reported_reading::ReportedReading;
use model::request::ContainerRole;
use model::time::WallTime;
use model::unit::{CorePercent, Mib};
use proptest::prelude::*;

const WHOLE: u64 = 80 * 1024;

fn ms(ms: u64) -> Monotonic {
    Monotonic(ms * 1_000_000)
}

/// A leader of these nodes with one GPU each. Pod `n` holds the GPU of node `n`.
fn full(nodes: u32) -> ClusterState {
    let mut cluster = cluster(nodes, 1);
    (0..nodes).for_each(|n| holds(&mut cluster, n, n));
    cluster
}

fn holds(cluster: &mut ClusterState, n: u32, node: u32) {
    let share = DeviceShare { device: uuid(node * 100), memory: Some(Mib(WHOLE).bytes()), cores: None };
    let pod = slice(n, WHOLE);
    cluster.pod_is(&pod.uid, Some(&bound(&pod, &name(node), PodClaim::Given(Claim(vec![vec![share]])))));
}

/// kube-scheduler asks about a pod and these nodes. Returns whether one fits.
fn ask(cluster: &mut ClusterState, request: PlacementRequest, nodes: &[&str], now: u64) -> bool {
    !cluster.filter(request, nodes, ms(now)).fit.is_empty()
}

/// Pods `pods`, which request a whole GPU, are refused.
fn refuse(cluster: &mut ClusterState, pods: impl IntoIterator<Item = u32>, now: u64) {
    for pod in pods {
        assert!(!ask(cluster, slice(pod, WHOLE), names(5), now), "pod {pod}");
    }
}

fn gone(cluster: &mut ClusterState, pod: u32) {
    cluster.pod_gone(&slice(pod, 1).uid);
}

/// The wakes at this moment.
fn wakes(cluster: &mut ClusterState, now: u64) -> Vec<Wake> {
    let mut wakes = Vec::new();
    loop {
        let step = cluster.wakes(ms(now));
        wakes.extend(step.wakes);
        if !step.more {
            return wakes;
        }
    }
}

/// The pods that are woken at this moment.
fn woken(cluster: &mut ClusterState, now: u64) -> Vec<u32> {
    wakes(cluster, now).iter().map(|wake| number(&wake.uid)).collect()
}

/// The pods that are woken up to this moment, with a look every 0.1 s.
fn woken_until(cluster: &mut ClusterState, from: u64, to: u64) -> Vec<(u64, u32)> {
    let looks = (from..to).step_by(100);
    looks.flat_map(|now| woken(cluster, now).into_iter().map(move |pod| (now, pod)).collect::<Vec<_>>()).collect()
}

fn number(uid: &PodUid) -> u32 {
    u32::from_str_radix(&uid.as_str()[..8], 16).unwrap()
}

#[test]
fn room_for_one_pod_wakes_one() {
    let mut cluster = full(2);
    refuse(&mut cluster, 10..15, 0);
    assert_eq!(woken_until(&mut cluster, 0, 60_000), [], "there is no room");
    gone(&mut cluster, 1);
    let first = woken_until(&mut cluster, 60_000, 61_000);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].0 <= 60_300);
    // kube-scheduler takes the pod, so the others stay where they are.
    assert!(ask(&mut cluster, slice(first[0].1, WHOLE), names(5), 61_000));
    assert!(cluster.bind(&slice(first[0].1, 1).uid, &name(1)).is_ok());
    assert_eq!(woken_until(&mut cluster, 61_000, 120_000), []);
    assert_eq!(cluster.wake_counts(), WakeCounts { passed: 1, ..WakeCounts::default() });
}

/// Pod 10 is refused after the node's last change, and the end of pod 9's nomination does not change the node. So pod 10 must be
/// woken without a change of the node.
#[test]
fn room_that_is_kept_for_a_nominated_pod_wakes_another_one_as_soon_as_it_is_not_kept() {
    let mut cluster = full(1);
    let urgent = PlacementRequest { priority: 100, ..slice(9, WHOLE) };
    assert!(!ask(&mut cluster, urgent.clone(), names(1), 0));
    let victims = [slice(0, 1).uid];
    cluster.preempt(&urgent, None, &[("node-0", &victims[..])], ms(0));
    cluster.nomination_is(&urgent.uid, Some(&name(0)), Some(2), ms(0));
    gone(&mut cluster, 0);
    assert_eq!(woken_until(&mut cluster, 0, 1_000), [(200, 9)], "it has the room that is kept for it");
    assert!(!ask(&mut cluster, slice(10, WHOLE - 1), names(1), 2_000));
    let woken = woken_until(&mut cluster, 2_000, 30_000);
    assert!(woken.iter().all(|(_, pod)| *pod == 9), "{woken:?}");
    gone(&mut cluster, 9);
    let woken = woken_until(&mut cluster, 30_000, 31_000);
    assert_eq!(woken.iter().map(|(_, pod)| *pod).collect::<Vec<_>>(), [10]);
}

#[test]
fn the_highest_priority_comes_first_then_namespaces_take_turns_then_the_oldest_pod() {
    let mut cluster = full(5);
    let pod = |n, namespace: &str, priority, created| {
        let mut request = PlacementRequest { priority, created: Some(WallTime(created)), ..slice(n, WHOLE) };
        request.pod.namespace = namespace.into();
        request
    };
    let pods = [
        pod(10, "many", 0, 3),
        pod(11, "many", 0, 1),
        pod(12, "many", 0, 2),
        pod(13, "one", 0, 9),
        pod(14, "many", -5, 0),
        pod(15, "other", 100, 9),
    ];
    for request in &pods {
        assert!(!ask(&mut cluster, request.clone(), names(5), 0));
    }
    let mut order = Vec::new();
    for n in 0..5 {
        gone(&mut cluster, n);
        let now = 10_000 * (u64::from(n) + 1);
        for (_, pod) in woken_until(&mut cluster, now, now + 1000) {
            order.push(pod);
            let request = pods.iter().find(|request| number(&request.uid) == pod).unwrap();
            assert!(ask(&mut cluster, request.clone(), names(5), now + 1000));
            assert!(cluster.bind(&request.uid, &name(n)).is_ok());
        }
    }
    assert_eq!(order, [15, 11, 13, 12, 10]);
}

/// What happens to the pods 10, 11 and 12 while they wait and before there is room, and whether one is woken then.
type Happens = fn(&mut ClusterState);

#[test]
fn a_pod_is_not_woken_that_kube_scheduler_need_not_try() {
    let cases: [(&str, Happens, bool); 9] = [
        ("nothing", |_| {}, true),
        ("it is gone", |cluster| gone(cluster, 10), false),
        ("it is bound by others", |cluster| holds(cluster, 10, 3), false),
        ("it gets gates", |cluster| cluster.does_not_wait(&slice(10, 1).uid), false),
        (
            "its request cannot be read",
            |cluster| cluster.is_refused(&slice(10, 1).uid, &slice(10, 1).pod, ms(1)),
            false,
        ),
        ("it is changed", |cluster| cluster.pod_waits(&slice(10, 20), ms(1)), false),
        ("a new version asks the same", |cluster| cluster.pod_waits(&slice(10, WHOLE), ms(1)), true),
        (
            "kube-scheduler may no longer use the node",
            |cluster| assert!(!ask(cluster, slice(10, WHOLE), &names(5)[..1], 1)),
            false,
        ),
        ("no node may be used", |cluster| assert!(!ask(cluster, slice(10, WHOLE), &[], 1)), false),
    ];
    for (what, happens, expected) in cases {
        let mut cluster = full(2);
        cluster.node_is(&facts(3, 1));
        holds(&mut cluster, 3, 3);
        refuse(&mut cluster, [10], 0);
        happens(&mut cluster);
        gone(&mut cluster, 1);
        let woken = woken_until(&mut cluster, 10, 20_000);
        let expected: &[u32] = if expected { &[10] } else { &[] };
        assert_eq!(
            woken.iter().map(|(_, pod)| *pod).collect::<BTreeSet<_>>(),
            expected.iter().copied().collect(),
            "{what}"
        );
    }
}

#[test]
fn a_pod_whose_bind_is_under_way_is_not_woken() {
    let mut cluster = full(2);
    refuse(&mut cluster, [10, 11], 0);
    gone(&mut cluster, 1);
    // kube-scheduler has asked by itself since there is room.
    assert!(ask(&mut cluster, slice(10, WHOLE), names(5), 100));
    assert_eq!(woken_until(&mut cluster, 100, 4_900), [], "pod 10 is expected there");
    assert!(cluster.bind(&slice(10, 1).uid, &name(1)).is_ok());
    gone(&mut cluster, 0);
    let now = woken_until(&mut cluster, 4_900, 9_000);
    assert_eq!(now.iter().map(|(_, pod)| *pod).collect::<Vec<_>>(), [11]);
    cluster.bind_ended(&slice(10, 1).uid, BindOutcome::Refused);
    assert_eq!(woken_until(&mut cluster, 9_000, 9_900), [], "kube-scheduler tries pod 10 again by itself");
}

#[test]
fn room_that_is_kept_in_vain_goes_to_the_next_pod() {
    let mut cluster = full(1);
    refuse(&mut cluster, [10, 11], 0);
    gone(&mut cluster, 0);
    let first = woken_until(&mut cluster, 0, 5_000);
    assert_eq!(first.iter().map(|(_, pod)| *pod).collect::<Vec<_>>(), [10]);
    let may_wake = |cluster: &ClusterState, pod, now| cluster.may_wake(&slice(pod, 1).uid, ms(now));
    assert!(
        may_wake(&cluster, 10, 5_000) && !may_wake(&cluster, 10, 5_400),
        "a process may be paused before it writes"
    );
    // kube-scheduler does not ask about pod 10, which may hang in a plugin.
    let next = woken_until(&mut cluster, 5_000, 8_000);
    assert_eq!(next.iter().map(|(_, pod)| *pod).collect::<Vec<_>>(), [11]);
    assert_eq!(cluster.wake_counts(), WakeCounts { unanswered: 1, open: 1, ..WakeCounts::default() });
    // Nor about pod 11. Both are woken in turn, ever more rarely, and never at the same time.
    let later = woken_until(&mut cluster, 8_000, 1_000_000);
    assert!((6..30).contains(&later.len()), "{later:?}");
    let pod = |number| later.iter().filter(move |(_, pod)| *pod == number).map(|(at, _)| *at);
    for number in [10, 11] {
        assert!(pod(number).zip(pod(number).skip(1)).all(|(one, next)| (19_000..306_000).contains(&(next - one))));
    }
    assert!(later.iter().zip(later.iter().skip(1)).all(|((one, _), (next, _))| next - one >= 5_000));
}

#[test]
fn the_room_of_a_pod_that_cannot_be_written_goes_to_the_next_one() {
    let mut cluster = full(1);
    refuse(&mut cluster, [10, 11], 0);
    gone(&mut cluster, 0);
    assert_eq!(woken_until(&mut cluster, 0, 400), [(200, 10)]);
    cluster.wake_has_failed(&slice(10, 1).uid);
    assert_eq!(woken_until(&mut cluster, 400, 2_000).iter().map(|(_, pod)| *pod).collect::<Vec<_>>(), [11]);
    assert_eq!(cluster.wake_counts(), WakeCounts { failed: 1, open: 1, ..WakeCounts::default() });
}

/// Nothing but the pause of the pod brings it back: no node changes, and no other pod waits.
#[test]
fn a_pod_is_woken_again_after_a_wake_that_led_to_nothing() {
    let mut cluster = full(1);
    refuse(&mut cluster, [10], 0);
    gone(&mut cluster, 0);
    assert_eq!(woken_until(&mut cluster, 0, 1_000), [(200, 10)]);
    cluster.wake_has_failed(&slice(10, 1).uid);
    assert_eq!(woken_until(&mut cluster, 1_000, 12_000), [(10_200, 10)], "it could not be written");
    assert_eq!(woken_until(&mut cluster, 12_000, 32_000), [(30_200, 10)], "kube-scheduler has not asked");
}

/// kube-scheduler often knows a Node before the leader does, and tries no pod again when the leader gets to know it.
#[test]
fn a_node_counts_that_the_leader_knows_later_than_kube_scheduler() {
    let mut cluster = full(1);
    assert!(!ask(&mut cluster, slice(10, WHOLE), names(2), 0));
    assert_eq!(woken_until(&mut cluster, 0, 1_000), []);
    cluster.node_is(&facts(1, 1));
    let wakes_from = |cluster: &mut ClusterState, from: u64| {
        let woken = (from..from + 1_000).step_by(100).flat_map(|now| wakes(cluster, now));
        woken.map(|wake| (number(&wake.uid), wake.node)).collect::<Vec<_>>()
    };
    assert_eq!(wakes_from(&mut cluster, 1_000), [(10, name(1))]);
    // A machine is set up anew. kube-scheduler names the new Node, and the leader still knows the old one.
    let mut cluster = full(1);
    assert!(!ask(&mut cluster, slice(10, WHOLE), names(1), 0));
    cluster.node_gone(&name(0), &facts(0, 1).uid);
    gone(&mut cluster, 0);
    cluster.node_is(&NodeFacts { uid: ObjectUid::parse("anew").unwrap(), ..facts(0, 1) });
    assert_eq!(wakes_from(&mut cluster, 1_000), [(10, name(0))]);
}

/// The watch is slower than kube-scheduler, whose call is about a version without gates.
#[test]
fn an_older_version_that_the_watch_shows_later_changes_nothing() {
    for (shown, expected) in [(4, true), (5, false), (6, false)] {
        let mut cluster = full(1);
        assert!(!ask(&mut cluster, PlacementRequest { version: Some(5), ..slice(10, WHOLE) }, names(1), 0));
        cluster.cannot_be_placed(&slice(10, 1).uid, Some(shown));
        gone(&mut cluster, 0);
        assert_eq!(!woken_until(&mut cluster, 0, 1_000).is_empty(), expected, "version {shown}");
    }
}

/// The call comes before the watch shows that a restore of etcd has brought the pod back.
#[test]
fn a_pod_is_woken_that_was_refused_while_it_counted_as_gone() {
    for room_comes_first in [true, false] {
        let mut cluster = full(1);
        gone(&mut cluster, 10);
        refuse(&mut cluster, [10], 0);
        // Because this pod waits, changes are looked for.
        assert!(!ask(&mut cluster, slice(11, 2 * WHOLE), names(1), 0));
        assert_eq!(woken_until(&mut cluster, 0, 1_000), []);
        let shown = |cluster: &mut ClusterState| {
            cluster.pod_waits(&slice(10, WHOLE), ms(1_000));
            cluster.pod_is(&slice(10, 1).uid, None);
        };
        if room_comes_first {
            gone(&mut cluster, 0);
            assert_eq!(woken_until(&mut cluster, 1_000, 2_000), []);
            shown(&mut cluster);
        } else {
            shown(&mut cluster);
            gone(&mut cluster, 0);
        }
        let woken = woken_until(&mut cluster, 2_000, 3_000);
        assert_eq!(woken.iter().map(|(_, pod)| *pod).collect::<Vec<_>>(), [10], "{room_comes_first}");
    }
}

/// The answer to a bind was lost, and kube-scheduler tries the pod again without the node where it may be bound.
#[test]
fn a_pod_is_woken_that_was_refused_while_it_might_be_bound() {
    let mut cluster = cluster(2, 1);
    holds(&mut cluster, 0, 0);
    assert!(ask(&mut cluster, slice(10, WHOLE), names(2), 0));
    assert!(cluster.bind(&slice(10, 1).uid, &name(1)).is_ok());
    assert!(!ask(&mut cluster, slice(10, WHOLE), names(1), 100));
    gone(&mut cluster, 0);
    assert_eq!(woken_until(&mut cluster, 100, 5_000), []);
    cluster.bind_ended(&slice(10, 1).uid, BindOutcome::Refused);
    assert_eq!(woken_until(&mut cluster, 5_000, 6_000).len(), 1);
    // kube-scheduler may also have asked before it knew that the pod is bound.
    assert!(ask(&mut cluster, slice(11, 1), names(2), 6_000));
    holds(&mut cluster, 11, 1);
    assert!(!ask(&mut cluster, slice(11, 1), names(1), 6_000));
    assert_eq!(cluster.refused(), 1, "only pod 10 waits");
}

#[test]
fn a_pod_that_a_node_fitted_in_an_earlier_term_is_woken_after_a_while() {
    let mut cluster = cluster(1, 1);
    assert!(ask(&mut cluster, slice(10, WHOLE), names(1), 0));
    holds(&mut cluster, 0, 0);
    // The leader between the two terms has refused it.
    cluster.begins_to_lead(ms(20_000));
    gone(&mut cluster, 0);
    assert_eq!(woken_until(&mut cluster, 20_000, 60_000), [], "kube-scheduler may still bind it");
    assert_eq!(woken_until(&mut cluster, 60_000, 61_000), [(60_000, 10)]);
}

#[test]
fn a_change_that_is_missed_delays_a_pod_until_all_nodes_are_compared_again() {
    let mut cluster = full(1);
    refuse(&mut cluster, [10], 0);
    assert_eq!(woken(&mut cluster, 0), []);
    gone(&mut cluster, 0);
    assert_eq!(woken(&mut cluster, 100), []);
    cluster.wakes.fresh.clear();
    cluster.wakes.seen.iter_mut().flatten().for_each(|seen| seen.is_fresh = false);
    assert_eq!(woken_until(&mut cluster, 200, 30_000), []);
    let sweep = u64::try_from(SWEEP.as_millis()).unwrap();
    assert_eq!([woken(&mut cluster, sweep), woken(&mut cluster, sweep + 200)], [vec![], vec![10]]);
}

#[test]
fn many_pods_are_woken_at_the_pace_of_all() {
    let mut cluster = full(3);
    let small = |n| slice(n, 800);
    (10..210).for_each(|n| assert!(!ask(&mut cluster, small(n), names(1), 0)));
    // Each GPU has ten slots.
    (0..3).for_each(|n| gone(&mut cluster, n));
    let woken = woken_until(&mut cluster, 0, 4_000);
    assert_eq!(woken.len(), 10, "only the node that was named: {woken:?}");
    let mut cluster = full(5);
    (10..70).for_each(|n| assert!(!ask(&mut cluster, small(n), names(5), 0)));
    (0..5).for_each(|n| gone(&mut cluster, n));
    let woken = woken_until(&mut cluster, 0, 5_000);
    assert_eq!(woken.len(), 50, "five GPUs of ten slots");
    let in_second = |from| woken.iter().filter(|(at, _)| (from..from + 1000).contains(at)).count();
    assert!((0..4_000).step_by(100).all(|from| in_second(from) <= A_SECOND));
    assert!(woken.last().unwrap().0 <= 3_000);
}

/// Otherwise each look would put all pods in line, only to find that none of them may be woken.
#[test]
fn what_is_due_stays_due_while_too_many_pods_were_woken() {
    let mut cluster = full(3);
    (10..50).for_each(|n| assert!(!ask(&mut cluster, slice(n, 800), names(3), 0)));
    (0..3).for_each(|n| gone(&mut cluster, n));
    assert_eq!(woken_until(&mut cluster, 0, 300).len(), A_SECOND);
    assert!(cluster.wakes.is_due);
    assert_eq!(woken_until(&mut cluster, 300, 1_200), []);
    assert!(cluster.wakes.is_due);
    assert_eq!(woken_until(&mut cluster, 1_200, 1_300).len(), 10, "three GPUs have 30 slots");
}

/// Number of pods that are in line after the last step.
fn in_line(cluster: &ClusterState) -> usize {
    cluster.wakes.lines.as_ref().map_or(0, Lines::len)
}

/// Each pod has a kind of its own, so the bound for a kind does not hold, and the most urgent pod has the last kind.
#[test]
fn the_most_urgent_pod_comes_first_although_a_step_looks_at_some_hundred_pods_only() {
    let mut cluster = full(1);
    for n in 0..1000_u32 {
        let request = PlacementRequest { priority: i32::try_from(n).unwrap(), ..slice(10 + n, 1000 + u64::from(n)) };
        assert!(!ask(&mut cluster, request, names(1), 0));
    }
    gone(&mut cluster, 0);
    assert!(!cluster.wakes(ms(0)).more);
    let step = cluster.wakes(ms(200));
    assert!(step.more && step.wakes.is_empty());
    assert!((300..600).contains(&in_line(&cluster)), "{}", in_line(&cluster));
    let urgent: Vec<u32> = (1000..1010).rev().collect();
    assert_eq!(woken(&mut cluster, 200), urgent, "a GPU of ten slots");
}

/// The first pod keeps the room, and all others of the kind stay in line for nothing.
#[test]
fn room_for_one_pod_takes_many_short_steps_where_pods_of_many_namespaces_wait_for_it() {
    let mut cluster = full(1);
    for n in 0..6000 {
        let mut request = slice(10 + n, WHOLE);
        request.pod.namespace = format!("team-{}", n % 300).into();
        assert!(!ask(&mut cluster, request, names(1), 0));
    }
    gone(&mut cluster, 0);
    assert!(!cluster.wakes(ms(0)).more);
    let (mut woken, mut steps, mut before) = (0, 0, 0);
    loop {
        let step = cluster.wakes(ms(200));
        let left = in_line(&cluster);
        assert!(left.abs_diff(before) <= WORK / LOOKUP / 3 + 1, "{before} pods in line, then {left}");
        (woken, steps, before) = (woken + step.wakes.len(), steps + 1, left);
        if !step.more {
            break;
        }
    }
    assert_eq!((woken, before), (1, 0));
    assert!((12..25).contains(&steps), "{steps}: 512 pods are put in line in a step, or 682 leave it");
}

/// Node 1 is free and was named for none of the pods.
#[test]
fn a_step_looks_at_some_of_many_pods_that_may_not_use_the_node_that_is_free() {
    let mut cluster = full(2);
    (10..5010).for_each(|n| assert!(!ask(&mut cluster, slice(n, WHOLE), names(1), 0)));
    gone(&mut cluster, 1);
    assert!(!cluster.wakes(ms(0)).more);
    let steps = (0..).take_while(|_| cluster.wakes(ms(200)).more).count();
    assert_eq!(steps, 2, "2048 pods in each of them, and the others in the last one");
    gone(&mut cluster, 0);
    assert_eq!(woken_until(&mut cluster, 300, 1_000), [(500, 10)]);
}

#[test]
fn one_node_is_compared_in_several_steps_with_many_kinds_that_name_many_products() {
    let mut cluster = full(1);
    let mut products: Vec<Arc<str>> = (0..50).map(|number| format!("a{number}").into()).collect();
    products.push("h100".into());
    for n in 0..400 {
        let mut request = slice(10 + n, 1000 + u64::from(n));
        request.selection.use_types.clone_from(&products);
        assert!(!ask(&mut cluster, request, names(1), 0));
    }
    gone(&mut cluster, 0);
    let found =
        |cluster: &ClusterState| cluster.waiting.kinds_from(None).filter(|(_, kind)| !kind.maybe.is_empty()).count();
    cluster.look_for_changes(ms(0));
    assert!(cluster.compare_changed(ms(200)), "another step is needed");
    assert!((300..350).contains(&found(&cluster)), "{}", found(&cluster));
    // Among them is the kind that comes next.
    (300..350).for_each(|n| gone(&mut cluster, 10 + n));
    assert!(!cluster.compare_changed(ms(200)));
    assert_eq!(found(&cluster), 350, "each kind that is left");
}

/// Pods of this many kinds name 30 GPUs that no node has, so none of them ever fits.
fn refuse_kinds_that_name_unknown_gpus(cluster: &mut ClusterState, kinds: u32) {
    for n in 0..kinds {
        let mut request = slice(10 + n, 1000 + u64::from(n));
        request.selection.use_uuids = (5000..5030).map(uuid).collect();
        assert!(!ask(cluster, request, names(1), 0));
    }
}

#[test]
fn one_node_is_compared_in_several_steps_with_many_kinds_that_name_uuids() {
    let mut cluster = cluster(1, 8);
    refuse_kinds_that_name_unknown_gpus(&mut cluster, 600);
    cluster.look_for_changes(ms(0));
    assert!(cluster.compare_changed(ms(200)), "each kind is compared with eight GPUs");
    assert!(!cluster.compare_changed(ms(200)));
}

/// The comparison with one node takes more than a step, and two nodes change before each step.
#[test]
fn nodes_that_change_all_the_time_are_not_compared_before_all_others() {
    let mut cluster = cluster(3, 8);
    refuse_kinds_that_name_unknown_gpus(&mut cluster, 600);
    cluster.look_for_changes(ms(0));
    for step in 1..8 {
        for node in 0..2 {
            let share = DeviceShare { device: uuid(node * 100 + step), memory: Some(Mib(1).bytes()), cores: None };
            let pod = slice(1000 + node * 100 + step, 1);
            cluster.pod_is(&pod.uid, Some(&bound(&pod, &name(node), PodClaim::Given(Claim(vec![vec![share]])))));
        }
        cluster.look_for_changes(ms(u64::from(step) * 200));
        cluster.compare_changed(ms(u64::from(step) * 200));
    }
    let place = cluster.versions["node-2"].place();
    assert!(!cluster.wakes.seen[place].as_ref().unwrap().is_fresh);
}

/// With these kinds, the comparison of all nodes takes longer than the time until it is due again.
#[test]
fn a_comparison_of_all_nodes_delays_no_changed_node() {
    let mut cluster = cluster(20, 8);
    refuse_kinds_that_name_unknown_gpus(&mut cluster, 600);
    cluster.look_for_changes(ms(0));
    while cluster.compare_changed(ms(200)) {}
    let sweep = u64::try_from(SWEEP.as_millis()).unwrap();
    cluster.look_for_changes(ms(sweep));
    assert!(cluster.compare_changed(ms(sweep + 200)), "the first of twenty nodes is compared");
    let share = DeviceShare { device: uuid(1900), memory: Some(Mib(1).bytes()), cores: None };
    let claim = PodClaim::Given(Claim(vec![vec![share]]));
    cluster.pod_is(&slice(9000, 1).uid, Some(&bound(&slice(9000, 1), &name(19), claim)));
    cluster.look_for_changes(ms(sweep + 200));
    let place = cluster.versions["node-19"].place();
    assert!(cluster.wakes.seen[place].as_ref().unwrap().is_fresh);
    for _ in 0..4 {
        let _ = cluster.compare_changed(ms(sweep + 400));
    }
    assert!(!cluster.wakes.seen[place].as_ref().unwrap().is_fresh, "it is next");
    assert!(cluster.wakes.sweep.is_some_and(|sweep| sweep.left > 10), "{:?}", cluster.wakes.sweep);
}

#[test]
fn few_nodes_are_judged_in_a_step_if_room_is_kept_there_for_nominated_pods() {
    let mut cluster = cluster(20, 1);
    for n in 0..20 {
        let urgent = PlacementRequest { priority: 100, ..slice(100 + n, WHOLE) };
        cluster.is_nominated(&urgent, &name(n), ms(0));
    }
    let nodes: Vec<String> = (0..20).map(|n| format!("node-{n}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    assert!(!ask(&mut cluster, slice(10, WHOLE), &nodes, 0));
    assert!(!cluster.wakes(ms(0)).more);
    let steps = (0..).take_while(|_| cluster.wakes(ms(200)).more).count();
    assert_eq!(steps, 2, "eight nodes in each of them, and four in the last one");
}

#[test]
fn a_new_leader_wakes_the_pods_that_its_watch_shows() {
    let mut cluster = full(2);
    (10..13).for_each(|n| cluster.pod_waits(&slice(n, WHOLE), ms(0)));
    gone(&mut cluster, 1);
    assert_eq!(woken_until(&mut cluster, 0, 60_000), [], "kube-scheduler asks about a new pod");
    cluster.begins_to_lead(ms(60_000));
    let woken = woken_until(&mut cluster, 60_000, 64_000);
    assert_eq!(woken.len(), 1, "{woken:?}");
    assert!(woken[0].0 >= 62_000, "kube-scheduler has two seconds to ask by itself");
    assert!(ask(&mut cluster, slice(woken[0].1, WHOLE), names(5), 64_000));
    assert!(cluster.bind(&slice(woken[0].1, 1).uid, &name(1)).is_ok());
    cluster.pod_waits(&slice(20, WHOLE), ms(64_000));
    gone(&mut cluster, 0);
    let more = woken_until(&mut cluster, 64_000, 68_900);
    assert!(more.len() == 1 && more[0].1 != 20, "{more:?}");
}

/// No GPU has room for the memory of one container and the SM time of the other.
#[test]
fn containers_may_find_their_room_on_different_gpus() {
    let mut cluster = cluster(1, 2);
    let share = |gpu, mib, cores| DeviceShare {
        device: uuid(gpu),
        memory: Some(Mib(mib).bytes()),
        cores: Some(CorePercent(cores)),
    };
    let mut holder = |n: u32, share| {
        let claim = PodClaim::Given(Claim(vec![vec![share]]));
        cluster.pod_is(&slice(n, 1).uid, Some(&bound(&slice(n, 1), &name(0), claim)));
    };
    holder(1, share(0, 1, 90));
    holder(2, share(1, WHOLE - 1000, 10));
    holder(3, share(0, WHOLE - 1000, 5));
    let containers = vec![container(ContainerRole::App, 1, 70_000, 1), container(ContainerRole::App, 1, 100, 50)];
    assert!(!ask(&mut cluster, pod(10, containers), names(1), 0));
    gone(&mut cluster, 3);
    assert_eq!(woken_until(&mut cluster, 0, 1_000).len(), 1);
}

/// A report of the agent of node 0: its phase, the processes of pod 0, and the memory in use.
fn report(phase: AgentPhase, processes: u32, used: u64) -> AgentReport {
    let memory = |mib: u64| ReportedReading::Measured(Mib(mib).bytes(), None);
    let gpu = ReportedGpu {
        healthy: true,
        memory_total: memory(WHOLE),
        memory_used: memory(used),
        memory_listed: memory(used),
        memory_unattributed: memory(used),
        processes: ReportedReading::Measured(processes, None),
        utilization: ReportedReading::UNKNOWN,
        users: Box::default(),
    };
    let mut report = AgentReport { phase, ..AgentReport::of(name(0)) };
    report.gpus = [(uuid(0), gpu)].into();
    if processes > 0 {
        let uses = [(uuid(0), ReportedUse { processes, memory_used: memory(0) })];
        let pod = ReportedPod { stage: PodStage::Started, has_containers: false, uses: uses.into_iter().collect() };
        report.pods.insert(slice(0, 1).uid, pod);
    }
    report
}

#[test]
fn what_only_agents_report_makes_room_without_any_other_event() {
    use AgentPhase::{Serving, Starting};
    let mut cluster = full(1);
    cluster.agent_reports(StreamId(1), report(Serving, 1, 0), ms(0)).unwrap();
    gone(&mut cluster, 0);
    refuse(&mut cluster, [10], 1);
    for (second, what, phase, processes, used) in [
        (1, "processes of a pod that is gone", Serving, 1, 0),
        (10, "a process of the host", Serving, 0, 40 * 1024),
        (20, "an agent that does not serve the kubelet", Starting, 0, 0),
    ] {
        cluster.agent_reports(StreamId(1), report(phase, processes, used), ms(second * 1000)).unwrap();
        assert_eq!(woken_until(&mut cluster, second * 1000, second * 1000 + 9_000), [], "{what}");
    }
    cluster.agent_reports(StreamId(1), report(Serving, 0, 0), ms(30_000)).unwrap();
    assert_eq!(woken_until(&mut cluster, 30_000, 31_000).len(), 1);
}

/// The pod is asked about after a change was found and before the node is compared: only the next change can help it.
#[test]
fn a_node_that_changes_again_is_not_missed() {
    let mut cluster = cluster(1, 1);
    let stranger = report(AgentPhase::Serving, 0, 40 * 1024);
    cluster.agent_reports(StreamId(1), stranger, ms(0)).unwrap();
    refuse(&mut cluster, [10], 0);
    assert!(woken(&mut cluster, 0).is_empty());
    refuse(&mut cluster, [10], 100);
    assert_eq!(woken_until(&mut cluster, 100, 2_000), []);
    cluster.agent_reports(StreamId(1), report(AgentPhase::Serving, 0, 0), ms(2_000)).unwrap();
    assert_eq!(woken_until(&mut cluster, 2_000, 3_000).len(), 1);
}

/// The room comes after the call has judged the node and before it has ended.
#[test]
fn a_change_during_a_filter_call_is_not_missed() {
    let mut cluster = full(1);
    let known = cluster.known_changes();
    gone(&mut cluster, 0);
    refuse_late(&mut cluster, 9, known);
    // Meanwhile the changed node is found, and then compared with the pods that wait.
    let mut all: BTreeSet<u32> = woken(&mut cluster, 0).into_iter().collect();
    refuse_late(&mut cluster, 10, known);
    all.extend(woken(&mut cluster, 400));
    refuse_late(&mut cluster, 11, known);
    all.extend(woken_until(&mut cluster, 400, 20_000).into_iter().map(|(_, pod)| pod));
    assert_eq!(all, [9, 10, 11].into());
}

/// A filter call that began when these changes were known ends.
fn refuse_late(cluster: &mut ClusterState, n: u32, (changes, newest_node): (u64, u64)) {
    let asked = Asked { newest_node, nodes: Arc::new([0].into_iter().collect()) };
    // Each pod has a kind of its own.
    cluster.refuse(slice(n, WHOLE - u64::from(n)), asked, changes, ms(0));
}

#[test]
fn members_of_a_gang_are_woken_for_as_much_room_as_there_is() {
    let mut cluster = full(3);
    let member = |n| PlacementRequest { gang: Some("ml/train".into()), ..slice(n, WHOLE) };
    (10..14).for_each(|n| assert!(!ask(&mut cluster, member(n), names(5), 0)));
    (0..2).for_each(|n| gone(&mut cluster, n));
    let woken = woken_until(&mut cluster, 0, 4_000);
    assert_eq!(woken.len(), 2, "{woken:?}");
    // The members that pass wait for the others, and their places count.
    woken.iter().for_each(|(_, pod)| assert!(ask(&mut cluster, member(*pod), names(5), 4_000)));
    assert_eq!(woken_until(&mut cluster, 4_000, 60_000), []);
}

/// Something happens in a cluster of three nodes, about one of sixteen pods.
#[derive(Clone, Debug)]
enum Happening {
    /// kube-scheduler asks about the pod and these nodes.
    Asks(u32, u8),
    /// It binds the pod to the node that was named.
    Binds(u32),
    /// The pod is gone, or was never there.
    Gone(u32),
    /// The watch shows the pod without a node.
    Shown(u32),
    /// Time passes.
    Passes(u64),
    /// Another term begins.
    Leads,
    /// The leader learns that a Node is gone, or that another one of this name has come.
    Node(u32),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        5 => (0..16_u32, 1..8_u8).prop_map(|(pod, nodes)| Happening::Asks(pod, nodes)),
        3 => (0..16_u32).prop_map(Happening::Binds),
        3 => (0..16_u32).prop_map(Happening::Gone),
        1 => (0..16_u32).prop_map(Happening::Shown),
        4 => (1..20_u64).prop_map(|tenths| Happening::Passes(tenths * 100)),
        1 => Just(Happening::Leads),
        1 => (0..3_u32).prop_map(Happening::Node),
    ]
}

/// A cluster, and the nodes of the last call for each pod that waits.
struct Played {
    cluster: ClusterState,
    gpus: u32,
    /// Number of Nodes that were ever made.
    made: u32,
    now: u64,
    refused: BTreeMap<u32, u8>,
    /// The node that the last call named first.
    named: BTreeMap<u32, NodeName>,
}

/// Pods of four kinds: a whole GPU, a half, a quarter, and two containers that need more of different things.
fn sized(n: u32) -> PlacementRequest {
    let app = |mib, cores| container(ContainerRole::App, 1, mib, cores);
    match n % 4 {
        3 => pod(n, vec![app(WHOLE / 4 * 3, 10), app(WHOLE / 8, 60)]),
        kind => pod(n, vec![app(WHOLE >> kind, 30)]),
    }
}

impl Played {
    fn asks(&mut self, pod: u32, mask: u8) -> bool {
        if self.cluster.claim_of(&sized(pod).uid).is_some() {
            return true;
        }
        let nodes: Vec<&str> = (0..3).filter(|node| mask & (1 << node) != 0).map(|node| names(3)[node]).collect();
        // A pod that was gone is another pod.
        self.cluster.pod_is(&sized(pod).uid, None);
        let verdict = self.cluster.filter(sized(pod), &nodes, ms(self.now));
        self.refused.remove(&pod);
        self.named.remove(&pod);
        match verdict.proposed {
            Some(place) => drop(self.named.insert(pod, NodeName::parse(nodes[place]).unwrap())),
            None => drop(self.refused.insert(pod, mask)),
        }
        verdict.proposed.is_some()
    }

    fn binds(&mut self, pod: u32) {
        if let Some(node) = self.named.remove(&pod) {
            let bound = self.cluster.bind(&sized(pod).uid, &node);
            bound.iter().for_each(|_| self.cluster.bind_ended(&sized(pod).uid, BindOutcome::Written));
        }
    }

    fn happens(&mut self, what: &Happening) {
        match what {
            Happening::Asks(pod, mask) => drop(self.asks(*pod, *mask)),
            Happening::Binds(pod) => self.binds(*pod),
            Happening::Gone(pod) => {
                gone(&mut self.cluster, *pod);
                self.refused.remove(pod);
                self.named.remove(pod);
            }
            Happening::Shown(pod) => {
                self.cluster.pod_is(&sized(*pod).uid, None);
                self.cluster.pod_waits(&sized(*pod), ms(self.now));
            }
            Happening::Passes(ms) => {
                let end = self.now + ms;
                while self.now < end {
                    self.now += 100;
                    drop(woken(&mut self.cluster, self.now));
                }
            }
            Happening::Node(n) => {
                let known = self.cluster.node(&name(*n)).and_then(NodeClaims::uid).cloned();
                if let Some(uid) = known {
                    return self.cluster.node_gone(&name(*n), &uid);
                }
                self.made += 1;
                let uid = ObjectUid::parse(&format!("anew-{}", self.made)).unwrap();
                self.cluster.node_is(&NodeFacts { uid, ..facts(*n, self.gpus) });
            }
            Happening::Leads => {
                self.cluster.begins_to_lead(ms(self.now));
                // The next leader knows of no call.
                self.refused.values_mut().for_each(|mask| *mask = 7);
            }
        }
    }

    /// Pods that wait and fit a node that their last call named.
    fn lost(&self) -> Vec<u32> {
        let fits = |pod: u32, mask: u8| {
            let mut nodes = (0..3_u32).filter(|node| mask & (1 << node) != 0);
            nodes.any(|node| self.cluster.fits_without(&sized(pod), name(node).as_str(), &[]))
        };
        self.refused.iter().filter(|(pod, mask)| fits(**pod, **mask)).map(|(pod, _)| *pod).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// kube-scheduler tries refused pods only when they are woken. After each wake it asks and binds. In the end no pod waits
    /// that would fit, and each wake has led to a place where a node has one GPU.
    #[test]
    fn no_pod_that_fits_waits_for_ever(happenings in prop::collection::vec(happening(), 1..60), gpus in 1..3_u32) {
        let (refused, named) = (BTreeMap::new(), BTreeMap::new());
        let mut played = Played { cluster: cluster(3, gpus), gpus, made: 0, now: 0, refused, named };
        happenings.iter().for_each(|what| played.happens(what));
        // Pods that were named a node are bound or give up; then only wakes bring pods back.
        let named: Vec<u32> = played.named.keys().copied().collect();
        named.iter().for_each(|pod| played.binds(*pod));
        let (mut quiet, mut passed) = (0, 0);
        // The longest pause is five minutes.
        while quiet < 310_000 {
            played.now += 500;
            quiet += 500;
            for wake in wakes(&mut played.cluster, played.now) {
                let pod = number(&wake.uid);
                let mask = played.refused.get(&pod).copied().unwrap_or(7);
                let is_named = (0..3).any(|node| mask & (1 << node) != 0 && name(node) == wake.node);
                // A bind may choose another GPU of the node than the one that was kept for this pod. A node that the leader has got
                // to know since the last call may be one that kube-scheduler does not name.
                let passes = played.asks(pod, mask);
                prop_assert!(passes || gpus > 1 || !is_named, "pod {} was woken and does not fit", pod);
                if !passes {
                    continue;
                }
                // Of the nodes that fit, kube-scheduler takes the one that the wake was for.
                played.named.insert(pod, wake.node);
                played.binds(pod);
                (quiet, passed) = (0, passed + 1);
            }
        }
        prop_assert_eq!(played.lost(), Vec::<u32>::new(), "after {} wakes", passed);
    }
}
