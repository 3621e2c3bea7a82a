//! Tests of the real-time check on the leader's state: what a report leaves of a GPU, and what changes no verdict.

use super::*;
use crate::cluster::tests::{NOW, bound, facts, name, names, slice};
use crate::cluster::{ClusterRules, FilterVerdict, PreemptVerdict, StreamId};
use crate::placement::CheckResult;
use crate::placement::tests::{container, pod, uuid};
use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportChange, ReportedGpu, ReportedPod, ReportedUse};
use model::claim::{Claim, DeviceShare, PodClaim};
use model::id::PodUid;
use model::realtime::{CheckMode, CheckRules, NodeCheck};
use model::reported_reading::ReportedReading;
use model::request::ContainerRole;
use model::time::Monotonic;
use model::unit::Mib;
use std::time::Duration;

pub(super) const STREAM: StreamId = StreamId(1);
/// The memory of each GPU, in MiB.
const WHOLE: u64 = 80 * 1024;
/// No list of processes.
const NONE: ReportedReading<Bytes> = ReportedReading::UNKNOWN;

pub(super) fn mib(mib: u64) -> ReportedReading<Bytes> {
    ReportedReading::Measured(Mib(mib).bytes(), None)
}

fn later(seconds: u64) -> Monotonic {
    NOW.after(Duration::from_secs(seconds))
}

/// A pod on GPU 0 of node 0: its claim, and what its processes use of it, in MiB.
#[derive(Clone, Copy)]
pub(super) struct OnGpu {
    claimed: Option<u64>,
    used: ReportedReading<Bytes>,
}

fn claims(claimed: u64, used: u64) -> OnGpu {
    OnGpu { claimed: Some(claimed), used: mib(used) }
}

/// A running pod that requests no GPU.
fn plain(used: u64) -> OnGpu {
    OnGpu { claimed: None, used: mib(used) }
}

fn uid(n: usize) -> PodUid {
    slice(u32::try_from(n).unwrap() + 100, 1).uid
}

/// What the agent of node 0 reports of GPU 0 and the pods on it.
pub(super) fn report(used: ReportedReading<Bytes>, listed: ReportedReading<Bytes>, pods: &[OnGpu]) -> AgentReport {
    let mut report = AgentReport { phase: AgentPhase::Serving, ..AgentReport::of(name(0)) };
    let gpu = ReportedGpu {
        healthy: true,
        memory_total: mib(WHOLE),
        memory_used: used,
        memory_listed: listed,
        processes: ReportedReading::Measured(1, None),
        ..ReportedGpu::default()
    };
    report.gpus.insert(uuid(0), gpu);
    for (n, pod) in pods.iter().enumerate() {
        let stage = if pod.claimed.is_some() { PodStage::Started } else { PodStage::Ended };
        let uses = [(uuid(0), ReportedUse { processes: 1, memory_used: pod.used })].into_iter().collect();
        report.pods.insert(uid(n), ReportedPod { stage, has_containers: false, uses });
    }
    report
}

pub(super) fn cluster_with(check: CheckRules, nodes: u32, capacity: u64) -> ClusterState {
    let mut rules = ClusterRules::default();
    rules.placement.check = check;
    let mut cluster = ClusterState::new(rules);
    for n in 0..nodes {
        let mut facts = facts(n, 1);
        facts.register.as_mut().unwrap()[0].memory = Mib(capacity);
        cluster.node_is(&facts);
    }
    cluster.lead(7);
    cluster
}

/// A cluster of one node whose GPU pods may claim `capacity` MiB of, with these pods and this report.
fn reported(check: CheckRules, capacity: u64, pods: &[OnGpu], report: AgentReport) -> ClusterState {
    let mut cluster = cluster_with(check, 1, capacity);
    for (n, pod) in pods.iter().enumerate() {
        let asked = slice(u32::try_from(n).unwrap() + 100, pod.claimed.unwrap_or(0).max(1));
        let Some(claimed) = pod.claimed else {
            cluster.pod_is(
                &asked.uid,
                Some(&model::gpu_pod::BoundPod { node: name(0), gpu_pod: None, ended: false, hash: None }),
            );
            continue;
        };
        let share = DeviceShare { device: uuid(0), memory: Some(Mib(claimed).bytes()), cores: None };
        cluster.pod_is(&asked.uid, Some(&bound(&asked, &name(0), PodClaim::Given(Claim(vec![vec![share]])))));
    }
    cluster.agent_reports(STREAM, report, NOW).unwrap();
    cluster
}

fn asks(cluster: &mut ClusterState, mib: u64) -> FilterVerdict {
    cluster.filter(slice(1, mib), names(1), NOW)
}

pub(super) fn mode(mode: CheckMode) -> CheckRules {
    CheckRules { mode, ..CheckRules::default() }
}

/// What pods may claim, the memory in use now and at the list, the pods, what is left for one more pod, and whether the memory of each
/// process is known.
type Case = (&'static str, u64, [ReportedReading<Bytes>; 2], Vec<OnGpu>, u64, bool);

fn golden_cases() -> Vec<Case> {
    let unknown = OnGpu { claimed: Some(10_240), used: NONE };
    vec![
        ("an empty GPU", WHOLE, [mib(0), mib(0)], vec![], WHOLE, true),
        ("contexts of the driver", WHOLE, [mib(90), mib(90)], vec![], WHOLE, true),
        ("a stranger", WHOLE, [mib(2048), mib(2048)], vec![], WHOLE - 2148, true),
        ("a pod without a claim", WHOLE, [mib(6144), mib(6144)], vec![plain(6144)], WHOLE - 6244, true),
        ("ten strangers of 60 MiB", WHOLE, [mib(600), mib(600)], vec![], WHOLE - 700, true),
        ("a pod inside its claim", WHOLE, [mib(9000), mib(9000)], vec![claims(10_240, 9000)], WHOLE - 10_240, true),
        ("that grows inside it", WHOLE, [mib(10_000), mib(9000)], vec![claims(10_240, 9000)], WHOLE - 10_240, true),
        (
            "that has grown beyond it",
            WHOLE,
            [mib(12_288), mib(12_288)],
            vec![claims(10_240, 12_288)],
            WHOLE - 12_288,
            true,
        ),
        (
            "that grows beyond it",
            WHOLE,
            [mib(12_288), mib(9000)],
            vec![claims(10_240, 9000)],
            WHOLE - 10_240 - 2148,
            true,
        ),
        (
            "a stranger beside it",
            WHOLE,
            [mib(11_048), mib(11_048)],
            vec![claims(10_240, 9000)],
            WHOLE - 10_240 - 2148,
            true,
        ),
        ("scaling 2", 2 * WHOLE, [mib(2048), mib(2048)], vec![], 2 * (WHOLE - 2148), true),
        ("no list", WHOLE, [mib(12_288), NONE], vec![claims(10_240, 9000)], WHOLE - 12_288, false),
        ("no list, idle", WHOLE, [mib(32), NONE], vec![], WHOLE, false),
        ("no list, little used", WHOLE, [mib(1000), NONE], vec![claims(10_240, 1000)], WHOLE - 10_240, false),
        ("a process without its memory", WHOLE, [mib(12_288), mib(12_288)], vec![unknown], WHOLE - 12_288, false),
        ("no reading", WHOLE, [NONE, mib(12_288)], vec![claims(10_240, 9000)], WHOLE - 10_240, false),
        ("more than there is", WHOLE, [mib(u64::MAX >> 20), mib(u64::MAX >> 20)], vec![], 0, true),
    ]
}

/// Promise 47 in docs/specification.md.
#[test]
fn what_a_report_leaves_of_a_gpu() {
    for (case, capacity, [used, listed], pods, left, known) in golden_cases() {
        let check = |mode| reported(mode, capacity, &pods, report(used, listed, &pods));
        let mut strict = check(CheckRules::default());
        if left > 0 {
            let verdict = asks(&mut strict, left);
            assert_eq!(verdict.fit, [0], "{case}");
            let found = verdict.explained[0].check;
            assert_eq!(found, if known { CheckResult::Passed } else { CheckResult::Fallback }, "{case}");
        }
        let claimed: u64 = pods.iter().filter_map(|pod| pod.claimed).sum();
        let verdict = asks(&mut strict, left + 1);
        let by_claims = left < capacity - claimed;
        assert_eq!((verdict.fit.len(), verdict.checks.refused), (0, u64::from(by_claims)), "{case}");
        assert_eq!(verdict.refused[0].why.to_string(), "CardInsufficientMemory", "{case}");
        let mut warning = asks(&mut check(mode(CheckMode::Warning)), left + 1);
        let warned = warning.explained.pop().map(|explained| explained.check);
        assert_eq!(warned, by_claims.then_some(CheckResult::Warned), "{case}");
        let mut disabled = asks(&mut check(mode(CheckMode::Disabled)), left + 1);
        let unchecked = disabled.explained.pop().map(|explained| explained.check);
        assert_eq!(unchecked, by_claims.then_some(CheckResult::Unchecked), "{case}");
    }
}

#[test]
fn a_pod_of_a_whole_gpu_fits_an_empty_gpu_and_none_with_a_stranger() {
    let whole = pod(1, vec![container(ContainerRole::App, 1, 0, 0)]);
    for (used, fits) in [(0, 1), (2048, 0)] {
        let mut cluster = reported(CheckRules::default(), WHOLE, &[], report(mib(used), mib(used), &[]));
        assert_eq!(cluster.filter(whole.clone(), names(1), NOW).fit.len(), fits);
    }
}

#[test]
fn a_mig_instance_and_a_gpu_without_a_list_count_what_is_used_or_what_is_claimed() {
    let mut cluster = cluster_with(CheckRules::default(), 1, WHOLE);
    let mut own = report(mib(4096), NONE, &[]);
    own.gpus.get_mut(&uuid(0)).unwrap().processes = ReportedReading::Measured(0, None);
    cluster.agent_reports(STREAM, own, NOW).unwrap();
    assert_eq!(asks(&mut cluster, WHOLE - 4096).fit, [0]);
    assert_eq!(asks(&mut cluster, WHOLE - 4095).fit, [0_usize; 0]);
    assert_eq!(cluster.unknown_memory("node-0"), Some((uuid(0), UnknownMemory::NoReading(None))));
}

/// Otherwise each filter call would judge each node again.
#[test]
fn memory_inside_claims_and_below_the_margin_changes_no_version() {
    let pods = [claims(10_240, 1000)];
    let mut cluster = reported(CheckRules::default(), WHOLE, &pods, report(mib(1000), mib(1000), &pods));
    let version = |cluster: &ClusterState| cluster.node(&name(0)).unwrap().version().numbers();
    let before = version(&cluster);
    let change = |cluster: &mut ClusterState, used: u64, listed: u64, own: u64| {
        let report = report(mib(used), mib(listed), &[claims(10_240, own)]);
        let change =
            ReportChange { phase: report.phase, gpus: report.gpus, pods: report.pods, ..ReportChange::default() };
        cluster.agent_changes(&name(0), STREAM, change, NOW).unwrap();
    };
    // A tenant whose memory flaps by 65 MiB uses up the lists of processes: between two lists its growth is its own.
    for n in 0..20 {
        change(&mut cluster, 1000 + 65 * (n % 2), 1000, 1000);
    }
    for own in [2000, 5000, 10_240, 3000] {
        change(&mut cluster, own, own, own);
    }
    // A stranger below the margin flaps too.
    for n in 0..20 {
        change(&mut cluster, 3000 + 65 * (n % 2), 3000 + 65 * (n % 2), 3000);
    }
    assert_eq!(version(&cluster), before);
    change(&mut cluster, 8000, 8000, 3000);
    assert_ne!(version(&cluster), before, "a stranger of 5000 MiB counts");
    assert_eq!(asks(&mut cluster, WHOLE - 10_240).fit, [0_usize; 0]);
}

#[test]
fn a_silent_agent_and_one_that_is_away_leave_the_claims_only() {
    let mut cluster = reported(CheckRules::default(), WHOLE, &[], report(mib(2048), mib(2048), &[]));
    let fits = |cluster: &mut ClusterState, at| {
        cluster.agents_at(at);
        cluster.filter(slice(1, WHOLE), names(1), at).fit.len()
    };
    assert_eq!(fits(&mut cluster, later(24)), 0);
    assert_eq!(fits(&mut cluster, later(26)), 1);
    assert_eq!(cluster.unknown_memory("node-0"), Some((uuid(0), UnknownMemory::Silent)));
    cluster.agent_beats(&name(0), STREAM, later(27)).unwrap();
    assert_eq!(fits(&mut cluster, later(27)), 0, "it is heard again");
    cluster.agent_closed(&name(0), STREAM, later(27));
    assert_eq!(fits(&mut cluster, later(28)), 0, "it may be back in a moment");
    cluster.agents_at(later(30));
    assert_eq!(cluster.unknown_memory("node-0"), Some((uuid(0), UnknownMemory::NoAgent)));
}

#[test]
fn pods_agents_and_the_extender_say_whether_a_pod_is_checked() {
    let strict = CheckRules::default();
    let off = CheckRules { enabled: false, ..strict };
    let only_on = CheckRules { only_on: true, ..strict };
    let node = |enabled, mode| NodeCheck { enabled, mode };
    for (rules, agent, wish, fits) in [
        (strict, NodeCheck::default(), None, 0),
        (strict, NodeCheck::default(), Some(false), 1),
        (only_on, NodeCheck::default(), Some(false), 0),
        (off, NodeCheck::default(), None, 1),
        (off, NodeCheck::default(), Some(true), 0),
        (strict, node(Some(false), None), Some(true), 1),
        (strict, node(None, Some(CheckMode::Warning)), None, 1),
        (mode(CheckMode::Warning), node(None, Some(CheckMode::Strict)), None, 0),
    ] {
        let report = AgentReport { check: agent, ..report(mib(2048), mib(2048), &[]) };
        let mut cluster = reported(rules, WHOLE, &[], report);
        let request = PlacementRequest { realtime: wish, ..slice(1, WHOLE) };
        assert_eq!(cluster.filter(request, names(1), NOW).fit.len(), fits, "{rules:?} {agent:?} {wish:?}");
    }
}

#[test]
fn a_warning_puts_a_node_last() {
    let mut cluster = cluster_with(mode(CheckMode::Warning), 2, WHOLE);
    cluster.agent_reports(STREAM, report(mib(4096), mib(4096), &[]), NOW).unwrap();
    let verdict = cluster.filter(slice(1, WHOLE), names(2), NOW);
    assert_eq!((verdict.fit.clone(), verdict.proposed), (vec![0, 1], Some(1)));
    assert!(verdict.scores[0] < verdict.scores[1], "{verdict:?}");
    assert_eq!((verdict.checks.warned, verdict.checks.fallback), (1, 1), "node 1 has no agent");
    assert_eq!(asks(&mut cluster, WHOLE).explained[0].check, CheckResult::Warned, "it is taken if it is the only one");
}

#[test]
fn evicted_pods_take_their_memory_with_them_and_strangers_stay() {
    // The victim claims 40 GiB and uses 50; a stranger uses 2 GiB.
    let pods = [claims(40 * 1024, 50 * 1024)];
    let victims = [uid(0)];
    let cluster = |stranger: u64| {
        let used = mib(50 * 1024 + stranger);
        reported(CheckRules::default(), WHOLE, &pods, report(used, used, &pods))
    };
    let offers =
        |cluster: &mut ClusterState, mib: u64| cluster.preempt(&slice(1, mib), None, &[("node-0", &victims[..])], NOW);
    assert_eq!(offers(&mut cluster(0), WHOLE), PreemptVerdict::Offers(vec![0]));
    assert_eq!(offers(&mut cluster(2048), WHOLE), PreemptVerdict::Offers(Vec::new()), "it would be evicted in vain");
    assert_eq!(offers(&mut cluster(2048), WHOLE - 2148), PreemptVerdict::Offers(vec![0]));
}

#[test]
fn evicted_pods_take_what_they_claim_with_them_where_it_is_not_known_what_they_use() {
    let (half, victims) = (WHOLE / 2, [uid(0)]);
    let unknown = OnGpu { claimed: Some(WHOLE), used: NONE };
    for (case, [used, listed], victim, left) in [
        ("no list", [mib(WHOLE - 2048), NONE], claims(WHOLE, 0), WHOLE),
        ("a process without its memory", [mib(WHOLE - 2048), mib(WHOLE - 2048)], unknown, WHOLE),
        ("it has grown since the list", [mib(WHOLE - 2048), mib(1024)], claims(WHOLE, 1024), WHOLE),
        ("no list, and others use 2048 MiB", [mib(half + 2048), NONE], claims(half, 0), WHOLE - 2048),
        ("it has not grown alone", [mib(half + 2048), mib(1024)], claims(half, 1024), WHOLE - 2148),
    ] {
        let pods = [victim];
        let mut cluster = reported(CheckRules::default(), WHOLE, &pods, report(used, listed, &pods));
        let plan = [("node-0", &victims[..])];
        let in_vain = cluster.preempt(&slice(1, left + 1), None, &plan, NOW);
        assert_eq!(in_vain, PreemptVerdict::Offers(Vec::new()), "{case}");
        assert_eq!(cluster.preempt(&slice(1, left), None, &plan, NOW), PreemptVerdict::Offers(vec![0]), "{case}");
        cluster.pod_is_being_deleted(&victims[0], true);
        let waits = cluster.preempt(&slice(2, left), Some(&name(0)), &[], NOW);
        assert_eq!(waits, PreemptVerdict::Waits(name(0)), "{case}: its room is seen as coming");
    }
}

/// The evicted pod has ended before this leader won, which so has never seen its claim.
#[test]
fn a_nominated_pod_waits_for_memory_of_a_pod_without_a_claim_and_not_for_memory_of_strangers() {
    let victim = [plain(60 * 1024)];
    for (stranger, expected) in [(0, PreemptVerdict::Waits(name(0))), (2048, PreemptVerdict::Offers(Vec::new()))] {
        let used = mib(60 * 1024 + stranger);
        let mut cluster = reported(CheckRules::default(), WHOLE, &[], report(used, used, &victim));
        assert_eq!(cluster.preempt(&slice(1, WHOLE), Some(&name(0)), &[], NOW), expected, "{stranger} MiB");
    }
}

/// An agent's token may be stolen: its reports may keep pods away from its node, and nothing else.
#[test]
fn no_report_frees_memory_beyond_the_claims() {
    let pods = [claims(40 * 1024, 0)];
    for forged in [
        report(mib(0), mib(0), &pods),
        report(mib(0), mib(WHOLE), &[claims(40 * 1024, 1 << 40)]),
        report(mib(0), NONE, &[]),
    ] {
        let mut cluster = reported(CheckRules::default(), WHOLE, &pods, forged);
        assert_eq!(asks(&mut cluster, 40 * 1024 + 1).fit, [0_usize; 0]);
    }
}

#[test]
fn a_failed_check_names_its_gpu_and_for_operators_who_uses_it() {
    let mut own = report(mib(6144), mib(6144), &[]);
    own.gpus.get_mut(&uuid(0)).unwrap().users = [
        MemoryUser { name: "pod default/train".into(), memory: Mib(6000).bytes() },
        MemoryUser { name: "process 7 python".into(), memory: Mib(100).bytes() },
    ]
    .into();
    let mut cluster = reported(CheckRules::default(), WHOLE, &[], own);
    assert_eq!(asks(&mut cluster, WHOLE).fit, [0_usize; 0]);
    let failed = cluster.failed_checks(&slice(1, WHOLE), "node-0");
    assert_eq!(
        failed.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "GPU 0: 81920 MiB requested, claims leave 81920 MiB, 75676 MiB are really free; 6144 MiB are used without a claim, \
             most by pod default/train (6000 MiB), process 7 python (100 MiB)"
        ]
    );
    assert!(cluster.failed_checks(&slice(1, 1000), "node-0").is_empty());
    let changes = cluster.take_usage_changes();
    assert_eq!((changes.len(), changes[0].used, changes[0].claimed), (1, Mib(6144).bytes(), Bytes(0)));
    assert!(cluster.take_usage_changes().is_empty());
}
