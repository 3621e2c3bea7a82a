//! Lengths that are worth a closer look: maxima of the autocorrelation that stand out from the minima beside them.
//!
//! The lags are looked at in a grid that becomes coarser with them, in steps of 1.5 to 3 %: cycles vary more than that. So the
//! cost does not depend on how long the series is.

use std::ops::RangeInclusive;

/// Points of the grid between a lag and its double.
const PER_DOUBLING: usize = 32;

/// A maximum stands out by at least this. The day in a year of the temperature of a room has 0.065.
const LEAST_PROMINENCE: f32 = 0.03;

/// A multiple of a shorter length must stand out by this factor more, else the shorter length explains it.
const CLEARLY_BETTER: f32 = 1.25;

/// Candidates at most: each costs the time of one to three folds.
const MOST: usize = 8;

/// A length that may be the period.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// In samples.
    pub(super) length: f64,
    /// Height above the higher one of the minima beside it: up to 2.
    pub(super) prominence: f32,
    /// The highest autocorrelation at this lag, without the mean over neighbours.
    height: f32,
}

/// One lag of the grid, and the mean of the autocorrelation around it.
#[derive(Clone, Copy)]
struct Point {
    lag: usize,
    value: f32,
}

/// The maxima of the autocorrelation up to `longest` samples, the most prominent first.
pub(super) fn candidates(correlation: &[f32], longest: usize) -> Vec<Candidate> {
    let grid = grid(correlation);
    let mut found: Vec<Candidate> = Vec::new();
    for index in 1..grid.len().saturating_sub(1) {
        let lag = grid[index].lag;
        if lag > longest || !is_peak(&grid, index) {
            continue;
        }
        let Some((length, prominence)) = peak(&grid, index) else { continue };
        let height = correlation[around(lag, correlation.len())].iter().copied().fold(0.0, f32::max);
        let candidate = Candidate { length, prominence, height };
        if prominence >= LEAST_PROMINENCE && !is_explained(&found, candidate) {
            found.retain(|other| !is_same(*other, candidate) || other.prominence > prominence);
            if !found.iter().any(|other| is_same(*other, candidate)) {
                found.push(candidate);
            }
        }
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
        let (from, to) = around(lag, correlation.len()).into_inner();
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

/// The lag of a maximum, and its height above the higher one of the minima on both sides, from 0.4 to 1.6 times its lag.
///
/// In a series that drifts the autocorrelation falls with the lag, which moves a maximum to shorter lags. So the lag is that of the
/// maximum above the line through both minima.
fn peak(grid: &[Point], index: usize) -> Option<(f64, f32)> {
    let Point { lag, value } = grid[index];
    let lower = |one: &Point, other: &Point| one.value.total_cmp(&other.value);
    let before = grid[..index].iter().rev().take_while(|point| point.lag * 5 >= lag * 2).copied().min_by(lower)?;
    let after = grid[index + 1..].iter().take_while(|point| point.lag * 5 <= lag * 8).copied().min_by(lower)?;
    let slope = (after.value - before.value) / (after.lag - before.lag) as f32;
    let above = |point: &Point| point.value - slope * point.lag as f32;
    let is_near =
        |index: &usize| grid.get(*index).is_some_and(|point| point.lag * 20 >= lag * 17 && point.lag * 20 <= lag * 23);
    let first = (0..=index).rev().take_while(is_near).last()?;
    let top = (first..).take_while(is_near).max_by(|one, other| above(&grid[*one]).total_cmp(&above(&grid[*other])))?;
    let neighbours = top.checked_sub(1).and_then(|left| Some((grid.get(left)?, grid.get(top + 1)?)));
    let shift = neighbours.map_or(0.0, |(left, right)| vertex(above(left), above(&grid[top]), above(right)));
    let step = (grid.get(top + 1).map_or(grid[top].lag, |right| right.lag) - grid[top].lag) as f64;
    Some((grid[top].lag as f64 + shift * step, value - before.value.max(after.value)))
}

/// Whether tracking finds the same cycles with both lengths.
fn is_same(one: Candidate, other: Candidate) -> bool {
    (one.length / other.length - 1.0).abs() < 0.08
}

/// Whether a shorter candidate explains a maximum at its multiple.
fn is_explained(found: &[Candidate], candidate: Candidate) -> bool {
    found.iter().any(|shorter| {
        let ratio = candidate.length / shorter.length;
        let multiple = ratio.round();
        let is_multiple = multiple >= 2.0 && (ratio - multiple).abs() <= (0.06 * multiple).min(0.3);
        let is_better = candidate.prominence >= CLEARLY_BETTER * shorter.prominence
            || candidate.height >= CLEARLY_BETTER * shorter.height;
        is_multiple && !is_better
    })
}

/// The lags whose mean stands for one of the grid.
fn around(lag: usize, end: usize) -> RangeInclusive<usize> {
    lag - lag / 16..=(lag + lag / 16).min(end - 1)
}

/// Where the top of the parabola through three equidistant values is, in distances from the middle one.
fn vertex(left: f32, middle: f32, right: f32) -> f64 {
    let curve = left - 2.0 * middle + right;
    if curve < 0.0 { f64::from((0.5 * (left - right) / curve).clamp(-0.5, 0.5)) } else { 0.0 }
}
