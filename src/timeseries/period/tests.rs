//! Series with a known answer, and any series at all.

use std::time::Duration;

use proptest::prelude::*;

use super::{Reason, Verdict, find_period, fold};
use crate::noise::noise;
use crate::series::{Counter, Series};

const SECOND: Duration = Duration::from_secs(1);

fn series(values: impl IntoIterator<Item = f64>) -> Series {
    Series::regular(SECOND, values.into_iter().map(Some)).unwrap()
}

/// Cycles of the given lengths: busy for the first 40 %, idle for the rest, with noise.
fn cycles(lengths: impl IntoIterator<Item = u32>) -> Vec<f64> {
    let phases = lengths.into_iter().flat_map(|length| (0..length).map(move |place| place * 10 < length * 4));
    phases.zip(noise(7)).map(|(busy, noise)| if busy { 80.0 } else { 5.0 } + 10.0 * noise).collect()
}

fn seconds(verdict: &Verdict) -> Option<f64> {
    verdict.period().map(|period| period.length.as_secs_f64())
}

fn is_near(verdict: &Verdict, expected: f64) -> bool {
    seconds(verdict).is_some_and(|length| (length / expected - 1.0).abs() < 0.02)
}

#[test]
fn cycles_of_changing_length_have_their_mean_length() {
    let lengths = [30, 32, 33, 31, 29, 28, 27, 29, 30, 32, 34, 33, 31, 30, 28, 27, 29, 31];
    let verdict = find_period(&series(cycles(lengths)));
    let mean = f64::from(lengths.iter().sum::<u32>()) / 18.0;
    assert!(is_near(&verdict, mean), "{verdict:?}");
    let period = verdict.period().unwrap();
    assert!(period.interval.0 < period.length && period.length < period.interval.1);
    assert!(period.interval.1 < SECOND * 33 && period.cycles >= 17 && period.score > 0.8);
    assert!(period.starts.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(usize::try_from(period.cycles).unwrap(), period.starts.len());
}

#[test]
fn narrow_pulses_have_no_multiple_of_their_period() {
    for length in [7, 12, 25, 60, 100] {
        let pulses = (0..1200).zip(noise(1)).map(|(index, noise)| if index % length == 0 { 50.0 } else { noise });
        let verdict = find_period(&series(pulses));
        assert!(is_near(&verdict, f64::from(length)), "{length}: {verdict:?}");
    }
}

#[test]
fn a_few_pauses_do_not_hide_the_period() {
    let mut paused = Vec::new();
    for cycle in 0..40 {
        paused.extend(cycles([30]));
        let pause = if cycle % 9 == 8 { 70 } else { 0 };
        paused.extend(noise(cycle).take(pause).map(|noise| 5.0 + 10.0 * noise));
    }
    let verdict = find_period(&series(paused));
    assert!(is_near(&verdict, 30.0), "{verdict:?}");
}

#[test]
fn the_scale_of_the_values_does_not_matter() {
    let values = cycles([40; 12]);
    let expected = seconds(&find_period(&series(values.clone()))).unwrap();
    for (factor, offset) in [(1e9, 4e10), (1e-6, 0.0), (-3.0, 7.0), (1e100, 0.0)] {
        let scaled = find_period(&series(values.iter().map(|value| value * factor + offset)));
        assert!(is_near(&scaled, expected), "{factor}: {scaled:?}");
    }
}

#[test]
fn a_load_that_begins_in_the_window_is_judged_from_its_start() {
    let idle = std::iter::repeat_n(0.0, 400);
    let verdict = find_period(&series(idle.chain(cycles([25; 12]))));
    assert!(is_near(&verdict, 25.0), "{verdict:?}");
    assert!(verdict.period().unwrap().starts[0] >= 400.0);
}

#[test]
fn cycles_that_have_ended_are_counted_to_their_end() {
    for (before, after) in [(0, 400), (400, 400), (90, 120)] {
        let idle = |count| std::iter::repeat_n(0.0, count);
        let verdict = find_period(&series(idle(before).chain(cycles([25; 12])).chain(idle(after))));
        assert!(is_near(&verdict, 25.0), "{before} and {after} idle: {verdict:?}");
        let period = verdict.period().unwrap();
        assert!((11..=12).contains(&period.cycles), "{verdict:?}");
        assert!(period.starts.last().is_some_and(|last| *last <= (before + 300) as f64), "{verdict:?}");
    }
}

#[test]
fn a_load_stays_periodic_while_the_time_before_it_leaves_the_window() {
    // The step at its begin is higher than the cycles.
    let load = (0_u32..960).zip(noise(3)).map(|(second, noise)| 50.0 + f64::from(second % 47) / 2.0 + 10.0 * noise);
    let values: Vec<f64> = std::iter::repeat_n(0.0, 960).chain(load).collect();
    for begin in (500..=960).step_by(20) {
        let verdict = find_period(&series(values[begin..begin + 960].iter().copied()));
        assert!(is_near(&verdict, 47.0), "{} idle: {verdict:?}", 960 - begin);
    }
}

#[test]
fn gaps_are_bridged_up_to_a_fifth_of_the_points() {
    let with_gaps = |every: u32| {
        let values = cycles([40; 20]).into_iter().zip(0_u32..);
        Series::regular(SECOND, values.map(|(value, index)| (index % every != 0).then_some(value))).unwrap()
    };
    assert!(is_near(&find_period(&with_gaps(6)), 40.0));
    assert!(matches!(find_period(&with_gaps(4)), Verdict::Unknown(Reason::TooManyGaps { .. })));
}

#[test]
fn load_without_a_cycle_has_no_period() {
    let mut level = 0.0;
    let drifting = noise(3).take(2000).map(|noise| {
        level = 0.95 * level + noise - 0.5;
        level
    });
    assert_eq!(seconds(&find_period(&series(drifting))), None);
    assert_eq!(seconds(&find_period(&series(noise(4).take(2000)))), None);
    assert_eq!(seconds(&find_period(&series((0..2000).map(f64::from)))), None);
    assert_eq!(find_period(&series([3.0; 100])), Verdict::Aperiodic(Reason::Constant));
}

#[test]
fn few_cycles_and_few_values_are_unknown() {
    let three = find_period(&series(cycles([100; 3])));
    assert!(matches!(three, Verdict::Unknown(Reason::TooFewCycles { .. })), "{three:?}");
    assert!(three.reason().starts_with("only 3.0 cycles of "), "{}", three.reason());
    let short = find_period(&series([1.0, 2.0]));
    assert_eq!(short, Verdict::Unknown(Reason::TooFewValues { measured: 2, needed: 16 }));
}

#[test]
fn reasons_have_the_units_that_people_use() {
    let days = Reason::TooFewCycles { cycles: 3.0, period: SECOND * 505_357 };
    assert_eq!(days.to_string(), "only 3.0 cycles of 5 d 20 h 23 min were seen, at least 4 are needed");
}

#[test]
fn a_period_that_the_counter_cannot_show_is_unobservable() {
    let values = || cycles([20; 60]);
    let slow = Counter { window: Some(SECOND * 6), refresh: None };
    let verdict = find_period(&series(values()).with_counter(slow));
    assert!(matches!(verdict, Verdict::Unobservable(Reason::FasterThanCounter { .. })), "{verdict:?}");
    assert_eq!(verdict.reason(), "the counter averages over 6 s, so it cannot show a period below 24 s");
    let slow = Counter { window: Some(SECOND * 4), refresh: Some(SECOND * 6) };
    let verdict = find_period(&series(values()).with_counter(slow));
    assert_eq!(verdict.reason(), "the counter is refreshed every 6 s, so it cannot show a period below 24 s");
    let fast = Counter { window: Some(SECOND * 4), refresh: Some(SECOND) };
    assert!(is_near(&find_period(&series(values()).with_counter(fast)), 20.0));
}

#[test]
fn the_typical_cycle_has_the_quartiles_of_each_phase() {
    let rising = series((0..600).map(|index| f64::from(index % 20)));
    let verdict = find_period(&rising);
    let cycle = fold(&rising, verdict.period().unwrap(), 20);
    let first = cycle[0].unwrap().median;
    for (phase, quartiles) in cycle.iter().enumerate() {
        let expected = (first + phase as f64) % 20.0;
        let off = (quartiles.unwrap().median - expected).abs();
        assert!(off <= 1.0 || off >= 19.0, "{phase}: {quartiles:?}");
    }
    assert!(fold(&rising, verdict.period().unwrap(), usize::MAX).len() <= 4096);
    assert!(fold(&rising, verdict.period().unwrap(), 0).is_empty());
}

fn any_value() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        4 => (0_u8..100).prop_map(|percent| Some(f64::from(percent))),
        2 => Just(Some(1e300)),
        1 => any::<f64>().prop_map(Some),
        1 => Just(None),
        1 => Just(Some(f64::INFINITY)),
        1 => Just(Some(f64::NAN)),
    ]
}

/// Parts of a series: equal values, a ramp, a repeated pattern, or anything.
fn any_part() -> impl Strategy<Value = Vec<Option<f64>>> {
    prop_oneof![
        (any_value(), 0_usize..1500).prop_map(|(value, count)| vec![value; count]),
        (any::<f64>(), 0_u16..1500)
            .prop_map(|(slope, count)| (0..count).map(|at| Some(slope * f64::from(at))).collect()),
        (prop::collection::vec(any_value(), 1..300), 1_usize..12).prop_map(|(pattern, times)| pattern.repeat(times)),
        prop::collection::vec(any_value(), 0..1000),
        prop::collection::vec((0_u8..100).prop_map(|percent| Some(f64::from(percent))), 0..2000),
    ]
}

fn any_counter() -> impl Strategy<Value = Counter> {
    let time = || prop::option::of(prop_oneof![(0_u64..10_000).prop_map(Duration::from_millis), Just(Duration::MAX)]);
    (time(), time()).prop_map(|(window, refresh)| Counter { window, refresh })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_series_causes_a_panic_and_every_period_is_possible(
        parts in prop::collection::vec(any_part(), 0..5),
        step in prop_oneof![Just(SECOND), Just(Duration::from_nanos(1)), Just(Duration::MAX)],
        counter in any_counter(),
    ) {
        let values: Vec<_> = parts.into_iter().flatten().take(5000).collect();
        let series = Series::regular(step, values).unwrap().with_counter(counter);
        let verdict = find_period(&series);
        prop_assert!(!verdict.reason().is_empty());
        if let Some(period) = verdict.period() {
            prop_assert!(period.cycles >= 4 && (0.0..=1.0).contains(&period.score));
            prop_assert!(period.length >= step.saturating_mul(3) && period.length < series.span());
            prop_assert!(period.interval.0 <= period.length && period.length <= period.interval.1);
            prop_assert!(period.alternatives.len() <= 4 && period.starts.len() <= 4096);
            prop_assert_eq!(fold(&series, period, 16).len(), 16);
        }
    }
}
