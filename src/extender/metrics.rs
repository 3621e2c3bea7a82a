//! `/metrics` of the extender.

use super::live_callers::LiveCallers;
use super::locked_cluster::ClusterCounts;
use super::measures::{MeasuredCounts, Verb};
use super::stream_counts::StreamCounts;
use super::watch_health::WatchHealth;
use decide::cluster::CheckCounts;
use decide::placement::RefusalReason;
use decide::wake_pace::WakeCounts;
use model::histogram::ByteHistogram;
use model::sample_value::SampleValue;
use serve::exposition::{Exposition, ExpositionFormat, MetricFamily, MetricLabels, MetricType};
use serve::server::ConnectionCounts;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LEADS: MetricFamily =
    MetricFamily::gauge("gpu_steward_extender_leads", "1 while this extender leads and decides.");
const ANSWERS: MetricFamily = MetricFamily {
    name: "gpu_steward_extender_answer_seconds",
    kind: MetricType::Histogram,
    unit: "seconds",
    help: "Time from a question of kube-scheduler to its answer, by verb.",
};
const UNANSWERED: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_unanswered_total",
    "Questions of kube-scheduler without an answer: this extender did not lead, or the question could not be read.",
);
const REFUSED: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_refused_nodes_total",
    "Nodes that the filter refused, by the reason of at least one GPU or of the node.",
);
const REFUSED_PODS: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_refused_pods_total",
    "Filter calls for pods that no node can take: their requests for GPUs cannot be read, or they have scheduling gates.",
);
const UNKNOWN_PATHS: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_unknown_paths_total",
    "Requests for a path or with a method that the port does not have, such as an unknown verb.",
);
const REFUSED_SCRAPES: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_refused_scrapes_total",
    "Requests for /metrics and /metrics/hami that were refused because too many waited for their answer.",
);
const CHECKS: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_realtime_checks_total",
    "Nodes of filter calls by the result of the real-time check of memory: passed, refused, warned, fallback (the node fits, and the memory of its processes is not known).",
);
const CHANGED: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_realtime_changed_decisions_total",
    "Filter calls for which the real-time check has refused a node (strict) or put a node last (warning), by mode.",
);
const GAP: MetricFamily = MetricFamily {
    name: "gpu_steward_extender_realtime_gap_bytes",
    kind: MetricType::Histogram,
    unit: "bytes",
    help: "Difference between the claims on a GPU and its memory in use, at each report that changes it.",
};
const CLAIMS: MetricFamily = MetricFamily::gauge(
    "gpu_steward_extender_claims",
    "Pods with a claim: assumed (the binding is not seen yet), bound, started.",
);
const PENDING: MetricFamily = MetricFamily::gauge(
    "gpu_steward_extender_pending_pods",
    "Pods that were filtered and are not bound: expected (a node was named, the bind has not come) and refused (no node fits).",
);
const WAKES: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_wakes_total",
    "Pods that were woken because a node has room for them now: passed (kube-scheduler asked and a node fitted), refused (none fitted), unanswered (it did not ask within 5 s), gone (the pod was bound, deleted or changed before), failed (the pod could not be written).",
);
const OPEN_WAKES: MetricFamily = MetricFamily::gauge(
    "gpu_steward_extender_open_wakes",
    "Pods that were woken and about which kube-scheduler has not asked yet.",
);
const OPEN_BINDINGS: MetricFamily = MetricFamily::gauge(
    "gpu_steward_extender_open_bindings",
    "Bindings that were begun and whose outcome is not known.",
);
const WATCH_LAG: MetricFamily = MetricFamily {
    unit: "seconds",
    ..MetricFamily::gauge(
        "gpu_steward_extender_watch_lag_seconds",
        "Seconds since the oldest binding that the pod watch has not confirmed yet; 0 if all are confirmed.",
    )
};
const NODES: MetricFamily =
    MetricFamily::gauge("gpu_steward_extender_nodes", "Nodes that are known: open, or closed to new claims.");
const WATCH_AGE: MetricFamily = MetricFamily {
    unit: "seconds",
    ..MetricFamily::gauge(
        "gpu_steward_extender_watch_age_seconds",
        "Time since the API server sent anything about this kind of object.",
    )
};
const UNREADABLE: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_unreadable_objects_total",
    "Versions of pods and Nodes that could not be read.",
);
const LEFT_OUT: MetricFamily = MetricFamily::gauge(
    "gpu_steward_extender_left_out_objects",
    "Pods and Nodes that are not followed because there are too many.",
);
const CONNECTIONS: MetricFamily =
    MetricFamily::gauge("gpu_steward_extender_connections", "Connections to the port that are open.");
const CUT: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_connections_cut_total",
    "Connections that were closed to make room for newer ones or because the client did not read its answer, or refused because all were busy.",
);
const DROPPED: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_events_dropped_total",
    "Events on pods that were dropped because too many waited.",
);

const STREAMS: MetricFamily =
    MetricFamily::gauge("gpu_steward_extender_streams", "Agents that report to this extender at this moment.");
const STREAMS_OPENED: MetricFamily =
    MetricFamily::counter("gpu_steward_extender_streams_opened_total", "Streams of agents that were opened.");
const STREAM_ENDS: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_stream_ends_total",
    "Streams of agents that have ended, or that were refused after their caller was known, by reason.",
);
const STREAM_MESSAGES: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_stream_messages_total",
    "Messages of agents after the first one of a stream.",
);
const CALLERS_REFUSED: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_refused_callers_total",
    "Requests to the TLS port whose caller was refused, by reason.",
);
const STREAM_CONNECTIONS: MetricFamily =
    MetricFamily::gauge("gpu_steward_extender_stream_connections", "Connections to the TLS port that are open.");
const STREAM_CUT: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_stream_connections_cut_total",
    "Connections to the TLS port that were closed to make room for newer ones or because the client did not read its answer, or refused because all were busy.",
);
const FAILED_HANDSHAKES: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_failed_handshakes_total",
    "TLS handshakes on the TLS port that failed or took too long.",
);
const PASSED_ON: MetricFamily = MetricFamily::counter(
    "gpu_steward_extender_passed_on_total",
    "Questions of kube-scheduler that this extender passed on to the leader, which answered.",
);

/// What a scrape shows.
pub(super) struct Scrape<'a> {
    pub(super) leads: bool,
    pub(super) open_bindings: usize,
    pub(super) watch_lag: Duration,
    pub(super) cluster: ClusterCounts,
    pub(super) measured: MeasuredCounts,
    pub(super) gaps: ByteHistogram,
    pub(super) watches: &'a [Arc<WatchHealth>],
    pub(super) connections: &'a ConnectionCounts,
    /// Readers of a large answer that were too slow.
    pub(super) readers_cut: u64,
    pub(super) events_dropped: u64,
    /// `None` if this extender serves no agents.
    pub(super) streams: Option<&'a StreamScrape>,
}

/// What a scrape shows of the streams.
#[derive(Clone, Debug)]
pub(super) struct StreamScrape {
    pub(super) live: Arc<LiveCallers>,
    pub(super) counts: Arc<StreamCounts>,
    /// The counts of the TLS port.
    pub(super) connections: Arc<ConnectionCounts>,
}

/// The text of a scrape.
pub(super) fn render(scrape: &Scrape<'_>, format: ExpositionFormat) -> Vec<u8> {
    let mut text = Vec::new();
    let mut out = Exposition::new(&mut text, format);
    own(scrape, &mut out);
    verbs(&scrape.measured, &mut out);
    realtime(&scrape.measured, &scrape.gaps, &mut out);
    if let Some(shown) = scrape.streams {
        streams(shown, &mut out);
    }
    out.finish();
    text
}

fn own(scrape: &Scrape<'_>, out: &mut Exposition<'_>) {
    let label = |name: &str, value: &str| MetricLabels::new().with(name, value);
    out.family(&LEADS);
    out.sample(&[], SampleValue::Whole(scrape.leads.into()));
    let counts = &scrape.cluster;
    out.family(&CLAIMS);
    for (state, claims) in &counts.claims {
        out.sample(&[label("state", state).as_str()], SampleValue::Whole(*claims as u64));
    }
    out.family(&PENDING);
    for (state, pods) in [("expected", counts.expected), ("refused", counts.refused)] {
        out.sample(&[label("state", state).as_str()], SampleValue::Whole(pods as u64));
    }
    wakes(&counts.wakes, out);
    out.family(&OPEN_BINDINGS);
    out.sample(&[], SampleValue::Whole(scrape.open_bindings as u64));
    out.family(&WATCH_LAG);
    out.sample(&[], SampleValue::Real(scrape.watch_lag.as_secs_f64()));
    out.family(&NODES);
    for (state, nodes) in [("open", counts.nodes - counts.closed), ("closed", counts.closed)] {
        out.sample(&[label("state", state).as_str()], SampleValue::Whole(nodes as u64));
    }
    out.family(&WATCH_AGE);
    for watch in scrape.watches {
        // Absent before the first answer, not zero.
        if let Some(age) = watch.age() {
            out.sample(&[label("kind", watch.what()).as_str()], SampleValue::Real(age.as_secs_f64()));
        }
    }
    out.family(&UNREADABLE);
    for watch in scrape.watches {
        out.sample(&[label("kind", watch.what()).as_str()], SampleValue::Whole(watch.unreadable()));
    }
    out.family(&LEFT_OUT);
    for watch in scrape.watches {
        out.sample(&[label("kind", watch.what()).as_str()], SampleValue::Whole(watch.left_out().into()));
    }
    out.family(&CONNECTIONS);
    out.sample(&[], SampleValue::Whole(scrape.connections.open.load(Ordering::Relaxed)));
    out.family(&CUT);
    out.sample(&[], SampleValue::Whole(scrape.connections.cut.load(Ordering::Relaxed) + scrape.readers_cut));
    out.family(&DROPPED);
    out.sample(&[], SampleValue::Whole(scrape.events_dropped));
}

fn wakes(counts: &WakeCounts, out: &mut Exposition<'_>) {
    let WakeCounts { passed, refused, unanswered, gone, failed, open } = *counts;
    out.family(&WAKES);
    for (outcome, pods) in
        [("passed", passed), ("refused", refused), ("unanswered", unanswered), ("gone", gone), ("failed", failed)]
    {
        let label = MetricLabels::new().with("outcome", outcome);
        out.sample(&[label.as_str()], SampleValue::Whole(pods));
    }
    out.family(&OPEN_WAKES);
    out.sample(&[], SampleValue::Whole(open as u64));
}

fn verbs(counts: &MeasuredCounts, out: &mut Exposition<'_>) {
    let label = |name: &str, value: &str| MetricLabels::new().with(name, value);
    out.family(&ANSWERS);
    for (verb, answers) in Verb::ALL.iter().zip(&counts.answers) {
        out.histogram(&[label("verb", verb.word()).as_str()], answers);
    }
    out.family(&UNANSWERED);
    for (verb, unanswered) in Verb::ALL.iter().zip(counts.unanswered) {
        out.sample(&[label("verb", verb.word()).as_str()], SampleValue::Whole(unanswered));
    }
    for (family, count) in [
        (&REFUSED_PODS, counts.refused_pods),
        (&UNKNOWN_PATHS, counts.unknown_paths),
        (&REFUSED_SCRAPES, counts.refused_scrapes),
    ] {
        out.family(family);
        out.sample(&[], SampleValue::Whole(count));
    }
    out.family(&REFUSED);
    for (reason, nodes) in RefusalReason::ALL.iter().zip(counts.refusals) {
        out.sample(&[label("reason", reason.code()).as_str()], SampleValue::Whole(nodes));
    }
}

fn realtime(counts: &MeasuredCounts, gaps: &ByteHistogram, out: &mut Exposition<'_>) {
    let label = |name: &str, value: &str| MetricLabels::new().with(name, value);
    out.family(&CHECKS);
    let CheckCounts { passed, refused, warned, fallback } = counts.checks;
    for (result, nodes) in [("passed", passed), ("refused", refused), ("warned", warned), ("fallback", fallback)] {
        out.sample(&[label("result", result).as_str()], SampleValue::Whole(nodes));
    }
    out.family(&CHANGED);
    for (mode, calls) in [("strict", counts.changed_by_strict), ("warning", counts.changed_by_warning)] {
        out.sample(&[label("mode", mode).as_str()], SampleValue::Whole(calls));
    }
    out.family(&GAP);
    out.byte_histogram(&[], gaps);
}

fn streams(shown: &StreamScrape, out: &mut Exposition<'_>) {
    let totals = shown.counts.totals();
    out.family(&STREAMS);
    out.sample(&[], SampleValue::Whole(shown.live.open_streams() as u64));
    let ConnectionCounts { open, cut, failed_handshakes } = &*shown.connections;
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    out.family(&STREAM_CONNECTIONS);
    out.sample(&[], SampleValue::Whole(value(open)));
    for (family, count) in [
        (&STREAM_CUT, value(cut)),
        (&FAILED_HANDSHAKES, value(failed_handshakes)),
        (&STREAMS_OPENED, totals.opened),
        (&STREAM_MESSAGES, totals.messages),
        (&PASSED_ON, totals.passed_on),
    ] {
        out.family(family);
        out.sample(&[], SampleValue::Whole(count));
    }
    for (family, reasons) in [(&STREAM_ENDS, &totals.ends), (&CALLERS_REFUSED, &totals.refused)] {
        out.family(family);
        for (reason, count) in reasons {
            out.sample(&[MetricLabels::new().with("reason", reason).as_str()], SampleValue::Whole(*count));
        }
    }
}
