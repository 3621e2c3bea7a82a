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
fn healthy(seconds: u64) -> GpuSample {
    GpuSample {
        temperature: Reading::Measured(Celsius(40), at(seconds)),
        recovery: Reading::Measured(RecoveryAction::None, at(seconds)),
        ..GpuSample::default()
    }
}

fn advised(seconds: u64, action: RecoveryAction) -> GpuSample {
    GpuSample { recovery: Reading::Measured(action, at(seconds)), ..healthy(seconds) }
}

fn uncorrected(seconds: u64, count: u64) -> GpuSample {
    let mut sample = healthy(seconds);
    sample.ecc_volatile.uncorrected = Reading::Measured(Count(count), at(seconds));
    sample
}

#[test]
fn each_health_state_follows_from_the_readings() {
    let mut record = HealthRecord::default();
    assert_eq!(record.health(&GpuSample::default()), GpuHealth::Unknown);
    for (sample, incident) in [
        (GpuSample::absent(Absence::GpuLost), Incident::Silent(Absence::GpuLost)),
        (GpuSample::absent(Absence::CallHangs), Incident::Silent(Absence::CallHangs)),
        (advised(1, RecoveryAction::DrainAndReset), Incident::Advised(RecoveryAction::DrainAndReset)),
        (advised(1, RecoveryAction::Unknown(9)), Incident::Advised(RecoveryAction::Unknown(9))),
    ] {
        assert_eq!(record.read(&sample, &policy(), at(1)), [HealthChange::Unfit(incident)]);
        assert_eq!(record.read(&sample, &policy(), at(2)), [], "reported once");
        assert_eq!(record.health(&sample), GpuHealth::Unhealthy);
        record = HealthRecord::default();
    }
    for (pending, failed, incident) in [(true, false, Incident::RemapPending), (false, true, Incident::RemapFailed)] {
        let mut sample = healthy(1);
        sample.remapped.pending = Reading::Measured(pending, at(1));
        sample.remapped.failed = Reading::Measured(failed, at(1));
        assert_eq!(record.read(&sample, &policy(), at(1)), [HealthChange::Unfit(incident)]);
        record = HealthRecord::default();
    }
    assert_eq!(record.read(&healthy(1), &policy(), at(1)), []);
    assert_eq!(record.health(&healthy(1)), GpuHealth::Healthy);
}

#[test]
fn a_stall_makes_no_gpu_unfit_and_a_hang_only_while_it_lasts() {
    let mut record = HealthRecord::default();
    assert_eq!(record.read(&healthy(0), &policy(), at(0)), []);
    assert_eq!(record.stalled(at(2)), None);
    let stalls = GpuSample::absent(Absence::CallStalls);
    assert_eq!(record.read(&stalls, &policy(), at(2)), []);
    assert_eq!((record.health(&stalls), record.condition(&policy())), (GpuHealth::Healthy, GpuCondition::default()));
    let hangs = GpuSample::absent(Absence::CallHangs);
    let incident = Incident::Silent(Absence::CallHangs);
    assert_eq!(record.read(&hangs, &policy(), at(30)), [HealthChange::Unfit(incident)]);
    assert_eq!(record.health(&hangs), GpuHealth::Unhealthy);
    // The hung call returns, and the next one stalls before anything was read: nothing has improved.
    assert_eq!(record.read(&stalls, &policy(), at(45)), []);
    assert_eq!(record.health(&stalls), GpuHealth::Unhealthy);
    assert_eq!(record.read(&healthy(47), &policy(), at(47)), [HealthChange::Fit]);
    assert_eq!(
        (record.health(&healthy(47)), record.condition(&policy())),
        (GpuHealth::Healthy, GpuCondition::default())
    );
}

#[test]
fn a_hang_that_has_ended_does_not_delay_the_recovery_from_another_incident() {
    let mut record = HealthRecord::default();
    record.xid(48, None, &policy(), at(10));
    record.read(&GpuSample::absent(Absence::CallHangs), &policy(), at(40));
    assert_eq!(record.read(&healthy(60), &policy(), at(60)), []);
    assert_eq!(record.condition(&policy()).incidents, [(Incident::Xid(48), at(10))]);
    assert_eq!(record.condition(&policy()).fit_at, Some(at(70)));
    assert_eq!(record.read(&healthy(70), &policy(), at(70)), [HealthChange::Fit]);
}

#[test]
fn the_third_stall_in_five_minutes_makes_a_gpu_unfit_for_the_quiet_period() {
    let mut record = HealthRecord::default();
    record.read(&healthy(0), &policy(), at(0));
    for second in [0, 200, 301, 502] {
        assert_eq!(record.stalled(at(second)), None, "never three within 300 s");
    }
    assert_eq!(record.stalled(at(601)), Some(HealthChange::Unfit(Incident::Stalls)));
    assert_eq!(record.stalled(at(610)), None, "reported once");
    assert_eq!(record.condition(&policy()).fit_at, Some(at(670)));
    assert_eq!(record.read(&healthy(669), &policy(), at(669)), []);
    assert_eq!(record.read(&healthy(670), &policy(), at(670)), [HealthChange::Fit]);
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
fn a_gpu_without_a_core_reading_in_three_rounds_is_unfit() {
    // UNKNOWN, TIMEOUT, GPU_NOT_FOUND, and the refusal.
    for why in [Absence::Nvml(999), Absence::Nvml(10), Absence::Nvml(28), Absence::NoPermission] {
        let mut record = HealthRecord::default();
        record.read(&healthy(0), &policy(), at(0));
        // Rounds count, however little time lies between them.
        assert_eq!(record.read(&failed(why), &policy(), at(1)), [], "{why}");
        assert_eq!(record.read(&failed(why), &policy(), at(1)), [], "{why}");
        assert_eq!(record.health(&failed(why)), GpuHealth::Healthy);
        let incident = Incident::Unread(why);
        assert_eq!(record.read(&failed(why), &policy(), at(1)), [HealthChange::Unfit(incident)]);
        assert_eq!((record.health(&failed(why)), incident.code()), (GpuHealth::Unhealthy, "silent".to_owned()));
        // Another reason is still the same incident, and a stall between two rounds does not end it.
        for next in [Absence::Nvml(5), Absence::CallStalls, Absence::Nvml(5)] {
            assert_eq!(record.read(&failed(next), &policy(), at(2)), []);
            assert_eq!(record.health(&failed(next)), GpuHealth::Unhealthy);
        }
        assert_eq!(record.condition(&policy()).incidents, [(incident, at(1))]);
        assert_eq!(record.read(&healthy(3), &policy(), at(3)), []);
        assert_eq!(record.health(&healthy(3)), GpuHealth::Degraded);
        assert_eq!(record.read(&healthy(62), &policy(), at(62)), [HealthChange::Fit]);
    }
}

#[test]
fn one_successful_round_restarts_the_count() {
    let mut record = HealthRecord::default();
    let fails = failed(Absence::Nvml(999));
    for second in 0..30 {
        let sample = if second % 3 == 2 { healthy(second) } else { fails.clone() };
        assert_eq!(record.read(&sample, &policy(), at(second)), []);
    }
    let one = GpuSample { power: healthy(0).temperature.map(|_| model::unit::Watts(70.0)), ..fails };
    for second in 30..40 {
        assert_eq!(record.read(&one, &policy(), at(second)), [], "one core reading is enough");
    }
}

#[test]
fn readings_that_a_model_or_mig_does_not_support_are_no_incident() {
    let gap = Reading::Absent(Absence::NotSupported);
    // A virtual GPU with two of the readings, or with none; a GPU divided by MIG; a driver that is too old for the
    // calls.
    let virtual_one = GpuSample { power: Reading::Absent(Absence::NotSupported), temperature: gap, ..healthy(0) };
    let nothing = GpuSample { memory_copy: Reading::NOT_YET, ..GpuSample::absent(Absence::NotSupported) };
    let mut divided = healthy(0);
    divided.utilization = Reading::Absent(Absence::MigEnabled);
    let mut bare = GpuSample::absent(Absence::NotInThisDriver);
    bare.utilization = Reading::Absent(Absence::MigEnabled);
    for sample in [virtual_one, nothing, divided, bare, GpuSample::default()] {
        let mut record = HealthRecord::default();
        for second in 0..10 {
            assert_eq!(record.read(&sample, &policy(), at(second)), [], "{sample:?}");
        }
    }
    // MIG does not explain it if all other calls fail.
    let mut dead = GpuSample::absent(Absence::Nvml(999));
    dead.utilization = Reading::Absent(Absence::MigEnabled);
    let mut record = HealthRecord::default();
    let changes: Vec<HealthChange> = (0..3).flat_map(|second| record.read(&dead, &policy(), at(second))).collect();
    assert_eq!(changes, [HealthChange::Unfit(Incident::Unread(Absence::Nvml(999)))]);
}

#[test]
fn a_gpu_without_a_power_sensor_is_healthy() {
    let mut sample = healthy(1);
    sample.power = Reading::Absent(Absence::NotSupported);
    sample.memory_used = Reading::Absent(Absence::NotSupported);
    let mut record = HealthRecord::default();
    assert_eq!(record.read(&sample, &policy(), at(1)), []);
    assert_eq!(record.health(&sample), GpuHealth::Healthy);
}

#[test]
fn recovery_needs_nvmls_advice_and_a_quiet_period() {
    let mut record = HealthRecord::default();
    record.read(&healthy(0), &policy(), at(0));
    assert_eq!(record.xid(48, None, &policy(), at(10)), Some(HealthChange::Unfit(Incident::Xid(48))));
    assert_eq!(record.health(&healthy(9)), GpuHealth::Degraded);
    assert_eq!(record.condition(&policy()).fit_at, Some(at(70)));
    // An older reading of the recovery action does not count, however long the quiet time.
    assert_eq!(record.read(&healthy(9), &policy(), at(100)), []);
    let reset = advised(101, RecoveryAction::ResetGpu);
    assert_eq!(record.read(&reset, &policy(), at(101)).len(), 1);
    assert_eq!(record.condition(&policy()).fit_at, None, "the condition is still present");
    assert_eq!(record.read(&healthy(102), &policy(), at(102)), []);
    assert_eq!(record.xid(48, None, &policy(), at(150)), None, "already reported, but it restarts the quiet period");
    assert_eq!(record.read(&healthy(209), &policy(), at(209)), []);
    assert_eq!(record.read(&healthy(210), &policy(), at(210)), [HealthChange::Fit]);
    assert!(record.condition(&policy()).fit() && record.health(&healthy(210)) == GpuHealth::Healthy);
}

/// A sample from a driver that reports no recovery action.
fn without_recovery_action(seconds: u64) -> GpuSample {
    GpuSample { recovery: Reading::Absent(Absence::NotSupported), ..healthy(seconds) }
}

/// The same, with persistence mode and with energy since the driver was loaded.
fn counting(seconds: u64, energy: u64) -> GpuSample {
    GpuSample {
        energy: Reading::Measured(Millijoules(energy), at(seconds)),
        persistence: Reading::Measured(true, at(seconds)),
        ..without_recovery_action(seconds)
    }
}

#[test]
fn without_recovery_actions_an_incident_that_needs_no_reset_ends_after_the_quiet_period() {
    let every = HealthPolicy { fatal: [54, 94, 109, 79].into(), ..policy() };
    for code in [94, 109] {
        let mut record = HealthRecord::default();
        record.read(&without_recovery_action(0), &every, at(0));
        record.xid(code, None, &every, at(0));
        assert_eq!(record.condition(&every).fit_at, Some(at(60)));
        assert_eq!(record.read(&without_recovery_action(59), &every, at(59)), []);
        assert_eq!(record.read(&without_recovery_action(60), &every, at(60)), [HealthChange::Fit], "{code}");
        // Where the driver has reported a recovery action before, an absent one does not count as "none".
        record.read(&healthy(61), &every, at(61));
        record.xid(79, None, &every, at(62));
        assert_eq!(record.read(&without_recovery_action(500), &every, at(500)), []);
    }
}

/// Promise 33 in docs/specification.md.
#[test]
fn without_recovery_actions_time_alone_ends_no_incident_that_needs_a_reset() {
    for code in [95, 62, 119, 79] {
        let mut record = HealthRecord::default();
        record.read(&counting(1, 5000), &policy(), at(1));
        record.xid(code, None, &policy(), at(2));
        for second in 3..1000 {
            assert_eq!(record.read(&counting(second, 5000 + second), &policy(), at(second)), [], "{code}");
        }
        let condition = record.condition(&policy());
        assert!(condition.awaits_reset && condition.fit_at.is_none(), "{code}");
        let advice = condition.advice(Incident::Xid(code));
        assert!(advice.contains("gpu-steward clear-incident UUID"), "{advice}");
        // The GPU is reset: the counters start again, and from then on only the quiet period counts.
        for second in 1000..1003 {
            record.read(&counting(second, second - 1000), &policy(), at(second));
        }
        assert_eq!(record.condition(&policy()), GpuCondition::default(), "{code}: after the quiet period");
    }
}

#[test]
fn after_an_observed_reset_only_the_quiet_period_remains() {
    let mut record = HealthRecord::default();
    record.read(&without_recovery_action(1), &policy(), at(1));
    record.xid(95, None, &policy(), at(10));
    record.was_reset();
    assert_eq!(record.condition(&policy()).fit_at, Some(at(70)));
    assert_eq!(record.read(&without_recovery_action(69), &policy(), at(69)), []);
    record.xid(62, None, &policy(), at(69));
    assert!(record.condition(&policy()).awaits_reset, "the GPU has not recovered");
    record.was_reset();
    assert_eq!(record.read(&without_recovery_action(129), &policy(), at(129)), [HealthChange::Fit]);
}

#[test]
fn counters_are_no_evidence_if_the_driver_releases_the_gpu_with_its_last_user() {
    let transient =
        |seconds, energy| GpuSample { persistence: Reading::Measured(false, at(seconds)), ..counting(seconds, energy) };
    let mut record = HealthRecord::default();
    record.read(&transient(1, 5000), &policy(), at(1));
    record.xid(95, None, &policy(), at(2));
    for second in 3..200 {
        assert_eq!(record.read(&transient(second, second), &policy(), at(second)), []);
    }
    assert!(record.condition(&policy()).awaits_reset);
}

#[test]
fn an_operator_clears_past_events_and_not_conditions_in_the_readings() {
    let mut record = HealthRecord::default();
    record.read(&without_recovery_action(1), &policy(), at(1));
    assert_eq!(record.clear(), (0, None));
    record.xid(95, None, &policy(), at(2));
    assert_eq!(record.clear(), (1, Some(HealthChange::Fit)));
    assert!(record.condition(&policy()).fit());
    record.xid(95, None, &policy(), at(3));
    record.read(&GpuSample::absent(Absence::GpuLost), &policy(), at(4));
    assert_eq!(record.clear(), (1, None));
    let condition = record.condition(&policy());
    assert_eq!((condition.incidents.len(), condition.awaits_reset), (1, false), "the GPU is still lost");
    assert_eq!(record.read(&without_recovery_action(5), &policy(), at(5)), []);
    assert_eq!(record.read(&without_recovery_action(64), &policy(), at(64)), [HealthChange::Fit]);
}

#[test]
fn past_events_are_restored_after_a_restart_and_conditions_are_read_again() {
    let gpu = GpuUuid::parse("GPU-1").unwrap();
    let mut record = HealthRecord::default();
    assert_eq!(record.kept(&gpu), None);
    record.read(&GpuSample::absent(Absence::GpuLost), &policy(), at(1));
    assert_eq!(record.kept(&gpu), None, "the readings show that it is lost");
    record.read(&counting(2, 5000), &policy(), at(2));
    record.xid(95, None, &policy(), at(3));
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
    assert_eq!(next.health(&GpuSample::default()), GpuHealth::Degraded, "from the start");
    assert_eq!(next.kept(&gpu), Some(kept.clone()));
    for second in 1001..1100 {
        assert_eq!(next.read(&counting(second, 6000 + second), &policy(), at(second)), []);
    }
    assert!(next.condition(&policy()).awaits_reset);
    // With a driver that reports recovery actions, these decide as usual.
    let mut advised = HealthRecord::restored(&kept, at(1000));
    assert_eq!(advised.read(&healthy(1001), &policy(), at(1001)), [HealthChange::Fit]);
    assert_eq!(advised.kept(&gpu), None);
    // A time in the future was not written by this agent.
    let far = KeptIncidents { last: Monotonic(u64::MAX), awaits: None, ..kept };
    let mut next = HealthRecord::restored(&far, at(1000));
    assert_eq!(next.read(&without_recovery_action(1060), &policy(), at(1060)), [HealthChange::Fit]);
}

#[test]
fn uncorrected_errors_count_only_after_the_first_reading() {
    let mut record = HealthRecord::default();
    assert_eq!(record.read(&uncorrected(1, 7), &policy(), at(1)), [], "errors from before this run");
    assert_eq!(record.read(&uncorrected(2, 0), &policy(), at(2)), [], "the driver was loaded again");
    assert_eq!(record.read(&uncorrected(3, 1), &policy(), at(3)), [HealthChange::Unfit(Incident::EccUncorrected)]);
}

#[test]
fn an_error_of_an_application_makes_no_gpu_unfit_even_if_a_setting_says_so() {
    let every = HealthPolicy { fatal: (0..=200).collect(), ..policy() };
    let mut record = HealthRecord::default();
    for code in [13, 31, 43, 45, 68] {
        assert_eq!(record.xid(code, None, &every, at(1)), None, "{code}");
    }
    assert!(record.condition(&every).fit());
}

#[test]
fn the_severity_that_the_driver_states_decides() {
    use XidSeverity::{Fatal, Nonfatal};
    let taken_off = HealthPolicy { fatal: [79].into(), ..policy() };
    for (name, code, severity, policy, unfit) in [
        ("nonfatal", 145, Some(Nonfatal), &policy(), false),
        ("fatal", 145, Some(Fatal), &policy(), true),
        ("without a word, the number decides", 145, None, &policy(), true),
        ("a nonfatal error with a fatal number", 79, Some(Nonfatal), &policy(), false),
        ("a fatal error with a harmless number", 137, Some(Fatal), &policy(), true),
        ("a fatal error without an entry", 4711, Some(Fatal), &policy(), true),
        ("an operator's decision", 145, Some(Fatal), &taken_off, false),
        ("an application's own error", 31, Some(Fatal), &policy(), false),
    ] {
        let mut record = HealthRecord::default();
        assert_eq!(record.xid(code, severity, policy, at(1)).is_some(), unfit, "{name}");
        assert_eq!(record.condition(policy).fit(), !unfit, "{name}");
    }
}

#[test]
fn a_severity_that_the_driver_states_later_decides_too() {
    use XidSeverity::{Fatal, Nonfatal};
    let mut record = HealthRecord::default();
    record.read(&without_recovery_action(1), &policy(), at(1));
    for second in [2, 3] {
        record.xid(95, None, &policy(), at(second));
    }
    assert_eq!(record.severity(95, Nonfatal, &policy(), at(4)), None, "one of two errors");
    assert!(record.awaits_reset());
    assert_eq!(record.severity(95, Nonfatal, &policy(), at(4)), Some(HealthChange::Fit), "both");
    assert!(record.condition(&policy()).fit() && !record.awaits_reset());
    assert_eq!(record.severity(95, Nonfatal, &policy(), at(5)), None, "an error that is not known");
    // One error was fatal.
    record.xid(95, None, &policy(), at(6));
    assert_eq!(record.severity(95, Fatal, &policy(), at(7)), None, "its number has said so");
    record.xid(95, None, &policy(), at(8));
    assert_eq!(record.severity(95, Nonfatal, &policy(), at(9)), None);
    // Another error stays.
    record.clear();
    record.xid(48, None, &policy(), at(10));
    record.xid(95, None, &policy(), at(11));
    assert_eq!(record.severity(95, Nonfatal, &policy(), at(12)), None);
    assert_eq!(record.condition(&policy()).incidents, [(Incident::Xid(48), at(10))]);
    assert!(record.awaits_reset(), "48 needs a reset too");
    // A fatal error with a harmless number.
    let mut record = HealthRecord::default();
    assert_eq!(record.xid(137, None, &policy(), at(1)), None);
    assert_eq!(record.severity(137, Fatal, &policy(), at(2)), Some(HealthChange::Unfit(Incident::Xid(137))));
    assert_eq!(record.severity(137, Nonfatal, &policy(), at(3)), None);
    // Nobody knows how many errors an earlier run of the agent saw.
    record.xid(48, None, &policy(), at(4));
    let kept = record.kept(&GpuUuid::parse("GPU-1").unwrap()).unwrap();
    let mut next = HealthRecord::restored(&kept, at(10));
    next.xid(48, None, &policy(), at(11));
    assert_eq!(next.severity(48, Nonfatal, &policy(), at(12)), None);
    assert!(!next.condition(&policy()).fit());
}

#[test]
fn a_gpu_that_fell_off_the_bus_is_unfit_until_a_reset_however_it_is_told() {
    let mut record = HealthRecord::default();
    record.read(&counting(1, 5000), &policy(), at(1));
    assert_eq!(record.fell_off(at(2)), Some(HealthChange::Unfit(Incident::FallenOff)));
    assert_eq!(record.fell_off(at(3)), None, "once");
    for second in 4..200 {
        assert_eq!(
            record.read(&counting(second, 5000 + second), &policy(), at(second)),
            [],
            "time alone heals nothing"
        );
    }
    assert!(record.condition(&policy()).awaits_reset);
    let gpu = GpuUuid::parse("GPU-1").unwrap();
    assert!(record.kept(&gpu).is_some(), "a restart of the agent does not forget it");
    assert_eq!(record.clear(), (1, Some(HealthChange::Fit)));
    record.xid(79, None, &policy(), at(300));
    assert_eq!(record.fell_off(at(301)), None, "the XID has already said so");
    assert_eq!(record.condition(&policy()).incidents, [(Incident::Xid(79), at(300))]);
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
        Step::Xid(code) => record.xid(*code, None, &policy(), at(second)).into_iter().collect(),
        Step::Well => record.read(&healthy(second), &policy(), at(second)),
        Step::Lost => record.read(&GpuSample::absent(Absence::GpuLost), &policy(), at(second)),
        Step::Hangs => record.read(&GpuSample::absent(Absence::CallHangs), &policy(), at(second)),
        Step::Stalls => record.stalled(at(second)).into_iter().collect(),
        Step::Fails => record.read(&GpuSample::absent(Absence::Nvml(999)), &policy(), at(second)),
        Step::Advice(number) => {
            record.read(&advised(second, RecoveryAction::from_nvml(*number)), &policy(), at(second))
        }
        Step::Errors(count) => record.read(&uncorrected(second, *count), &policy(), at(second)),
        Step::Mute => {
            let sample = GpuSample { recovery: Reading::Absent(Absence::NotYet), ..healthy(second) };
            record.read(&sample, &policy(), at(second))
        }
    }
}

proptest! {
    /// A GPU becomes fit only a quiet period after the last event, and unfit only for a reported reason.
    #[test]
    fn a_gpu_becomes_fit_only_a_quiet_period_after_the_last_event(
        steps in prop::collection::vec((step(), 0..40_u64), 0..120),
    ) {
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
            let added: Vec<Incident> = changes.iter().filter_map(|change| match change {
                HealthChange::Unfit(incident) => Some(*incident),
                HealthChange::Fit => None,
            }).collect();
            for (incident, _) in &after.incidents {
                let known = before.incidents.iter().any(|(other, _)| other == incident);
                prop_assert!(known != added.contains(incident), "{:?}", incident);
            }
            let harm = match step {
                Step::Xid(code) => xid::fatal(*code),
                Step::Lost => true,
                Step::Advice(number) => *number != 0,
                Step::Well | Step::Mute | Step::Hangs => false,
                Step::Stalls => added.contains(&Incident::Stalls) || record.last == at(second),
                Step::Fails => record.last == at(second),
                Step::Errors(_) => added.contains(&Incident::EccUncorrected) || record.last == at(second),
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
    fn a_gpu_without_conditions_during_the_quiet_period_becomes_fit(
        steps in prop::collection::vec((step(), 0..40_u64), 0..60),
    ) {
        let mut record = HealthRecord::default();
        let mut second = 1;
        for (step, gap) in &steps {
            second += gap;
            play(&mut record, step, second);
        }
        for later in [0, 1, 60, 61] {
            record.read(&healthy(second + later), &policy(), at(second + later));
        }
        prop_assert!(record.condition(&policy()).fit());
    }
}
