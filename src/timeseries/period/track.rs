//! Follows cycles of about one length through a signal: each may begin a fifth of the length earlier or later than expected,
//! where it fits best to the mean of the cycles before it.
//!
//! Load does not keep time: the length of cycles varies by 2 to 15 % (measured on training jobs), so a fold without
//! tracking loses the phase after a few cycles.
//!
//! What must never happen here: an allocation for each cycle, or time beyond O(points).

/// How far a start may be from where it is expected, in lengths: twice the standard deviation of cycles that vary by 10 %, as the
/// most variable ones of the bench do.
const REACH: f64 = 0.2;

/// Cost of a start at the end of the reach, in variances of the signal: noise alone moves a start less far.
const AWAY: f32 = 0.1;

/// A reach of fewer points costs less: one point is then a large part of it.
const FREE: f64 = 3.0;

/// The length of the first pass is corrected by at most this share of it.
const MOST_CORRECTION: f64 = 0.1;

/// The mean cycle has about this memory: it follows a load that changes slowly, and one odd cycle does not spoil it.
const MEMORY: usize = 5;

/// A cycle at the end counts if at least this share of it is there.
const LEAST_OF_LAST: f64 = 0.75;

/// Longest pause that is skipped, in lengths.
const LONGEST_PAUSE: f64 = 5.0;

/// A cycle that fits worse than this share of the signal's variance may be the start of a pause. Noise of 6 dB is 0.20 of the variance,
/// so a cycle is 0.24 away from the mean of five cycles; a pause is flat, so at least 1 away.
const MISFIT: f32 = 0.5;

/// The cycle after the pause must fit better by this factor.
const CLEARLY_BETTER: f32 = 0.5;

/// Where a cycle begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Start {
    /// In points of the level.
    pub(super) at: f64,
    /// Whether a pause lies between the cycle before and this one.
    pub(super) after_pause: bool,
}

/// Buffers that are used again for each candidate.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    template: Vec<f32>,
    costs: Vec<f32>,
    pub(super) starts: Vec<Start>,
}

/// Places where a cycle may begin.
#[derive(Debug, Clone, Copy)]
struct Places {
    middle: f64,
    /// How far they are from the middle.
    reach: f64,
    /// Cost of a place at the end of the reach, beside one in the middle.
    away: f32,
}

/// How cycles are followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    /// Expected length in points.
    pub(super) length: f64,
    /// Whether pauses are skipped.
    pub(super) pauses: bool,
}

impl Tracker {
    /// Follows the cycles from the start, first with the first cycle as the template, then with the mean of all.
    pub(super) fn follow(&mut self, points: &[f32], rule: Rule) {
        let size = rule.length.round().max(2.0) as usize;
        self.starts.clear();
        if points.len() < 2 * size {
            return;
        }
        self.template.clear();
        self.template.extend_from_slice(&points[..size]);
        self.pass(points, rule, 1);
        self.template_of_all(points, size);
        let correction = MOST_CORRECTION * rule.length;
        let length = self.mean_length().unwrap_or(rule.length);
        let length = length.clamp(rule.length - correction, rule.length + correction);
        self.pass(points, Rule { length, ..rule }, MEMORY);
    }

    /// Mean length of the cycles that no pause follows; `None` without one.
    pub(super) fn mean_length(&self) -> Option<f64> {
        let mut sum = 0.0;
        let mut count = 0_u32;
        for pair in self.starts.windows(2).filter(|pair| !pair[1].after_pause) {
            sum += pair[1].at - pair[0].at;
            count += 1;
        }
        (count > 0).then(|| sum / f64::from(count))
    }

    /// One pass with a template that already stands for `weight` cycles.
    fn pass(&mut self, points: &[f32], rule: Rule, weight: usize) {
        let size = self.template.len();
        let least = ((LEAST_OF_LAST * rule.length).ceil() as usize).clamp(1, size);
        let last = points.len() - least;
        self.starts.clear();
        self.starts.push(Start { at: 0.0, after_pause: false });
        let mut at = 0.0;
        let mut seen = weight;
        loop {
            let expected = at + rule.length;
            let reach = (REACH * rule.length).max(1.0);
            let near = Places { middle: expected, reach, away: AWAY };
            let Some((mut found, cost)) = self.best(points, near, last) else { return };
            let mut after_pause = false;
            if rule.pauses && cost > MISFIT {
                let half = (LONGEST_PAUSE * rule.length - reach) / 2.0;
                let later = Places { middle: expected + reach + half, reach: half, away: 0.0 };
                let beyond = self.best(points, later, last).filter(|(_, fits)| *fits < CLEARLY_BETTER * cost);
                if let Some((beyond, _)) = beyond {
                    found = beyond;
                    after_pause = true;
                }
            }
            self.starts.push(Start { at: found, after_pause });
            seen = (seen + 1).min(MEMORY);
            self.blend(points, found, seen);
            at = found;
        }
    }

    /// Where the template fits best, and the mean squared distance there.
    fn best(&mut self, points: &[f32], places: Places, last: usize) -> Option<(f64, f32)> {
        let Places { middle, reach, away } = places;
        let from = (middle - reach).ceil().max(0.0) as usize;
        let to = ((middle + reach).floor().max(0.0) as usize).min(last);
        if from > to {
            return None;
        }
        self.costs.clear();
        let mut best = 0;
        for place in from..=to {
            let there = &points[place..points.len().min(place + self.template.len())];
            let share = ((place as f64 - middle) / reach.max(FREE)) as f32;
            let cost = squared_distance(there, &self.template) / there.len() as f32 + away * share * share;
            self.costs.push(cost);
            if cost < self.costs[best] {
                best = place - from;
            }
        }
        // At the last place that leaves room for a cycle, a better one lies beyond: the cycle there is not complete.
        if from + best == last {
            return None;
        }
        let cost = self.costs[best];
        Some(((from + best) as f64 + self.vertex(best), cost))
    }

    /// The minimum between the places, from the parabola through three costs.
    fn vertex(&self, best: usize) -> f64 {
        let (Some(left), Some(right)) = (best.checked_sub(1).map(|index| self.costs[index]), self.costs.get(best + 1))
        else {
            return 0.0;
        };
        let curve = left - 2.0 * self.costs[best] + right;
        if curve > 0.0 { f64::from((0.5 * (left - right) / curve).clamp(-0.5, 0.5)) } else { 0.0 }
    }

    fn blend(&mut self, points: &[f32], at: f64, seen: usize) {
        let place = at.round().max(0.0) as usize;
        let share = 1.0 / seen as f32;
        for (mean, point) in self.template.iter_mut().zip(&points[place.min(points.len())..]) {
            *mean += (point - *mean) * share;
        }
    }

    fn template_of_all(&mut self, points: &[f32], size: usize) {
        self.template.clear();
        self.template.resize(size, 0.0);
        let mut count = 0_u32;
        for start in &self.starts {
            let place = start.at.round().max(0.0) as usize;
            let Some(cycle) = points.get(place..place + size) else { continue };
            self.template.iter_mut().zip(cycle).for_each(|(sum, point)| *sum += point);
            count += 1;
        }
        let share = 1.0 / count.max(1) as f32;
        self.template.iter_mut().for_each(|sum| *sum *= share);
    }
}

/// Sum of squared differences over the common length, in eight lanes so that the compiler uses vector instructions.
fn squared_distance(one: &[f32], other: &[f32]) -> f32 {
    let length = one.len().min(other.len());
    let (one, other) = (&one[..length], &other[..length]);
    let mut lanes = [0.0_f32; 8];
    let (ones, others) = (one.chunks_exact(8), other.chunks_exact(8));
    let rest: f32 =
        ones.remainder().iter().zip(others.remainder()).map(|(one, other)| (one - other) * (one - other)).sum();
    for (one, other) in ones.zip(others) {
        for (lane, (one, other)) in lanes.iter_mut().zip(one.iter().zip(other)) {
            *lane += (one - other) * (one - other);
        }
    }
    lanes.iter().sum::<f32>() + rest
}
