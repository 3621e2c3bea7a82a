//! The answer as text for people: one sentence, the course of the values, the typical cycle, forecasts.

use crate::Profile;
use crate::answer::Answer;
use crate::figures::{count, span, value};
use std::fmt::Write;
use std::time::Duration;
use timeseries::{Direction, Forecast, Verdict};

/// Characters of a course: with its bounds it fits into 80.
const WIDTH: usize = 60;
/// Characters of a course in a list of series.
const NARROW: usize = 24;
/// Characters of the name of a group in a list of series.
const GROUP: usize = 36;
/// Changes of level that are listed.
const STEPS: usize = 8;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How the text looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether the terminal shows colours.
    pub colour: bool,
    /// Makes text of the file safe for a terminal.
    pub plain: fn(&str) -> String,
}

/// The text, with a line feed at its end.
#[must_use]
pub fn people(profile: &Profile, look: Look) -> String {
    let mut text = String::new();
    match profile.answers.as_slice() {
        [answer] => one(profile, answer, look, &mut text),
        answers => list(answers, look, &mut text),
    }
    if !profile.notes.is_empty() {
        text.push('\n');
    }
    for note in &profile.notes {
        let _ = writeln!(text, "{}", look.paint(DIM, &(look.plain)(note)));
    }
    text
}

const DIM: &str = "2";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";

impl Look {
    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn verdict(self, verdict: &Verdict) -> String {
        let code = match verdict {
            Verdict::Periodic(_) => GREEN,
            Verdict::Unobservable(_) => YELLOW,
            Verdict::Aperiodic(_) | Verdict::Unknown(_) => "1",
        };
        self.paint(code, verdict.name())
    }
}

/// A single series.
fn one(profile: &Profile, answer: &Answer, look: Look, text: &mut String) {
    let name = (look.plain)(profile.columns.value_name());
    let group = answer.group.as_ref().map(|group| format!(" of {}", (look.plain)(group))).unwrap_or_default();
    let _ = writeln!(text, "{name}{group} is {}: {}", look.verdict(&answer.verdict), sentence(answer));
    let series = &answer.series;
    let gaps = match series.len() - series.measured() {
        0 => String::new(),
        gaps => format!(", {} gaps", count(gaps as u64)),
    };
    let _ = writeln!(
        text,
        "{} values, {} apart, over {}{gaps}\n",
        count(series.measured() as u64),
        span(series.step()),
        span(series.span())
    );
    let unit = unit(profile);
    course(answer, &unit, look, text);
    cycle(answer, &unit, look, text);
    changes(answer, &unit, text);
    forecasts(answer, &unit, text);
}

/// The unit behind a space; empty if none is known.
fn unit(profile: &Profile) -> String {
    let unit = profile.columns.unit.as_str();
    if unit.is_empty() { String::new() } else { format!(" {unit}") }
}

/// One sentence about the period, or why there is none.
fn sentence(answer: &Answer) -> String {
    let Some(period) = answer.verdict.period() else { return answer.verdict.reason() };
    let (low, high) = (span(period.interval.0), span(period.interval.1));
    let interval = if low == high { String::new() } else { format!(" ({low} to {high} at 90 % confidence)") };
    format!(
        "it repeats every {}{interval}, seen {} times, score {:.2}",
        span(period.length),
        period.cycles,
        period.score
    )
}

fn course(answer: &Answer, unit: &str, look: Look, text: &mut String) {
    let Some((low, high)) = answer.extent() else { return };
    let values: Vec<Option<f64>> = answer.series.iter().collect();
    let line = sparkline(&means(&values, WIDTH), (low, high));
    let _ = writeln!(text, "  {}  {} to {}{unit}", look.paint(CYAN, &line), value(low), value(high));
    let (from, to) = (answer.time_at(0.0), answer.time_at(values.len().saturating_sub(1) as f64));
    let _ = writeln!(text, "  from {} to {}", answer.form.show(from), answer.form.show(to));
}

fn cycle(answer: &Answer, unit: &str, look: Look, text: &mut String) {
    let Some(period) = answer.verdict.period() else { return };
    let quartiles = answer.cycle.iter().flatten();
    let low = quartiles.clone().map(|at| at.lower).fold(f64::INFINITY, f64::min);
    let high = quartiles.map(|at| at.upper).fold(f64::NEG_INFINITY, f64::max);
    if low > high {
        return;
    }
    let _ = writeln!(text, "\nOne cycle of {}, {} to {}{unit}:", span(period.length), value(low), value(high));
    let line = |pick: fn(&timeseries::Quartiles) -> f64| {
        let values: Vec<Option<f64>> = answer.cycle.iter().map(|at| at.as_ref().map(pick)).collect();
        look.paint(CYAN, &sparkline(&values, (low, high)))
    };
    let _ = writeln!(text, "  {}  upper quartile", line(|at| at.upper));
    let _ = writeln!(text, "  {}  median", line(|at| at.median));
    let _ = writeln!(text, "  {}  lower quartile", line(|at| at.lower));
    for other in &period.alternatives {
        let _ = writeln!(text, "  also possible: {}, score {:.2}", span(other.length), other.score);
    }
}

fn changes(answer: &Answer, unit: &str, text: &mut String) {
    text.push('\n');
    let _ = match answer.trend {
        None => writeln!(text, "Trend     too few values"),
        Some(trend) => {
            let change = format!(
                "{}{unit} an hour ({} to {})",
                value(trend.slope_per_hour),
                value(trend.interval.0),
                value(trend.interval.1)
            );
            match trend.direction {
                Direction::Rising => writeln!(text, "Trend     rises by {change}"),
                Direction::Falling => writeln!(text, "Trend     falls: {change}"),
                Direction::None => writeln!(text, "Trend     none"),
            }
        }
    };
    if let Some(leak) = answer.leak {
        let rise = format!("{}{unit} from cycle to cycle", value(leak.per_cycle));
        let _ = writeln!(text, "Leak      the maxima of {} cycles rise by {rise}", leak.cycles);
    }
    // Each cycle may have its own changes of level, which the picture of the cycle shows better.
    if !answer.steps.is_empty() && answer.verdict.period().is_some() {
        let _ = writeln!(text, "Steps     {}, listed by -o json", answer.steps.len());
        return;
    }
    for step in answer.steps.iter().take(STEPS) {
        let at = answer.form.show(answer.time_at(step.at));
        let _ = writeln!(text, "Step      at {at} from {} to {}{unit}", value(step.before), value(step.after));
    }
    if answer.steps.len() > STEPS {
        let _ = writeln!(text, "          and {} more", answer.steps.len() - STEPS);
    }
}

fn forecasts(answer: &Answer, unit: &str, text: &mut String) {
    for (horizon, forecast) in
        answer.forecasts.iter().filter_map(|(horizon, forecast)| Some((horizon, forecast.as_ref()?)))
    {
        let _ = writeln!(text, "Forecast  {}", said(*horizon, forecast, unit));
    }
    let none: Vec<String> =
        answer.forecasts.iter().filter(|(_, forecast)| forecast.is_none()).map(|(horizon, _)| span(*horizon)).collect();
    if !none.is_empty() {
        let why = "it needs 20 values over three times as long, few gaps, and a last value that is not a gap";
        let _ = writeln!(text, "Forecast  none in {}: {why}", none.join(", "));
    }
    if let Some(maximum) = answer.next_hour_maximum {
        let quantile = maximum.quantile * 100.0;
        let _ = writeln!(
            text,
            "Maximum   of the next hour: below {}{unit} in {quantile:.0} % of hours",
            value(maximum.value)
        );
    }
}

fn said(horizon: Duration, forecast: &Forecast, unit: &str) -> String {
    let (low, high) = forecast.interval;
    format!(
        "in {}: {}{unit} ({} to {} at 90 % confidence; {})",
        span(horizon),
        value(forecast.value),
        value(low),
        value(high),
        forecast.member.name()
    )
}

/// Many series: one line each.
fn list(answers: &[Answer], look: Look, text: &mut String) {
    let with = |name: &str| answers.iter().filter(|answer| answer.verdict.name() == name).count();
    let counts: Vec<String> = ["periodic", "aperiodic", "unknown", "unobservable"]
        .into_iter()
        .filter(|name| with(name) > 0)
        .map(|name| format!("{} {name}", with(name)))
        .collect();
    let _ = writeln!(text, "{} series: {}\n", count(answers.len() as u64), counts.join(", "));
    let name = |answer: &Answer| {
        let name = (look.plain)(answer.group.as_deref().unwrap_or_default());
        name.chars().take(GROUP).collect::<String>()
    };
    let width = answers.iter().map(|answer| name(answer).chars().count()).max().unwrap_or(0);
    for answer in answers {
        let values: Vec<Option<f64>> = answer.series.iter().collect();
        let extent = answer.extent().unwrap_or((0.0, 0.0));
        let line = look.paint(CYAN, &format!("{:<NARROW$}", sparkline(&means(&values, NARROW), extent)));
        let period =
            answer.verdict.period().map(|period| format!(" every {}", span(period.length))).unwrap_or_default();
        let trend = match answer.trend.map(|trend| trend.direction) {
            Some(Direction::Rising) => ", rises",
            Some(Direction::Falling) => ", falls",
            Some(Direction::None) | None => "",
        };
        let verdict = look.verdict(&answer.verdict);
        let _ = writeln!(
            text,
            "{:<width$}  {line}  {} to {}  {verdict}{period}{trend}",
            name(answer),
            value(extent.0),
            value(extent.1)
        );
    }
}

/// The means of `width` parts of the values, or the values if they are fewer. A part without a value is a gap.
fn means(values: &[Option<f64>], width: usize) -> Vec<Option<f64>> {
    if values.len() <= width {
        return values.to_vec();
    }
    let part = |at: usize| {
        let part = &values[at * values.len() / width..(at + 1) * values.len() / width];
        let measured: Vec<f64> = part.iter().flatten().copied().collect();
        (!measured.is_empty()).then(|| measured.iter().sum::<f64>() / measured.len() as f64)
    };
    (0..width).map(part).collect()
}

/// One bar for each value between the bounds; a space for a gap.
fn sparkline(values: &[Option<f64>], (low, high): (f64, f64)) -> String {
    let bar = |value: &Option<f64>| {
        let Some(value) = value else { return ' ' };
        let share = if high > low { (value - low) / (high - low) } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 7")]
        let level = (share.clamp(0.0, 1.0) * 7.0).round() as usize;
        BARS.get(level).copied().unwrap_or(' ')
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_has_a_bar_for_each_value_and_a_space_for_a_gap() {
        let values = [Some(0.0), Some(50.0), None, Some(100.0), Some(7.0)];
        assert_eq!(sparkline(&values, (0.0, 100.0)), "▁▅ █▁");
        assert_eq!(sparkline(&[Some(3.0)], (3.0, 3.0)), "▁");
        assert_eq!(means(&[Some(1.0), Some(3.0), None, None], 2), [Some(2.0), None]);
    }
}
