//! Metrics of workload profiles, and of the recorder of histories.
//!
//! What must never happen here: a series where there is no answer, or of a GPU or pod that the view does not have; a label
//! value without a bound.

use super::input::MetricsInput;
use super::subject::LabelledSubjects;
use model::id::PodUid;
use model::sample_value::SampleValue;
use model::workload_profile::{ProfiledForecast, ProfiledQuantity, ProfiledSubject, RecorderState, WorkloadProfile};
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};
use std::collections::HashMap;
use std::time::Duration;

const GPU: &str = "gpu_steward_gpu_";
const POD: &str = "gpu_steward_pod_";

const PERIOD: MetricFamily = gauge(
    "load_period_seconds",
    "seconds",
    "Mean length of the cycles of the load, by quantity; no series where no period is known.",
);
const SCORE: MetricFamily = gauge(
    "load_period_score",
    "",
    "How alike the cycles of the load are, from 0 to 1, by quantity; no series where no period is known.",
);
const VERDICT: MetricFamily = gauge(
    "load_verdict",
    "",
    "1 for what is known about cycles of the load, by quantity: periodic, aperiodic, unknown, unobservable; no series before two analyses have agreed.",
);

/// The families of the quantities with one unit.
struct UnitFamilies {
    /// The unit of the quantities.
    unit: &'static str,
    /// Forecasts.
    forecast: MetricFamily,
    /// The maximum of the next hour.
    maximum: MetricFamily,
}

const FORECAST: &str = "Forecast of the load by quantity and horizon: its expected value (quantile 0.5), and the ends of its 90 % interval; no series where the history is too short.";
const MAXIMUM: &str = "A value that the maximum of the load in the next hour exceeds in about one of ten hours, by quantity; no series where the history is too short.";

const RATIOS: UnitFamilies = UnitFamilies {
    unit: "ratio",
    forecast: gauge("load_forecast_ratio", "ratio", FORECAST),
    maximum: gauge("load_next_hour_maximum_ratio", "ratio", MAXIMUM),
};
const BYTES: UnitFamilies = UnitFamilies {
    unit: "bytes",
    forecast: gauge("load_forecast_bytes", "bytes", FORECAST),
    maximum: gauge("load_next_hour_maximum_bytes", "bytes", MAXIMUM),
};
const WATTS: UnitFamilies = UnitFamilies {
    unit: "watts",
    forecast: gauge("load_forecast_watts", "watts", FORECAST),
    maximum: gauge("load_next_hour_maximum_watts", "watts", MAXIMUM),
};

/// A metric of the recorder, and how its value is read.
type RecorderRow = (MetricFamily, fn(&RecorderState) -> Option<SampleValue>);

#[rustfmt::skip]
static RECORDER: &[RecorderRow] = &[
    (gauge("gpu_steward_profile_series", "", "Series of which histories are kept."), |r| Some(SampleValue::Whole(u64::from(r.series)))),
    (gauge("gpu_steward_profile_memory_bytes", "bytes", "Histories in memory."), |r| Some(SampleValue::Whole(r.memory))),
    (gauge("gpu_steward_profile_file_bytes", "bytes", "Size of the file of histories; no series where there is no file."), |r| r.file.map(SampleValue::Whole)),
    (gauge("gpu_steward_profile_kept", "", "1 while histories are kept over a restart, 0 while they are not; /api/v1/profile has the reason."), |r| Some(SampleValue::Whole(u64::from(r.not_kept.is_none())))),
    (MetricFamily::counter("gpu_steward_profile_samples_missed_total", "Samples that are missing in histories because the recorder was late."), |r| Some(SampleValue::Whole(r.missed))),
    (MetricFamily::counter("gpu_steward_profile_analyses_total", "Analyses of histories."), |r| Some(SampleValue::Whole(r.analyses))),
    (MetricFamily { unit: "seconds", ..MetricFamily::counter("gpu_steward_profile_analysis_seconds_total", "Processor time of analyses.") }, |r| Some(SampleValue::Real(r.analysis_time.as_secs_f64()))),
    (gauge("gpu_steward_profile_busiest_second_seconds", "seconds", "The most processor time that analyses took in one second since the agent started."), |r| Some(SampleValue::Real(r.busiest_second.as_secs_f64()))),
];

const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily { name, kind: MetricType::Gauge, unit, help }
}

/// A profile, and the labels of its subject and quantity.
struct Labelled<'a> {
    profile: &'a WorkloadProfile,
    labels: MetricLabels,
}

/// Writes the profiles of GPUs and MIG instances.
pub fn write_gpus(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let shown = labelled(input, |subject| match subject {
        ProfiledSubject::Gpu(uuid) => subjects.shown_device(uuid),
        ProfiledSubject::Pod(_) => None,
    });
    periods(GPU, &shown, out);
    out.prefixed(GPU, &SCORE);
    for one in &shown {
        let period = one.profile.cycles.as_ref().and_then(|cycles| cycles.period.as_ref());
        one.sample(&MetricLabels::new(), period.map(|period| period.score), out);
    }
    out.prefixed(GPU, &VERDICT);
    for one in &shown {
        if let Some(cycles) = &one.profile.cycles {
            one.sample(&MetricLabels::new().with("verdict", cycles.kind.code()), Some(1.0), out);
        }
    }
    for families in [&RATIOS, &BYTES, &WATTS] {
        forecasts(GPU, &shown, families, out);
    }
}

/// Writes the periods of pods, and the forecasts of their memory.
pub fn write_pods(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let labels: HashMap<&PodUid, &MetricLabels> =
        subjects.pods.iter().map(|pod| (&pod.seen.uid, &pod.labels)).collect();
    let shown = labelled(input, |subject| match subject {
        ProfiledSubject::Pod(uid) => labels.get(uid).map(|labels| (*labels).clone()),
        ProfiledSubject::Gpu(_) => None,
    });
    periods(POD, &shown, out);
    forecasts(POD, &shown, &BYTES, out);
}

/// Writes the state of the recorder.
pub fn write_recorder(input: &MetricsInput<'_>, out: &mut Exposition<'_>) {
    for (family, read) in RECORDER {
        out.family(family);
        if let Some(value) = input.profiles.and_then(|profiles| read(&profiles.recorder)) {
            out.sample(&[], value);
        }
    }
}

/// The profiles whose subject has labels.
fn labelled<'a>(
    input: &MetricsInput<'a>,
    labels: impl Fn(&ProfiledSubject) -> Option<MetricLabels>,
) -> Vec<Labelled<'a>> {
    let all = input.profiles.into_iter().flat_map(|profiles| &profiles.profiles);
    let one = |profile: &'a WorkloadProfile| {
        let labels = labels(&profile.subject)?.with("quantity", profile.quantity.code());
        Some(Labelled { profile, labels })
    };
    all.filter_map(one).collect()
}

fn periods(prefix: &'static str, shown: &[Labelled<'_>], out: &mut Exposition<'_>) {
    out.prefixed(prefix, &PERIOD);
    for one in shown {
        let period = one.profile.cycles.as_ref().and_then(|cycles| cycles.period.as_ref());
        one.sample(&MetricLabels::new(), period.map(|period| period.length.as_secs_f64()), out);
    }
}

fn forecasts(prefix: &'static str, shown: &[Labelled<'_>], families: &UnitFamilies, out: &mut Exposition<'_>) {
    let shown: Vec<_> = shown.iter().filter(|one| one.profile.quantity.base_unit() == families.unit).collect();
    out.prefixed(prefix, &families.forecast);
    for one in &shown {
        for forecast in &one.profile.forecasts {
            one.forecast(forecast, out);
        }
    }
    out.prefixed(prefix, &families.maximum);
    for one in &shown {
        let maximum = one.profile.next_hour_maximum.map(|value| one.quantity().in_base_units(value));
        one.sample(&MetricLabels::new().with("level", "0.9"), maximum, out);
    }
}

/// The label of a horizon; `None` for other horizons, so that the label has three values.
fn horizon(ahead: Duration) -> Option<&'static str> {
    match ahead.as_secs() {
        30 => Some("30s"),
        300 => Some("5m"),
        3600 => Some("1h"),
        _ => None,
    }
}

impl Labelled<'_> {
    fn quantity(&self) -> ProfiledQuantity {
        self.profile.quantity
    }

    fn forecast(&self, forecast: &ProfiledForecast, out: &mut Exposition<'_>) {
        let Some(horizon) = horizon(forecast.horizon) else { return };
        for (quantile, value) in [("0.05", forecast.low), ("0.5", forecast.value), ("0.95", forecast.high)] {
            let labels = MetricLabels::new().with("horizon", horizon).with("level", quantile);
            self.sample(&labels, Some(self.quantity().in_base_units(value)), out);
        }
    }

    fn sample(&self, labels: &MetricLabels, value: Option<f64>, out: &mut Exposition<'_>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            out.sample(&[self.labels.as_str(), labels.as_str()], SampleValue::Real(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{ProcessFootprint, ServerCounts};
    use crate::sample_view;
    use serve::exposition::ExpositionFormat;

    #[test]
    fn a_horizon_has_one_of_three_labels_and_another_one_has_no_series() {
        let (view, mut profiles) = (sample_view::small(), sample_view::profiles::small());
        profiles.profiles.truncate(1);
        profiles.profiles[0].forecasts[0].horizon = Duration::from_secs(7);
        profiles.profiles[0].forecasts[1].value = f64::NAN;
        let own = ServerCounts::default();
        let footprint = ProcessFootprint::default();
        let input =
            MetricsInput { view: &view, profiles: Some(&profiles), now: sample_view::NOW, own: &own, footprint };
        let mut text = Vec::new();
        let mut out = Exposition::new(&mut text, ExpositionFormat::Classic);
        write_gpus(&input, &LabelledSubjects::of(&view), &mut out);
        out.finish();
        let text = String::from_utf8(text).unwrap();
        let forecasts = text.lines().filter(|line| line.starts_with("gpu_steward_gpu_load_forecast_ratio{"));
        assert_eq!(forecasts.count(), 5, "{text}");
        assert!(!text.contains("horizon=\"7s\"") && !text.contains("NaN"), "{text}");
    }
}
