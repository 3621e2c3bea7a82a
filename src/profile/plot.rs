//! The answer as a picture: the series with the starts of its cycles, the typical cycle with its quartiles, the forecasts with their
//! interval. Many series are strips below each other.
//!
//! What must never happen here: a picture that grows with the length of the series.

mod chart;
mod png;

pub use png::png;

use crate::Profile;
use crate::answer::Answer;
use crate::figures::{span, value};
use chart::{Area, Axis, BAND, Bounds, Chart, LINE, MARK, SECOND_LINE};
use plotters::prelude::*;

/// Width in pixels, of a page on a small screen.
const WIDTH: u32 = 1200;
/// Heights in pixels: of the series, of the charts below it, and of a strip.
const SERIES: u32 = 360;
const BELOW: u32 = 340;
const STRIP: u32 = 180;
/// Most strips of a picture: what fits on a screen or two.
pub(crate) const MAX_STRIPS: usize = 12;
/// Most starts of cycles that are marked. More would hide the series.
const MAX_MARKS: usize = 150;
/// Longest text of a title in characters.
const TITLE: usize = 110;
/// The history in the chart of the forecasts, in multiples of the longest horizon, and at least in values.
const HISTORY: f64 = 3.0;
const MIN_HISTORY: usize = 60;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the picture: {0}")]
pub struct PlotError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> PlotError {
        PlotError(error.to_string())
    }
}

/// The picture as SVG.
///
/// # Errors
/// If the library that draws it fails.
pub fn svg(profile: &Profile) -> Result<String, PlotError> {
    let mut text = String::new();
    match profile.answers.as_slice() {
        [answer] => {
            let area = SVGBackend::with_string(&mut text, (WIDTH, SERIES + BELOW)).into_drawing_area();
            area.fill(&WHITE)?;
            let (above, below) = area.split_vertically(SERIES);
            series(&above, profile, answer)?;
            details(&below, profile, answer)?;
            area.present()?;
        }
        answers => {
            let mut shown: Vec<&Answer> = answers.iter().collect();
            shown.sort_by_key(|answer| answer.verdict.period().is_none());
            shown.truncate(MAX_STRIPS);
            let strips = u32::try_from(shown.len()).unwrap_or(1);
            let area = SVGBackend::with_string(&mut text, (WIDTH, STRIP * strips)).into_drawing_area();
            area.fill(&WHITE)?;
            for (strip, answer) in area.split_evenly((shown.len(), 1)).iter().zip(shown) {
                series(strip, profile, answer)?;
            }
            area.present()?;
        }
    }
    Ok(text)
}

fn title(profile: &Profile, answer: &Answer) -> String {
    let name = match &answer.group {
        Some(group) => group.as_str(),
        None => profile.columns.value_name(),
    };
    let verdict = match answer.verdict.period() {
        Some(period) => format!("every {}, {} cycles, score {:.2}", span(period.length), period.cycles, period.score),
        None => answer.verdict.name().to_owned(),
    };
    let room = TITLE.saturating_sub(verdict.chars().count() + 2);
    format!("{}: {verdict}", name.chars().take(room).collect::<String>())
}

/// The series, with a line at the start of each cycle.
fn series(area: &Area<'_>, profile: &Profile, answer: &Answer) -> Result<(), PlotError> {
    let step = answer.series.step().as_secs_f64();
    let axis = Axis::of(answer.series.span().as_secs_f64());
    let Some(extent) = answer.extent() else { return Ok(()) };
    let points: Vec<(f64, Option<f64>)> =
        answer.series.iter().enumerate().map(|(at, value)| (axis.place(at as f64 * step), value)).collect();
    let end = axis.place(answer.series.len() as f64 * step);
    let mut title = title(profile, answer);
    let starts = answer.verdict.period().map_or(&[][..], |period| period.starts.as_slice());
    let each = starts.len().div_ceil(MAX_MARKS).max(1);
    if each > 1 {
        title.push_str(&format!(", one of {each} starts is marked"));
    }
    let bounds = Bounds::new((0.0, end), extent);
    let mut chart = Chart::on(area, &title, &bounds, &axis.since(&answer.form.show(answer.origin)))?;
    for start in starts.iter().step_by(each) {
        chart.vertical(axis.place(start * step), MARK)?;
    }
    chart.line(&points, LINE)
}

/// The typical cycle and the forecasts, as far as there are any.
fn details(area: &Area<'_>, profile: &Profile, answer: &Answer) -> Result<(), PlotError> {
    match (answer.cycle.is_empty(), answer.path.is_empty()) {
        (true, true) => Ok(()),
        (false, true) => cycle(area, profile, answer),
        (true, false) => forecast(area, answer),
        (false, false) => {
            let (left, right) = area.split_horizontally(WIDTH / 2);
            cycle(&left, profile, answer)?;
            forecast(&right, answer)
        }
    }
}

fn cycle(area: &Area<'_>, profile: &Profile, answer: &Answer) -> Result<(), PlotError> {
    let Some(period) = answer.verdict.period() else { return Ok(()) };
    let length = period.length.as_secs_f64();
    let axis = Axis::of(length);
    let place = |at: usize| axis.place((at as f64 + 0.5) / answer.cycle.len() as f64 * length);
    let phases = || answer.cycle.iter().enumerate().filter_map(|(at, phase)| Some((place(at), phase.as_ref()?)));
    let low = phases().map(|(_, phase)| phase.lower).fold(f64::INFINITY, f64::min);
    let high = phases().map(|(_, phase)| phase.upper).fold(f64::NEG_INFINITY, f64::max);
    let bounds = Bounds::new((0.0, axis.place(length)), (low, high));
    let title = format!("One cycle of {}: median and quartiles", profile.columns.value_name());
    let mut chart = Chart::on(area, &title, &bounds, &format!("{} since its start", axis.name()))?;
    let band: Vec<(f64, f64, f64)> = phases().map(|(x, phase)| (x, phase.lower, phase.upper)).collect();
    chart.band(&band, BAND)?;
    let median: Vec<(f64, Option<f64>)> = phases().map(|(x, phase)| (x, Some(phase.median))).collect();
    chart.line(&median, LINE)
}

/// The end of the series and what is expected after it.
fn forecast(area: &Area<'_>, answer: &Answer) -> Result<(), PlotError> {
    let series = &answer.series;
    let step = series.step().as_secs_f64();
    let longest = answer.path.last().map_or(step, |forecast| forecast.horizon.as_secs_f64());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of values")]
    let shown = ((longest * HISTORY / step).ceil() as usize).max(MIN_HISTORY).min(series.len());
    let axis = Axis::of(longest.max(shown as f64 * step));
    let first = series.len() - shown;
    let x = |at: usize| axis.place((at as f64 - (series.len() - 1) as f64) * step);
    let history: Vec<(f64, Option<f64>)> = (first..series.len()).map(|at| (x(at), series.get(at))).collect();
    let last = series.len().checked_sub(1).and_then(|at| series.get(at));
    let start = last.map(|last| (0.0, last, last));
    let of = |forecast: &timeseries::Forecast| {
        (axis.place(forecast.horizon.as_secs_f64()), forecast.interval.0, forecast.interval.1)
    };
    let band: Vec<(f64, f64, f64)> = start.into_iter().chain(answer.path.iter().map(of)).collect();
    let expected =
        answer.path.iter().map(|forecast| (axis.place(forecast.horizon.as_secs_f64()), Some(forecast.value)));
    let expected: Vec<(f64, Option<f64>)> = last.map(|last| (0.0, Some(last))).into_iter().chain(expected).collect();
    let values = history.iter().chain(&expected).filter_map(|(_, value)| *value);
    let values = values.chain(band.iter().flat_map(|(_, low, high)| [*low, *high]));
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
    let bounds = Bounds::new((x(first), axis.place(longest)), (low, high));
    let end = answer.path.last().map(|forecast| format!(", {} at its end", value(forecast.value))).unwrap_or_default();
    let title = format!("Forecast with 90 % interval{end}");
    let mut chart = Chart::on(area, &title, &bounds, &format!("{} after the last value", axis.name()))?;
    chart.band(&band, BAND)?;
    chart.line(&history, LINE)?;
    chart.line(&expected, SECOND_LINE)
}
