//! What the search works on: the values with gaps bridged, outliers clipped, without their straight line, at several
//! resolutions.
//!
//! What must never happen here: one huge value that decides alone. So values are clipped before anything is summed.

/// Resolutions end here: a coarser one has too few points for four cycles.
const FEWEST_POINTS: usize = 32;

/// Values at each end that do not count for the usual range: with three peaks there are no four cycles.
const FEWEST_OUTSIDE: usize = 3;

/// In long series one value in this many at each end does not count: pulses that take less of the time than that are cut to the
/// size of the noise.
const ONE_OUTSIDE_IN: usize = 400;

/// At most one value in this many is outside at each end.
const MOST_OUTSIDE: usize = 16;

/// A value may lie outside of the usual range by this share of it.
const CLIP_BEYOND: f64 = 0.5;

/// A series at several resolutions.
#[derive(Debug)]
pub(super) struct Signal {
    /// The first level has a point between each two values, so that a short cycle can begin there. The second one has the values,
    /// and each further one half as many points as the one before it: the means of two.
    levels: Vec<Vec<f32>>,
}

impl Signal {
    /// `None` if all values are equal. A gap is NaN.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let (low, high) = usual_range(values)?;
        let mut points = bridged(values, low, high);
        straighten(&mut points);
        if !normalize(&mut points) {
            return None;
        }
        let mut levels = vec![doubled(&points), points];
        while let Some(finest) = levels.last().filter(|finest| finest.len() >= 2 * FEWEST_POINTS) {
            let halved = finest.chunks_exact(2).map(|pair| (pair[0] + pair[1]) * 0.5).collect();
            levels.push(halved);
        }
        Some(Self { levels })
    }

    /// The values at full resolution: mean 0, variance 1.
    pub(super) fn finest(&self) -> &[f32] {
        self.level(1)
    }

    /// The level at which `length` samples take at least `points` points and less than twice as many; the first level if it
    /// has fewer.
    pub(super) fn level_for(&self, length: f64, points: f64) -> usize {
        let mut level = 0;
        let mut taken = length / samples_per_point(level);
        while taken >= 2.0 * points && level + 1 < self.levels.len() {
            taken *= 0.5;
            level += 1;
        }
        level
    }

    /// The points of a level.
    pub(super) fn level(&self, level: usize) -> &[f32] {
        self.levels.get(level).map_or(&[], Vec::as_slice)
    }
}

/// The distance of two points of a level in samples.
pub(super) fn samples_per_point(level: usize) -> f64 {
    (1_u64 << level.min(63)) as f64 / 2.0
}

/// The points, and the mean of neighbours between them.
fn doubled(points: &[f32]) -> Vec<f32> {
    let mut doubled = Vec::with_capacity(2 * points.len());
    for (index, point) in points.iter().enumerate() {
        let next = points.get(index + 1).unwrap_or(point);
        doubled.extend([*point, (point + next) * 0.5]);
    }
    doubled
}

/// The range to which values are clipped; `None` if all are equal.
fn usual_range(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    let outside = (sorted.len() / ONE_OUTSIDE_IN).max(FEWEST_OUTSIDE).min(sorted.len() / MOST_OUTSIDE);
    // If all values are equal but a few, these few are all that there is.
    for outside in [outside, 0] {
        let top = sorted.len().checked_sub(1 + outside)?;
        let low = *sorted.select_nth_unstable_by(outside, f64::total_cmp).1;
        let high = *sorted.select_nth_unstable_by(top, f64::total_cmp).1;
        let margin = CLIP_BEYOND * (high - low);
        if margin > 0.0 {
            return Some((low - margin, high + margin));
        }
    }
    None
}

/// The values clipped to a range and scaled to 0..1; a gap becomes a straight line between its neighbours.
fn bridged(values: &[f64], low: f64, high: f64) -> Vec<f32> {
    let scaled = |value: &f64| ((value.clamp(low, high) - low) / (high - low)) as f32;
    let mut points: Vec<f32> = values.iter().map(scaled).collect();
    let mut last: Option<usize> = None;
    for index in 0..points.len() {
        if points[index].is_nan() {
            continue;
        }
        let from = last.map_or(0, |last| last + 1);
        if from < index {
            let end = points[index];
            let start = last.map_or(end, |last| points[last]);
            let steps = (index - from + 1) as f32;
            for (passed, point) in points[from..index].iter_mut().enumerate() {
                *point = start + (end - start) * (passed + 1) as f32 / steps;
            }
        }
        last = Some(index);
    }
    if let Some(last) = last {
        let value = points[last];
        points[last + 1..].fill(value);
    }
    points
}

/// Takes the line of least squares off.
fn straighten(points: &mut [f32]) {
    let count = points.len() as f64;
    let middle = (count - 1.0) / 2.0;
    let mut sum = 0.0;
    let mut moment = 0.0;
    for (index, point) in points.iter().enumerate() {
        sum += f64::from(*point);
        moment += (index as f64 - middle) * f64::from(*point);
    }
    let spread = count * (count * count - 1.0) / 12.0;
    let slope = if spread > 0.0 { moment / spread } else { 0.0 };
    let mean = sum / count;
    for (index, point) in points.iter_mut().enumerate() {
        *point -= (mean + slope * (index as f64 - middle)) as f32;
    }
}

/// Scales to variance 1; `false` if there is none.
fn normalize(points: &mut [f32]) -> bool {
    let squares: f64 = points.iter().map(|point| f64::from(*point) * f64::from(*point)).sum();
    let deviation = (squares / points.len().max(1) as f64).sqrt();
    // Rounding leaves about 1e-7 of values that were 0..1; a straight line is no load.
    if deviation.is_nan() || deviation < 1e-5 {
        return false;
    }
    let scale = (1.0 / deviation) as f32;
    points.iter_mut().for_each(|point| *point *= scale);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_huge_value_is_cut_to_the_size_of_the_others() {
        let mut values: Vec<f64> = (0_u32..100).map(|index| f64::from(index % 7)).collect();
        values[50] = 1e12;
        let signal = Signal::of(&values).unwrap();
        assert!(signal.finest().iter().all(|point| point.abs() < 4.5), "{:?}", signal.finest());
    }

    #[test]
    fn rare_pulses_are_kept() {
        let signal = Signal::of(&(0_u32..400).map(|index| f64::from(u8::from(index % 100 == 3))).collect::<Vec<_>>());
        let high = signal.unwrap().finest().iter().filter(|point| **point > 3.0).count();
        assert_eq!(high, 4);
    }

    #[test]
    fn equal_values_and_a_straight_line_have_no_shape() {
        assert!(Signal::of(&[5.0; 50]).is_none());
        assert!(Signal::of(&[f64::NAN; 50]).is_none());
        assert!(Signal::of(&(0_u32..50).map(f64::from).collect::<Vec<_>>()).is_none());
    }

    #[test]
    fn a_level_has_enough_points_for_a_cycle() {
        let signal = Signal::of(&(0_u32..1024).map(|index| f64::from(index % 100)).collect::<Vec<_>>()).unwrap();
        for (length, level) in [(4.0, 0), (15.0, 0), (31.0, 1), (32.0, 2), (100.0, 3), (1e9, 6)] {
            assert_eq!(signal.level_for(length, 16.0), level, "{length}");
        }
        assert_eq!((signal.level(0).len(), signal.level(1).len(), signal.level(3).len()), (2048, 1024, 256));
    }
}
