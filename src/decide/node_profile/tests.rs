use super::*;
use crate::fixtures;
use model::id::NodeName;
use model::observation::GpuSourceState;
use model::process::{GpuProcessKind, ProcessOwner};
use model::reading::Reading;
use model::time::{Monotonic, Now, WallTime};
use model::unit::Percent;
use model::workload_profile::{CycleVerdict, JobKind, ProfiledForecast, RecorderState, VerdictKind};
use std::sync::Arc;

const AT: WallTime = WallTime(1_800_000_000_000_000);
/// The clock that ages are of, at [`AT`].
const SECONDS: u64 = 5000;

fn now() -> Now {
    Now { monotonic: Monotonic(SECONDS * 1_000_000_000), wall: AT }
}

fn m<T>(value: T) -> Reading<T> {
    Reading::Measured(value, Monotonic(1))
}

fn process(pid: u32, memory: Reading<Bytes>) -> GpuProcess {
    GpuProcess {
        pid,
        key: None,
        command: "python".into(),
        owner: ProcessOwner::Unknown,
        kind: GpuProcessKind::Compute,
        mig: None,
        memory_used: memory,
        sm: Reading::<Percent>::NOT_YET,
        encoder: Reading::NOT_YET,
        decoder: Reading::NOT_YET,
    }
}

/// GPU `index` with 12 GiB, of which this much is in use.
fn seen(index: u32, used: Reading<Bytes>, processes: Vec<GpuProcess>) -> GpuView {
    let mut gpu = fixtures::gpu(index);
    gpu.memory_total = m(Bytes(12 * GIB - 1));
    let mut view = fixtures::view(gpu);
    view.memory_used_now = used;
    view.processes = m(processes.into());
    view
}

fn node(gpus: Vec<GpuView>, simulated: bool) -> NodeView {
    let gpu_source = GpuSourceState::Working { driver: "550".into(), nvml: "12".into(), cuda: None, simulated };
    NodeView { gpus, gpu_source, ..NodeView::empty(NodeName::parse("n").unwrap(), Now::default()) }
}

fn job(index: u32, period: Option<u64>, maxima: (f64, f64)) -> GpuJob {
    GpuJob {
        gpu: fixtures::gpu(index).uuid,
        period: period.map(Duration::from_secs),
        memory_copy_maximum: Some(maxima.0),
        utilization_maximum: Some(maxima.1),
        kind: if period.is_some() { JobKind::Dlt } else { JobKind::Others },
    }
}

fn cycles(seconds: Option<f64>, width: f64) -> CycleVerdict {
    let span = Duration::from_secs_f64;
    let period = |length: f64| CyclePeriod {
        length: span(length),
        shortest: span(length - width),
        longest: span(length + width),
        score: 0.9,
        cycles: 20,
    };
    let kind = if seconds.is_some() { VerdictKind::Periodic } else { VerdictKind::Aperiodic };
    CycleVerdict { kind, reason: "tested".into(), period: seconds.map(period), since: AT }
}

fn load(index: u32, quantity: ProfiledQuantity, verdict: Option<CycleVerdict>) -> WorkloadProfile {
    let forecast = ProfiledForecast { horizon: Duration::from_secs(30), value: 50.0, low: 10.0, high: 90.0 };
    WorkloadProfile {
        subject: ProfiledSubject::Gpu(fixtures::gpu(index).uuid),
        pod: None,
        quantity,
        cycles: verdict,
        analyzed_at: Monotonic(1),
        hour_analyzed_at: None,
        trend: None,
        leak_per_hour: None,
        forecasts: vec![forecast],
        next_hour_maximum: Some(99.0),
        recent: Vec::new(),
        recent_step: Duration::from_secs(1),
    }
}

fn profiles(jobs: Vec<GpuJob>, loads: Vec<WorkloadProfile>) -> WorkloadProfiles {
    WorkloadProfiles { profiles: loads, jobs, recorder: RecorderState::default() }
}

/// A snapshot of a cyclic load with two processes.
fn cyclic() -> GpuSnapshot {
    let processes = vec![process(8, m(Bytes(GIB + 1))), process(7, m(Bytes(1)))];
    let view = node(vec![seen(0, m(Bytes(2 * GIB)), processes)], false);
    let all = profiles(vec![job(0, Some(6), (66.0, 97.0))], Vec::new());
    describe(&view, &all, now()).gpus.remove(0).snapshot.unwrap()
}

#[test]
fn a_gpu_is_described_in_alnairs_units() {
    assert_eq!(
        cyclic(),
        GpuSnapshot {
            memory_used_gib: 2,
            memory_free_gib: 10,
            processes: Some(2),
            listed: vec![(7, Mib(1)), (8, Mib(1025))],
            period: Some(Duration::from_secs(6)),
            memory_copy_maximum: Some(66.0),
            utilization_maximum: Some(97.0),
            simulated: false,
        }
    );
    let mut first = seen(0, m(Bytes(0)), Vec::new());
    assert_eq!(describe(&node(vec![first.clone()], false), &profiles(vec![], vec![]), now()).facts, None, "too early");
    let mut sample = (*first.sample).clone();
    (sample.hardware.pcie_generation, sample.hardware.pcie_width) = (m(1), m(16));
    first.sample = Arc::new(sample);
    let described =
        describe(&node(vec![first, seen(1, m(Bytes(1)), Vec::new())], true), &profiles(vec![], vec![]), now());
    let facts = GpuStatic { count: 2, model: "H100".into(), memory_gib: 12, pcie: Some((1, 16)) };
    assert_eq!(described.facts, Some(facts));
}

#[test]
fn what_is_not_known_is_not_described() {
    let unknown = Reading::Absent(Absence::NotSupported);
    let view = node(vec![seen(0, unknown, Vec::new()), seen(1, m(Bytes(1)), Vec::new())], false);
    let described = describe(&view, &profiles(vec![job(0, None, (1.0, 2.0))], Vec::new()), now());
    let [memory_unknown, load_unknown]: [ProfiledGpu; 2] = described.gpus.try_into().unwrap();
    assert_eq!((memory_unknown.snapshot, memory_unknown.job), (None, Some(JobKind::Others)));
    assert_eq!((load_unknown.snapshot, load_unknown.job, load_unknown.profile), (None, None, None));
    let mut hidden = seen(0, m(Bytes(1)), vec![process(7, Reading::Absent(Absence::NotSupported))]);
    let described = |seen: &GpuView| {
        let all = profiles(vec![job(0, None, (1.0, 2.0))], Vec::new());
        describe(&node(vec![seen.clone()], true), &all, now()).gpus.remove(0).snapshot.unwrap()
    };
    let shown = described(&hidden);
    assert_eq!((shown.processes, shown.listed.len(), shown.simulated), (Some(1), 0, true));
    hidden.processes = Reading::Absent(Absence::ProcessesHidden);
    assert_eq!(described(&hidden).processes, None);
}

#[test]
fn many_processes_are_counted_and_the_lowest_numbers_are_listed() {
    let all: Vec<GpuProcess> = (0..100).rev().map(|pid| process(pid, m(Bytes(u64::from(pid))))).collect();
    let mut crowded = seen(0, m(Bytes(1)), all);
    crowded.processes_left_out = 7;
    let job = job(0, None, (1.0, 2.0));
    let shown = snapshot(&crowded, &job, false).unwrap();
    let pids: Vec<u32> = shown.listed.iter().map(|(pid, _)| *pid).collect();
    assert_eq!((shown.processes, pids), (Some(107), (0..16).collect()));
}

#[test]
fn verdicts_processes_periods_and_maxima_have_meaning_and_the_rest_has_none() {
    use ProfileDifference::{Changed, Detail, Moved};
    let period = |milliseconds| Some(Duration::from_millis(milliseconds));
    for (change, expected) in [
        (GpuSnapshot { memory_used_gib: 9, memory_free_gib: 3, ..cyclic() }, Detail),
        (GpuSnapshot { listed: vec![(7, Mib(9000)), (8, Mib(1))], ..cyclic() }, Detail),
        (GpuSnapshot { period: period(6299), ..cyclic() }, Detail),
        (GpuSnapshot { period: period(6301), ..cyclic() }, Moved),
        (GpuSnapshot { memory_copy_maximum: Some(61.5), ..cyclic() }, Detail),
        (GpuSnapshot { memory_copy_maximum: Some(61.0), ..cyclic() }, Moved),
        (GpuSnapshot { utilization_maximum: None, ..cyclic() }, Moved),
        (GpuSnapshot { period: None, ..cyclic() }, Changed),
        (GpuSnapshot { processes: Some(3), ..cyclic() }, Changed),
        (GpuSnapshot { listed: vec![(7, Mib(1)), (9, Mib(1025))], ..cyclic() }, Changed),
        (GpuSnapshot { simulated: true, ..cyclic() }, Changed),
    ] {
        assert_eq!(snapshot_differs(&cyclic(), &change), expected, "{change:?}");
    }
    let facts = GpuStatic { count: 2, model: "H100".into(), memory_gib: 12, pcie: Some((1, 16)) };
    assert_eq!(facts_differ(&facts, &GpuStatic { pcie: Some((5, 16)), ..facts.clone() }), Detail);
    assert_eq!(facts_differ(&facts, &GpuStatic { count: 3, ..facts.clone() }), Changed);
    assert_eq!([66.0, 60.0].map(|shown| maximum_differs(shown, 65.0)), [Detail, Moved]);
}

#[test]
fn a_verdict_flips_and_a_period_moves_by_more_than_its_interval() {
    use ProfileDifference::{Changed, Detail, Moved};
    let view = node(vec![seen(0, m(Bytes(1)), Vec::new())], false);
    let with = |verdict: Option<CycleVerdict>| {
        let loads = vec![load(0, ProfiledQuantity::Utilization, verdict), load(1, ProfiledQuantity::MemoryCopy, None)];
        describe(&view, &profiles(Vec::new(), loads), now()).gpus.remove(0).profile.unwrap()
    };
    let shown = with(Some(cycles(Some(6.0), 0.1)));
    assert_eq!(shown.quantities.len(), 1, "the other one is of another GPU");
    for (wanted, expected) in [
        (Some(cycles(Some(6.29), 0.1)), Detail),
        (Some(cycles(Some(6.31), 0.1)), Moved),
        (Some(cycles(Some(6.31), 0.5)), Detail),
        (Some(cycles(None, 0.0)), Changed),
        (None, Changed),
    ] {
        assert_eq!(profile_differs(&shown, &with(wanted.clone())), expected, "{wanted:?}");
        assert_eq!(covers(&with(wanted.clone()), &shown), wanted.is_some());
    }
    let other = GpuProfile { gpu: GpuUuid::parse("GPU-9").unwrap(), ..shown.clone() };
    assert_eq!(profile_differs(&shown, &other), Changed, "the index belongs to another GPU now");
}

#[test]
fn forecasts_count_from_their_analyses() {
    let view = node(vec![seen(0, m(Bytes(1)), Vec::new())], false);
    let at = |seconds: u64| Monotonic(seconds * 1_000_000_000);
    let of = |quantity, near, hour| WorkloadProfile {
        analyzed_at: at(near),
        hour_analyzed_at: hour,
        ..load(0, quantity, Some(cycles(None, 0.0)))
    };
    let loads = vec![
        of(ProfiledQuantity::Utilization, SECONDS - 10, Some(at(SECONDS - 300))),
        of(ProfiledQuantity::MemoryCopy, SECONDS - 25, Some(at(SECONDS - 900))),
        of(ProfiledQuantity::GpuMemory, SECONDS - 5, None),
    ];
    let described = |now| describe(&view, &profiles(Vec::new(), loads.clone()), now).gpus.remove(0).profile.unwrap();
    let first = described(now());
    assert_eq!((first.at, first.hour_at), (WallTime(AT.0 - 25_000_000), Some(WallTime(AT.0 - 900_000_000))));
    let later = Now { monotonic: at(SECONDS + 10), wall: WallTime(AT.0 + 10_000_000) };
    assert_eq!(described(later), first, "nothing was analysed since");
}
