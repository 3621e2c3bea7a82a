//! The recorder in virtual time.

use crate::anchor::Anchor;
use crate::history::MAX_PENDING;
use crate::recorder::{Analysis, MAX_SERIES, Periods, Recorder, RecorderEvent};
use crate::schedule::AnalysisKind;
use model::Reading;
use model::cgroup::{CgroupIdentity, CgroupKind, CgroupReport, Qos};
use model::gpu::{GpmSample, GpuSample, MigSample};
use model::id::{GpuUuid, NodeName, PodRef, PodUid};
use model::observation::CgroupPass;
use model::stored_history::{HistoryKey, HistoryStep, StepValue};
use model::time::{Monotonic, Now, WallTime};
use model::unit::{Bytes, Nanos, Percent, Ratio, Watts};
use model::utilization::{UtilizationSample, UtilizationSamples};
use model::view::{ContainerRates, GpuUse, NodeView, PodView};
use model::workload_profile::{
    JobKind, ProfiledQuantity, ProfiledSubject, VerdictKind, WorkloadProfile, WorkloadProfiles,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const PERIODS: Periods = Periods { period: SECOND, slow: Duration::from_secs(5), lists: Duration::from_secs(5) };
/// A Monday at 00:00.
const MONDAY: u64 = 1_800_000_000_000_000 / 604_800_000_000 * 604_800_000_000 + 4 * 86_400_000_000;

fn now(second: u64) -> Now {
    Now {
        monotonic: Monotonic(1_000_000_000_000 + second * 1_000_000_000),
        wall: WallTime(MONDAY + second * 1_000_000),
    }
}

fn gpu(number: usize) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{number}")).unwrap()
}

fn pod(number: usize) -> PodUid {
    PodUid::parse(&format!("{number:032x}")).unwrap()
}

fn sample(utilization: f64, copy: f64, now: Now) -> GpuSample {
    let at = now.monotonic;
    GpuSample {
        utilization: Reading::Measured(Percent(utilization), at),
        memory_copy: Reading::Measured(Percent(copy), at),
        memory_used: Reading::Measured(Bytes(1 << 30), at),
        power: Reading::Measured(Watts(100.0 + utilization), at),
        ..GpuSample::default()
    }
}

/// A pass over the cgroups of pods that each use half a core.
fn pass(pods: std::ops::Range<usize>, now: Now) -> CgroupPass {
    let report = |number: usize| {
        let kind = CgroupKind::Pod { uid: pod(number), qos: Qos::Burstable };
        let mut report = CgroupReport::unread(Arc::new(CgroupIdentity { path: "/pod".into(), kind }));
        report.sample.cpu_total = Reading::Measured(Nanos(now.monotonic.0 / 2), now.monotonic);
        report.sample.memory_working_set = Reading::Measured(Bytes(300 << 20), now.monotonic);
        report
    };
    CgroupPass { reports: pods.map(report).collect(), ..CgroupPass::default() }
}

/// A view with these pods, each of which uses GPU 0.
fn view(pods: std::ops::Range<usize>, now: Now) -> NodeView {
    let used = GpuUse {
        gpu: gpu(0),
        mig: None,
        processes: 1,
        memory_used: Reading::Measured(Bytes(2 << 30), now.monotonic),
        sm: Reading::Measured(Percent(12.0), now.monotonic),
    };
    let pods = pods.map(|number| PodView {
        uid: pod(number),
        name: Some(PodRef { namespace: "ns".into(), name: format!("pod-{number}").into() }),
        qos: None,
        cgroup: None,
        sample: model::cgroup::CgroupSample::default(),
        rates: ContainerRates::default(),
        network: Reading::NOT_YET,
        containers: Vec::new(),
        gpus: vec![used.clone()],
    });
    NodeView { pods: pods.collect(), ..NodeView::empty(NodeName::parse("n").unwrap(), now) }
}

/// Makes all analyses that are due, without steps on disk.
fn analyze(recorder: &mut Recorder, now: Now) {
    while let Some(analysis) = recorder.due(now.monotonic) {
        recorder.analyze(&analysis, &[], now);
    }
}

fn quantities(profiles: &WorkloadProfiles, subject: &ProfiledSubject) -> BTreeSet<ProfiledQuantity> {
    profiles.profiles.iter().filter(|one| one.subject == *subject).map(|one| one.quantity).collect()
}

#[test]
fn gpus_and_pods_are_profiled_and_a_pod_that_is_gone_is_not() {
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    for second in 0..1000 {
        let now = now(second);
        let high = second % 20 < 10;
        recorder.apply(
            RecorderEvent::Gpu(&gpu(0), &sample(if high { 90.0 } else { 20.0 }, if high { 30.0 } else { 5.0 }, now)),
            now.monotonic,
        );
        recorder.apply(RecorderEvent::Cgroups(&pass(0..3, now)), now.monotonic);
        if second % 5 == 0 {
            recorder.apply(RecorderEvent::View(&view(0..2, now)), now.monotonic);
        }
        recorder.close_steps(now.monotonic);
        analyze(&mut recorder, now);
    }
    let profiles = recorder.profiles(now(1000));
    let of_pod = |number| quantities(&profiles, &ProfiledSubject::Pod(pod(number)));
    assert_eq!(quantities(&profiles, &ProfiledSubject::Gpu(gpu(0))), BTreeSet::from(ProfiledQuantity::OF_GPU));
    assert_eq!(of_pod(0), BTreeSet::from(ProfiledQuantity::OF_POD));
    assert_eq!(
        of_pod(2),
        BTreeSet::from([ProfiledQuantity::Cpu, ProfiledQuantity::Memory]),
        "no use of a GPU is not 0"
    );
    let cycles = profiles.profiles.iter().find(|one| one.quantity == ProfiledQuantity::Utilization).unwrap();
    let verdict = cycles.cycles.as_ref().unwrap();
    assert_eq!(verdict.kind, VerdictKind::Periodic);
    assert!((verdict.period.as_ref().unwrap().length.as_secs_f64() - 20.0).abs() < 1.0, "{verdict:?}");
    assert!(cycles.forecasts.iter().any(|forecast| forecast.horizon == Duration::from_secs(300)), "{cycles:?}");
    let named = profiles.profiles.iter().find(|one| one.subject == ProfiledSubject::Pod(pod(1))).unwrap();
    assert_eq!(named.pod.as_ref().unwrap().to_string(), "ns/pod-1");
    assert_eq!(profiles.jobs[0].kind, JobKind::Dlt);
    assert_eq!(profiles.recorder.series, 4 + 2 * 4 + 2);

    let now = now(1001);
    recorder.apply(RecorderEvent::Cgroups(&pass(1..3, now)), now.monotonic);
    assert!(!quantities(&recorder.profiles(now), &ProfiledSubject::Pod(pod(0))).is_empty(), "the view still has it");
    recorder.apply(RecorderEvent::View(&view(1..2, now)), now.monotonic);
    assert!(quantities(&recorder.profiles(now), &ProfiledSubject::Pod(pod(0))).is_empty());
    assert!(!quantities(&recorder.profiles(now), &ProfiledSubject::Pod(pod(2))).is_empty(), "the pass has it");
}

/// Longest time until the period of a short cycle is shown, and after its end until it is not.
const SHOWN_AFTER: u64 = 180;

#[test]
fn a_cycle_of_six_seconds_is_shown_and_withdrawn_within_three_minutes_with_and_without_samples_of_the_driver() {
    for samples_a_second in [0, 6] {
        let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
        let runs = |micros: u64| micros < SHOWN_AFTER * 1_000_000 && micros % 6_000_000 < 3_600_000;
        let load = |micros: u64| if runs(micros) { 95.0 } else { 5.0 };
        let mut play = |seconds: std::ops::Range<u64>| {
            for second in seconds.clone() {
                let now = now(second);
                let reading = sample(load(second * 1_000_000), 5.0, now);
                recorder.apply(RecorderEvent::Gpu(&gpu(0), &reading), now.monotonic);
                if second % 5 == 4 && samples_a_second > 0 {
                    let samples = (0..5 * samples_a_second).map(|number| {
                        let before = (5 * samples_a_second - number) * 1_000_000 / samples_a_second;
                        let stamp = WallTime((now.wall.0 + 1_000_000).saturating_sub(before));
                        UtilizationSample { stamp, percent: Percent(load(stamp.0 - MONDAY)) }
                    });
                    let batch = UtilizationSamples { gpu: gpu(0), read_at: now.monotonic, samples: samples.collect() };
                    recorder.apply(RecorderEvent::Utilization(&batch), now.monotonic);
                }
                recorder.close_steps(now.monotonic);
                analyze(&mut recorder, now);
            }
            used(&recorder, now(seconds.end)).unwrap().cycles
        };
        let verdict = play(0..SHOWN_AFTER).unwrap();
        let found = verdict.period.as_ref().unwrap_or_else(|| panic!("{verdict:?}")).length.as_secs_f64();
        assert!((found - 6.0).abs() < 0.3, "{samples_a_second} samples a second: {found}");
        let ended = play(SHOWN_AFTER..2 * SHOWN_AFTER);
        assert!(ended.as_ref().is_none_or(|verdict| verdict.period.is_none()), "{samples_a_second}: {ended:?}");
    }
}

/// Promise 24 in docs/specification.md.
#[test]
fn a_clock_that_jumps_moves_no_step_of_any_tier() {
    let played = |jump: u64| {
        let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
        for second in 0..2000 {
            let mut now = now(second);
            if second > 700 {
                now.wall = WallTime(now.wall.0 + jump);
                recorder.tie_clocks(Anchor::new(now));
            }
            recorder.apply(RecorderEvent::Gpu(&gpu(0), &sample(50.0, 5.0, now)), now.monotonic);
            recorder.close_steps(now.monotonic);
        }
        let unwritten: Vec<_> = recorder.unwritten().collect();
        unwritten
    };
    assert_eq!(played(0), played(3_600_000_000));
    assert!(!played(0).is_empty());
}

/// Promise 24 in docs/specification.md.
#[test]
fn the_pair_of_the_file_counts_also_if_the_clocks_are_tied_already() {
    let played = |jump: u64| {
        let begun = WallTime(now(0).wall.0 + jump);
        let mut recorder = Recorder::new(PERIODS, Anchor::new(Now { wall: begun, ..now(0) }));
        for second in 0..2000 {
            let now = now(second).monotonic;
            if second == 700 {
                assert!(recorder.unwritten().count() > 0);
                recorder.tie_clocks_as_kept(Anchor::new(self::now(0)).unwrap(), now);
            }
            recorder.apply(RecorderEvent::Gpu(&gpu(0), &sample(50.0, 5.0, self::now(second))), now);
            recorder.close_steps(now);
        }
        recorder.unwritten().collect::<Vec<_>>()
    };
    assert!(!played(0).is_empty());
    // What is a fraction of a second is no jump.
    for jump in [3_600_000_000, 30_000_000, 300_000] {
        assert_eq!(played(jump), played(0), "{jump}");
    }
}

/// The only profile of this quantity.
fn profile_of(recorder: &Recorder, quantity: ProfiledQuantity, now: Now) -> WorkloadProfile {
    let all = recorder.profiles(now).profiles;
    let mut found = all.into_iter().filter(|one| one.quantity == quantity);
    let first = found.next().unwrap();
    assert!(found.next().is_none());
    first
}

#[test]
fn an_idle_gpu_whose_own_samples_end_is_constant() {
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    for second in 0..1500 {
        let now = now(second);
        recorder.apply(RecorderEvent::Gpu(&gpu(0), &sample(0.0, 0.0, now)), now.monotonic);
        if second < 100 && second % 5 == 4 {
            let samples = (0..30_u64).map(|number| UtilizationSample {
                stamp: WallTime(now.wall.0 - 5_000_000 + (number + 1) * 166_000),
                percent: Percent(0.0),
            });
            let batch = UtilizationSamples { gpu: gpu(0), read_at: now.monotonic, samples: samples.collect() };
            recorder.apply(RecorderEvent::Utilization(&batch), now.monotonic);
        }
        analyze(&mut recorder, now);
        let cycles = used(&recorder, now).and_then(|one| one.cycles);
        assert!(cycles.is_none_or(|cycles| cycles.kind == VerdictKind::Aperiodic), "{second}");
    }
    let cycles = profile_of(&recorder, ProfiledQuantity::Utilization, now(1500)).cycles.unwrap();
    assert_eq!(&*cycles.reason, "all values are equal");
}

fn used(recorder: &Recorder, now: Now) -> Option<WorkloadProfile> {
    recorder.profiles(now).profiles.into_iter().find(|one| one.quantity == ProfiledQuantity::Utilization)
}

#[test]
fn a_pod_that_has_left_the_gpu_has_no_period_and_no_forecast_of_its_use() {
    const ENDS: u64 = 1500;
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    let of = |recorder: &Recorder, second| profile_of(recorder, ProfiledQuantity::SmUse, now(second));
    for second in (0..ENDS + 3600).step_by(5) {
        let now = now(second);
        let mut view = view(0..1, now);
        let busy = if second % 60 < 25 { 90.0 } else { 10.0 };
        view.pods[0].gpus[0].sm = Reading::Measured(Percent(busy), now.monotonic);
        if second >= ENDS {
            view.pods[0].gpus.clear();
        }
        recorder.apply(RecorderEvent::View(&view), now.monotonic);
        recorder.close_steps(now.monotonic);
        analyze(&mut recorder, now);
        if second == ENDS {
            let profile = of(&recorder, second);
            assert!(profile.cycles.is_some_and(|cycles| cycles.period.is_some()) && !profile.forecasts.is_empty());
        }
        if second == ENDS + 400 {
            assert_eq!(of(&recorder, second).forecasts, [], "nothing is forecast from values that have ended");
        }
    }
    let profile = of(&recorder, ENDS + 3600);
    assert_eq!((profile.cycles, profile.trend, profile.next_hour_maximum), (None, None, None));
}

#[test]
fn the_forecast_of_an_hour_ends_with_the_minutes_on_disk() {
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    recorder.apply(RecorderEvent::Gpu(&gpu(0), &sample(50.0, 5.0, now(0))), now(0).monotonic);
    let key = HistoryKey { subject: ProfiledSubject::Gpu(gpu(0)), quantity: ProfiledQuantity::Utilization };
    let [near, minutes] = [AnalysisKind::Near, AnalysisKind::Minutes].map(|kind| Analysis { key: key.clone(), kind });
    recorder.analyze(&near, &[], now(1));
    let hour = |recorder: &Recorder| {
        let profile = used(recorder, now(100)).unwrap();
        let forecast = profile.forecasts.into_iter().find(|forecast| forecast.horizon == SECOND * 3600);
        (forecast.is_some(), profile.next_hour_maximum.is_some(), profile.hour_analyzed_at)
    };
    assert_eq!(hour(&recorder), (false, false, None));
    let range = recorder.stored_range(&minutes, now(90).monotonic).unwrap().steps;
    let value = StepValue { mean: 40.0, maximum: 60.0 };
    let stored: Vec<HistoryStep> = range.map(|index| HistoryStep { index, value }).collect();
    recorder.analyze(&minutes, &stored, now(90));
    assert_eq!(hour(&recorder), (true, true, Some(now(90).monotonic)));
    recorder.analyze(&minutes, &[], now(95));
    assert_eq!(hour(&recorder), (false, false, None));
}

#[test]
fn forecasts_of_a_percentage_stay_within_what_it_can_be() {
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    for second in 0..900 {
        let now = now(second);
        // Busy and idle for times without a rule.
        let busy = (second / 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0;
        recorder.apply(RecorderEvent::Gpu(&gpu(0), &sample(if busy { 99.0 } else { 1.0 }, 5.0, now)), now.monotonic);
        analyze(&mut recorder, now);
        for forecast in used(&recorder, now).map(|one| one.forecasts).unwrap_or_default() {
            assert!(0.0 <= forecast.low && forecast.low <= forecast.value, "{forecast:?}");
            assert!(forecast.value <= forecast.high && forecast.high <= 100.0, "{forecast:?}");
        }
    }
}

#[test]
fn a_mig_instance_has_a_history_by_its_own_uuid_and_no_job() {
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    let uuid = GpuUuid::parse("MIG-1").unwrap();
    for second in 0..1200 {
        let now = now(second);
        let mut sample = sample(0.0, 0.0, now);
        let mut instance = MigSample {
            uuid: uuid.clone(),
            memory_used: Reading::Measured(Bytes(3 << 30), now.monotonic),
            memory_free: Reading::NOT_YET,
            memory_reserved: Reading::NOT_YET,
            gpm: GpmSample::default(),
        };
        if second % 5 == 0 {
            let active = if second % 60 < 25 { 0.9 } else { 0.1 };
            instance.gpm.graphics_active = Reading::Measured(Ratio(active), now.monotonic);
        }
        sample.mig = vec![instance];
        recorder.apply(RecorderEvent::Gpu(&gpu(0), &sample), now.monotonic);
        recorder.close_steps(now.monotonic);
        analyze(&mut recorder, now);
    }
    let profiles = recorder.profiles(now(1200));
    let subject = ProfiledSubject::Gpu(uuid.clone());
    assert_eq!(
        quantities(&profiles, &subject),
        BTreeSet::from([ProfiledQuantity::Utilization, ProfiledQuantity::GpuMemory]),
        "its memory copies were not read"
    );
    let used =
        profiles.profiles.iter().find(|one| (&one.subject, one.quantity) == (&subject, ProfiledQuantity::Utilization));
    let period = used.unwrap().cycles.as_ref().and_then(|cycles| cycles.period.as_ref()).unwrap().length;
    assert!((period.as_secs_f64() - 60.0).abs() < 3.0, "{period:?}");
    assert!(used.unwrap().recent.iter().flatten().all(|percent| (9.0..=91.0).contains(percent)), "{used:?}");
    assert!(profiles.jobs.iter().all(|job| job.gpu != uuid), "Alnair knows no instances");
}

#[test]
fn nothing_is_written_while_the_wall_clock_is_not_set() {
    let mut recorder = Recorder::new(PERIODS, None);
    for second in 0..500 {
        let now = now(second);
        recorder.apply(RecorderEvent::Gpu(&gpu(0), &sample(50.0, 5.0, now)), now.monotonic);
        recorder.close_steps(now.monotonic);
        analyze(&mut recorder, now);
    }
    assert_eq!(recorder.unwritten().count(), 0);
    assert!(!recorder.profiles(now(500)).profiles.is_empty(), "what is in memory is analysed");
    recorder.tie_clocks(Anchor::new(now(500)));
    recorder.close_steps(now(500).monotonic);
    assert!(recorder.unwritten().count() > 0);
}

#[test]
fn the_histories_of_eight_gpus_and_two_hundred_containers_fit_into_six_mib() {
    const BUDGET: usize = 6 << 20;
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    for second in 0..1100 {
        let now = now(second);
        for number in 0..8 {
            recorder.apply(RecorderEvent::Gpu(&gpu(number), &sample(50.0, 5.0, now)), now.monotonic);
        }
        recorder.apply(RecorderEvent::Cgroups(&pass(0..100, now)), now.monotonic);
        if second % 5 == 0 {
            recorder.apply(RecorderEvent::View(&view(0..100, now)), now.monotonic);
        }
        recorder.close_steps(now.monotonic);
    }
    let profiles = recorder.profiles(now(1100));
    assert_eq!(profiles.recorder.series, 8 * 4 + 100 * 4);
    // What the minutes above have not reached: NVML's own samples, verdicts of four tiers, and a file that cannot be written.
    let samples = 8 * 4096 * 16;
    let verdicts = 432 * 4 * 640;
    let pending = 432 * (MAX_PENDING[0] + MAX_PENDING[1]) * 12 * 4 / 3;
    let all = recorder.bytes() + samples + verdicts + pending;
    assert!(all <= BUDGET, "{all} bytes, {} of them now", recorder.bytes());
}

#[test]
fn series_beyond_the_bound_are_counted() {
    let mut recorder = Recorder::new(PERIODS, Anchor::new(now(0)));
    for second in 0..2 {
        recorder.apply(RecorderEvent::Cgroups(&pass(0..MAX_SERIES, now(second))), now(second).monotonic);
    }
    let state = recorder.profiles(now(2)).recorder;
    assert_eq!(usize::try_from(state.series).unwrap(), MAX_SERIES);
    assert!(state.left_out > 0 && recorder.bytes() > 0);
    recorder.apply(RecorderEvent::Missed(7), now(2).monotonic);
    assert_eq!(recorder.profiles(now(2)).recorder.missed, 7);
}
