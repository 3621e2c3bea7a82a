//! Tests of the agents' streams: what is closed when, and what a report proves.

use super::*;
use crate::cluster::tests::{NOW, bound, cluster, facts, name, names, slice};
use crate::cluster::{BindOutcome, BindRefusal, ClosedReason};
use crate::ledger::ClaimState;
use crate::placement::tests::uuid;
use model::agent_stream::{AgentPhase, PodStage, ReportedPod, ReportedUse, ReportedUses};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::ObjectUid;
use model::placement::PlacementRequest;

const FIRST: StreamId = StreamId(1);

fn later(ms: u64) -> Monotonic {
    NOW.after(Duration::from_millis(ms))
}

fn report(phase: AgentPhase, pods: &[(&PodUid, PodStage, u32)]) -> AgentReport {
    let mut report = AgentReport::of(name(0));
    (report.phase, report.early) = (phase, Some(false));
    for (uid, stage, processes) in pods {
        let used = (uuid(0), ReportedUse { processes: *processes, memory_used: None });
        let uses = Some(used).filter(|_| *processes > 0).into_iter().collect();
        report.pods.insert((*uid).clone(), ReportedPod { stage: *stage, uses });
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
    assert_eq!(verdict.refused[0].why.to_string(), "NodeClosed");
    let back = StreamId(2);
    cluster.agent_reports(back, report(AgentPhase::Serving, &[]), later(5000)).unwrap();
    assert_eq!(closed(&cluster), None);
    // The end of the old stream, seen late, and its messages are nothing to the new one.
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
fn nothing_is_bound_to_a_node_whose_agent_starts_or_leaves() {
    let mut cluster = cluster(1, 1);
    let pod = slice(1, 1000);
    cluster.filter(pod.clone(), names(1), NOW);
    for (phase, why) in
        [(AgentPhase::Starting, ClosedReason::AgentStarting), (AgentPhase::Leaving, ClosedReason::AgentLeaving)]
    {
        cluster.agent_reports(FIRST, report(phase, &[]), NOW).unwrap();
        assert_eq!(cluster.bind(&pod.uid, &name(0)), Err(BindRefusal::Closed { node: name(0), why }));
    }
    serving(&mut cluster, &[]);
    assert!(cluster.bind(&pod.uid, &name(0)).is_ok());
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
    // One was refused by the API server, the other one is deleted.
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
    cluster.pod_is(&pod.uid, Some(&crate::cluster::BoundPod { node: name(0), gpu_pod: Some(shown.clone()) }));
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
                cluster.pod_is(&pod.uid, Some(&crate::cluster::BoundPod { node: name(0), gpu_pod: Some(finished) }));
            }
        };
        end(&mut cluster);
        end(&mut cluster);
        assert_eq!(state(&cluster, &pod), Some(ClaimState::Started), "{gone}");
        // Its agent is away: nobody knows whether the processes have ended.
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
    // Without processes nothing is to be waited for.
    let mut cluster = self::cluster(1, 1);
    bind(&mut cluster, &pod);
    serving(&mut cluster, &[(&pod.uid, PodStage::Started, 0)]);
    cluster.pod_is_unbound(&pod.uid);
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

#[test]
fn with_early_binding_pods_of_other_amounts_are_on_their_way_one_after_the_other() {
    let mut cluster = cluster(1, 2);
    cluster.node_is(&facts(0, 2));
    let [first, same, other] = [(1, 1000), (2, 1000), (3, 2000)].map(|(n, mib)| slice(n, mib));
    let mut early = report(AgentPhase::Serving, &[]);
    early.early = Some(true);
    cluster.agent_reports(FIRST, early.clone(), NOW).unwrap();
    bind(&mut cluster, &first);
    bind(&mut cluster, &same);
    cluster.filter(other.clone(), names(1), NOW);
    let before = cluster.node(&name(0)).unwrap().devices().clone();
    let refused = cluster.bind(&other.uid, &name(0));
    assert_eq!(refused, Err(BindRefusal::InFlight { node: name(0), pod: first.uid.clone() }));
    assert_eq!(format!("{before:?}"), format!("{:?}", cluster.node(&name(0)).unwrap().devices()), "nothing changed");
    for pod in [&first, &same] {
        early.pods.insert(pod.uid.clone(), ReportedPod { stage: PodStage::Allocated, uses: ReportedUses::default() });
    }
    cluster.agent_reports(FIRST, early, NOW).unwrap();
    assert!(cluster.bind(&other.uid, &name(0)).is_ok());
}
