//! Goes through a series as if it were measured now: forecasts at each value, and learns from the values that come later.
//!
//! What must never happen here: a choice or an interval that depends on a value later than the forecast's own time.

use std::collections::VecDeque;

use super::members::{Members, cycle_steps};
use super::sorted_window::SortedWindow;
use super::{Forecast, HORIZONS_OF_HISTORY, MIN_HISTORY, Member, Replayed};
use crate::period::Period;
use crate::series::Series;

/// Share of a member's mean error that the next error leaves: the mean covers about 50 errors. On GPU duty and memory of
/// 95 pods 0.97 to 0.995 are within 2 % of each other, 0.95 is worse.
const REMEMBERED: f64 = 0.98;
/// Residuals that the interval comes from. Fewer are noisy, more outlast a change of the load.
const RESIDUALS: usize = 300;
/// Fewer residuals than these give no interval: the range of ten covers 82 %.
const MIN_RESIDUALS: usize = 10;
/// Share of the values on each side of a 90 % interval.
const OUTSIDE: f64 = 0.05;
/// How far one value moves the share that the interval leaves out on a side (adaptive conformal inference, Gibbs and Candès
/// 2021). Faster rates overshoot, because a forecast is judged one horizon later.
const ADAPTATION: f64 = 0.01;
/// A forecast of a long horizon is judged this often in a horizon. The residuals then cover ten horizons, and the interval
/// does not overshoot.
const JUDGED_IN_A_HORIZON: usize = 30;

/// A forecast whose value is not known yet.
#[derive(Debug)]
struct Pending {
    due: usize,
    members: [Option<f64>; 5],
    chosen: f64,
    interval: Option<(f64, f64)>,
}

/// Mean recent error of each member.
#[derive(Debug, Default)]
struct Errors([Option<f64>; 5]);

/// The residuals of the chosen forecasts, and the shares that the interval leaves out below and above.
#[derive(Debug)]
struct Interval {
    residuals: SortedWindow,
    below: f64,
    above: f64,
}

/// All forecasts that would have been made `horizon_steps` ahead, one at each measured point with enough history before it,
/// also at those whose outcome lies beyond the end. Takes O(n) time.
///
/// The history is enough with three horizons and 20 points, of which at most 20 % are gaps.
#[must_use]
pub fn replay(series: &Series, horizon_steps: usize, period: Option<&Period>) -> Vec<Replayed> {
    let values = series.values();
    let horizon = horizon_steps.max(1);
    let needed = horizon.saturating_mul(HORIZONS_OF_HISTORY).max(MIN_HISTORY);
    if values.len() < needed {
        return Vec::new();
    }
    let cycle = period.and_then(|period| cycle_steps(period.length, series.step()));
    let mut replay = Replay::new(horizon, cycle);
    let length = series.step().saturating_mul(u32::try_from(horizon).unwrap_or(u32::MAX));
    let mut measured = 0;
    let mut made = Vec::new();
    for (at, value) in values.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
        measured += 1;
        replay.judge(at, *value);
        let members = replay.add(*value, &values[..=at]);
        let Some((member, chosen)) = replay.errors.best(members) else { continue };
        let interval = replay.interval.around(chosen);
        replay.expect(at, Pending { due: at + horizon, members, chosen, interval });
        let enough = at + 1 >= needed && measured * 5 >= (at + 1) * 4;
        if let Some(interval) = interval.filter(|_| enough) {
            let forecast = Forecast { horizon: length, value: chosen, interval, member };
            made.push(Replayed { at, forecast, members });
        }
    }
    made
}

struct Replay {
    members: Members,
    judged_every: usize,
    pending: VecDeque<Pending>,
    errors: Errors,
    interval: Interval,
}

impl Replay {
    fn new(horizon: usize, cycle: Option<f64>) -> Self {
        Self {
            members: Members::new(horizon, cycle),
            judged_every: horizon.div_ceil(JUDGED_IN_A_HORIZON),
            pending: VecDeque::new(),
            errors: Errors::default(),
            interval: Interval { residuals: SortedWindow::new(RESIDUALS), below: OUTSIDE, above: OUTSIDE },
        }
    }

    /// Learns from the value at a point, if a forecast of it is pending. Forecasts of gaps are dropped.
    fn judge(&mut self, at: usize, value: f64) {
        while let Some(pending) = self.pending.pop_front_if(|pending| pending.due <= at) {
            if pending.due == at {
                self.errors.add(&pending.members, value);
                self.interval.add(&pending, value);
            }
        }
    }

    fn add(&mut self, value: f64, past: &[f64]) -> [Option<f64>; 5] {
        self.members.add(value);
        self.members.forecasts(past)
    }

    fn expect(&mut self, at: usize, pending: Pending) {
        if at.is_multiple_of(self.judged_every) {
            self.pending.push_back(pending);
        }
    }
}

impl Errors {
    fn add(&mut self, forecasts: &[Option<f64>; 5], value: f64) {
        for (mean, forecast) in self.0.iter_mut().zip(forecasts) {
            if let Some(forecast) = forecast {
                let error = (forecast - value).abs();
                *mean = Some(mean.map_or(error, |mean| REMEMBERED * mean + (1.0 - REMEMBERED) * error));
            }
        }
    }

    /// The member with the smallest error, and its forecast. Before the first error that is the last value.
    fn best(&self, forecasts: [Option<f64>; 5]) -> Option<(Member, f64)> {
        let error = |place: usize| self.0[place].unwrap_or(f64::MAX);
        let candidates = Member::ALL.into_iter().zip(forecasts).enumerate();
        let (_, member, forecast) = candidates
            .filter_map(|(place, (member, forecast))| forecast.map(|forecast| (place, member, forecast)))
            .min_by(|(one, ..), (other, ..)| error(*one).total_cmp(&error(*other)))?;
        Some((member, forecast))
    }
}

impl Interval {
    fn add(&mut self, pending: &Pending, value: f64) {
        if let Some((lower, upper)) = pending.interval {
            self.below = adapted(self.below, value < lower);
            self.above = adapted(self.above, value > upper);
        }
        self.residuals.push(value - pending.chosen);
    }

    /// The interval of a forecast; `None` with too few residuals. The residual to come counts as one more in the quantiles.
    fn around(&self, forecast: f64) -> Option<(f64, f64)> {
        let count = self.residuals.len();
        if count < MIN_RESIDUALS {
            return None;
        }
        let correction = (count as f64 + 1.0) / count as f64;
        let lower = self.residuals.lower_quantile(1.0 - (1.0 - self.below) * correction)?;
        let upper = self.residuals.upper_quantile((1.0 - self.above) * correction)?;
        Some((forecast + lower, forecast + upper))
    }
}

/// The share to leave out on a side, after a value that was outside or not. At most twice what is asked: a long quiet time,
/// in which no value is outside, must not make the next busy one begin with a narrow interval.
fn adapted(share: f64, outside: bool) -> f64 {
    let error = OUTSIDE - f64::from(u8::from(outside));
    (share + ADAPTATION * error).clamp(0.0, 2.0 * OUTSIDE)
}
