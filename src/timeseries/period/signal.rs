//! What the search works on: the values with gaps bridged, outliers clipped, without their straight line, at several
//! resolutions.
//!
//! What must never happen here: one huge value that decides alone. So values are clipped before anything is summed.

/// Resolutions end here: a coarser one has too few points for four cycles.
const FEWEST_POINTS: usize = 32;

/// A value may lie this many times the middle range (of nine tenths of the values) outside of that range. Pulses that take a
/// twentieth of the time keep their height so; a single peak is cut to the size of the noise around it.
const CLIP_BEYOND: f32 = 1.0;

/// A series at halved resolutions.
#[derive(Debug)]
pub(super) struct Signal {
    /// Each level has half as many points as the one before it: the means of two.
    levels: Vec<Vec<f32>>,
}

impl Signal {
    /// `None` if all values are equal. A gap is NaN.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let (lowest, highest) = values
            .iter()
            .filter(|value| !value.is_nan())
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
        let range = highest - lowest;
        if range.is_nan() || range <= 0.0 {
            return None;
        }
        let mut points = bridged(values, lowest, range);
        clip(&mut points);
        straighten(&mut points);
        if !normalize(&mut points) {
            return None;
        }
        let mut levels = vec![points];
        while let Some(finest) = levels.last().filter(|finest| finest.len() >= 2 * FEWEST_POINTS) {
            let halved = finest.chunks_exact(2).map(|pair| (pair[0] + pair[1]) * 0.5).collect();
            levels.push(halved);
        }
        Some(Self { levels })
    }

    /// The values at full resolution: mean 0, variance 1.
    pub(super) fn finest(&self) -> &[f32] {
        &self.levels[0]
    }

    /// The level at which `length` samples take at least `points` points and less than twice as many; the finest level if it
    /// has fewer.
    pub(super) fn level_for(&self, length: f64, points: f64) -> usize {
        let mut level = 0;
        let mut taken = length;
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

/// The values scaled to 0..1; a gap becomes a straight line between its neighbours.
fn bridged(values: &[f64], lowest: f64, range: f64) -> Vec<f32> {
    let mut points: Vec<f32> = values.iter().map(|value| ((value - lowest) / range) as f32).collect();
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

/// Clips values far outside of the range that nine tenths of them have.
fn clip(points: &mut [f32]) {
    let mut sorted = points.to_vec();
    for tail in [20, 100, 500] {
        let outside = sorted.len() / tail;
        let low = *sorted.select_nth_unstable_by(outside, f32::total_cmp).1;
        let top = sorted.len() - 1 - outside;
        let high = *sorted.select_nth_unstable_by(top, f32::total_cmp).1;
        // Pulses that are rarer than the tail leave no range: a smaller tail has them.
        if high > low {
            let margin = CLIP_BEYOND * (high - low);
            for point in points.iter_mut() {
                *point = point.clamp(low - margin, high + margin);
            }
            return;
        }
    }
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
