//! A GPU becomes unfit and fit again: single steps, and random sequences.

use super::*;
use model::incident::CounterMarks;
use model::unit::{Celsius, Count, Millijoules};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Monotonic {
    Monotonic(seconds * SECOND)
}

fn policy() -> HealthPolicy {
    HealthPolicy { quiet: Duration::from_secs(60), ..HealthPolicy::default() }
}

/// A sample of a healthy GPU at this second.
fn well(seconds: u64) -> GpuSample {
    GpuSample {
        temperature: Reading::Measured(Celsius(40), at(seconds)),
        recovery: Reading::Measured(RecoveryAction::None, at(seconds)),
        ..GpuSample::default()
    }
}

fn advised(seconds: u64, action: RecoveryAction) -> GpuSample {
    GpuSample { recovery: Reading::Measured(action, at(seconds)), ..well(seconds) }
}

fn uncorrected(seconds: u64, count: u64) -> GpuSample {
    let mut sample = well(seconds);
    sample.ecc_volatile.uncorrected = Reading::Measured(Count(count), at(seconds));
    sample
}

#[test]
fn each_state_follows_from_what_is_read() {
    let mut record = HealthRecord::default();
    assert_eq!(record.health(&GpuSample::default()), GpuHealth::Unknown);
    for (sample, incident) in [
        (GpuSample::absent(Absence::GpuLost), Incident::Silent(Absence::GpuLost)),
        (GpuSample::absent(Absence::CallHangs), Incident::Silent(Absence::CallHangs)),
        (advised(1, RecoveryAction::DrainAndReset), Incident::Advised(RecoveryAction::DrainAndReset)),
        (advised(1, RecoveryAction::Unknown(9)), Incident::Advised(RecoveryAction::Unknown(9))),
    ] {
        assert_eq!(record.read(&sample, &policy(), at(1)), [HealthChange::Condemned(incident)]);
        assert_eq!(record.read(&sample, &policy(), at(2)), [], "told once");
        assert_eq!(record.health(&sample), GpuHealth::Unhealthy);
        record = HealthRecord::default();
    }
    for (pending, failed, incident) in [(true, false, Incident::RemapPending), (false, true, Incident::RemapFailed)] {
        let mut sample = well(1);
        sample.remapped.pending = Reading::Measured(pending, at(1));
        sample.remapped.failed = Reading::Measured(failed, at(1));
        assert_eq!(record.read(&sample, &policy(), at(1)), [HealthChange::Condemned(incident)]);
        record = HealthRecord::default();
    }
    assert_eq!(record.read(&well(1), &policy(), at(1)), []);
    assert_eq!(record.health(&well(1)), GpuHealth::Healthy);
}

#[test]
fn a_stall_makes_no_gpu_unfit_and_a_hang_only_while_it_lasts() {
    let mut record = HealthRecord::default();
    assert_eq!(record.read(&well(0), &policy(), at(0)), []);
    assert_eq!(record.stalled(at(2)), None);
    let stalls = GpuSample::absent(Absence::CallStalls);
    assert_eq!(record.read(&stalls, &policy(), at(2)), []);
    assert_eq!((record.health(&stalls), record.condition(&policy())), (GpuHealth::Healthy, GpuCondition::default()));
    let hangs = GpuSample::absent(Absence::CallHangs);
    let told = Incident::Silent(Absence::CallHangs);
    assert_eq!(record.read(&hangs, &policy(), at(30)), [HealthChange::Condemned(told)]);
    assert_eq!(record.health(&hangs), GpuHealth::Unhealthy);
    // The hung call returns, and the next one stalls before anything was read: nothing has improved.
    assert_eq!(record.read(&stalls, &policy(), at(45)), []);
    assert_eq!(record.health(&stalls), GpuHealth::Unhealthy);
    assert_eq!(record.read(&well(47), &policy(), at(47)), [HealthChange::Fit]);
    assert_eq!((record.health(&well(47)), record.condition(&policy())), (GpuHealth::Healthy, GpuCondition::default()));
}

#[test]
fn a_hang_that_is_over_does_not_hold_up_the_way_back_from_something_else() {
    let mut record = HealthRecord::default();
    record.xid(48, &policy(), at(10));
    record.read(&GpuSample::absent(Absence::CallHangs), &policy(), at(40));
    assert_eq!(record.read(&well(60), &policy(), at(60)), []);
    assert_eq!(record.condition(&policy()).incidents, [(Incident::Xid(48), at(10))]);
    assert_eq!(record.condition(&policy()).fit_at, Some(at(70)));
    assert_eq!(record.read(&well(70), &policy(), at(70)), [HealthChange::Fit]);
}

#[test]
fn the_third_stall_in_five_minutes_makes_a_gpu_unfit_for_the_quiet_period() {
    let mut record = HealthRecord::default();
    record.read(&well(0), &policy(), at(0));
    for second in [0, 200, 301, 502] {
        assert_eq!(record.stalled(at(second)), None, "never three within 300 s");
    }
    assert_eq!(record.stalled(at(601)), Some(HealthChange::Condemned(Incident::Stalls)));
    assert_eq!(record.stalled(at(610)), None, "told once");
    assert_eq!(record.condition(&policy()).fit_at, Some(at(670)));
    assert_eq!(record.read(&well(669), &policy(), at(669)), []);
    assert_eq!(record.read(&well(670), &policy(), at(670)), [HealthChange::Fit]);
    for second in 0..1000 {
        record.stalled(at(1000 + second));
    }
    assert!(record.stalls.len() <= STALLS && record.condition(&policy()).incidents.len() == 1);
}

/// A round in which every call to the GPU failed with this reason.
fn failed(why: Absence) -> GpuSample {
    GpuSample::absent(why)
}

#[test]
fn a_gpu_of_which_nothing_can_be_read_in_three_rounds_is_unfit() {
    // UNKNOWN, TIMEOUT, GPU_NOT_FOUND, and the refusal.
    for why in [Absence::Nvml(999), Absence::Nvml(10), Absence::Nvml(28), Absence::NoPermission] {
        let mut record = HealthRecord::default();
        record.read(&well(0), &policy(), at(0));
        // Rounds count, however little time lies between them.
        assert_eq!(record.read(&failed(why), &policy(), at(1)), [], "{why}");
        assert_eq!(record.read(&failed(why), &policy(), at(1)), [], "{why}");
        assert_eq!(record.health(&failed(why)), GpuHealth::Healthy);
        let told = Incident::Unread(why);
        assert_eq!(record.read(&failed(why), &policy(), at(1)), [HealthChange::Condemned(told)]);
        assert_eq!((record.health(&failed(why)), told.code()), (GpuHealth::Unhealthy, "silent".to_owned()));
        // Another reason is still the same incident, and a stall between two rounds does not end it.
        for next in [Absence::Nvml(5), Absence::CallStalls, Absence::Nvml(5)] {
            assert_eq!(record.read(&failed(next), &policy(), at(2)), []);
            assert_eq!(record.health(&failed(next)), GpuHealth::Unhealthy);
        }
        assert_eq!(record.condition(&policy()).incidents, [(told, at(1))]);
        assert_eq!(record.read(&well(3), &policy(), at(3)), []);
        assert_eq!(record.health(&well(3)), GpuHealth::Degraded);
        assert_eq!(record.read(&well(62), &policy(), at(62)), [HealthChange::Fit]);
    }
}

#[test]
fn a_single_round_that_succeeds_begins_the_count_anew() {
    let mut record = HealthRecord::default();
    let fails = failed(Absence::Nvml(999));
    for second in 0..30 {
        let sample = if second % 3 == 2 { well(second) } else { fails.clone() };
        assert_eq!(record.read(&sample, &policy(), at(second)), []);
    }
    let one = GpuSample { power: well(0).temperature.map(|_| model::unit::Watts(70.0)), ..fails };
    for second in 30..40 {
        assert_eq!(record.read(&one, &policy(), at(second)), [], "one core reading is enough");
    }
}

#[test]
fn what_a_model_or_a_division_does_not_tell_is_no_silence() {
    let gap = Reading::Absent(Absence::NotSupported);
    // A virtual GPU with two of the readings, or with none; a GPU divided by MIG; a driver that is too old for the
    // calls.
    let virtual_one = GpuSample { power: Reading::Absent(Absence::NotSupported), temperature: gap, ..well(0) };
    let nothing = GpuSample { memory_copy: Reading::NOT_YET, ..GpuSample::absent(Absence::NotSupported) };
    let mut divided = well(0);
    divided.utilization = Reading::Absent(Absence::MigEnabled);
    let mut bare = GpuSample::absent(Absence::NotInThisDriver);
    bare.utilization = Reading::Absent(Absence::MigEnabled);
    for sample in [virtual_one, nothing, divided, bare, GpuSample::default()] {
        let mut record = HealthRecord::default();
        for second in 0..10 {
            assert_eq!(record.read(&sample, &policy(), at(second)), [], "{sample:?}");
        }
    }
    // A GPU divided by MIG whose other calls all fail has no such excuse.
    let mut dead = GpuSample::absent(Absence::Nvml(999));
    dead.utilization = Reading::Absent(Absence::MigEnabled);
    let mut record = HealthRecord::default();
    let changes: Vec<HealthChange> = (0..3).flat_map(|second| record.read(&dead, &policy(), at(second))).collect();
    assert_eq!(changes, [HealthChange::Condemned(Incident::Unread(Absence::Nvml(999)))]);
}

#[test]
fn a_gpu_without_a_power_sensor_is_healthy() {
    let mut card = well(1);
    card.power = Reading::Absent(Absence::NotSupported);
    card.memory_used = Reading::Absent(Absence::NotSupported);
    let mut record = HealthRecord::default();
    assert_eq!(record.read(&card, &policy(), at(1)), []);
    assert_eq!(record.health(&card), GpuHealth::Healthy);
}

#[test]
fn the_way_back_needs_nvmls_advice_and_a_quiet_period() {
    let mut record = HealthRecord::default();
    record.read(&well(0), &policy(), at(0));
    assert_eq!(record.xid(48, &policy(), at(10)), Some(HealthChange::Condemned(Incident::Xid(48))));
    assert_eq!(record.health(&well(9)), GpuHealth::Degraded);
    assert_eq!(record.condition(&policy()).fit_at, Some(at(70)));
    // An older reading of the recovery action does not count, however long the quiet time.
    assert_eq!(record.read(&well(9), &policy(), at(100)), []);
    let reset = advised(101, RecoveryAction::ResetGpu);
    assert_eq!(record.read(&reset, &policy(), at(101)).len(), 1);
    assert_eq!(record.condition(&policy()).fit_at, None, "it stands");
    assert_eq!(record.read(&well(102), &policy(), at(102)), []);
    assert_eq!(record.xid(48, &policy(), at(150)), None, "told before, but it is not quiet");
    assert_eq!(record.read(&well(209), &policy(), at(209)), []);
    assert_eq!(record.read(&well(210), &policy(), at(210)), [HealthChange::Fit]);
    assert!(record.condition(&policy()).fit() && record.health(&well(210)) == GpuHealth::Healthy);
}

/// A sample from a driver that reports no recovery action.
fn mute(seconds: u64) -> GpuSample {
    GpuSample { recovery: Reading::Absent(Absence::NotSupported), ..well(seconds) }
}

/// The same, with persistence mode and with energy since the driver was loaded.
fn counting(seconds: u64, energy: u64) -> GpuSample {
    GpuSample {
        energy: Reading::Measured(Millijoules(energy), at(seconds)),
        persistence: Reading::Measured(true, at(seconds)),
        ..mute(seconds)
    }
}

#[test]
fn where_nvml_never_advises_quiet_decides_of_what_needs_no_reset() {
    let every = HealthPolicy { fatal: [54, 94, 109, 79].into(), ..policy() };
    for code in [94, 109] {
        let mut record = HealthRecord::default();
        record.read(&mute(0), &every, at(0));
        record.xid(code, &every, at(0));
        assert_eq!(record.condition(&every).fit_at, Some(at(60)));
        assert_eq!(record.read(&mute(59), &every, at(59)), []);
        assert_eq!(record.read(&mute(60), &every, at(60)), [HealthChange::Fit], "{code}");
        // Where the driver has reported a recovery action before, an absent one does not count as "none".
        record.read(&well(61), &every, at(61));
        record.xid(79, &every, at(62));
        assert_eq!(record.read(&mute(500), &every, at(500)), []);
    }
}

/// Promise 33 in docs/specification.md.
#[test]
fn where_nvml_never_advises_time_alone_mends_nothing_that_needs_a_reset() {
    for code in [95, 62, 119, 79] {
        let mut record = HealthRecord::default();
        record.read(&counting(1, 5000), &policy(), at(1));
        record.xid(code, &policy(), at(2));
        for second in 3..1000 {
            assert_eq!(record.read(&counting(second, 5000 + second), &policy(), at(second)), [], "{code}");
        }
        let condition = record.condition(&policy());
        assert!(condition.awaits_reset && condition.fit_at.is_none(), "{code}");
        let advice = condition.advice(Incident::Xid(code));
        assert!(advice.contains("--clear-incident"), "{advice}");
        // The GPU is reset: the counters start again, and from then on only the quiet period counts.
        for second in 1000..1003 {
            record.read(&counting(second, second - 1000), &policy(), at(second));
        }
        assert_eq!(record.condition(&policy()), GpuCondition::default(), "{code}: quiet for long");
    }
}

#[test]
fn a_reset_that_is_seen_leaves_the_quiet_period() {
    let mut record = HealthRecord::default();
    record.read(&mute(1), &policy(), at(1));
    record.xid(95, &policy(), at(10));
    record.was_reset();
    assert_eq!(record.condition(&policy()).fit_at, Some(at(70)));
    assert_eq!(record.read(&mute(69), &policy(), at(69)), []);
    record.xid(62, &policy(), at(69));
    assert!(record.condition(&policy()).awaits_reset, "it was not mended by that");
    record.was_reset();
    assert_eq!(record.read(&mute(129), &policy(), at(129)), [HealthChange::Fit]);
}

#[test]
fn counters_prove_nothing_if_the_driver_releases_the_gpu_with_its_last_user() {
    let transient =
        |seconds, energy| GpuSample { persistence: Reading::Measured(false, at(seconds)), ..counting(seconds, energy) };
    let mut record = HealthRecord::default();
    record.read(&transient(1, 5000), &policy(), at(1));
    record.xid(95, &policy(), at(2));
    for second in 3..200 {
        assert_eq!(record.read(&transient(second, second), &policy(), at(second)), []);
    }
    assert!(record.condition(&policy()).awaits_reset);
}

#[test]
fn an_operators_word_clears_what_has_happened_and_not_what_stands() {
    let mut record = HealthRecord::default();
    record.read(&mute(1), &policy(), at(1));
    assert_eq!(record.clear(), (0, None));
    record.xid(95, &policy(), at(2));
    assert_eq!(record.clear(), (1, Some(HealthChange::Fit)));
    assert!(record.condition(&policy()).fit());
    record.xid(95, &policy(), at(3));
    record.read(&GpuSample::absent(Absence::GpuLost), &policy(), at(4));
    assert_eq!(record.clear(), (1, None));
    let condition = record.condition(&policy());
    assert_eq!((condition.incidents.len(), condition.awaits_reset), (1, false), "lost is lost");
    assert_eq!(record.read(&mute(5), &policy(), at(5)), []);
    assert_eq!(record.read(&mute(64), &policy(), at(64)), [HealthChange::Fit]);
}

#[test]
fn what_has_happened_is_known_in_the_next_life_and_what_stands_is_read_anew() {
    let gpu = GpuUuid::parse("GPU-1").unwrap();
    let mut record = HealthRecord::default();
    assert_eq!(record.kept(&gpu), None);
    record.read(&GpuSample::absent(Absence::GpuLost), &policy(), at(1));
    assert_eq!(record.kept(&gpu), None, "that it is lost stands in the readings");
    record.read(&counting(2, 5000), &policy(), at(2));
    record.xid(95, &policy(), at(3));
    let kept = record.kept(&gpu).unwrap();
    let marks = CounterMarks { energy: Some(5000), uncorrected: None };
    let expected = KeptIncidents {
        gpu: gpu.clone(),
        incidents: vec![(Incident::Xid(95), at(3))],
        last: at(3),
        awaits: Some(marks),
        driver_load: None,
    };
    assert_eq!(kept, expected);
    let mut next = HealthRecord::restored(&kept, at(1000));
    assert_eq!(next.health(&GpuSample::default()), GpuHealth::Degraded, "from the first moment on");
    assert_eq!(next.kept(&gpu), Some(kept.clone()));
    for second in 1001..1100 {
        assert_eq!(next.read(&counting(second, 6000 + second), &policy(), at(second)), []);
    }
    assert!(next.condition(&policy()).awaits_reset);
    // With a driver that reports recovery actions, these decide as usual.
    let mut advised = HealthRecord::restored(&kept, at(1000));
    assert_eq!(advised.read(&well(1001), &policy(), at(1001)), [HealthChange::Fit]);
    assert_eq!(advised.kept(&gpu), None);
    // A time in the future was not written by this agent.
    let far = KeptIncidents { last: Monotonic(u64::MAX), awaits: None, ..kept };
    let mut next = HealthRecord::restored(&far, at(1000));
    assert_eq!(next.read(&mute(1060), &policy(), at(1060)), [HealthChange::Fit]);
}

#[test]
fn uncorrected_errors_count_from_the_first_reading_on() {
    let mut record = HealthRecord::default();
    assert_eq!(record.read(&uncorrected(1, 7), &policy(), at(1)), [], "before our time");
    assert_eq!(record.read(&uncorrected(2, 0), &policy(), at(2)), [], "the driver was loaded again");
    assert_eq!(record.read(&uncorrected(3, 1), &policy(), at(3)), [HealthChange::Condemned(Incident::EccUncorrected)]);
}

#[test]
fn an_error_of_an_application_makes_no_gpu_unfit_even_if_a_setting_says_so() {
    let every = HealthPolicy { fatal: (0..=200).collect(), ..policy() };
    let mut record = HealthRecord::default();
    for code in [13, 31, 43, 45, 68] {
        assert_eq!(record.xid(code, &every, at(1)), None, "{code}");
    }
    assert!(record.condition(&every).fit());
}

/// What can happen to a GPU in one second.
#[derive(Clone, Debug)]
enum Step {
    Xid(u32),
    Well,
    Lost,
    Hangs,
    Stalls,
    Fails,
    Advice(u32),
    Errors(u64),
    Mute,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0..180_u32).prop_map(Step::Xid),
        4 => Just(Step::Well),
        1 => Just(Step::Lost),
        1 => Just(Step::Hangs),
        1 => Just(Step::Stalls),
        1 => Just(Step::Fails),
        1 => (0..10_u32).prop_map(Step::Advice),
        1 => (0..4_u64).prop_map(Step::Errors),
        1 => Just(Step::Mute),
    ]
}

fn play(record: &mut HealthRecord, step: &Step, second: u64) -> Vec<HealthChange> {
    match step {
        Step::Xid(code) => record.xid(*code, &policy(), at(second)).into_iter().collect(),
        Step::Well => record.read(&well(second), &policy(), at(second)),
        Step::Lost => record.read(&GpuSample::absent(Absence::GpuLost), &policy(), at(second)),
        Step::Hangs => record.read(&GpuSample::absent(Absence::CallHangs), &policy(), at(second)),
        Step::Stalls => record.stalled(at(second)).into_iter().collect(),
        Step::Fails => record.read(&GpuSample::absent(Absence::Nvml(999)), &policy(), at(second)),
        Step::Advice(number) => {
            record.read(&advised(second, RecoveryAction::from_nvml(*number)), &policy(), at(second))
        }
        Step::Errors(count) => record.read(&uncorrected(second, *count), &policy(), at(second)),
        Step::Mute => {
            let sample = GpuSample { recovery: Reading::Absent(Absence::NotYet), ..well(second) };
            record.read(&sample, &policy(), at(second))
        }
    }
}

proptest! {
    /// A GPU becomes fit only a quiet period after the last event, and unfit only for a reported reason.
    #[test]
    fn nothing_is_trusted_too_early(steps in prop::collection::vec((step(), 0..40_u64), 0..120)) {
        let mut record = HealthRecord::default();
        let (mut second, mut last) = (1, None);
        for (step, gap) in &steps {
            second += gap;
            let before = record.condition(&policy());
            let changes = play(&mut record, step, second);
            let after = record.condition(&policy());
            if changes.contains(&HealthChange::Fit) {
                prop_assert!(!before.fit() && after.fit());
                let only_hung = before.incidents.iter().all(|(incident, _)| *incident == HANGS);
                prop_assert!(only_hung || last.is_some_and(|last: u64| second - last >= 60));
            }
            let told: Vec<Incident> = changes.iter().filter_map(|change| match change {
                HealthChange::Condemned(incident) => Some(*incident),
                HealthChange::Fit => None,
            }).collect();
            for (incident, _) in &after.incidents {
                let known = before.incidents.iter().any(|(other, _)| other == incident);
                prop_assert!(known != told.contains(incident), "{:?}", incident);
            }
            let harm = match step {
                Step::Xid(code) => xid::fatal(*code),
                Step::Lost => true,
                Step::Advice(number) => *number != 0,
                Step::Well | Step::Mute | Step::Hangs => false,
                Step::Stalls => told.contains(&Incident::Stalls) || record.last == at(second),
                Step::Fails => record.last == at(second),
                Step::Errors(_) => told.contains(&Incident::EccUncorrected) || record.last == at(second),
            };
            if harm {
                last = Some(second);
            }
            if matches!(step, Step::Xid(code) if !xid::fatal(*code)) {
                prop_assert_eq!(&before, &after);
            }
        }
    }

    /// Whatever happened: a GPU without conditions and without a recovery action for the quiet period is fit.
    #[test]
    fn there_is_always_a_way_back(steps in prop::collection::vec((step(), 0..40_u64), 0..60)) {
        let mut record = HealthRecord::default();
        let mut second = 1;
        for (step, gap) in &steps {
            second += gap;
            play(&mut record, step, second);
        }
        for later in [0, 1, 60, 61] {
            record.read(&well(second + later), &policy(), at(second + later));
        }
        prop_assert!(record.condition(&policy()).fit());
    }
}
