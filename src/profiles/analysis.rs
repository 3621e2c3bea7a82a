//! The analyses of one series: its cycles, where it goes, and what it will need.
//!
//! ```text
//!   NVML's own samples ─▶ cycles                        seconds ─▶ cycles, forecasts of 30 s and 5 min, trend, leak
//!   minutes ─▶ cycles, forecast of 1 h, maximum of the next hour, trend, leak        quarters ─▶ cycles
//! ```
//!
//! What must never happen here: a forecast below 0 or above 100 %, or one from data that ends in a gap.

use crate::anchor::Anchor;
use crate::cycles::{CycleTracker, CycleWindow};
use crate::history::{SeriesHistory, over};
use model::stored_history::{StepValue, StoredTier};
use model::time::{Monotonic, Now, WallTime};
use model::workload_profile::{ProfiledForecast, ProfiledQuantity, ProfiledTrend, TrendDirection};
use std::time::Duration;
use timeseries::{Counter, Direction, Forecast, Period, Series, forecast, leak, next_maximum, trend};

/// Horizons of the forecasts from the fine tier.
const NEAR: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(300)];
/// Horizon of the forecast from minutes, and of the maximum.
const FAR: Duration = Duration::from_secs(3600);
/// The maximum of the next hour is exceeded in one of ten hours.
const QUANTILE: f64 = 0.9;
/// Minutes from which the trend is taken once there are so many: an hour says more about an hour than a quarter does.
const MINUTES_OF_A_TREND: usize = 60;
/// NVML's own samples are judged while the newest one is not older: they come every five seconds, and an idle GPU has none.
const FRESH: Duration = Duration::from_secs(60);
/// Steps at the end of the fine tier whose readings may be under way.
const LATE_STEPS: usize = 2;

/// What the analyses of one series have found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// When the history in memory was last analysed.
    pub analyzed_at: Option<Monotonic>,
    /// When the minutes were last analysed; `None` if no forecast follows from them.
    pub hour_analyzed_at: Option<Monotonic>,
    near: Near,
    far: Option<Far>,
}

/// What follows from the seconds.
#[derive(Clone, Debug, Default)]
struct Near {
    trend: Option<ProfiledTrend>,
    leak_per_hour: Option<f64>,
    forecasts: [Option<ProfiledForecast>; 2],
}

/// What follows from the minutes.
#[derive(Clone, Debug)]
struct Far {
    trend: Option<ProfiledTrend>,
    leak_per_hour: Option<f64>,
    forecast: Option<ProfiledForecast>,
    maximum: Option<f64>,
}

/// A series that is analysed.
#[derive(Debug)]
pub(crate) struct Analyzed<'a> {
    pub(crate) quantity: ProfiledQuantity,
    /// What is known of its counter.
    pub(crate) counter: Counter,
    pub(crate) history: &'a SeriesHistory,
    pub(crate) cycles: &'a mut CycleTracker,
    pub(crate) findings: &'a mut Findings,
}

impl Findings {
    /// The change per hour; `None` where the history is too short.
    #[must_use]
    pub fn trend(&self) -> Option<ProfiledTrend> {
        self.far.as_ref().and_then(|far| far.trend).or(self.near.trend)
    }

    /// By how much the maxima of the cycles rise per hour, if they rise for certain.
    #[must_use]
    pub fn leak_per_hour(&self) -> Option<f64> {
        self.far.as_ref().and_then(|far| far.leak_per_hour).or(self.near.leak_per_hour)
    }

    /// Whether anything follows from the seconds.
    #[must_use]
    pub fn says_near(&self) -> bool {
        let Near { trend, leak_per_hour, forecasts } = &self.near;
        trend.is_some() || leak_per_hour.is_some() || forecasts.iter().any(Option::is_some)
    }

    /// The forecasts, ordered by horizon.
    #[must_use]
    pub fn forecasts(&self) -> Vec<ProfiledForecast> {
        let far = self.far.as_ref().and_then(|far| far.forecast);
        self.near.forecasts.into_iter().chain([far]).flatten().collect()
    }

    /// A value that the maximum of the next hour exceeds in one of ten hours.
    #[must_use]
    pub fn next_hour_maximum(&self) -> Option<f64> {
        self.far.as_ref().and_then(|far| far.maximum)
    }
}

impl Analyzed<'_> {
    /// Analyses what is in memory.
    pub(crate) fn near(&mut self, now: Now) {
        self.findings.analyzed_at = Some(now.monotonic);
        self.source(now);
        let window = self.history.fine().window(now.monotonic, usize::MAX, LATE_STEPS);
        let series = window.and_then(|window| Some((window.begin, series(window.step, window.means)?)));
        let Some((begin, series)) = series else {
            self.findings.near = Near::default();
            self.cycles.judge_nothing(CycleWindow::Fine);
            return;
        };
        let series = series.with_counter(self.counter);
        let begin = Duration::from_nanos(begin.0);
        let verdict = self.cycles.judge(CycleWindow::Fine, &series, begin, now.wall);
        let period = self.agreed(CycleWindow::Fine, verdict.period());
        let mut forecasts = [None; 2];
        for (made, slot) in forecast(&series, &NEAR, period).into_iter().zip(&mut forecasts) {
            *slot = made.map(|made| self.profiled(made));
        }
        self.findings.near = Near { trend: trend_of(&series), leak_per_hour: self.leak_of(&series, period), forecasts };
    }

    /// Judges NVML's own samples.
    fn source(&mut self, now: Now) {
        let Some(source) = self.history.source() else { return };
        let (samples, refresh) = source.newest();
        let fresh = |newest: Duration| newest + FRESH >= Duration::from_nanos(now.monotonic.0);
        let times = samples.first().zip(samples.last()).map(|(first, newest)| (first.at, newest.at));
        let Some((first, _)) = times.filter(|(_, newest)| fresh(*newest)) else {
            return self.cycles.judge_nothing(CycleWindow::Source);
        };
        let Ok(series) = Series::resampled(&samples, refresh) else { return };
        let series = series.with_counter(Counter { window: refresh, refresh });
        self.cycles.judge(CycleWindow::Source, &series, first, now.wall);
    }

    /// No step of a tier on disk is measured.
    pub(crate) fn without(&mut self, tier: StoredTier) {
        match tier {
            StoredTier::Minute => {
                (self.findings.far, self.findings.hour_analyzed_at) = (None, None);
                self.cycles.judge_nothing(CycleWindow::Minute);
            }
            StoredTier::Quarter => self.cycles.judge_nothing(CycleWindow::Quarter),
        }
    }

    /// Analyses minutes: all that are over, the first one measured at `first`.
    pub(crate) fn minutes(&mut self, minutes: &[Option<StepValue>], first: u64, now: Now) {
        let tier = StoredTier::Minute;
        let means = minutes.iter().map(|minute| minute.map(|value| value.mean));
        let Some(means) = series(tier.step(), means) else { return };
        let begin = Duration::from_micros(tier.begin_of(first).0);
        let verdict = self.cycles.judge(CycleWindow::Minute, &means, begin, now.wall);
        let period = self.agreed(CycleWindow::Minute, verdict.period());
        let maxima = series(tier.step(), minutes.iter().map(|minute| minute.map(|value| value.maximum)));
        let maximum = maxima.and_then(|maxima| next_maximum(&maxima, FAR, QUANTILE));
        let far = Far {
            trend: if means.measured() >= MINUTES_OF_A_TREND { trend_of(&means) } else { None },
            leak_per_hour: self.leak_of(&means, period),
            forecast: forecast(&means, &[FAR], period).pop().flatten().map(|made| self.profiled(made)),
            maximum: maximum.map(|maximum| self.possible(maximum.value)),
        };
        let foresees = far.forecast.is_some() || far.maximum.is_some();
        self.findings.hour_analyzed_at = foresees.then_some(now.monotonic);
        self.findings.far = Some(far);
    }

    /// Judges quarters of an hour: all that are over, the first one measured at `first`.
    pub(crate) fn quarters(&mut self, quarters: &[Option<StepValue>], first: u64, now: WallTime) {
        let tier = StoredTier::Quarter;
        let means = quarters.iter().map(|quarter| quarter.map(|value| value.mean));
        let Some(means) = series(tier.step(), means) else { return };
        self.cycles.judge(CycleWindow::Quarter, &means, Duration::from_micros(tier.begin_of(first).0), now);
    }

    /// The period of this window, if the tier publishes a period: a forecast must not follow a single verdict.
    fn agreed<'p>(&self, window: CycleWindow, period: Option<&'p Period>) -> Option<&'p Period> {
        period.filter(|_| self.cycles.period_of(window).is_some())
    }

    fn profiled(&self, forecast: Forecast) -> ProfiledForecast {
        let Forecast { horizon, value, interval: (low, high), .. } = forecast;
        let possible = |value| self.possible(value);
        ProfiledForecast { horizon, value: possible(value), low: possible(low), high: possible(high) }
    }

    /// The nearest value that the quantity can have: none is below 0, and a GPU is not busy for more than all of the time. SM use is
    /// a sum over GPUs.
    fn possible(&self, value: f64) -> f64 {
        match self.quantity {
            ProfiledQuantity::Utilization | ProfiledQuantity::MemoryCopy => value.clamp(0.0, 100.0),
            _ => value.max(0.0),
        }
    }

    /// Only memory leaks.
    fn leak_of(&self, series: &Series, period: Option<&Period>) -> Option<f64> {
        let memory = matches!(self.quantity, ProfiledQuantity::GpuMemory | ProfiledQuantity::Memory);
        Some(leak(series, period.filter(|_| memory)?)?.per_hour)
    }
}

fn trend_of(series: &Series) -> Option<ProfiledTrend> {
    let trend = trend(series)?;
    let direction = match trend.direction {
        Direction::Rising => Some(TrendDirection::Rising),
        Direction::Falling => Some(TrendDirection::Falling),
        Direction::None => None,
    };
    Some(ProfiledTrend { per_hour: trend.slope_per_hour, low: trend.interval.0, high: trend.interval.1, direction })
}

/// Steps as a series; `None` without a measurement.
fn series(step: Duration, values: impl IntoIterator<Item = Option<f64>>) -> Option<Series> {
    Series::regular(step, values).ok().filter(|series| series.measured() > 0)
}

/// The steps from the first measured one, and its number. `None` without a measurement.
pub(crate) fn from_first(steps: &[Option<StepValue>], begin: u64) -> Option<(&[Option<StepValue>], u64)> {
    let first = steps.iter().position(Option::is_some)?;
    Some((&steps[first..], begin + first as u64))
}

/// The steps of a tier that are over and computed: at most as many as are kept.
pub(crate) fn kept_range(tier: StoredTier, anchor: &Anchor, now: Monotonic) -> std::ops::Range<u64> {
    let end = over(tier, anchor, now);
    end.saturating_sub(tier.kept_steps())..end
}
