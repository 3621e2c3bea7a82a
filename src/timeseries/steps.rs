//! Where a series changes its level at once and stays there.
//!
//! ```text
//!   values ─two windows at each place, narrow ones first─▶ difference in standard errors ─peaks that are sudden─▶ steps
//! ```
//!
//! What must never happen here: a step in a ramp or in noise. (In the bench, 4 % of the random walks of 120 values and 10 % of
//! those of 600 have a step.)

use std::collections::BTreeSet;

use crate::series::Series;

/// A level lasts at least this many values, and at least this share of the series. So there are at most 24 steps.
const MIN_LEVEL: usize = 12;
const MIN_LEVEL_SHARE: usize = 24;
/// A level lasts at least this many refreshes of the counter: a counter shows a step in two or three.
const MIN_REFRESHES: f64 = 8.0;
/// The difference of two levels in standard errors. It is this large because the error comes from few values that depend on
/// each other.
const MIN_SCORE: f64 = 12.0;
/// The difference of two levels in standard deviations within the levels.
const MIN_CONTRAST: f64 = 4.0;
/// The difference of two levels in standard deviations of the series. A counter at rest shows smaller ones.
const MIN_HEIGHT: f64 = 0.1;
/// Smallest standard deviation within a level, in those of the series: values of a flat level differ by rounding errors.
const FLAT: f64 = 1e-6;
/// The change itself takes at most this share of a window on each side of its middle: the counter of an A100 shows 71 % for
/// 0.2 s between idle and full load.
const CHANGE_SHARE: usize = 5;
/// This share of a window, next to the change, has at least [`NEAR_LEVEL`] of the difference of the levels. It has less in a
/// ramp.
const NEAR_SHARE: usize = 10;
const NEAR_LEVEL: f64 = 0.95;
/// The two largest changes between neighbours make at least this share of the difference. They make less in a random walk.
const SUDDEN_SHARE: f64 = 0.85;

/// A change of level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Where it is, in steps of the series: between two values.
    pub at: f64,
    /// Mean of the level before, back to the step before.
    pub before: f64,
    /// Mean of the level after, up to the next step.
    pub after: f64,
}

/// Finds the changes of level, at most 24, in order. Takes O(n log n) time.
///
/// Compares the means of two neighbouring windows at each place (moving sums, Eichinger and Kirch 2018), first in narrow
/// windows, then in windows twice as wide. The error of the difference allows for the correlation of neighbours. A level
/// lasts at least 12 values, a 24th of the series and 8 refreshes of its counter. Gaps are skipped.
#[must_use]
pub fn steps(series: &Series) -> Vec<Step> {
    let places: Vec<usize> = (0..series.len()).filter(|at| series.get(*at).is_some()).collect();
    let measured: Vec<f64> = series.values().iter().copied().filter(|value| !value.is_nan()).collect();
    let Some(scaled) = Scaled::new(&measured) else { return Vec::new() };
    let refresh = series.counter().refresh.map_or(0.0, |refresh| refresh.as_secs_f64() / series.step().as_secs_f64());
    let mut width = MIN_LEVEL.max(measured.len().div_ceil(MIN_LEVEL_SHARE)).max(whole(MIN_REFRESHES * refresh));
    let mut found = BTreeSet::new();
    while width <= measured.len() / 2 {
        scaled.add_steps(width, &mut found);
        width *= 2;
    }
    let found = scaled.without_small(found);
    let levels = scaled.levels(&found);
    let between = |place: usize| f64::midpoint(places[place - 1] as f64, places[place] as f64);
    found
        .iter()
        .zip(levels.windows(2))
        .map(|(place, pair)| Step {
            at: between(*place),
            before: scaled.unscaled(pair[0]),
            after: scaled.unscaled(pair[1]),
        })
        .collect()
}

/// Values scaled to mean 0 and standard deviation 1, with sums up to each of them.
struct Scaled {
    mean: f64,
    deviation: f64,
    values: Vec<f64>,
    sums: Vec<f64>,
    squares: Vec<f64>,
    /// Products of neighbours.
    products: Vec<f64>,
}

/// Mean, variance and covariance of neighbours in a window.
struct Moments {
    mean: f64,
    variance: f64,
    covariance: f64,
}

impl Scaled {
    /// `None` if there are no two values that differ.
    fn new(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mean: f64 = values.iter().map(|value| value / count).sum();
        let largest = values.iter().map(|value| (value - mean).abs()).fold(0.0, f64::max);
        let variance: f64 = values.iter().map(|value| ((value - mean) / largest).powi(2) / count).sum();
        let deviation = variance.sqrt() * largest;
        if !(deviation > 0.0 && deviation.is_finite()) {
            return None;
        }
        let values: Vec<f64> = values.iter().map(|value| (value - mean) / deviation).collect();
        let neighbours = values.iter().zip(values.iter().skip(1).chain([&0.0]));
        Some(Self {
            mean,
            deviation,
            sums: running(values.iter().copied()),
            squares: running(values.iter().map(|value| value * value)),
            products: running(neighbours.map(|(one, other)| one * other)),
            values,
        })
    }

    fn unscaled(&self, level: f64) -> f64 {
        self.mean + level * self.deviation
    }

    fn mean_of(&self, from: usize, to: usize) -> f64 {
        (self.sums[to] - self.sums[from]) / (to - from) as f64
    }

    fn moments(&self, from: usize, to: usize) -> Moments {
        let count = (to - from) as f64;
        let mean = self.mean_of(from, to);
        let variance = (self.squares[to] - self.squares[from]) / count - mean * mean;
        let covariance = (self.products[to - 1] - self.products[from]) / (count - 1.0) - mean * mean;
        Moments { mean, variance: variance.max(0.0), covariance }
    }

    /// The difference of the levels in the `width` values before and after a place, in standard errors; 0 if that is no step.
    fn score(&self, place: usize, width: usize) -> f64 {
        let change = width / CHANGE_SHARE;
        let (last, first) = (place - change, place + change);
        let (before, after) = (self.moments(place - width, last), self.moments(first, place + width));
        let difference = after.mean - before.mean;
        let variance = f64::midpoint(before.variance, after.variance).max(FLAT * FLAT);
        let contrast = difference.abs() / variance.sqrt();
        let near = (width / NEAR_SHARE).max(1);
        let near = self.mean_of(first, first + near) - self.mean_of(last - near, last);
        if difference.abs() < MIN_HEIGHT || contrast < MIN_CONTRAST || near / difference < NEAR_LEVEL {
            return 0.0;
        }
        let count = (width - change) as f64;
        let correlation = f64::midpoint(before.covariance, after.covariance) / variance;
        // The estimate of so few values is too low (Marriott and Pope 1954).
        let correlation = (correlation + (1.0 + 4.0 * correlation) / count).clamp(0.0, 1.0 - 1.0 / count);
        let independent = count * (1.0 - correlation) / (1.0 + correlation);
        contrast * (independent / 2.0).sqrt()
    }

    /// Adds the places with the highest score within `width` values, unless a step is known there.
    fn add_steps(&self, width: usize, found: &mut BTreeSet<usize>) {
        let mut candidates: Vec<(f64, usize)> = (width..=self.values.len() - width)
            .map(|place| (self.score(place, width), place))
            .filter(|(score, _)| *score >= MIN_SCORE)
            .collect();
        candidates.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        let is_free =
            |places: &BTreeSet<usize>, place: usize| places.range(place - width + 1..place + width).next().is_none();
        let mut tried = found.clone();
        for (_, place) in candidates {
            if is_free(&tried, place) {
                tried.insert(place);
                let place = self.sharpest(place, width);
                if self.is_sudden(place, width) && is_free(found, place) {
                    found.insert(place);
                }
            }
        }
    }

    /// The place near a step where the means of the `width` values before and after differ most.
    fn sharpest(&self, place: usize, width: usize) -> usize {
        let near =
            (place - width / CHANGE_SHARE).max(width)..=(place + width / CHANGE_SHARE).min(self.values.len() - width);
        let difference = |place: usize| (self.mean_of(place - width, place) - self.mean_of(place, place + width)).abs();
        near.max_by(|one, other| difference(*one).total_cmp(&difference(*other))).unwrap_or(place)
    }

    fn is_sudden(&self, place: usize, width: usize) -> bool {
        let difference = self.mean_of(place, place + width) - self.mean_of(place - width, place);
        let near = width / CHANGE_SHARE + 1;
        let mut largest = [0.0_f64; 2];
        for pair in self.values[place - near..place + near].windows(2) {
            let change = (pair[1] - pair[0]) * difference.signum();
            largest = [largest[0].max(change), largest[1].max(change.min(largest[0]))];
        }
        largest[0] + largest[1] >= SUDDEN_SHARE * difference.abs()
    }

    /// Leaves out steps between levels that are alike.
    fn without_small(&self, found: BTreeSet<usize>) -> Vec<usize> {
        let mut found: Vec<usize> = found.into_iter().collect();
        loop {
            let levels = self.levels(&found);
            let heights = levels.windows(2).map(|pair| (pair[1] - pair[0]).abs());
            match heights.enumerate().min_by(|one, other| one.1.total_cmp(&other.1)) {
                Some((place, height)) if height < MIN_HEIGHT => found.remove(place),
                _ => return found,
            };
        }
    }

    /// The means before the first step, between the steps, and after the last one.
    fn levels(&self, found: &[usize]) -> Vec<f64> {
        let mut from = 0;
        let level = |to: usize| {
            let mean = self.mean_of(from, to);
            from = to;
            mean
        };
        found.iter().copied().chain([self.values.len()]).map(level).collect()
    }
}

/// The sums of the first values: of none, of one, and so on.
fn running(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sum = 0.0;
    let sums = values.map(|value| {
        sum += value;
        sum
    });
    std::iter::once(0.0).chain(sums).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates; wider than the series is none"
)]
fn whole(values: f64) -> usize {
    values.ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use crate::series::Counter;
    use proptest::prelude::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn found(values: impl IntoIterator<Item = f64>) -> Vec<Step> {
        steps(&Series::regular(SECOND, values.into_iter().map(Some)).unwrap())
    }

    /// Levels of so many values each, with noise of standard deviation 0.29.
    fn levels(levels: &[(usize, f64)]) -> Vec<f64> {
        let values = levels.iter().flat_map(|(count, level)| std::iter::repeat_n(*level, *count));
        values.zip(noise(1)).map(|(level, noise)| level + noise).collect()
    }

    #[test]
    fn levels_and_their_steps_are_found() {
        let found = found(levels(&[(100, 10.0), (80, 30.0), (200, 25.0), (60, 12.0)]));
        let places: Vec<f64> = found.iter().map(|step| step.at).collect();
        assert_eq!(places, [99.5, 179.5, 379.5]);
        assert!((found[0].before - 10.5).abs() < 0.1 && (found[0].after - 30.5).abs() < 0.1, "{found:?}");
        assert!(found.windows(2).all(|pair| pair[0].after == pair[1].before), "{found:?}");
    }

    #[test]
    fn the_unit_does_not_matter() {
        let values = levels(&[(100, 10.0), (80, 30.0)]);
        for unit in [1e-9, 1.0, 1e12, 1e140] {
            assert_eq!(found(values.iter().map(|value| value * unit)).len(), 1, "{unit}");
        }
    }

    #[test]
    fn a_counter_that_shows_a_step_in_two_is_one_step() {
        let held = [(150, 0.0), (15, 71.0), (400, 100.0), (15, 78.0), (400, 0.0), (15, 2.0), (100, 0.0)];
        let values = held.iter().flat_map(|(count, value)| std::iter::repeat_n(*value, *count));
        let places: Vec<f64> = found(values).iter().map(|step| step.at).collect();
        assert!(
            matches!(places[..], [up, down] if (149.0..165.0).contains(&up) && (564.0..580.0).contains(&down)),
            "{places:?}"
        );
    }

    #[test]
    fn ramps_noise_and_short_peaks_have_no_steps() {
        for seed in 0..20 {
            let noise: Vec<f64> = noise(seed).take(600).collect();
            let ramp = noise.iter().enumerate().map(|(at, noise)| at as f64 / 60.0 + noise);
            assert_eq!(found(ramp), []);
            let peak = noise.iter().enumerate().map(|(at, noise)| noise + if at % 300 < 5 { 40.0 } else { 0.0 });
            assert_eq!(found(peak), []);
            assert_eq!(found(noise), []);
        }
        assert_eq!((found([]), found([5.0; 100])), (vec![], vec![]));
    }

    #[test]
    fn a_gap_moves_no_step_and_a_slow_counter_needs_longer_levels() {
        let points = (0..200).map(|at| (!(95..105).contains(&at)).then_some(if at < 120 { 1.0 } else { 2.0 }));
        let series = Series::regular(SECOND, points).unwrap();
        let found = steps(&series);
        assert!(
            matches!(found[..], [Step { at: 119.5, before, after }] if (after - before - 1.0).abs() < 1e-9),
            "{found:?}"
        );
        let slow = Counter { window: None, refresh: Some(SECOND * 12) };
        assert_eq!(steps(&series.with_counter(slow)), []);
    }

    proptest! {
        #[test]
        fn no_series_makes_steps_panic_or_infinite(
            points in proptest::collection::vec(proptest::option::of(prop_oneof![any::<f64>(), -9.0..9.0_f64, Just(0.0)]), 0..300),
            refresh in any::<u32>(),
        ) {
            let counter = Counter { window: None, refresh: Some(Duration::from_millis(u64::from(refresh))) };
            let found = steps(&Series::regular(SECOND, points).unwrap().with_counter(counter));
            prop_assert!(found.len() <= MIN_LEVEL_SHARE);
            prop_assert!(found.iter().all(|step| step.at > 0.0 && step.before.is_finite() && step.after.is_finite()));
            prop_assert!(found.windows(2).all(|pair| pair[0].at < pair[1].at));
        }
    }
}
