//! Equidistant values with gaps, which every analysis of this crate takes.
//!
//! What must never happen here: a value that nobody measured. The one exception is documented at [`Series::resampled`].

use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;

/// Largest number of points of a series: 12 days of seconds, 8 MiB. A caller with more makes it coarser first.
pub const MAX_POINTS: usize = 1 << 20;

/// Larger magnitudes are gaps: their squares are not finite, so no variance could be calculated.
pub const MAX_MAGNITUDE: f64 = 1e150;

/// Longest run of steps without a sample that keeps the last value: a counter that is refreshed a little more slowly than it
/// is read, or a reader that is late by less than two steps, leaves such runs.
const LONGEST_HOLD: usize = 2;

/// One measurement of a counter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Time since an origin that the caller chooses.
    pub at: Duration,
    /// The measured value, in the unit of the caller.
    pub value: f64,
}

/// What is known of the counter behind a series.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counter {
    /// The counter averages over this time.
    pub window: Option<Duration>,
    /// The counter changes its value at most once in this time.
    pub refresh: Option<Duration>,
}

/// Why samples do not make a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SeriesError {
    /// The step is zero.
    #[error("the step of a series is zero")]
    ZeroStep,
    /// A single sample has no distance to another one.
    #[error("the step of a series cannot be measured from fewer than two samples")]
    UnknownStep,
    /// More than [`MAX_POINTS`] points.
    #[error("a series of {points} points has more than {MAX_POINTS}; choose a larger step")]
    TooLong {
        /// Points that the series would have, at least.
        points: u64,
    },
}

/// Equidistant values with gaps.
///
/// A value that is infinite, not a number, or larger than 1e150 becomes a gap.
#[derive(Debug, Clone)]
pub struct Series {
    step: Duration,
    /// A gap is NaN.
    values: Vec<f64>,
    counter: Counter,
    left_out: usize,
}

impl Series {
    /// Makes a series of values that are `step` apart; `None` is a gap.
    ///
    /// # Errors
    ///
    /// If the step is zero, or there are more than [`MAX_POINTS`] values.
    pub fn regular(step: Duration, values: impl IntoIterator<Item = Option<f64>>) -> Result<Self, SeriesError> {
        if step.is_zero() {
            return Err(SeriesError::ZeroStep);
        }
        let values: Vec<f64> =
            values.into_iter().take(MAX_POINTS + 1).map(|value| measured_or_gap(value.unwrap_or(f64::NAN))).collect();
        if values.len() > MAX_POINTS {
            return Err(SeriesError::TooLong { points: values.len() as u64 });
        }
        Ok(Self { step, values, counter: Counter::default(), left_out: 0 })
    }

    /// Puts samples with times of their own onto a grid that begins at the first sample. Without a `step` the grid has the
    /// median distance of the samples.
    ///
    /// A point of the grid is the mean of the samples that are closest to it. A run of one or two points without a sample
    /// keeps the value before it; a longer one is a gap. A sample that is not later than the one before it is left out and
    /// counted ([`Series::left_out`]).
    ///
    /// # Errors
    ///
    /// If the step is zero or cannot be measured, or the grid would have more than [`MAX_POINTS`] points.
    pub fn resampled(samples: &[Sample], step: Option<Duration>) -> Result<Self, SeriesError> {
        let step = match step {
            Some(step) => step,
            None => usual_distance(samples).ok_or(SeriesError::UnknownStep)?,
        };
        if step.is_zero() {
            return Err(SeriesError::ZeroStep);
        }
        let mut grid = Grid { step: step.as_nanos(), values: Vec::new(), origin: None, sum: 0.0, count: 0, point: 0 };
        let mut left_out = 0;
        let mut last = None;
        for sample in samples {
            if last.is_some_and(|last| sample.at <= last) {
                left_out += 1;
                continue;
            }
            last = Some(sample.at);
            grid.add(*sample)?;
        }
        grid.finish_point();
        Ok(Self { step, values: grid.values, counter: Counter::default(), left_out })
    }

    /// The same series with what is known of its counter.
    #[must_use]
    pub fn with_counter(self, counter: Counter) -> Self {
        Self { counter, ..self }
    }

    /// Time between two neighbours.
    #[must_use]
    pub fn step(&self) -> Duration {
        self.step
    }

    /// Number of points, gaps included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the series has no point at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value at a point; `None` for a gap and beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<f64> {
        self.values.get(index).copied().filter(|value| !value.is_nan())
    }

    /// All points in order; `None` for a gap.
    pub fn iter(&self) -> impl Iterator<Item = Option<f64>> + '_ {
        self.values.iter().map(|value| Some(*value).filter(|value| !value.is_nan()))
    }

    /// What is known of the counter.
    #[must_use]
    pub fn counter(&self) -> Counter {
        self.counter
    }

    /// Time that the points cover: their number times the step.
    #[must_use]
    pub fn span(&self) -> Duration {
        u32::try_from(self.values.len()).map_or(Duration::MAX, |points| self.step.saturating_mul(points))
    }

    /// Number of points that are not gaps.
    #[must_use]
    pub fn measured(&self) -> usize {
        self.values.iter().filter(|value| !value.is_nan()).count()
    }

    /// Number of samples that were not in the order of time.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The part of the series in `range`, which is cut to the points that exist.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.values.len());
        let start = range.start.min(end);
        Self { step: self.step, values: self.values[start..end].to_vec(), counter: self.counter, left_out: 0 }
    }

    /// The series in steps of `factor` steps: the mean of what each of them measured.
    #[must_use]
    pub fn coarser(&self, factor: NonZeroUsize) -> Self {
        let step = u32::try_from(factor.get()).map_or(Duration::MAX, |factor| self.step.saturating_mul(factor));
        let values = self.values.chunks(factor.get()).map(mean_of_measured).collect();
        Self { step, values, counter: self.counter, left_out: self.left_out }
    }

    /// The points; a gap is NaN.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }
}

/// The points of a series that is being made from samples.
struct Grid {
    /// Nanoseconds.
    step: u128,
    values: Vec<f64>,
    origin: Option<Duration>,
    sum: f64,
    count: u32,
    /// The point that `sum` and `count` belong to.
    point: usize,
}

impl Grid {
    fn add(&mut self, sample: Sample) -> Result<(), SeriesError> {
        let origin = *self.origin.get_or_insert(sample.at);
        let since = sample.at.saturating_sub(origin).as_nanos();
        let point = (since + self.step / 2) / self.step;
        let point = usize::try_from(point).ok().filter(|point| *point < MAX_POINTS).ok_or_else(|| {
            SeriesError::TooLong { points: u64::try_from(point).unwrap_or(u64::MAX).saturating_add(1) }
        })?;
        if point > self.point {
            self.finish_point();
            let missing = point - self.values.len();
            let held = if missing <= LONGEST_HOLD { self.values.last().copied().unwrap_or(f64::NAN) } else { f64::NAN };
            self.values.resize(point, held);
            self.point = point;
        }
        let value = measured_or_gap(sample.value);
        if !value.is_nan() {
            self.sum += value;
            self.count += 1;
        }
        Ok(())
    }

    fn finish_point(&mut self) {
        if self.origin.is_some() {
            self.values.push(if self.count == 0 { f64::NAN } else { self.sum / f64::from(self.count) });
            self.sum = 0.0;
            self.count = 0;
        }
    }
}

fn measured_or_gap(value: f64) -> f64 {
    if value.abs() <= MAX_MAGNITUDE { value } else { f64::NAN }
}

fn mean_of_measured(values: &[f64]) -> f64 {
    let mut sum = 0.0;
    let mut count = 0_u32;
    for value in values.iter().filter(|value| !value.is_nan()) {
        sum += value;
        count += 1;
    }
    if count == 0 { f64::NAN } else { sum / f64::from(count) }
}

/// Median distance of neighbours that are in the order of time; `None` if there are no two.
#[must_use]
pub fn usual_distance(samples: &[Sample]) -> Option<Duration> {
    let mut distances: Vec<Duration> =
        samples.windows(2).filter(|pair| pair[1].at > pair[0].at).map(|pair| pair[1].at - pair[0].at).collect();
    let middle = distances.len().saturating_sub(1) / 2;
    (!distances.is_empty()).then(|| *distances.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn samples(points: &[(u64, f64)]) -> Vec<Sample> {
        points.iter().map(|(millis, value)| Sample { at: Duration::from_millis(*millis), value: *value }).collect()
    }

    fn points(series: &Series) -> Vec<Option<f64>> {
        series.iter().collect()
    }

    #[test]
    fn what_is_not_a_number_is_a_gap() {
        let values = [Some(1.0), Some(f64::NAN), None, Some(f64::INFINITY), Some(-1e200), Some(2.0)];
        let series = Series::regular(SECOND, values).unwrap();
        assert_eq!(points(&series), [Some(1.0), None, None, None, None, Some(2.0)]);
        assert_eq!((series.len(), series.measured(), series.span()), (6, 2, SECOND * 6));
    }

    #[test]
    fn samples_go_to_the_closest_point_and_long_holes_stay_holes() {
        let read = samples(&[(10_000, 1.0), (11_100, 2.0), (11_300, 4.0), (13_900, 5.0), (20_000, 6.0)]);
        let series = Series::resampled(&read, Some(SECOND)).unwrap();
        let expected = [Some(1.0), Some(3.0), Some(3.0), Some(3.0), Some(5.0), None, None, None, None, None, Some(6.0)];
        assert_eq!(points(&series), expected);
    }

    #[test]
    fn samples_that_go_back_in_time_are_counted_and_left_out() {
        let read = samples(&[(0, 1.0), (1000, 2.0), (1000, 9.0), (500, 9.0), (2000, 3.0)]);
        let series = Series::resampled(&read, None).unwrap();
        assert_eq!(points(&series), [Some(1.0), Some(2.0), Some(3.0)]);
        assert_eq!(series.left_out(), 2);
    }

    #[test]
    fn impossible_series_are_refused() {
        assert_eq!(Series::regular(Duration::ZERO, [Some(1.0)]).unwrap_err(), SeriesError::ZeroStep);
        assert_eq!(Series::resampled(&samples(&[(5, 1.0)]), None).unwrap_err(), SeriesError::UnknownStep);
        let far = samples(&[(0, 1.0), (u64::MAX / 2, 1.0)]);
        assert!(matches!(Series::resampled(&far, Some(Duration::from_nanos(1))), Err(SeriesError::TooLong { .. })));
        let long = Series::regular(SECOND, std::iter::repeat_n(None, MAX_POINTS + 5));
        assert!(matches!(long, Err(SeriesError::TooLong { .. })));
        assert!(Series::resampled(&[], Some(SECOND)).unwrap().is_empty());
    }

    #[test]
    fn a_coarser_series_has_the_means_of_what_was_measured() {
        let series = Series::regular(SECOND, [Some(1.0), None, None, None, Some(4.0)]).unwrap();
        let coarser = series.coarser(NonZeroUsize::new(2).unwrap());
        assert_eq!(points(&coarser), [Some(1.0), None, Some(4.0)]);
        assert_eq!(coarser.step(), SECOND * 2);
    }

    #[test]
    fn a_slice_never_goes_beyond_the_end() {
        let series = Series::regular(SECOND, [Some(1.0), Some(2.0), Some(3.0)]).unwrap();
        assert_eq!(points(&series.slice(1..9)), [Some(2.0), Some(3.0)]);
        assert!(series.slice(7..9).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_samples_make_a_long_series_or_values_that_are_not_finite(
            samples in proptest::collection::vec((0_u64..1 << 40, proptest::prelude::any::<f64>()), 0..60),
            in_order in proptest::prelude::any::<bool>(),
            step in proptest::option::of(0_u64..1 << 36),
        ) {
            let mut samples: Vec<Sample> =
                samples.into_iter().map(|(at, value)| Sample { at: Duration::from_nanos(at), value }).collect();
            if in_order {
                samples.sort_by_key(|sample| sample.at);
            }
            if let Ok(series) = Series::resampled(&samples, step.map(Duration::from_nanos)) {
                proptest::prop_assert!(series.len() <= MAX_POINTS && series.len() + series.left_out() >= samples.len().min(1));
                proptest::prop_assert!(series.iter().flatten().all(f64::is_finite) && !series.step().is_zero());
                proptest::prop_assert!(!in_order || series.left_out() < samples.len().max(1));
            }
        }
    }
}
