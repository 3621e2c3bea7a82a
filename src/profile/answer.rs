//! The analysis of one series of the file.

use crate::columns::{Choices, Columns};
use crate::error::CsvError;
use crate::gather::Gathered;
use crate::grid::Grid;
use crate::time::TimeForm;
use std::time::Duration;
use timeseries::{
    Forecast, Leak, Maximum, Quartiles, Series, Step, Trend, Verdict, find_period, fold, forecast, leak, next_maximum,
    steps, trend,
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
/// What sums of doubles are wrong by, at most, as a share of the largest value.
const DUST: f64 = 1e-9;
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
    /// Samples before and after holes in the times, which are left out.
    pub(crate) outside: usize,
    /// Whether the step is longer than the usual distance of the samples.
    pub(crate) is_coarse: bool,
    /// Time of the first value.
    pub(crate) origin: i64,
    pub(crate) form: TimeForm,
}

/// Analyses one series. Its samples have one distance if there is a `width`. It may have a `share` of the points of all series.
pub(crate) fn of(
    gathered: Gathered,
    columns: &Columns,
    choices: &Choices,
    width: Option<Duration>,
    share: usize,
) -> Result<Answer, CsvError> {
    let Gathered { group, origin, samples } = gathered;
    let refused = |why: String| CsvError::Option { option: "step", why };
    let grid = Grid::of(&samples, width, share).map_err(|_| CsvError::TooFewRows { rows: samples.len() as u64 })?;
    if grid.is_coarse && width.is_some() && width == choices.step {
        return Err(refused("there would be too many points; choose a larger step".to_owned()));
    }
    let series = grid.series().map_err(|error| refused(error.to_string()))?;
    let before = grid.part.first().map_or(Duration::ZERO, |first| first.at);
    let origin = origin.saturating_add_unsigned(u64::try_from(before.as_nanos()).unwrap_or(u64::MAX));
    let (outside, is_coarse) = (samples.len() - grid.part.len(), grid.is_coarse);
    drop(samples);
    let verdict = find_period(&series);
    let period = verdict.period();
    let horizons = if choices.horizons.is_empty() { fitting(&series) } else { choices.horizons.clone() };
    let possible = Possible::of(&series, &columns.unit);
    let made = forecast(&series, &horizons, period).into_iter().map(|made| made.map(|made| possible.forecast(made)));
    let forecasts = horizons.iter().copied().zip(made).collect();
    let path = if choices.picture { path(&series, &horizons, &verdict) } else { Vec::new() };
    let maximum = next_maximum(&series, HOUR, MAXIMUM_QUANTILE);
    Ok(Answer {
        group,
        trend: trend(&series),
        steps: steps(&series).into_iter().map(|step| possible.step(step)).collect(),
        leak: period.and_then(|period| leak(&series, period)),
        forecasts,
        next_hour_maximum: maximum.map(|maximum| Maximum { value: possible.value(maximum.value), ..maximum }),
        cycle: period.map(|period| fold(&series, period, phases(&series, period.length))).unwrap_or_default(),
        path: path.into_iter().map(|made| possible.forecast(made)).collect(),
        verdict,
        series,
        outside,
        is_coarse,
        origin,
        form: columns.form,
    })
}

/// What the values of a series can be.
#[derive(Clone, Copy, Debug)]
struct Possible {
    low: f64,
    high: f64,
    /// What is closer to 0 is an error of rounding.
    dust: f64,
}

impl Possible {
    /// Where no value was below 0, none will be; percent that were at most 100 stay so.
    fn of(series: &Series, unit: &str) -> Possible {
        let (low, high) = extent(series).unwrap_or((0.0, 0.0));
        Possible {
            low: if low < 0.0 { f64::NEG_INFINITY } else { 0.0 },
            high: if unit == "%" && low >= 0.0 && high <= 100.0 { 100.0 } else { f64::INFINITY },
            dust: low.abs().max(high.abs()) * DUST,
        }
    }

    fn value(self, value: f64) -> f64 {
        if value.abs() <= self.dust { 0.0 } else { value.max(self.low).min(self.high) }
    }

    fn forecast(self, forecast: Forecast) -> Forecast {
        let (low, high) = forecast.interval;
        let interval = (self.value(low), self.value(high));
        Forecast { value: self.value(forecast.value), interval, ..forecast }
    }

    fn step(self, step: Step) -> Step {
        Step { before: self.value(step.before), after: self.value(step.after), ..step }
    }
}

/// The smallest and the largest value; `None` if all are gaps.
fn extent(series: &Series) -> Option<(f64, f64)> {
    let mut values = series.iter().flatten();
    let first = values.next()?;
    Some(values.fold((first, first), |(low, high), value| (low.min(value), high.max(value))))
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
        extent(&self.series)
    }
}
