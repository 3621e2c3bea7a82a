//! An upper bound of the next window's maximum, from the maxima of the windows before it.
//!
//! What must never happen here: a bound that depends on a value later than its own time.

use std::collections::VecDeque;

use super::sorted_window::SortedWindow;
use crate::series::Series;

/// The maxima of windows that ended within this many horizons. On GPU duty and memory of 95 pods, 13 % of the maxima exceed
/// bounds for 0.9 with three horizons. With ten, the bounds keep busy hours for long and reserve 16 % more memory.
const REMEMBERED_HORIZONS: usize = 6;
/// A bound needs this many horizons of history.
const HORIZONS_OF_HISTORY: usize = 4;
/// Windows that begin within one horizon. They overlap, so more say little.
const WINDOWS_IN_A_HORIZON: usize = 64;
/// The overlapping windows of six horizons count as this many independent ones, two a horizon: then 9 to 10 % of the maxima
/// exceed their bounds for 0.9 in both recordings, and 13 % in independent values.
const INDEPENDENT_WINDOWS: f64 = 12.0;

/// The first point that the bound at the end of a series of `len` points depends on, or one a little before it.
pub(super) fn first_needed(len: usize, horizon: usize) -> usize {
    let start = len.saturating_sub(horizon.saturating_mul(REMEMBERED_HORIZONS + 2));
    start - start % horizon.div_ceil(WINDOWS_IN_A_HORIZON)
}

/// Each point at which a bound would have been given for the next `horizon_steps` values, and the bound: at each measured
/// point after four horizons of which at most 20 % are gaps. Takes O(n) time.
///
/// The next maximum counts as one more in the quantile (split conformal prediction), which matters because few of the
/// remembered maxima are independent. A window with more than 20 % gaps does not count, and without at least half of
/// the windows of four horizons there is no bound. Empty if the quantile is not between 0 and 1.
#[must_use]
pub fn replay_maximum(series: &Series, horizon_steps: usize, quantile: f64) -> Vec<(usize, f64)> {
    let values = series.values();
    let horizon = horizon_steps.max(1);
    let history = horizon.saturating_mul(HORIZONS_OF_HISTORY);
    if values.len() < history || !(quantile > 0.0 && quantile < 1.0) {
        return Vec::new();
    }
    let stride = horizon.div_ceil(WINDOWS_IN_A_HORIZON);
    let mut maxima = SortedWindow::new((horizon * REMEMBERED_HORIZONS).div_ceil(stride));
    let least = (horizon * (HORIZONS_OF_HISTORY - 1) / stride / 2).max(1);
    let mut window = Window::new(horizon);
    let level = quantile * (INDEPENDENT_WINDOWS + 1.0) / INDEPENDENT_WINDOWS;
    let mut measured = 0;
    let mut bounds = Vec::new();
    for (at, value) in values.iter().enumerate() {
        window.add(at, *value);
        measured += usize::from(!value.is_nan());
        if (at + 1).is_multiple_of(stride)
            && at + 1 >= horizon
            && let Some(maximum) = window.maximum()
        {
            maxima.push(maximum);
        }
        if at + 1 >= history
            && !value.is_nan()
            && measured * 5 >= (at + 1) * 4
            && maxima.len() >= least
            && let Some(bound) = maxima.upper_quantile(level)
        {
            bounds.push((at, bound));
        }
    }
    bounds
}

/// The newest `length` points.
struct Window {
    length: usize,
    measured: VecDeque<usize>,
    /// Points whose value is larger than all later ones: places and values, the largest first.
    largest: VecDeque<(usize, f64)>,
}

impl Window {
    fn new(length: usize) -> Self {
        Self { length, measured: VecDeque::new(), largest: VecDeque::new() }
    }

    fn add(&mut self, at: usize, value: f64) {
        while self.measured.pop_front_if(|place| *place + self.length <= at).is_some() {}
        while self.largest.pop_front_if(|(place, _)| *place + self.length <= at).is_some() {}
        if !value.is_nan() {
            while self.largest.pop_back_if(|(_, smaller)| *smaller <= value).is_some() {}
            self.measured.push_back(at);
            self.largest.push_back((at, value));
        }
    }

    /// The largest value; `None` if more than 20 % of the points are gaps.
    fn maximum(&self) -> Option<f64> {
        let largest = self.largest.front().map(|(_, value)| *value);
        largest.filter(|_| self.measured.len() * 5 >= self.length * 4)
    }
}
