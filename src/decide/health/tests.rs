//! A card's way down and back, step by step and by chance.

use super::*;
use model::unit::{Celsius, Count};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Monotonic {
    Monotonic(seconds * SECOND)
}

fn policy() -> Policy {
    Policy { quiet: Duration::from_secs(60), ..Policy::default() }
}

/// A card on which nothing is wrong, read at this second.
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
    let mut record = Record::default();
    assert_eq!(record.health(&GpuSample::default()), Health::Unknown);
    for (sample, incident) in [
        (GpuSample::absent(Absence::GpuLost), Incident::Silent(Absence::GpuLost)),
        (GpuSample::absent(Absence::CallHangs), Incident::Silent(Absence::CallHangs)),
        (advised(1, RecoveryAction::DrainAndReset), Incident::Advised(RecoveryAction::DrainAndReset)),
        (advised(1, RecoveryAction::Unknown(9)), Incident::Advised(RecoveryAction::Unknown(9))),
    ] {
        assert_eq!(record.read(&sample, &policy(), at(1)), [Change::Condemned(incident)]);
        assert_eq!(record.read(&sample, &policy(), at(2)), [], "told once");
        assert_eq!(record.health(&sample), Health::Unhealthy);
        record = Record::default();
    }
    for (pending, failed, incident) in [(true, false, Incident::RemapPending), (false, true, Incident::RemapFailed)] {
        let mut sample = well(1);
        sample.remapped.pending = Reading::Measured(pending, at(1));
        sample.remapped.failed = Reading::Measured(failed, at(1));
        assert_eq!(record.read(&sample, &policy(), at(1)), [Change::Condemned(incident)]);
        record = Record::default();
    }
    assert_eq!(record.read(&well(1), &policy(), at(1)), []);
    assert_eq!(record.health(&well(1)), Health::Healthy);
}

#[test]
fn a_card_without_a_power_sensor_is_well() {
    let mut card = well(1);
    card.power = Reading::Absent(Absence::NotSupported);
    card.memory_used = Reading::Absent(Absence::NotSupported);
    let mut record = Record::default();
    assert_eq!(record.read(&card, &policy(), at(1)), []);
    assert_eq!(record.health(&card), Health::Healthy);
}

#[test]
fn the_way_back_needs_nvmls_advice_and_a_quiet_period() {
    let mut record = Record::default();
    record.read(&well(0), &policy(), at(0));
    assert_eq!(record.xid(48, &policy(), at(10)), Some(Change::Condemned(Incident::Xid(48))));
    assert_eq!(record.health(&well(9)), Health::Degraded);
    assert_eq!(record.condition(&policy()).fit_at, Some(at(70)));
    // The advice of before is no advice, however long it is quiet.
    assert_eq!(record.read(&well(9), &policy(), at(100)), []);
    let reset = advised(101, RecoveryAction::ResetGpu);
    assert_eq!(record.read(&reset, &policy(), at(101)).len(), 1);
    assert_eq!(record.condition(&policy()).fit_at, None, "it stands");
    assert_eq!(record.read(&well(102), &policy(), at(102)), []);
    assert_eq!(record.xid(48, &policy(), at(150)), None, "told before, but it is not quiet");
    assert_eq!(record.read(&well(209), &policy(), at(209)), []);
    assert_eq!(record.read(&well(210), &policy(), at(210)), [Change::Fit]);
    assert!(record.condition(&policy()).fit() && record.health(&well(210)) == Health::Healthy);
}

#[test]
fn where_nvml_never_advises_the_quiet_period_decides() {
    let mute = |seconds| GpuSample { recovery: Reading::Absent(Absence::NotSupported), ..well(seconds) };
    let mut record = Record::default();
    record.xid(79, &policy(), at(0));
    assert_eq!(record.read(&mute(59), &policy(), at(59)), []);
    assert_eq!(record.read(&mute(60), &policy(), at(60)), [Change::Fit]);
    // Where it has advised before, its silence is none.
    record.read(&well(61), &policy(), at(61));
    record.xid(79, &policy(), at(62));
    assert_eq!(record.read(&mute(500), &policy(), at(500)), []);
}

#[test]
fn uncorrected_errors_count_from_the_first_reading_on() {
    let mut record = Record::default();
    assert_eq!(record.read(&uncorrected(1, 7), &policy(), at(1)), [], "before our time");
    assert_eq!(record.read(&uncorrected(2, 0), &policy(), at(2)), [], "the driver was loaded again");
    assert_eq!(record.read(&uncorrected(3, 1), &policy(), at(3)), [Change::Condemned(Incident::EccUncorrected)]);
}

#[test]
fn an_applications_own_error_condemns_nothing_even_if_a_setting_says_so() {
    let every = Policy { fatal: (0..=200).collect(), ..policy() };
    let mut record = Record::default();
    for code in [13, 31, 43, 45, 68] {
        assert_eq!(record.xid(code, &every, at(1)), None, "{code}");
    }
    assert!(record.condition(&every).fit());
}

/// What may happen to a card in a second.
#[derive(Clone, Debug)]
enum Step {
    Xid(u32),
    Well,
    Lost,
    Advice(u32),
    Errors(u64),
    Mute,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0..180_u32).prop_map(Step::Xid),
        4 => Just(Step::Well),
        1 => Just(Step::Lost),
        1 => (0..10_u32).prop_map(Step::Advice),
        1 => (0..4_u64).prop_map(Step::Errors),
        1 => Just(Step::Mute),
    ]
}

fn play(record: &mut Record, step: &Step, second: u64) -> Vec<Change> {
    match step {
        Step::Xid(code) => record.xid(*code, &policy(), at(second)).into_iter().collect(),
        Step::Well => record.read(&well(second), &policy(), at(second)),
        Step::Lost => record.read(&GpuSample::absent(Absence::GpuLost), &policy(), at(second)),
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
    /// Fit again only a quiet period after the last thing that happened; unfit only for a reason that is told.
    #[test]
    fn nothing_is_trusted_too_early(steps in prop::collection::vec((step(), 0..40_u64), 0..120)) {
        let mut record = Record::default();
        let (mut second, mut last) = (1, None);
        for (step, gap) in &steps {
            second += gap;
            let before = record.condition(&policy());
            let changes = play(&mut record, step, second);
            let after = record.condition(&policy());
            if changes.contains(&Change::Fit) {
                prop_assert!(!before.fit() && after.fit());
                prop_assert!(last.is_some_and(|last: u64| second - last >= 60));
            }
            let told: Vec<Incident> = changes.iter().filter_map(|change| match change {
                Change::Condemned(incident) => Some(*incident),
                Change::Fit => None,
            }).collect();
            for (incident, _) in &after.incidents {
                let known = before.incidents.iter().any(|(other, _)| other == incident);
                prop_assert!(known != told.contains(incident), "{:?}", incident);
            }
            let harm = match step {
                Step::Xid(code) => xid::fatal(*code),
                Step::Lost => true,
                Step::Advice(number) => *number != 0,
                Step::Well | Step::Mute => false,
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

    /// Whatever happened, a card that is well and advised nothing for the quiet period is fit.
    #[test]
    fn there_is_always_a_way_back(steps in prop::collection::vec((step(), 0..40_u64), 0..60)) {
        let mut record = Record::default();
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
