//! Lengths that are worth a closer look: maxima of the autocorrelation that stand out from the minima beside them.
//!
//! The lags are looked at in a grid that becomes coarser with them, in steps of 1.5 to 3 %: cycles vary more than that. So the
//! cost does not depend on how long the series is.

/// Points of the grid between a lag and its double.
const PER_DOUBLING: usize = 32;

/// A maximum stands out by at least this. The smallest of a periodic load with jitter of 10 % is about 0.3.
const LEAST_PROMINENCE: f32 = 0.12;

/// A multiple of a shorter length must stand out by this factor more, else the shorter length explains it.
const CLEARLY_BETTER: f32 = 1.25;

/// Candidates at most: each costs time, and the period was among the first five in all series of the bench.
const MOST: usize = 8;

/// A length that may be the period.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// In samples.
    pub(super) length: f64,
    /// Height above the higher one of the minima beside it: up to 2.
    pub(super) prominence: f32,
}

/// One lag of the grid, and the mean of the autocorrelation around it.
#[derive(Clone, Copy)]
struct Point {
    lag: usize,
    value: f32,
}

/// The maxima of the autocorrelation between `shortest` and `longest` samples, the most prominent first.
pub(super) fn candidates(correlation: &[f32], shortest: usize, longest: usize) -> Vec<Candidate> {
    let grid = grid(correlation);
    let mut found: Vec<Candidate> = Vec::new();
    for index in 1..grid.len().saturating_sub(1) {
        let lag = grid[index].lag;
        if lag < shortest || lag > longest || !is_peak(&grid, index) {
            continue;
        }
        let prominence = prominence(&grid, index);
        if prominence < LEAST_PROMINENCE || explained(&found, lag, prominence) {
            continue;
        }
        found.push(Candidate { length: vertex(&grid, index), prominence });
    }
    found.sort_by(|one, other| other.prominence.total_cmp(&one.prominence));
    found.truncate(MOST);
    found
}

fn grid(correlation: &[f32]) -> Vec<Point> {
    let mut sums = Vec::with_capacity(correlation.len() + 1);
    let mut sum = 0.0_f64;
    sums.push(sum);
    for value in correlation {
        sum += f64::from(*value);
        sums.push(sum);
    }
    let mut points = Vec::new();
    let mut lag = 1;
    while lag < correlation.len() {
        let reach = lag / 16;
        let from = lag - reach;
        let to = (lag + reach).min(correlation.len() - 1);
        let value = (sums[to + 1] - sums[from]) / (to + 1 - from) as f64;
        points.push(Point { lag, value: value as f32 });
        lag += (lag / PER_DOUBLING).max(1);
    }
    points
}

/// Whether no value within 8 % is higher.
fn is_peak(grid: &[Point], index: usize) -> bool {
    let Point { lag, value } = grid[index];
    if grid[index - 1].value > value || grid[index + 1].value >= value {
        return false;
    }
    let reach = lag * 2 / 25;
    let before = grid[..index].iter().rev().take_while(|point| point.lag + reach >= lag);
    let after = grid[index + 1..].iter().take_while(|point| point.lag <= lag + reach);
    before.chain(after).all(|point| point.value <= value)
}

/// Height above the higher one of the minima on both sides, from 0.4 to 1.6 times the lag.
fn prominence(grid: &[Point], index: usize) -> f32 {
    let Point { lag, value } = grid[index];
    let before = grid[..index].iter().rev().take_while(|point| point.lag * 5 >= lag * 2).map(|point| point.value);
    let after = grid[index + 1..].iter().take_while(|point| point.lag * 5 <= lag * 8).map(|point| point.value);
    value - before.fold(f32::MAX, f32::min).max(after.fold(f32::MAX, f32::min))
}

/// Whether a shorter candidate explains a maximum at its multiple.
fn explained(found: &[Candidate], lag: usize, prominence: f32) -> bool {
    found.iter().any(|shorter| {
        let ratio = lag as f64 / shorter.length;
        let multiple = ratio.round();
        multiple >= 2.0
            && (ratio - multiple).abs() <= 0.06 * multiple
            && prominence < CLEARLY_BETTER * shorter.prominence
    })
}

/// The top of the parabola through a maximum and its neighbours.
fn vertex(grid: &[Point], index: usize) -> f64 {
    let (left, middle, right) = (grid[index - 1], grid[index], grid[index + 1]);
    let curve = left.value - 2.0 * middle.value + right.value;
    let shift = if curve < 0.0 { (0.5 * (left.value - right.value) / curve).clamp(-0.5, 0.5) } else { 0.0 };
    let step = (right.lag - middle.lag) as f64;
    middle.lag as f64 + f64::from(shift) * step
}
