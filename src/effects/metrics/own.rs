//! Metrics of the program itself: resource use, errors, scrapes.

use super::counts::ProcessFootprint;
use super::input::MetricsInput;
use super::row::MetricRow;
use model::Reading;
use model::sample_value::SampleValue;
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};
use std::sync::atomic::Ordering;
use wire::api::node::error_counter_word;

#[rustfmt::skip]
static PROCESS: &[MetricRow<ProcessFootprint>] = &[
    MetricRow::gauge("process_start_time_seconds", "seconds", "When this program was started, in seconds since 1970.", |f| f.started_seconds.number()),
    MetricRow::counter("process_cpu_seconds_total", "seconds", "Processor time of this program.", |f| f.cpu_seconds.number()),
    MetricRow::gauge("process_resident_memory_bytes", "bytes", "Resident memory of this program.", |f| f.resident.number()),
    MetricRow::gauge("process_virtual_memory_bytes", "bytes", "Address space of this program.", |f| f.address_space.number()),
    MetricRow::gauge("process_open_fds", "", "Files this program has open.", |f| f.files.number()),
    MetricRow::gauge("process_max_fds", "", "Files this program may have open.", |f| f.files_limit.number()),
    MetricRow::gauge("process_threads", "", "Threads of this program.", |f| f.threads.number()),
];

const BUILD: MetricFamily = MetricFamily {
    name: "gpu_steward_build_info",
    kind: MetricType::Info,
    unit: "",
    help: "The version of this program.",
};
const TROUBLES: MetricFamily = MetricFamily::counter("gpu_steward_troubles_total", "Errors since the start, by kind.");
const PASS: MetricFamily =
    gauge("gpu_steward_sampling_pass_seconds", "seconds", "How long the last pass over cgroups took.");
const MISSED: MetricFamily =
    MetricFamily::counter("gpu_steward_sampling_deadlines_missed_total", "Sampling deadlines missed.");
const LEFT_OUT: MetricFamily =
    gauge("gpu_steward_left_out", "", "Objects beyond a bound, which are counted but not shown.");
const WATCHING: MetricFamily = gauge(
    "gpu_steward_pod_watch_up",
    "",
    "1 while the watch of this node's pods at the API server works, 0 while it does not.",
);
const WATCH_AGE: MetricFamily = gauge(
    "gpu_steward_pod_watch_age_seconds",
    "seconds",
    "Time since the API server last sent anything about this node's pods.",
);
const VIEW_AGE: MetricFamily =
    gauge("gpu_steward_view_age_seconds", "seconds", "Age of the node view that this text shows.");
const SCRAPES: MetricFamily =
    MetricFamily::counter("gpu_steward_scrapes_total", "Answered requests for metrics, this one included.");
const REFUSED: MetricFamily = MetricFamily::counter(
    "gpu_steward_scrapes_refused_total",
    "Requests refused because too many answers were in progress.",
);
const CONNECTIONS: MetricFamily = gauge("gpu_steward_http_connections", "", "Connections that are open.");
const CUT: MetricFamily = MetricFamily::counter(
    "gpu_steward_http_connections_cut_total",
    "Connections closed or refused because the connection limit was reached, or closed because the client did not read the answer.",
);

const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily { name, kind: MetricType::Gauge, unit, help }
}

/// Writes the metrics of the program itself.
pub fn write(input: &MetricsInput<'_>, out: &mut Exposition<'_>) {
    out.family(&BUILD);
    out.sample(&[MetricLabels::new().with("version", env!("CARGO_PKG_VERSION")).as_str()], SampleValue::Whole(1));
    sampling(input, out);
    pod_watch(input, out);
    out.family(&VIEW_AGE);
    out.sample(&[], SampleValue::Real(input.now.monotonic.since(input.view.now.monotonic).as_secs_f64()));
    for (family, count) in [
        (&SCRAPES, &input.own.scrapes),
        (&REFUSED, &input.own.scrapes_refused),
        (&CONNECTIONS, &input.own.connections.open),
        (&CUT, &input.own.connections.cut),
    ] {
        out.family(family);
        out.sample(&[], SampleValue::Whole(count.load(Ordering::Relaxed)));
    }
    for row in PROCESS {
        out.family(&row.family);
        if let Reading::Measured(value, _) = (row.read)(&input.footprint) {
            out.sample(&[], value);
        }
    }
}

fn sampling(input: &MetricsInput<'_>, out: &mut Exposition<'_>) {
    let view = input.view;
    out.family(&TROUBLES);
    for (kind, count) in &view.troubles {
        out.sample(&[MetricLabels::new().with("kind", error_counter_word(*kind)).as_str()], SampleValue::Whole(*count));
    }
    out.family(&PASS);
    out.sample(&[], SampleValue::Real(std::time::Duration::from_micros(view.pass_us).as_secs_f64()));
    out.family(&MISSED);
    out.sample(&[], SampleValue::Whole(view.deadlines_missed));
    out.family(&LEFT_OUT);
    let api_pods = view.pod_watch.as_ref().map(|watch| ("api_pods", watch.left_out));
    let profiles = input.profiles.map(|profiles| ("profile_series", profiles.recorder.left_out));
    let known = [
        ("cgroups", view.cgroups_left_out),
        ("processes", view.processes_left_out),
        ("tallies", view.tallies_left_out),
    ];
    for (what, count) in known.into_iter().chain(api_pods).chain(profiles) {
        out.sample(&[MetricLabels::new().with("what", what).as_str()], SampleValue::Whole(u64::from(count)));
    }
}

/// Writes the state of the pod watch. Without a pod watch there is no series; before the API server's first answer
/// there is no age.
fn pod_watch(input: &MetricsInput<'_>, out: &mut Exposition<'_>) {
    let watch = input.view.pod_watch.as_ref().map(|view| &view.watch);
    out.family(&WATCHING);
    if let Some(watch) = watch {
        out.sample(&[], SampleValue::Whole(u64::from(watch.last_received.is_some() && watch.broken.is_none())));
    }
    out.family(&WATCH_AGE);
    if let Some(received) = watch.and_then(|watch| watch.last_received) {
        out.sample(&[], SampleValue::Real(input.now.monotonic.since(received).as_secs_f64()));
    }
}
