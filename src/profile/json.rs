//! The answer as JSON, with names that do not change.

use crate::Profile;
use crate::answer::Answer;
use serde_json::{Map, Value, json};
use timeseries::{Direction, Forecast, Trend};

/// One document: the answer, or with groups a list of answers.
#[must_use]
pub fn json(profile: &Profile) -> Value {
    if profile.columns.is_grouped() {
        let series: Vec<Value> = profile.answers.iter().map(|answer| Value::Object(of(answer))).collect();
        return json!({ "series": series });
    }
    profile.answers.first().map_or(Value::Null, |answer| Value::Object(of(answer)))
}

fn of(answer: &Answer) -> Map<String, Value> {
    let period = answer.verdict.period();
    let step = answer.series.step().as_secs_f64();
    let seconds = period.map(|period| period.length.as_secs_f64());
    let interval = period.map(|period| vec![period.interval.0.as_secs_f64(), period.interval.1.as_secs_f64()]);
    let alternative = |other: &timeseries::Alternative| json!({ "period_seconds": other.length.as_secs_f64(), "score": other.score, "cycles": other.cycles });
    let alternatives: Vec<Value> =
        period.map_or(Vec::new(), |period| period.alternatives.iter().map(alternative).collect());
    let steps = answer.steps.iter().map(|step| {
        let at = answer.time_at(step.at);
        let since = at.saturating_sub(answer.origin);
        json!({ "time": answer.form.show(at), "seconds": since as f64 / 1e9, "before": step.before, "after": step.after })
    });
    let maximum =
        answer.next_hour_maximum.map(|maximum| json!({ "quantile": maximum.quantile, "value": maximum.value }));
    let fields = [
        ("group", answer.group.clone().map(Value::from)),
        ("verdict", Some(answer.verdict.name().into())),
        ("reason", Some(answer.verdict.reason().into())),
        ("period_seconds", Some(seconds.into())),
        ("period_interval_seconds", Some(interval.into())),
        ("period_samples", Some(seconds.map(|seconds| seconds / step).into())),
        ("score", Some(period.map(|period| period.score).into())),
        ("cycles", Some(period.map(|period| period.cycles).into())),
        ("alternatives", Some(alternatives.into())),
        ("trend", Some(answer.trend.map(|trend| of_trend(&trend, answer)).into())),
        ("steps", Some(steps.collect::<Vec<_>>().into())),
        ("forecasts", Some(answer.forecasts.iter().filter_map(|(_, forecast)| forecast.map(of_forecast)).collect())),
        ("next_hour_maximum", Some(maximum.into())),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn of_trend(trend: &Trend, answer: &Answer) -> Value {
    let direction = match trend.direction {
        Direction::Rising => "rising",
        Direction::Falling => "falling",
        Direction::None => "none",
    };
    let leak = answer.leak.map(|leak| {
        json!({ "per_hour": leak.per_hour, "per_cycle": leak.per_cycle, "interval_per_hour": leak.interval_per_hour, "cycles": leak.cycles })
    });
    json!({
        "direction": direction,
        "slope_per_hour": trend.slope_per_hour,
        "interval_per_hour": trend.interval,
        "p_value": trend.p_value,
        "leak": leak,
    })
}

fn of_forecast(forecast: Forecast) -> Value {
    json!({
        "horizon_seconds": forecast.horizon.as_secs_f64(),
        "value": forecast.value,
        "interval": forecast.interval,
        "member": forecast.member.name(),
    })
}
