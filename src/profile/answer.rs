//! The analysis of one series of the file.

use crate::columns::{Choices, Columns};
use crate::error::CsvError;
use crate::gather::Gathered;
use crate::time::TimeForm;
use std::time::Duration;
use timeseries::{
    Forecast, Leak, MAX_POINTS, Maximum, Quartiles, Series, SeriesError, Step, Trend, Verdict, find_period, fold,
    forecast, leak, next_maximum, steps, trend,
};

/// Horizons of forecasts, of which those count that are at least one step and of which the history has three.
const HORIZONS: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(30),
    Duration::from_secs(5 * 60),
    Duration::from_secs(3600),
    Duration::from_secs(86_400),
    Duration::from_secs(7 * 86_400),
];
/// The hour whose maximum is asked for.
const HOUR: Duration = Duration::from_secs(3600);
/// The maximum is not reached in nine of ten hours.
const MAXIMUM_QUANTILE: f64 = 0.9;
/// Phases of the folded cycle: as many as fit into a line of a terminal.
const PHASES: usize = 60;
/// Points of the forecast in a picture.
const PATH: u32 = 16;

/// What one series does.
#[derive(Debug)]
pub struct Answer {
    /// The value of the group's column.
    pub group: Option<String>,
    /// The series.
    pub series: Series,
    /// Whether it repeats.
    pub verdict: Verdict,
    /// Where it goes; `None` if it is too short.
    pub trend: Option<Trend>,
    /// Changes of its level.
    pub steps: Vec<Step>,
    /// Whether the maxima of its cycles rise.
    pub leak: Option<Leak>,
    /// Forecasts, one for each horizon.
    pub forecasts: Vec<(Duration, Option<Forecast>)>,
    /// The value that the next hour does not reach in nine of ten cases; `None` if less than four hours are known.
    pub next_hour_maximum: Option<Maximum>,
    /// The typical cycle; empty if there is none.
    pub(crate) cycle: Vec<Option<Quartiles>>,
    /// Forecasts on the way to the longest horizon, for pictures.
    pub(crate) path: Vec<Forecast>,
    /// Time of the first value.
    pub(crate) origin: i64,
    pub(crate) form: TimeForm,
}

/// Analyses one series. Its samples have one distance if there is a `width`.
pub(crate) fn of(
    gathered: Gathered,
    columns: &Columns,
    choices: &Choices,
    width: Option<Duration>,
) -> Result<Answer, CsvError> {
    let Gathered { group, origin, samples } = gathered;
    if samples.len() < 2 {
        return Err(CsvError::TooFewRows { rows: samples.len() as u64 });
    }
    let series = match Series::resampled(&samples, width) {
        // A hole of years between rows of milliseconds; the caller did not ask for this step.
        Err(SeriesError::TooLong { .. }) if choices.step.is_none() => {
            let span = samples.last().map_or(Duration::ZERO, |last| last.at);
            let points = u32::try_from(MAX_POINTS / 2).unwrap_or(u32::MAX);
            Series::resampled(&samples, Some(span / points))
        }
        series => series,
    };
    drop(samples);
    let series = series.map_err(|error| CsvError::Option { option: "step", why: error.to_string() })?;
    let verdict = find_period(&series);
    let period = verdict.period();
    let horizons = if choices.horizons.is_empty() { fitting(&series) } else { choices.horizons.clone() };
    let forecasts = horizons.iter().copied().zip(forecast(&series, &horizons, period)).collect();
    let path = if choices.picture { path(&series, &horizons, &verdict) } else { Vec::new() };
    Ok(Answer {
        group,
        trend: trend(&series),
        steps: steps(&series),
        leak: period.and_then(|period| leak(&series, period)),
        forecasts,
        next_hour_maximum: next_maximum(&series, HOUR, MAXIMUM_QUANTILE),
        cycle: period.map(|period| fold(&series, period, phases(&series, period.length))).unwrap_or_default(),
        path,
        verdict,
        series,
        origin,
        form: columns.form,
    })
}

/// The usual horizons that a series of this step and length has.
fn fitting(series: &Series) -> Vec<Duration> {
    let fits = |horizon: &Duration| *horizon >= series.step() && *horizon * 3 <= series.span();
    let usual: Vec<Duration> = HORIZONS.into_iter().filter(fits).collect();
    if usual.is_empty() { vec![series.step()] } else { usual }
}

/// Phases of the folded cycle, so that each has values in most cycles.
fn phases(series: &Series, length: Duration) -> usize {
    let samples = length.as_nanos() / series.step().as_nanos().max(1);
    usize::try_from(samples).unwrap_or(PHASES).clamp(2, PHASES)
}

/// Forecasts at equal distances up to the longest horizon that has one.
fn path(series: &Series, horizons: &[Duration], verdict: &Verdict) -> Vec<Forecast> {
    let mut longest: Vec<Duration> = horizons.to_vec();
    longest.sort_unstable();
    for horizon in longest.into_iter().rev() {
        let distances: Vec<Duration> = (1..=PATH).map(|part| horizon * part / PATH).collect();
        let path: Vec<Forecast> = forecast(series, &distances, verdict.period()).into_iter().flatten().collect();
        if !path.is_empty() {
            return path;
        }
    }
    Vec::new()
}

impl Answer {
    /// The time at a point of the series, which may be between two values.
    pub(crate) fn time_at(&self, point: f64) -> i64 {
        let nanoseconds = point * self.series.step().as_secs_f64() * 1e9;
        // A series has at most a million steps of some years together, which `as` keeps in range.
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let since = nanoseconds as i64;
        self.origin.saturating_add(since)
    }

    /// The smallest and the largest value; `None` if all are gaps.
    pub(crate) fn extent(&self) -> Option<(f64, f64)> {
        let mut values = self.series.iter().flatten();
        let first = values.next()?;
        Some(values.fold((first, first), |(low, high), value| (low.min(value), high.max(value))))
    }
}
