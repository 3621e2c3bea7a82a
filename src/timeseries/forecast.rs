//! Forecasts of a series, chosen online among simple ones, and the maximum that the next time will bring.
//!
//! ```text
//!   values ─Members─▶ five forecasts ─own recent errors─▶ choice ─residuals of the choice─▶ 90 % interval
//!   values ─▶ maxima of past windows ─upper quantile─▶ maximum of the next window
//! ```
//!
//! Each forecast is what the same replay would have said at that time: it depends on no later value.
//!
//! What must never happen here: a forecast from values that are not measured, or a value that is not finite.

mod maximum;
mod members;
mod replay;
mod sorted_window;

use std::time::Duration;

use crate::period::Period;
use crate::series::Series;

pub use maximum::replay_maximum;
pub use replay::replay;

/// The fewest values before the first forecast.
const MIN_HISTORY: usize = 20;
/// A forecast needs this many times its horizon as history.
const HORIZONS_OF_HISTORY: usize = 3;
/// Values that [`forecast`] replays at least, and as a multiple of the horizon. More change little: the interval remembers
/// ten horizons or 300 values, the choice and the members less.
const REPLAYED_VALUES: usize = 1024;
const REPLAYED_HORIZONS: usize = 16;

/// One of the simple forecasts among which [`forecast`] chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    /// The last value.
    LastValue,
    /// Simple exponential smoothing.
    Smoothed,
    /// The median of the last 120 values.
    Median,
    /// Holt's linear trend, damped.
    DampedTrend,
    /// The value at the same phase of the last cycle.
    Seasonal,
}

/// The value that a series will have after a horizon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// How far ahead.
    pub horizon: Duration,
    /// The forecast value, in the unit of the series. [`forecast`] gives one within the interval.
    pub value: f64,
    /// 90 % interval of the value.
    pub interval: (f64, f64),
    /// The member whose forecast this is.
    pub member: Member,
}

/// The largest value that a series will have within a horizon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Maximum {
    /// How far ahead.
    pub horizon: Duration,
    /// The maximum stays below `value` with this probability.
    pub quantile: f64,
    /// The upper bound, in the unit of the series.
    pub value: f64,
}

/// A forecast of the past.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Replayed {
    /// The point of the series at which the forecast was made.
    pub at: usize,
    /// The forecast.
    pub forecast: Forecast,
    /// What each member forecast, in the order of [`Member::ALL`]. `None`: the member had no value.
    pub members: [Option<f64>; 5],
}

impl Member {
    /// All members. Of equal errors the first one is chosen.
    pub const ALL: [Self; 5] = [Self::LastValue, Self::Smoothed, Self::Median, Self::DampedTrend, Self::Seasonal];

    /// The name in output for people and programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LastValue => "last-value",
            Self::Smoothed => "smoothed",
            Self::Median => "median",
            Self::DampedTrend => "damped-trend",
            Self::Seasonal => "seasonal",
        }
    }
}

/// Forecasts the value after each of the horizons, each rounded to whole steps of the series.
///
/// At each value of the past all members made their forecasts. The one with the smallest recent error makes the forecast,
/// and its recent errors give the interval. `None` where the horizon is shorter than half a step, the newest value is a gap,
/// more than 20 % of the values are gaps, or the history is shorter than three horizons or 20 values. Takes time in
/// proportion to the horizon.
#[must_use]
pub fn forecast(series: &Series, horizons: &[Duration], period: Option<&Period>) -> Vec<Option<Forecast>> {
    horizons.iter().map(|horizon| forecast_one(series, *horizon, period)).collect()
}

fn forecast_one(series: &Series, horizon: Duration, period: Option<&Period>) -> Option<Forecast> {
    let steps = steps_of(series, horizon)?;
    let replayed = steps.saturating_mul(REPLAYED_HORIZONS).max(REPLAYED_VALUES);
    let newest = series.slice(series.len().saturating_sub(replayed)..series.len());
    let last = replay(&newest, steps, period).pop()?;
    // A member that lags behind a load that rises has erred in one direction only. Then its value is outside of the interval that
    // follows from its errors, and the nearest end of the interval is the better forecast.
    let Forecast { value, interval: (low, high), .. } = last.forecast;
    (last.at + 1 == newest.len()).then_some(Forecast { horizon, value: value.max(low).min(high), ..last.forecast })
}

/// An upper bound of the values within the next `horizon`, which is rounded to whole steps of the series: their maximum
/// stays below it with probability `quantile`.
///
/// `None` where the quantile is not between 0 and 1, the horizon is shorter than half a step, the newest value is a gap, too
/// many values are gaps, or the history is shorter than four horizons. Takes time in proportion to the horizon.
#[must_use]
pub fn next_maximum(series: &Series, horizon: Duration, quantile: f64) -> Option<Maximum> {
    let steps = steps_of(series, horizon)?;
    let newest = series.slice(maximum::first_needed(series.len(), steps)..series.len());
    let (at, value) = replay_maximum(&newest, steps, quantile).pop()?;
    (at + 1 == newest.len()).then_some(Maximum { horizon, quantile, value })
}

/// The horizon in whole steps; `None` if that is no step or more steps than the series has.
fn steps_of(series: &Series, horizon: Duration) -> Option<usize> {
    let step = series.step().as_nanos();
    let steps = horizon.as_nanos().checked_add(step / 2)?.checked_div(step)?;
    usize::try_from(steps).ok().filter(|steps| (1..=series.len()).contains(steps))
}

#[cfg(test)]
mod tests;
