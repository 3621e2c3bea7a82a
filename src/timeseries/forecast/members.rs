//! The simple forecasts, updated by one value after the other.
//!
//! What must never happen here: a member that has seen a value later than the one it is asked at.

use std::time::Duration;

use super::sorted_window::SortedWindow;

/// Weight of the newest value in both smoothed levels: it halves the weight of a value in two steps.
const LEVEL_WEIGHT: f64 = 0.3;
/// Weight of the newest difference of levels in the trend, and share of the trend that remains after each step. A
/// stronger trend (level 0.5, damping 0.9) had errors larger by 10 to 27 % on GPU duty and memory of 95 pods.
const TREND_WEIGHT: f64 = 0.1;
const DAMPING: f64 = 0.8;
/// Values of the median: two minutes of seconds, two hours of minutes.
const MEDIAN_VALUES: usize = 120;

/// The state of all members.
#[derive(Debug)]
pub(super) struct Members {
    /// Sum of what remains of the trend at each step of the horizon.
    trend_factor: f64,
    /// How many points before the newest one the seasonal forecast is.
    season_lag: Option<usize>,
    last: Option<f64>,
    smoothed: f64,
    level: f64,
    trend: f64,
    recent: SortedWindow,
}

impl Members {
    /// Members that forecast `horizon` steps ahead; `period` is the length of a cycle in steps.
    pub(super) fn new(horizon: usize, period: Option<f64>) -> Self {
        let remaining = i32::try_from(horizon).map_or(0.0, |steps| DAMPING.powi(steps));
        Self {
            trend_factor: DAMPING * (1.0 - remaining) / (1.0 - DAMPING),
            season_lag: period.and_then(|period| season_lag(horizon, period)),
            last: None,
            smoothed: 0.0,
            level: 0.0,
            trend: 0.0,
            recent: SortedWindow::new(MEDIAN_VALUES),
        }
    }

    /// Adds the next measured value. A gap changes no member.
    pub(super) fn add(&mut self, value: f64) {
        if self.last.is_none() {
            (self.smoothed, self.level) = (value, value);
        } else {
            self.smoothed += LEVEL_WEIGHT * (value - self.smoothed);
            let expected = self.level + DAMPING * self.trend;
            let level = expected + LEVEL_WEIGHT * (value - expected);
            self.trend = TREND_WEIGHT * (level - self.level) + (1.0 - TREND_WEIGHT) * DAMPING * self.trend;
            self.level = level;
        }
        self.last = Some(value);
        self.recent.push(value);
    }

    /// The forecasts in the order of `Member::ALL`, after the last of `past`. `past` are all points so far; a gap is NaN.
    pub(super) fn forecasts(&self, past: &[f64]) -> [Option<f64>; 5] {
        let any = self.last.is_some();
        let season = self.season_lag.and_then(|lag| past.len().checked_sub(lag + 1)).map(|place| past[place]);
        [
            self.last,
            any.then_some(self.smoothed),
            self.recent.median(),
            any.then_some(self.level + self.trend_factor * self.trend),
            season.filter(|value| !value.is_nan()),
        ]
    }
}

/// The cycle length in steps of a series.
pub(super) fn cycle_steps(length: Duration, step: Duration) -> Option<f64> {
    let steps = length.as_secs_f64() / step.as_secs_f64();
    (steps.is_finite() && steps >= 1.0).then_some(steps)
}

/// The newest point that is a whole number of cycles before the forecast one, counted back from the newest value.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and no series is as long as that"
)]
fn season_lag(horizon: usize, period: f64) -> Option<usize> {
    let cycles = (horizon as f64 / period).ceil();
    ((cycles * period).round() as usize).checked_sub(horizon)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seasonal_forecast_is_at_the_same_phase() {
        assert_eq!(season_lag(5, 12.0), Some(7));
        assert_eq!(season_lag(12, 12.0), Some(0));
        assert_eq!(season_lag(13, 12.0), Some(11));
        assert_eq!(season_lag(30, 12.4), Some(7));
        let values: Vec<f64> = (0..40).map(|index| f64::from(index % 12)).collect();
        let mut members = Members::new(5, Some(12.0));
        values.iter().for_each(|value| members.add(*value));
        assert_eq!(members.forecasts(&values)[4], Some(f64::from((39 + 5) % 12)));
        assert_eq!(members.forecasts(&values[..7])[4], None);
    }

    #[test]
    fn a_damped_trend_goes_on_but_not_for_ever() {
        let mut near = Members::new(1, None);
        let mut far = Members::new(100_000, None);
        for value in 0..200 {
            near.add(f64::from(value));
            far.add(f64::from(value));
        }
        let value = |members: &Members| members.forecasts(&[])[3].unwrap();
        assert!(value(&near) < value(&far) && value(&far) < 199.0 + 10.0, "{} {}", value(&near), value(&far));
    }

    #[test]
    fn members_without_a_value_are_silent() {
        assert_eq!(Members::new(5, Some(3.0)).forecasts(&[]), [None; 5]);
    }
}
