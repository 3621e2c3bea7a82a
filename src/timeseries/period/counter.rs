//! What the counter behind a series can show.
//!
//! A counter that is refreshed more slowly than it is read repeats its value. A load that changes as fast as the counter then
//! shows a beat that is not there: the power of an A100, refreshed every 100 ms, has a false period of 3.3 s for a load of 104 ms.
//!
//! What must never happen here: a load that stays at one level for a while, taken for a slow counter.

use std::time::Duration;

use super::CounterLimit;
use crate::series::Series;

/// A period must be this many times as long as the refresh or the window: fewer values do not show the shape of a cycle.
const LEAST_PER_CYCLE: u32 = 4;

/// Runs of equal values that are needed to measure the refresh.
const FEWEST_RUNS: usize = 16;

/// Different values that are needed: a load with a few levels has runs too.
const FEWEST_VALUES: usize = 8;

/// What a counter can show, in steps of the series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Resolution {
    /// The refresh, at least one step.
    pub(super) refresh: f64,
    /// The window; one step if it is not known.
    pub(super) window: f64,
    /// Whether the counter is refreshed more slowly than it is read.
    pub(super) repeats: bool,
}

impl Resolution {
    pub(super) fn of(series: &Series) -> Self {
        let counter = series.counter();
        let steps = |time: Duration| time.as_secs_f64() / series.step().as_secs_f64();
        let read = counter.refresh.map(steps).or_else(|| measured_refresh(series.values()));
        let refresh = read.unwrap_or(1.0).max(1.0);
        let window = counter.window.map_or(1.0, steps);
        Self { refresh, window, repeats: refresh >= 2.0 }
    }

    /// What limits the periods that the counter can show: the larger of window and refresh.
    pub(super) fn limit(self, time: impl Fn(f64) -> Duration) -> CounterLimit {
        if self.window > self.refresh {
            CounterLimit::Window(time(self.window))
        } else {
            CounterLimit::Refresh(time(self.refresh))
        }
    }

    /// The shortest period that the counter can show, in steps.
    pub(super) fn shortest_period(self) -> f64 {
        self.refresh.max(self.window) * f64::from(LEAST_PER_CYCLE)
    }
}

/// The length of runs of equal values, if nearly all have the same length of at least two, and most have a new value.
fn measured_refresh(values: &[f64]) -> Option<f64> {
    let changes = values.windows(2).filter(|pair| pair[0] != pair[1]).count();
    if changes < FEWEST_RUNS || changes > values.len() / 2 {
        return None;
    }
    let mut runs: Vec<u32> = Vec::with_capacity(changes + 1);
    let mut seen: Vec<f64> = Vec::with_capacity(changes + 1);
    for run in values.chunk_by(|one, other| one == other || (one.is_nan() && other.is_nan())) {
        if run[0].is_nan() {
            continue;
        }
        runs.push(u32::try_from(run.len()).unwrap_or(u32::MAX));
        seen.push(run[0]);
    }
    if runs.len() < FEWEST_RUNS {
        return None;
    }
    runs.sort_unstable();
    seen.sort_unstable_by(f64::total_cmp);
    seen.dedup();
    let (decile, median) = (runs[runs.len() / 10], runs[runs.len() / 2]);
    // A reader that is late by a step makes a run of two shorter or longer by one.
    let regular = decile >= 2 && f64::from(decile) >= 0.6 * f64::from(median);
    let varied = seen.len() >= FEWEST_VALUES && seen.len() * 4 >= runs.len();
    (regular && varied).then(|| f64::from(median))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refresh(values: impl Iterator<Item = f64>) -> Option<f64> {
        measured_refresh(&values.collect::<Vec<_>>())
    }

    #[test]
    fn the_refresh_is_measured_from_equal_neighbours() {
        let read_every_13_ms = (0_u32..900).map(|index| f64::from(index * 13 / 100 * 7919 % 101));
        assert_eq!(refresh(read_every_13_ms), Some(8.0));
    }

    #[test]
    fn a_load_with_two_levels_is_no_slow_counter() {
        assert_eq!(refresh((0_u32..900).map(|index| f64::from(index / 10 % 2 * 97))), None);
        assert_eq!(refresh((0_u32..900).map(|index| f64::from(index % 101))), None);
    }

    #[test]
    fn the_larger_of_window_and_refresh_counts() {
        let values = || (0_u32..900).map(|index| Some(f64::from(index % 101)));
        let series = Series::regular(Duration::from_millis(100), values()).unwrap();
        assert_eq!(Resolution::of(&series), Resolution { refresh: 1.0, window: 1.0, repeats: false });
        let counter =
            crate::Counter { window: Some(Duration::from_secs(1)), refresh: Some(Duration::from_millis(500)) };
        let slow = Resolution::of(&series.with_counter(counter));
        assert_eq!(slow, Resolution { refresh: 5.0, window: 10.0, repeats: true });
        assert_eq!(slow.shortest_period(), 40.0);
        assert_eq!(slow.limit(Duration::from_secs_f64), CounterLimit::Window(Duration::from_secs(10)));
    }
}
