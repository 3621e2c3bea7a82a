//! Tests of the agents' streams: when a node is closed, and what a report proves.

use super::*;
use crate::cluster::tests::{NOW, bound, cluster, facts, name, names, slice};
use crate::cluster::{BindOutcome, BindRefusal, ClosedReason, Closing};
use crate::ledger::ClaimState;
use crate::placement::tests::uuid;
use model::agent_stream::{AgentPhase, ReportedGpu, ReportedUse, ReportedUses};
use model::claim::PodClaim;
use model::followed_node::NodeFacts;
use model::gpu_pod::{BoundPod, GpuPod};
use model::id::ObjectUid;
use model::placement::PlacementRequest;
use model::reported_reading::ReportedReading;
use model::time::WallTime;

const FIRST: StreamId = StreamId(1);

fn later(ms: u64) -> Monotonic {
    NOW.after(Duration::from_millis(ms))
}

/// A GPU with this number of processes; `None` if the agent has no process list.
fn gpu(processes: Option<u32>) -> ReportedGpu {
    let unknown = ReportedReading::UNKNOWN;
    let processes = processes.map_or(ReportedReading::UNKNOWN, |processes| ReportedReading::Measured(processes, None));
    ReportedGpu {
        healthy: true,
        memory_total: unknown,
        memory_used: unknown,
        memory_listed: unknown,
        memory_unattributed: unknown,
        processes,
        ..ReportedGpu::default()
    }
}

/// A report of node 0, which has lists of the processes on two GPUs, and of these pods with their processes on the first one.
fn report(phase: AgentPhase, pods: &[(&PodUid, PodStage, u32)]) -> AgentReport {
    let mut report = AgentReport::of(name(0));
    report.phase = phase;
    report.gpus = [0, 1].map(|n| (uuid(n), gpu(Some(0)))).into();
    for (uid, stage, processes) in pods {
        let used = (uuid(0), ReportedUse { processes: *processes, memory_used: ReportedReading::UNKNOWN });
        let uses = Some(used).filter(|_| *processes > 0).into_iter().collect();
        report.pods.insert((*uid).clone(), ReportedPod { stage: *stage, has_containers: false, uses });
    }
    report
}

fn serving(cluster: &mut ClusterState, pods: &[(&PodUid, PodStage, u32)]) {
    cluster.agent_reports(FIRST, report(AgentPhase::Serving, pods), NOW).unwrap();
}

/// A pod that is bound to node 0, as the pod watch shows it.
fn bind(cluster: &mut ClusterState, pod: &PlacementRequest) -> GpuPod {
    cluster.filter(pod.clone(), names(1), NOW);
    let order = cluster.bind(&pod.uid, &name(0)).unwrap();
    cluster.bind_ended(&pod.uid, BindOutcome::Written);
    let shown = bound(pod, &name(0), PodClaim::Given(order.claim));
    cluster.pod_is(&pod.uid, Some(&shown));
    shown.gpu_pod.unwrap()
}

/// A pod on node 0, as the pod watch shows it.
fn shows(gpu_pod: GpuPod) -> BoundPod {
    BoundPod { node: name(0), ended: gpu_pod.finished, gpu_pod: Some(gpu_pod), hash: None }
}

fn closed(cluster: &ClusterState) -> Option<ClosedReason> {
    cluster.node(&name(0)).unwrap().closed()
}

fn state(cluster: &ClusterState, pod: &PlacementRequest) -> Option<ClaimState> {
    cluster.claim_of(&pod.uid).map(|(_, state)| state)
}

#[test]
fn a_stream_that_is_not_back_in_two_seconds_closes_its_node_until_it_is_back() {
    let mut cluster = cluster(1, 1);
    assert_eq!(closed(&cluster), None, "an agent without a stream");
    serving(&mut cluster, &[]);
    cluster.agent_closed(&name(0), FIRST, later(0));
    cluster.agents_at(later(1999));
    assert_eq!(closed(&cluster), None);
    cluster.agents_at(later(2000));
    assert_eq!(closed(&cluster), Some(ClosedReason::AgentAway));
    let verdict = cluster.filter(slice(1, 1000), names(1), later(2000));
    assert_eq!(verdict.refused[0].why.to_string(), "NodeUnfitPod: NodeClosed");
    let back = StreamId(2);
    cluster.agent_reports(back, report(AgentPhase::Serving, &[]), later(5000)).unwrap();
    assert_eq!(closed(&cluster), None);
    // The end of the old stream, seen late, and its messages do not affect the new stream.
    cluster.agent_closed(&name(0), FIRST, later(5000));
    cluster.agents_at(later(9000));
    assert_eq!(closed(&cluster), None);
    assert_eq!(cluster.agent_beats(&name(0), FIRST, later(9000)), Err(ReportRefusal::Replaced));
    assert_eq!(
        cluster.agent_reports(FIRST, report(AgentPhase::Leaving, &[]), later(9000)),
        Err(ReportRefusal::Replaced)
    );
    assert_eq!(cluster.agent_beats(&name(0), back, later(9000)), Ok(()));
    assert_eq!(cluster.agent_report(&name(0)).map(|(_, heard)| heard), Some(later(9000)));
}

#[test]
fn a_stream_that_is_back_in_time_closes_nothing() {
    let mut cluster = cluster(1, 1);
    serving(&mut cluster, &[]);
    cluster.agent_closed(&name(0), FIRST, later(0));
    cluster.agent_reports(StreamId(2), report(AgentPhase::Serving, &[]), later(1500)).unwrap();
    cluster.agents_at(later(3000));
    assert_eq!(closed(&cluster), None);
}

#[test]
fn nothing_is_bound_to_a_node_whose_agent_starts_or_leaves_or_is_old_and_has_no_cdi() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 1000);
    cluster.filter(pod.clone(), names(1), NOW);
    for (phase, why) in [
        (AgentPhase::Starting, ClosedReason::AgentStarting),
        (AgentPhase::ServingEarly, ClosedReason::AgentWithoutCdi),
        (AgentPhase::Leaving, ClosedReason::AgentLeaving),
    ] {
        cluster.agent_reports(FIRST, report(phase, &[]), NOW).unwrap();
        assert_eq!(
            cluster.bind(&pod.uid, &name(0)),
            Err(BindRefusal::Closed { node: name(0), why: Closing { reason: why, pod: None }.to_string() })
        );
    }
    serving(&mut cluster, &[]);
    assert!(cluster.bind(&pod.uid, &name(0)).is_ok());
}

/// Otherwise any user who may create pods could keep a node closed, with a pod that names no GPU scheduler.
#[test]
fn a_pod_that_its_agent_refuses_closes_no_node() {
    let mut cluster = cluster(1, 1);
    let other = slice(9, 1000);
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), PodClaim::None)));
    let why = Some(ClosedReason::UnknownClaim(other.uid.clone()));
    assert_eq!(closed(&cluster), why, "no agent has reported about the pod");
    serving(&mut cluster, &[(&other.uid, PodStage::Waiting, 0)]);
    assert_eq!(closed(&cluster), why, "it may still get devices");
    serving(&mut cluster, &[(&other.uid, PodStage::Refused, 0)]);
    assert_eq!(closed(&cluster), None);
    let pod = slice(1, 1000);
    assert_eq!(cluster.filter(pod.clone(), names(1), NOW).fit, [0]);
    assert!(cluster.bind(&pod.uid, &name(0)).is_ok());
    // Another container of the pod runs, and has opened a GPU by `NVIDIA_VISIBLE_DEVICES`.
    serving(&mut cluster, &[(&other.uid, PodStage::Refused, 1)]);
    assert_eq!(closed(&cluster), None);
    assert_eq!(cluster.filter(slice(2, 1000), names(1), NOW).fit, [0], "as with a pod that requests no GPU");
    // A container that requests a GPU has run, whatever the agent says.
    let started = |started| {
        let shown = bound(&other, &name(0), PodClaim::None);
        BoundPod { gpu_pod: shown.gpu_pod.clone().map(|pod| GpuPod { started, ..pod }), ..shown }
    };
    cluster.pod_is(&other.uid, Some(&started(true)));
    assert_eq!(closed(&cluster), why, "processes of the pod exist");
    serving(&mut cluster, &[(&other.uid, PodStage::Refused, 0)]);
    assert_eq!(closed(&cluster), None);
    cluster.pod_is(&other.uid, Some(&started(false)));
    // The agent has other settings now.
    serving(&mut cluster, &[(&other.uid, PodStage::Started, 0)]);
    assert_eq!(closed(&cluster), why);
    serving(&mut cluster, &[(&other.uid, PodStage::Refused, 0)]);
    cluster.agent_closed(&name(0), FIRST, later(0));
    cluster.agents_at(later(2000));
    assert_eq!(closed(&cluster), Some(ClosedReason::AgentAway));
    cluster.forget_agents();
    assert_eq!(closed(&cluster), why, "a new leader has no report about the pod");
}

/// A report of an agent that refuses every pod without a claim.
fn refusing(cluster: &mut ClusterState, pods: &[(&PodUid, PodStage, u32)]) {
    let report = AgentReport { refuses_unclaimed: true, ..report(AgentPhase::Serving, pods) };
    cluster.agent_reports(FIRST, report, NOW).unwrap();
}

/// A user who makes very many such pods would otherwise keep the claims of others from being followed, or open or close nodes.
#[test]
fn pods_without_a_claim_that_are_left_out_close_only_nodes_where_one_of_them_may_get_a_gpu() {
    let mut cluster = cluster(2, 1);
    let [unclaimed, reserved] = [slice(9, 1000), slice(1, 1000)];
    cluster.filter(reserved.clone(), names(1), NOW);
    cluster.bind(&reserved.uid, &name(0)).unwrap();
    cluster.pod_is(&unclaimed.uid, Some(&bound(&unclaimed, &name(0), PodClaim::None)));
    assert_eq!(closed(&cluster), Some(ClosedReason::UnknownClaim(unclaimed.uid.clone())));
    cluster.leaves_out_unproven_pods(true);
    [&unclaimed, &reserved].into_iter().for_each(|pod| cluster.pod_is_left_out(&pod.uid));
    assert_eq!(cluster.holder(&unclaimed.uid), None);
    assert_eq!(state(&cluster, &reserved), Some(ClaimState::Assumed), "its order is being written");
    // Whether the pods that are left out include others on these nodes is not known.
    cluster.node_is(&facts(2, 1));
    let why = Some(ClosedReason::UnprovenLeftOut);
    let of = |cluster: &ClusterState, n| cluster.node(&name(n)).unwrap().closed();
    assert_eq!([0, 1, 2].map(|n| of(&cluster, n)), [why.clone(), why.clone(), why.clone()]);
    assert_eq!(cluster.filter(slice(2, 1000), names(3), NOW).fit, [0; 0]);
    serving(&mut cluster, &[]);
    assert_eq!(closed(&cluster), why, "the agent shares its GPUs with such pods");
    for (stage, closes) in
        [(PodStage::Waiting, false), (PodStage::Refused, false), (PodStage::Allocated, true), (PodStage::Started, true)]
    {
        refusing(&mut cluster, &[(&unclaimed.uid, stage, 0)]);
        assert_eq!(closed(&cluster), why.clone().filter(|_| closes), "{stage:?}");
    }
    refusing(&mut cluster, &[(&reserved.uid, PodStage::Started, 0)]);
    assert_eq!(closed(&cluster), None, "the claim of that pod is known");
    assert_eq!(cluster.filter(slice(2, 1000), names(3), NOW).fit, [0]);
    // Processes of a pod that is not followed keep others off their GPU.
    refusing(&mut cluster, &[(&unclaimed.uid, PodStage::Waiting, 1)]);
    assert_eq!(cluster.filter(slice(3, 1000), names(1), NOW).refused[0].why.to_string(), "CardInUse");
    // One of its containers has run: it is followed again, and closes its node.
    let shown = bound(&unclaimed, &name(0), PodClaim::None);
    let started = shown.gpu_pod.clone().map(|pod| GpuPod { started: true, ..pod });
    cluster.pod_is(&unclaimed.uid, Some(&BoundPod { gpu_pod: started, ..shown }));
    assert_eq!(closed(&cluster), Some(ClosedReason::UnknownClaim(unclaimed.uid.clone())));
    cluster.pod_gone(&unclaimed.uid);
    cluster.leaves_out_unproven_pods(false);
    refusing(&mut cluster, &[]);
    assert_eq!([0, 1, 2].map(|n| of(&cluster, n)), [None, None, None]);
}

/// Anyone who may create pods can let any number of pods look like one static pod, and each report and each filter call asks whether
/// the node is closed.
#[test]
fn of_the_pods_with_one_hash_only_those_are_looked_at_that_may_hold_gpus() {
    let (mut cluster, hash) = (cluster(1, 1), PodUid::parse(&"a".repeat(32)).unwrap());
    let uid = |n| slice(n, 1000).uid;
    let shown = |n, asks: bool, started: bool| {
        let shown = bound(&slice(n, 1000), &name(0), PodClaim::None);
        let gpu_pod = shown.gpu_pod.map(|pod| GpuPod { started, ..pod }).filter(|_| asks);
        BoundPod { node: name(0), gpu_pod, ended: false, hash: Some(hash.clone()) }
    };
    let looked_at = |cluster: &ClusterState| cluster.node(&name(0)).unwrap().static_pods().unclaimed(&hash).count();
    for n in 100..200 {
        cluster.pod_is(&uid(n), Some(&shown(n, false, false)));
    }
    // More than the agent reports.
    for n in 2..5 {
        cluster.pod_is(&uid(n), Some(&BoundPod { hash: None, ..shown(n, true, false) }));
    }
    refusing(&mut cluster, &[(&hash, PodStage::Allocated, 0)]);
    assert_eq!((looked_at(&cluster), closed(&cluster)), (0, None), "a pod that requests no GPU has the name");
    let why = Some(ClosedReason::UnknownClaim(uid(900)));
    for (started, alike) in [(false, 1), (true, 0), (false, 1)] {
        cluster.pod_is(&uid(900), Some(&shown(900, true, started)));
        assert_eq!((looked_at(&cluster), closed(&cluster)), (alike, why.clone()), "{started}");
    }
    refusing(&mut cluster, &[(&hash, PodStage::Waiting, 0)]);
    assert_eq!((looked_at(&cluster), closed(&cluster)), (1, None));
    // Its hash is known before or after its claim is not.
    cluster.pod_is(&uid(2), Some(&shown(2, true, false)));
    assert_eq!(looked_at(&cluster), 2);
    for n in [2, 900] {
        cluster.pod_gone(&uid(n));
    }
    assert_eq!((looked_at(&cluster), closed(&cluster)), (0, None));
}

/// A user who makes such pods again and again would otherwise keep a node closed until the agent has refused each of them.
#[test]
fn where_the_agent_refuses_all_pods_without_a_claim_a_new_one_closes_nothing() {
    let mut cluster = cluster(1, 1);
    refusing(&mut cluster, &[]);
    let unclaimed = |n| {
        let pod = slice(n, 1000);
        (pod.uid.clone(), bound(&pod, &name(0), PodClaim::None))
    };
    for n in 2..20 {
        let (uid, shown) = unclaimed(n);
        cluster.pod_is(&uid, Some(&shown));
        assert_eq!(closed(&cluster), None, "the agent knows nothing of it yet");
    }
    let pod = slice(1, 1000);
    assert_eq!(cluster.filter(pod.clone(), names(1), NOW).fit, [0]);
    assert!(cluster.bind(&pod.uid, &name(0)).is_ok());
    let (uid, shown) = unclaimed(2);
    let why = Some(ClosedReason::UnknownClaim(uid.clone()));
    refusing(&mut cluster, &[(&uid, PodStage::Waiting, 0)]);
    assert_eq!(closed(&cluster), None);
    // Its devices are from another plugin or an earlier agent, it runs, or its claim cannot be read.
    for (stage, processes) in [(PodStage::Allocated, 0), (PodStage::Started, 0), (PodStage::Waiting, 1)] {
        refusing(&mut cluster, &[(&uid, stage, processes)]);
        assert_eq!(closed(&cluster), why, "{stage:?} {processes}");
    }
    refusing(&mut cluster, &[]);
    for other in [
        BoundPod { gpu_pod: shown.gpu_pod.clone().map(|pod| GpuPod { started: true, ..pod }), ..shown.clone() },
        bound(&slice(2, 1000), &name(0), PodClaim::Unreadable("x".into())),
    ] {
        cluster.pod_is(&uid, Some(&other));
        assert_eq!(closed(&cluster), why);
        cluster.pod_is(&uid, Some(&shown));
        assert_eq!(closed(&cluster), None);
    }
    // A pod whose request cannot be read is refused by every agent.
    cluster.pod_is(&uid, Some(&bound(&slice(2, 1000), &name(0), PodClaim::BadRequest("x".into()))));
    assert_eq!(closed(&cluster), None);
    // The agent has other settings now, or is of an earlier release.
    let change = ReportChange { phase: AgentPhase::Serving, ..ReportChange::default() };
    cluster.agent_changes(&name(0), FIRST, change, NOW).unwrap();
    assert_eq!(closed(&cluster), why);
}

/// A user may let thousands of such pods name a node, look like static pods, and change them again and again.
#[test]
fn pods_without_a_claim_that_only_name_a_node_cost_no_new_verdicts_about_it() {
    let mut cluster = cluster(1, 1);
    let hash = PodUid::parse(&"a".repeat(32)).unwrap();
    let shows = |cluster: &mut ClusterState, n| {
        let pod = slice(n, 1000);
        let shown = bound(&pod, &name(0), PodClaim::None);
        cluster.pod_is(&pod.uid, Some(&BoundPod { hash: Some(hash.clone()), ..shown }));
    };
    let version = |cluster: &ClusterState| cluster.node(&name(0)).unwrap().version().numbers();
    refusing(&mut cluster, &[(&hash, PodStage::Waiting, 0)]);
    (2..20).for_each(|n| shows(&mut cluster, n));
    let before = version(&cluster);
    (2..20).for_each(|n| shows(&mut cluster, n));
    assert_eq!((version(&cluster), closed(&cluster)), (before, None));
    // The agent knows the pods by their common hash, or one by its UID.
    let because = |n| Some(ClosedReason::UnknownClaim(slice(n, 1).uid));
    refusing(&mut cluster, &[(&slice(7, 1).uid, PodStage::Started, 0)]);
    assert_eq!(closed(&cluster), because(7));
    refusing(&mut cluster, &[(&hash, PodStage::Allocated, 0)]);
    assert_eq!(closed(&cluster), because(2));
    cluster.pod_gone(&slice(2, 1).uid);
    assert_eq!(closed(&cluster), because(3));
    refusing(&mut cluster, &[]);
    assert_eq!(closed(&cluster), None);
    // The agent shares its GPUs with such pods.
    serving(&mut cluster, &[]);
    assert_eq!(closed(&cluster), because(3));
}

#[test]
fn an_agent_that_leaves_is_told_which_pods_have_not_asked_yet() {
    let mut cluster = cluster(1, 1);
    let [assumed, waits, asked, started] = [1, 2, 3, 4].map(|n| slice(n, 1000));
    cluster.filter(assumed.clone(), names(1), NOW);
    cluster.bind(&assumed.uid, &name(0)).unwrap();
    for pod in [&waits, &asked, &started] {
        bind(&mut cluster, pod);
    }
    let pods = [
        (&waits.uid, PodStage::Waiting, 0),
        (&asked.uid, PodStage::Allocated, 0),
        (&started.uid, PodStage::Started, 1),
    ];
    serving(&mut cluster, &pods);
    let view = cluster.leader_view(&name(0));
    assert_eq!((view.epoch, view.leaving, view.closed, view.awaited), (7, false, None, Vec::new()));
    cluster.agent_reports(FIRST, report(AgentPhase::Leaving, &pods), NOW).unwrap();
    let view = cluster.leader_view(&name(0));
    assert!(view.leaving && view.closed.is_some_and(|why| why.contains("about to stop")));
    assert_eq!(view.awaited, [assumed.uid.clone(), waits.uid.clone()]);
    // The API server refused one pod, and the other is deleted.
    cluster.bind_ended(&assumed.uid, BindOutcome::Refused);
    cluster.pod_gone(&waits.uid);
    assert!(cluster.leader_view(&name(0)).awaited.is_empty());
}

#[test]
fn a_start_that_the_agent_reports_stays_also_if_the_watch_is_behind() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 1000);
    let shown = bind(&mut cluster, &pod);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Bound));
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 0)]);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
    cluster.pod_is(&pod.uid, Some(&shows(shown)));
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
    let ledger = cluster.node(&name(0)).unwrap().ledger();
    assert_eq!(ledger.started_beside(&uuid(0), &slice(2, 1).uid), ledger.claimed(&uuid(0)));
}

#[test]
fn a_pod_that_has_ended_holds_its_gpus_while_its_agent_sees_processes_of_it() {
    for gone in [true, false] {
        let mut cluster = cluster(1, 1);
        let pod = slice(1, 1000);
        let shown = bind(&mut cluster, &pod);
        serving(&mut cluster, &[(&pod.uid, PodStage::Started, 2)]);
        let end = |cluster: &mut ClusterState| match gone {
            true => cluster.pod_gone(&pod.uid),
            false => {
                let finished = GpuPod { finished: true, ..shown.clone() };
                cluster.pod_is(&pod.uid, Some(&shows(finished)));
            }
        };
        end(&mut cluster);
        end(&mut cluster);
        assert_eq!(state(&cluster, &pod), Some(ClaimState::Started), "{gone}");
        // Its agent is away, so it is not known whether the processes have ended.
        cluster.agent_closed(&name(0), FIRST, NOW);
        cluster.agents_at(later(60_000));
        assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
        let next = StreamId(2);
        cluster.agent_reports(next, report(AgentPhase::Serving, &[(&pod.uid, PodStage::Ended, 1)]), NOW).unwrap();
        assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
        let change =
            ReportChange { phase: AgentPhase::Serving, pods_gone: vec![pod.uid.clone()], ..ReportChange::default() };
        cluster.agent_changes(&name(0), next, change, NOW).unwrap();
        assert_eq!(state(&cluster, &pod), None, "{gone}");
    }
}

/// A report of node 0 with this pod, which has a container and no process; `claimed` are the devices that the agent names.
fn contains(uid: &PodUid, stage: PodStage, claimed: &[GpuUuid]) -> AgentReport {
    let unused = ReportedUse { processes: 0, memory_used: ReportedReading::UNKNOWN };
    let uses: ReportedUses = claimed.iter().map(|device| (device.clone(), unused)).collect();
    let mut report = report(AgentPhase::Serving, &[]);
    report.pods.insert(uid.clone(), ReportedPod { stage, has_containers: true, uses });
    report
}

/// After `kubectl delete --force` the containers run on for the grace period of the pod, which may be a year.
#[test]
fn a_pod_that_is_deleted_by_force_holds_its_gpus_until_its_containers_are_gone() {
    let mut cluster = cluster(1, 1);
    let (pod, other) = (slice(1, 60 * 1024), slice(2, 60 * 1024));
    bind(&mut cluster, &pod);
    cluster.agent_reports(FIRST, contains(&pod.uid, PodStage::Started, &[]), NOW).unwrap();
    cluster.pod_gone(&pod.uid);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started), "no process uses the GPU yet");
    // The agent has heard of the deletion, and has restarted since.
    for stream in [FIRST, StreamId(2)] {
        cluster.agent_reports(stream, contains(&pod.uid, PodStage::Ended, &[]), later(60_000)).unwrap();
        assert_eq!(cluster.filter(other.clone(), names(1), NOW).fit, [0; 0]);
    }
    let change =
        ReportChange { phase: AgentPhase::Serving, pods_gone: vec![pod.uid.clone()], ..ReportChange::default() };
    cluster.agent_changes(&name(0), StreamId(2), change, NOW).unwrap();
    assert_eq!(state(&cluster, &pod), None);
    assert_eq!(cluster.filter(other, names(1), NOW).fit, [0]);
}

#[test]
fn a_leader_that_does_not_know_a_pod_that_is_gone_keeps_others_from_the_devices_of_its_claim() {
    let mut cluster = cluster(1, 2);
    let gone = slice(1, 1000).uid;
    cluster.agent_reports(FIRST, contains(&gone, PodStage::Ended, &[uuid(0)]), NOW).unwrap();
    assert_eq!(refuses_both(&mut cluster).as_deref(), Some("AllocatedCardsInsufficientRequest, CardInUse"));
    serving(&mut cluster, &[]);
    assert_eq!(refuses_both(&mut cluster), None);
    // The same of a pod that the API server shows alive is only a container that waits for the rest of its pod.
    cluster.agent_reports(FIRST, contains(&gone, PodStage::Waiting, &[uuid(0)]), NOW).unwrap();
    assert_eq!(refuses_both(&mut cluster), None);
}

/// The agent sees a container before its pod watch shows the pod.
#[test]
fn a_container_of_a_pod_that_the_agent_does_not_know_yet_neither_starts_its_claim_nor_closes_the_node() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 1000);
    bind(&mut cluster, &pod);
    let early = |uid: &PodUid| AgentReport { refuses_unclaimed: true, ..contains(uid, PodStage::Ended, &[]) };
    cluster.agent_reports(FIRST, early(&pod.uid), NOW).unwrap();
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Bound));
    // It is gone: the kubelet will not call `Allocate` for it any more.
    let leaving = AgentReport { phase: AgentPhase::Leaving, ..early(&pod.uid) };
    cluster.agent_reports(FIRST, leaving, NOW).unwrap();
    assert_eq!(cluster.leader_view(&name(0)).awaited, std::slice::from_ref(&pod.uid));
    cluster.pod_gone(&pod.uid);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Bound));
    assert!(cluster.leader_view(&name(0)).awaited.is_empty());
    let unclaimed = slice(2, 1000);
    cluster.pod_is(&unclaimed.uid, Some(&bound(&unclaimed, &name(0), PodClaim::None)));
    cluster.agent_reports(FIRST, early(&unclaimed.uid), NOW).unwrap();
    assert_eq!(closed(&cluster), None);
}

#[test]
fn a_pod_that_lost_its_node_in_a_restore_holds_its_gpus_until_its_processes_have_ended() {
    let mut cluster = cluster(1, 1);
    let (pod, other) = (slice(1, 60 * 1024), slice(2, 60 * 1024));
    bind(&mut cluster, &pod);
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 2)]);
    cluster.pod_is_unbound(&pod.uid);
    cluster.pod_is(&pod.uid, None);
    assert_eq!(cluster.filter(other.clone(), names(1), NOW).fit, [0; 0]);
    // Its own bind waits too: the GPUs of its order could be released while it is written.
    assert_eq!(cluster.filter(pod.clone(), names(1), NOW).fit, [0]);
    assert_eq!(cluster.bind(&pod.uid, &name(0)), Err(BindRefusal::StillRuns(name(0))));
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
    serving(&mut cluster, &[]);
    assert_eq!(state(&cluster, &pod), None);
    assert_eq!(cluster.filter(pod.clone(), names(1), NOW).fit, [0]);
    assert!(cluster.bind(&pod.uid, &name(0)).is_ok());
    // Without processes there is nothing to wait for.
    let mut cluster = self::cluster(1, 1);
    bind(&mut cluster, &pod);
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 0)]);
    cluster.pod_is_unbound(&pod.uid);
    assert_eq!(state(&cluster, &pod), None);
    // The agent still reports the start by the earlier binding, which proves nothing about the new binding.
    assert_eq!(cluster.filter(pod.clone(), names(1), NOW).fit, [0]);
    assert!(cluster.bind(&pod.uid, &name(0)).is_ok());
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 0)]);
    cluster.pod_is_unbound(&pod.uid);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Assumed));
    bind(&mut cluster, &pod);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
}

#[test]
fn a_pod_that_ran_and_was_gone_before_the_watch_showed_it_holds_its_gpus_until_its_processes_have_ended() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 1000);
    cluster.filter(pod.clone(), names(1), NOW);
    cluster.bind(&pod.uid, &name(0)).unwrap();
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 1)]);
    // The first write of the binding gets no answer. The second is refused, because the pod is gone.
    cluster.pod_gone(&pod.uid);
    assert_eq!(cluster.order_again(&pod.uid), None);
    cluster.bind_ended(&pod.uid, BindOutcome::Refused);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Assumed));
    serving(&mut cluster, &[]);
    assert_eq!(state(&cluster, &pod), None);
}

#[test]
fn a_report_alone_releases_nothing() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 1000);
    bind(&mut cluster, &pod);
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 1)]);
    serving(&mut cluster, &[]);
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started), "the API server shows a pod that runs");
}

/// The register of a Node that was created again with its old annotations is not from its agent.
#[test]
fn a_node_that_comes_back_stays_closed_until_its_agent_reports() {
    let again = NodeFacts { uid: ObjectUid::parse("uid-again").unwrap(), ..facts(0, 1) };
    for had_stream in [true, false] {
        let mut cluster = cluster(1, 1);
        let pod = slice(1, 1000);
        bind(&mut cluster, &pod);
        if had_stream {
            serving(&mut cluster, &[(&pod.uid, PodStage::Started, 1)]);
        }
        cluster.node_gone(&name(0), &facts(0, 1).uid);
        assert_eq!(closed(&cluster), Some(ClosedReason::Gone));
        cluster.node_is(&again);
        assert_eq!(closed(&cluster), had_stream.then_some(ClosedReason::AgentAway));
        if had_stream {
            cluster.agent_reports(StreamId(2), report(AgentPhase::Serving, &[]), NOW).unwrap();
        }
        assert_eq!(closed(&cluster), None);
    }
    // A new leader knows of no stream.
    let mut cluster = cluster(1, 1);
    bind(&mut cluster, &slice(1, 1000));
    serving(&mut cluster, &[]);
    cluster.node_gone(&name(0), &facts(0, 1).uid);
    cluster.node_is(&again);
    cluster.forget_agents();
    assert_eq!(closed(&cluster), None);
}

#[test]
fn a_leader_that_leads_no_longer_and_a_node_that_is_gone_forget_the_stream() {
    for node_gone in [true, false] {
        let mut cluster = cluster(1, 1);
        let pod = slice(1, 1000);
        bind(&mut cluster, &pod);
        serving(&mut cluster, &[(&pod.uid, PodStage::Started, 1)]);
        cluster.pod_gone(&pod.uid);
        assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
        match node_gone {
            true => cluster.node_gone(&name(0), &ObjectUid::parse("uid-0").unwrap()),
            false => cluster.forget_agents(),
        }
        assert_eq!(state(&cluster, &pod), None);
        assert!(cluster.agent_report(&name(0)).is_none());
        assert_eq!(cluster.node(&name(0)).is_none(), node_gone);
        assert_eq!(cluster.agent_beats(&name(0), FIRST, NOW), Err(ReportRefusal::Replaced));
    }
}

/// Some GPUs have other lists now.
fn lists(gpus: &[(GpuUuid, Option<u32>)]) -> ReportChange {
    let gpus = gpus.iter().map(|(uuid, processes)| (uuid.clone(), gpu(*processes))).collect();
    ReportChange { phase: AgentPhase::Serving, gpus, ..ReportChange::default() }
}

#[test]
fn a_report_without_a_list_of_a_gpu_releases_no_claim_on_it() {
    for named in [true, false] {
        let mut cluster = cluster(1, 1);
        let pod = slice(1, 1000);
        bind(&mut cluster, &pod);
        serving(&mut cluster, &[(&pod.uid, PodStage::Started, 1)]);
        cluster.pod_gone(&pod.uid);
        // The agent has restarted. NVML has not answered, or the GPUs have not been found yet.
        let mut first = report(AgentPhase::Serving, &[]);
        if named {
            first.gpus.insert(uuid(0), gpu(None));
        } else {
            first.gpus.clear();
        }
        let anew = StreamId(2);
        cluster.agent_reports(anew, first, NOW).unwrap();
        assert_eq!(state(&cluster, &pod), Some(ClaimState::Started), "{named}");
        cluster.agent_changes(&name(0), anew, lists(&[(uuid(1), Some(0))]), NOW).unwrap();
        assert_eq!(state(&cluster, &pod), Some(ClaimState::Started), "{named}: the list of another GPU");
        cluster.agent_changes(&name(0), anew, lists(&[(uuid(0), Some(0))]), NOW).unwrap();
        assert_eq!(state(&cluster, &pod), None, "{named}");
    }
}

#[test]
fn a_pod_that_ends_while_a_list_is_missing_holds_its_gpu_until_a_list_shows_no_process_of_it() {
    let mut cluster = cluster(1, 2);
    let pod = slice(1, 1000);
    let shown = bind(&mut cluster, &pod);
    let own = cluster.node(&name(0)).unwrap().ledger().get(&pod.uid).unwrap().claim[0][0].device.clone();
    let mut hangs = report(AgentPhase::Serving, &[(&pod.uid, PodStage::Started, 0)]);
    hangs.gpus.insert(own.clone(), gpu(None));
    cluster.agent_reports(FIRST, hangs, NOW).unwrap();
    cluster.pod_is(&pod.uid, Some(&shows(GpuPod { finished: true, ..shown })));
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
    // The list shows processes of the pod, then none.
    let used = (own.clone(), ReportedUse { processes: 1, memory_used: ReportedReading::UNKNOWN });
    let uses = [used].into_iter().collect();
    let running = ReportedPod { stage: PodStage::Ended, has_containers: false, uses };
    let change = ReportChange { pods: [(pod.uid.clone(), running)].into(), ..lists(&[(own, Some(1))]) };
    cluster.agent_changes(&name(0), FIRST, change, NOW).unwrap();
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
    let change = ReportChange { pods_gone: vec![pod.uid.clone()], ..lists(&[]) };
    cluster.agent_changes(&name(0), FIRST, change, NOW).unwrap();
    assert_eq!(state(&cluster, &pod), None);
}

#[test]
fn a_gpu_that_was_removed_keeps_no_claim() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 1000);
    bind(&mut cluster, &pod);
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 1)]);
    cluster.pod_gone(&pod.uid);
    // First the agent no longer names the GPU, then the Node no longer registers it.
    let mut without = report(AgentPhase::Serving, &[]);
    without.gpus.remove(&uuid(0));
    cluster.agent_reports(FIRST, without, NOW).unwrap();
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started));
    cluster.node_is(&facts(0, 1));
    assert_eq!(state(&cluster, &pod), Some(ClaimState::Started), "it may come back");
    cluster.node_is(&NodeFacts { register: Ok(Vec::new()), ..facts(0, 1) });
    assert_eq!(state(&cluster, &pod), None);
}

#[test]
fn a_mig_instance_counts_by_its_own_list_and_without_one_by_those_of_all_gpus() {
    let instance = GpuUuid::parse("MIG-1").unwrap();
    let mut register = facts(0, 1);
    register.register.as_mut().unwrap()[0].uuid = instance.clone();
    let pod = slice(1, 1000);
    let ended = |gpus: &[(GpuUuid, Option<u32>)]| {
        let mut cluster = cluster(1, 0);
        cluster.node_is(&register);
        bind(&mut cluster, &pod);
        let mut report = report(AgentPhase::Serving, &[(&pod.uid, PodStage::Started, 0)]);
        report.gpus = lists(gpus).gpus;
        cluster.agent_reports(FIRST, report, NOW).unwrap();
        cluster.pod_gone(&pod.uid);
        cluster
    };
    // The pod's GPU answers; another GPU is lost, perhaps for days.
    let cluster = ended(&[(instance.clone(), Some(0)), (uuid(0), Some(0)), (uuid(1), None)]);
    assert_eq!(state(&cluster, &pod), None);
    let cluster = ended(&[(instance, None), (uuid(0), None), (uuid(1), Some(0))]);
    assert!(state(&cluster, &pod).is_some());
    // Agents of an earlier release name no instances.
    let mut cluster = ended(&[(uuid(0), Some(0)), (uuid(1), None)]);
    assert!(state(&cluster, &pod).is_some());
    cluster.agent_changes(&name(0), FIRST, lists(&[(uuid(1), Some(0))]), NOW).unwrap();
    assert_eq!(state(&cluster, &pod), None);
}

/// Why a pod that requests both GPUs of the node does not fit; `None` if it does.
fn refuses_both(cluster: &mut ClusterState) -> Option<String> {
    let mut both = slice(99, 1000);
    both.requests[0].slots = 2;
    let verdict = cluster.filter(both, names(1), NOW);
    verdict.refused.first().map(|node| node.why.to_string())
}

#[test]
fn a_gpu_with_processes_of_a_pod_that_ended_before_the_leader_won_takes_no_claims_until_a_list_shows_none() {
    let mut cluster = cluster(1, 2);
    let (ended, next) = (slice(1, 1000), slice(2, 1000));
    assert_eq!(refuses_both(&mut cluster), None);
    serving(&mut cluster, &[(&ended.uid, PodStage::Ended, 1)]);
    let why = refuses_both(&mut cluster);
    assert_eq!(why.as_deref(), Some("AllocatedCardsInsufficientRequest, CardInUse"));
    cluster.filter(next.clone(), names(1), NOW);
    let order = cluster.bind(&next.uid, &name(0)).unwrap();
    assert_eq!(order.claim[0][0].device, uuid(1), "the other GPU is free");
    // A newer version of the Node, and an agent that has restarted and has no list yet, change nothing.
    cluster.node_is(&facts(0, 2));
    let mut first = report(AgentPhase::Serving, &[]);
    first.gpus.insert(uuid(0), gpu(None));
    let anew = StreamId(2);
    cluster.agent_reports(anew, first, NOW).unwrap();
    assert!(refuses_both(&mut cluster).is_some());
    cluster.agent_changes(&name(0), anew, lists(&[(uuid(0), Some(0))]), NOW).unwrap();
    assert_eq!(refuses_both(&mut cluster), None);
}

#[test]
fn a_gpu_in_use_that_is_unhealthy_meanwhile_is_still_in_use_afterwards() {
    let mut cluster = cluster(1, 2);
    let mut sick = facts(0, 2);
    sick.register.as_mut().unwrap()[0].healthy = false;
    cluster.node_is(&sick);
    serving(&mut cluster, &[(&slice(1, 1).uid, PodStage::Ended, 1)]);
    assert_eq!(refuses_both(&mut cluster).as_deref(), Some("AllocatedCardsInsufficientRequest, CardNotHealth"));
    cluster.node_is(&facts(0, 2));
    assert_eq!(refuses_both(&mut cluster).as_deref(), Some("AllocatedCardsInsufficientRequest, CardInUse"));
    cluster.node_is(&sick);
    serving(&mut cluster, &[]);
    cluster.node_is(&facts(0, 2));
    assert_eq!(refuses_both(&mut cluster), None);
}

/// For example a pod of a DaemonSet that measures all GPUs: it never ends, and requests none.
#[test]
fn a_pod_that_runs_and_requests_no_gpu_keeps_no_other_from_what_it_uses() {
    let mut cluster = cluster(2, 2);
    let exporter = slice(1, 1).uid;
    serving(&mut cluster, &[(&exporter, PodStage::Ended, 1)]);
    assert!(refuses_both(&mut cluster).is_some(), "the API server has not shown the pod");
    let here = BoundPod { node: name(0), gpu_pod: None, ended: false, hash: None };
    let free = |cluster: &mut ClusterState, shown: &BoundPod| {
        cluster.pod_is(&exporter, Some(shown));
        refuses_both(cluster).is_none()
    };
    assert!(free(&mut cluster, &here));
    assert!(!free(&mut cluster, &BoundPod { ended: true, ..here.clone() }));
    assert!(free(&mut cluster, &here));
    assert!(
        !free(&mut cluster, &BoundPod { node: name(1), ..here.clone() }),
        "its use of this node's GPUs is not explained"
    );
    let ends: [fn(&mut ClusterState, &PodUid); 2] = [ClusterState::pod_is_left_out, ClusterState::pod_gone];
    for ends in ends {
        assert!(free(&mut cluster, &here));
        ends(&mut cluster, &exporter);
        assert!(refuses_both(&mut cluster).is_some());
        assert!(cluster.pods_without_gpus.is_empty());
    }
    serving(&mut cluster, &[]);
    assert_eq!(refuses_both(&mut cluster), None);
}

#[test]
fn processes_of_a_pod_with_a_claim_count_by_the_claim_wherever_the_pod_is_in_its_life() {
    let mut cluster = cluster(2, 2);
    let pod = slice(1, 1000);
    let shown = bind(&mut cluster, &pod);
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 1)]);
    assert_eq!(refuses_both(&mut cluster), None);
    cluster.pod_is(&pod.uid, Some(&shows(GpuPod { finished: true, ..shown.clone() })));
    assert_eq!(refuses_both(&mut cluster), None, "its claim is kept, and counts");
    // After an etcd restore the pod is on another node: its claim no longer explains its processes here.
    cluster.pod_is(&pod.uid, Some(&BoundPod { node: name(1), ..shows(shown) }));
    assert!(refuses_both(&mut cluster).is_some());
    serving(&mut cluster, &[]);
    assert_eq!(refuses_both(&mut cluster), None);
}

#[test]
fn a_pod_without_a_node_is_not_bound_where_its_processes_still_run() {
    let mut cluster = cluster(1, 2);
    let pod = slice(1, 1000);
    // The leader has won after the etcd restore that took the node away from the pod.
    cluster.pod_is(&pod.uid, None);
    serving(&mut cluster, &[(&pod.uid, PodStage::Ended, 1)]);
    cluster.filter(pod.clone(), names(1), NOW);
    assert_eq!(cluster.bind(&pod.uid, &name(0)), Err(BindRefusal::StillRuns(name(0))));
    serving(&mut cluster, &[]);
    assert!(cluster.bind(&pod.uid, &name(0)).is_ok());
}

#[test]
fn what_is_in_use_is_forgotten_with_the_stream_and_with_the_node() {
    for node_gone in [true, false] {
        let mut cluster = cluster(1, 2);
        serving(&mut cluster, &[(&slice(1, 1).uid, PodStage::Ended, 1)]);
        // The agent is away: its node is closed, and what it has reported stays.
        cluster.agent_closed(&name(0), FIRST, NOW);
        cluster.agents_at(later(60_000));
        assert!(cluster.node(&name(0)).unwrap().is_in_use());
        match node_gone {
            true => {
                cluster.node_gone(&name(0), &ObjectUid::parse("uid-0").unwrap());
                cluster.node_is(&facts(0, 2));
            }
            false => cluster.forget_agents(),
        }
        assert_eq!(refuses_both(&mut cluster), None, "{node_gone}");
    }
}

#[test]
fn only_gpus_that_the_node_registers_are_remembered_as_in_use() {
    let mut cluster = cluster(1, 1);
    let used = |n: u32| (uuid(n), ReportedUse { processes: 1, memory_used: ReportedReading::UNKNOWN });
    let mut many = report(AgentPhase::Serving, &[]);
    let uses = (0..20).map(used).collect();
    many.pods.insert(slice(1, 1).uid, ReportedPod { stage: PodStage::Ended, has_containers: false, uses });
    cluster.agent_reports(FIRST, many, NOW).unwrap();
    let mut unknown = report(AgentPhase::Serving, &[]);
    unknown.gpus.values_mut().for_each(|gpu| gpu.processes = ReportedReading::UNKNOWN);
    cluster.agent_reports(FIRST, unknown, NOW).unwrap();
    cluster.node_is(&facts(0, 2));
    assert_eq!(
        refuses_both(&mut cluster).as_deref(),
        Some("AllocatedCardsInsufficientRequest, CardInUse"),
        "one of two"
    );
}

#[test]
fn a_claim_on_a_device_that_the_agent_has_withdrawn_takes_nothing_of_the_others() {
    let mut cluster = cluster(1, 1);
    let other = slice(9, 1000);
    let share = model::claim::DeviceShare { device: uuid(77), memory: None, cores: None };
    let lost = PodClaim::Given(model::claim::Claim(vec![vec![share]]));
    cluster.pod_is(&other.uid, Some(&bound(&other, &name(0), lost)));
    let unknown = Some(ClosedReason::UnknownDevice(other.uid.clone(), uuid(77)));
    assert_eq!(closed(&cluster), unknown, "an agent without a stream");
    serving(&mut cluster, &[]);
    assert_eq!(closed(&cluster), unknown, "the agent does not know the device either");
    let withdrawn = |gpus: &[u32]| gpus.iter().map(|n| uuid(*n)).collect::<BTreeSet<GpuUuid>>();
    let change = |gpus: &[u32]| ReportChange {
        phase: AgentPhase::Serving,
        withdrawn: withdrawn(gpus),
        ..ReportChange::default()
    };
    cluster.agent_changes(&name(0), FIRST, change(&[77]), NOW).unwrap();
    assert_eq!(closed(&cluster), None);
    assert_eq!(cluster.filter(slice(1, 1000), names(1), NOW).fit, [0]);
    cluster.agent_changes(&name(0), FIRST, change(&[76]), NOW).unwrap();
    assert_eq!(closed(&cluster), unknown);
    let full = AgentReport { withdrawn: withdrawn(&[77]), ..report(AgentPhase::Serving, &[]) };
    cluster.agent_reports(FIRST, full, NOW).unwrap();
    assert_eq!(closed(&cluster), None);
    cluster.forget_agents();
    assert_eq!(closed(&cluster), unknown, "a process that no longer leads has no reports");
    // A user may bind pods with such claims by hand, again and again.
    let [waiting, refused, beside] = [(PodStage::Waiting, 0), (PodStage::Refused, 0), (PodStage::Refused, 1)]
        .map(|(stage, processes)| [(&other.uid, stage, processes)]);
    for stages in [&[][..], &waiting, &refused, &beside] {
        refusing(&mut cluster, stages);
        assert_eq!(closed(&cluster), None, "the agent refuses it: {stages:?}");
    }
    for (stage, processes) in [(PodStage::Allocated, 0), (PodStage::Started, 0)] {
        refusing(&mut cluster, &[(&other.uid, stage, processes)]);
        assert_eq!(closed(&cluster), unknown, "{stage:?} {processes}");
    }
}

#[test]
fn a_node_without_a_stream_is_judged_by_its_handshake_and_one_with_a_stream_is_not() {
    let mut cluster = cluster(1, 1);
    let beat = |second: u64| NodeFacts { handshake: Some(WallTime(second * 1_000_000)), ..facts(0, 1) };
    let fits = |cluster: &mut ClusterState, ms| {
        cluster.agents_at(later(ms));
        let verdict = cluster.filter(slice(1, 1000), names(1), later(ms));
        verdict.refused.first().map(|node| node.why.to_string())
    };
    let refused = Some("NodeUnfitPod: NodeClosed".to_owned());
    cluster.node_is(&beat(5));
    assert_eq!((fits(&mut cluster, 1000), fits(&mut cluster, 300_999)), (None, None));
    assert_eq!(fits(&mut cluster, 302_000), refused, "the verdict from before does not count any more");
    let news = |cluster: &mut ClusterState| {
        cluster.take_closings().pop().and_then(|change| change.closed).map(|why| why.reason)
    };
    assert_eq!(news(&mut cluster), Some(ClosedReason::HandshakeStale));
    // Its agent opens a stream, and later loses it.
    serving(&mut cluster, &[]);
    assert_eq!((fits(&mut cluster, 303_000), news(&mut cluster)), (None, None));
    cluster.agent_closed(&name(0), FIRST, later(304_000));
    assert_eq!((fits(&mut cluster, 305_000), fits(&mut cluster, 306_000)), (None, refused.clone()));
    assert_eq!(closed(&cluster), Some(ClosedReason::AgentAway));
    cluster.forget_agents();
    assert_eq!(closed(&cluster), Some(ClosedReason::HandshakeStale));
    cluster.node_is(&beat(6));
    assert_eq!((fits(&mut cluster, 307_000), fits(&mut cluster, 606_000)), (None, None));
    // The API server is away: handshakes that are written meanwhile are not seen.
    cluster.nodes_are_watched(false, later(606_000));
    assert_eq!(fits(&mut cluster, 1_000_000), None);
    cluster.nodes_are_watched(true, later(1_000_000));
    assert_eq!((fits(&mut cluster, 1_000_999), fits(&mut cluster, 1_002_000)), (None, refused));
    cluster.node_is(&NodeFacts { register: Ok(Vec::new()), ..beat(6) });
    assert_eq!(closed(&cluster), None, "a node without GPUs is not worth an event");
    cluster.node_is(&facts(0, 1));
    assert_eq!((fits(&mut cluster, 1_003_000), fits(&mut cluster, 9_000_000)), (None, None), "it has no handshake");
}
