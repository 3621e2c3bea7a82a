//! Whether memory leaks: the maxima of its cycles rise from cycle to cycle.
//!
//! The value between two maxima says little, because memory that a cycle frees is no leak.
//!
//! What must never happen here: a leak because one cycle was larger.

use crate::period::Period;
use crate::series::Series;
use crate::trend::{Line, two_sided};

/// Share of the values of a cycle that stand for its maximum. The mean of the highest eighth is less noisy than the highest
/// value, and as high in all cycles.
const HIGHEST: usize = 8;
/// The rise is certain if its probability without a leak is smaller than this (one-sided).
const SIGNIFICANCE: f64 = 0.015;
/// Fewer cycles cannot be that certain, whatever their maxima.
const MIN_CYCLES: usize = 5;

/// A rise of the maxima of the cycles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Leak {
    /// Rise in an hour, in the unit of the series.
    pub per_hour: f64,
    /// Rise from one cycle to the next.
    pub per_cycle: f64,
    /// 90 % interval of the rise in an hour.
    pub interval_per_hour: (f64, f64),
    /// Cycles whose maxima were compared.
    pub cycles: u32,
}

/// Compares the maxima of the cycles of a series; `period` is what [`find_period`](crate::find_period) found in it. Takes
/// O(n log n) time.
///
/// Some only if the maxima rise for certain: by the Mann–Kendall test, at 1.5 %. A cycle with more than 20 % gaps does not
/// count.
#[must_use]
pub fn leak(series: &Series, period: &Period) -> Option<Leak> {
    let length = period.length.as_secs_f64() / series.step().as_secs_f64();
    let points: Vec<(f64, f64)> =
        period.starts.windows(2).filter_map(|ends| maximum(series.values(), (ends[0], ends[1]), length)).collect();
    if points.len() < MIN_CYCLES || points.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return None;
    }
    let line = Line::through(&points)?;
    let certain = line.score > 0.0 && two_sided(line.score) / 2.0 < SIGNIFICANCE;
    let steps_per_hour = 3600.0 / series.step().as_secs_f64();
    (certain && line.slope > 0.0).then(|| Leak {
        per_hour: line.slope * steps_per_hour,
        per_cycle: line.slope * length,
        interval_per_hour: (line.interval.0 * steps_per_hour, line.interval.1 * steps_per_hour),
        cycles: u32::try_from(points.len()).unwrap_or(u32::MAX),
    })
}

/// The start of a cycle and the mean of its highest values. A pause after the cycle does not count.
fn maximum(values: &[f64], (start, end): (f64, f64), length: f64) -> Option<(f64, f64)> {
    let (from, to) = (point(start), point(end.min(start + 1.5 * length)).min(values.len()));
    let cycle = values.get(from..to)?;
    let mut measured: Vec<f64> = cycle.iter().copied().filter(|value| !value.is_nan()).collect();
    if measured.is_empty() || measured.len() * 5 < cycle.len() * 4 {
        return None;
    }
    measured.sort_unstable_by(|one, other| other.total_cmp(one));
    let highest = &measured[..measured.len().div_ceil(HIGHEST)];
    let count = highest.len() as f64;
    Some((start, highest.iter().map(|value| value / count).sum()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and slices are checked")]
fn point(position: f64) -> usize {
    position.round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use proptest::prelude::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn cycles(length: u32, count: u32) -> Period {
        let time = SECOND * length;
        let starts = (0..=count).map(|cycle| f64::from(cycle * length)).collect();
        Period { length: time, interval: (time, time), score: 1.0, cycles: count, starts, alternatives: Vec::new() }
    }

    /// Cycles of 20 values that rise by 10 and drop, with noise of 0 to 2.
    fn sawtooth(rise: f64, seed: u64) -> Series {
        let values = noise(seed).take(400).enumerate().map(|(at, noise)| {
            let (cycle, phase) = ((at / 20) as f64, (at % 20) as f64);
            Some(cycle * rise + phase / 2.0 + noise * 2.0)
        });
        Series::regular(SECOND, values).unwrap()
    }

    #[test]
    fn maxima_that_rise_are_a_leak() {
        let leak = leak(&sawtooth(0.5, 1), &cycles(20, 20)).unwrap();
        assert!((leak.per_cycle - 0.5).abs() < 0.05 && leak.cycles == 20, "{leak:?}");
        assert!((leak.per_hour - leak.per_cycle * 180.0).abs() < 1e-6, "{leak:?}");
        assert!(leak.interval_per_hour.0 <= leak.per_hour && leak.per_hour <= leak.interval_per_hour.1, "{leak:?}");
    }

    #[test]
    fn maxima_that_stay_or_fall_are_none() {
        let leaks = (0..100).filter(|seed| leak(&sawtooth(0.0, *seed), &cycles(20, 20)).is_some()).count();
        assert!(leaks <= 4, "{leaks} of 100");
        assert_eq!(leak(&sawtooth(-0.5, 1), &cycles(20, 20)), None);
    }

    #[test]
    fn one_larger_cycle_and_four_cycles_are_none() {
        let points = (0..400).map(|at| Some(f64::from(at % 20) + if at / 20 == 15 { 50.0 } else { 0.0 }));
        assert_eq!(leak(&Series::regular(SECOND, points).unwrap(), &cycles(20, 20)), None);
        assert_eq!(leak(&sawtooth(5.0, 1).slice(0..81), &cycles(20, 4)), None);
    }

    #[test]
    fn a_cycle_of_gaps_does_not_count() {
        let whole = sawtooth(0.5, 1);
        let points = whole.iter().enumerate().map(|(at, value)| value.filter(|_| at / 20 != 7));
        let leak = leak(&Series::regular(SECOND, points).unwrap(), &cycles(20, 20)).unwrap();
        assert_eq!(leak.cycles, 19);
    }

    proptest! {
        #[test]
        fn no_period_makes_a_leak_panic(
            points in proptest::collection::vec(proptest::option::of(any::<f64>()), 0..200),
            starts in proptest::collection::vec(prop_oneof![any::<f64>(), 0.0..200.0_f64], 0..30),
            sorted in any::<bool>(),
            length in any::<u32>(),
        ) {
            let mut period = cycles(1, 1);
            period.starts = starts;
            if sorted {
                period.starts.sort_by(f64::total_cmp);
            }
            period.length = Duration::from_millis(u64::from(length));
            if let Some(leak) = leak(&Series::regular(SECOND, points).unwrap(), &period) {
                prop_assert!(leak.per_hour > 0.0 && leak.cycles >= 5);
            }
        }
    }
}
