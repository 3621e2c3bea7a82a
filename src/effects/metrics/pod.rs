//! Our own metrics of pods and containers.

use super::row::MetricRow;
use super::subject::LabelledSubjects;
use model::Reading;
use model::cgroup::{CgroupSample, NetworkSample};
use model::id::PodUid;
use model::sample_value::{BaseUnits, SampleValue};
use model::tally::GpuTally;
use model::time::Monotonic;
use model::unit::Nanos;
use model::view::{ContainerView, GpuUse, NodeView, PodView};
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};
use std::collections::HashMap;
use std::sync::Arc;

const POD: &str = "gpu_steward_pod_";
const CONTAINER: &str = "gpu_steward_container_";

/// Readings of a cgroup.
#[rustfmt::skip]
static CGROUP: &[MetricRow<CgroupSample>] = &[
    MetricRow::counter("cpu_seconds_total", "seconds", "CPU time.", |s| s.cpu_total.number()),
    MetricRow::counter("cpu_user_seconds_total", "seconds", "CPU time in user mode.", |s| s.cpu_user.number()),
    MetricRow::counter("cpu_system_seconds_total", "seconds", "CPU time in the kernel.", |s| s.cpu_system.number()),
    MetricRow::gauge("cpu_limit_cores", "cores", "CPU limit; no series where there is none.", |s| limit(&s.cpu_limit, SampleValue::Real)),
    MetricRow::counter("cpu_cfs_periods_total", "", "Enforcement periods with something to run.", |s| s.cfs_periods.number()),
    MetricRow::counter("cpu_cfs_throttled_periods_total", "", "Enforcement periods in which the quota was used up.", |s| s.cfs_throttled_periods.number()),
    MetricRow::counter("cpu_cfs_throttled_seconds_total", "seconds", "Time spent waiting for the next enforcement period.", |s| s.cfs_throttled.number()),
    MetricRow::gauge("memory_usage_bytes", "bytes", "Memory charged, page cache included.", |s| s.memory_usage.number()),
    MetricRow::gauge("memory_working_set_bytes", "bytes", "Memory without inactive file pages: the value by which the kubelet evicts.", |s| s.memory_working_set.number()),
    MetricRow::gauge("memory_rss_bytes", "bytes", "Anonymous memory.", |s| s.memory_rss.number()),
    MetricRow::gauge("memory_cache_bytes", "bytes", "Page cache.", |s| s.memory_cache.number()),
    MetricRow::gauge("memory_swap_bytes", "bytes", "Memory swapped out; no series where the kernel does not account for swap.", |s| s.memory_swap.number()),
    MetricRow::gauge("memory_limit_bytes", "bytes", "Memory limit; no series where there is none.", |s| limit(&s.memory_limit, |bytes| SampleValue::Whole(bytes.0))),
    MetricRow::counter("oom_kills_total", "", "Processes that the kernel killed for lack of memory.", |s| s.oom_kills.number()),
    MetricRow::counter("io_read_bytes_total", "bytes", "Bytes read from block devices.", |s| s.io_read.number()),
    MetricRow::counter("io_write_bytes_total", "bytes", "Bytes written to block devices.", |s| s.io_write.number()),
    MetricRow::counter("io_reads_total", "", "Reads from block devices.", |s| s.io_reads.number()),
    MetricRow::counter("io_writes_total", "", "Writes to block devices.", |s| s.io_writes.number()),
    MetricRow::gauge("process_io_read_bytes", "bytes", "Bytes that the running processes read from storage, without processes that have ended.", |s| s.process_io.map(|io| io.read).number()),
    MetricRow::gauge("process_io_write_bytes", "bytes", "Bytes that the running processes wrote to storage, without processes that have ended.", |s| s.process_io.map(|io| io.write).number()),
    MetricRow::gauge("tasks", "", "Processes and threads.", |s| s.tasks.number()),
    MetricRow::gauge("processes", "", "Processes.", |s| s.processes.number()),
    MetricRow::counter("pressure_cpu_waiting_seconds_total", "seconds", "Time some task waited for a processor.", |s| pressed(s, |p| p.cpu_waiting)),
    MetricRow::counter("pressure_cpu_stalled_seconds_total", "seconds", "Time all tasks waited for a processor.", |s| pressed(s, |p| p.cpu_stalled)),
    MetricRow::counter("pressure_memory_waiting_seconds_total", "seconds", "Time some task waited for memory.", |s| pressed(s, |p| p.memory_waiting)),
    MetricRow::counter("pressure_memory_stalled_seconds_total", "seconds", "Time all tasks waited for memory.", |s| pressed(s, |p| p.memory_stalled)),
    MetricRow::counter("pressure_io_waiting_seconds_total", "seconds", "Time some task waited for I/O.", |s| pressed(s, |p| p.io_waiting)),
    MetricRow::counter("pressure_io_stalled_seconds_total", "seconds", "Time all tasks waited for I/O.", |s| pressed(s, |p| p.io_stalled)),
];

/// Counters of a network namespace.
#[rustfmt::skip]
static NETWORK: &[MetricRow<Reading<NetworkSample>>] = &[
    MetricRow::counter("network_receive_bytes_total", "bytes", "Bytes received on all interfaces but lo.", |n| total(n, |n| n.rx_bytes.0)),
    MetricRow::counter("network_transmit_bytes_total", "bytes", "Bytes sent on all interfaces but lo.", |n| total(n, |n| n.tx_bytes.0)),
    MetricRow::counter("network_receive_packets_total", "", "Packets received.", |n| total(n, |n| n.rx_packets.0)),
    MetricRow::counter("network_transmit_packets_total", "", "Packets sent.", |n| total(n, |n| n.tx_packets.0)),
    MetricRow::counter("network_receive_errors_total", "", "Received packets with errors.", |n| total(n, |n| n.rx_errors.0)),
    MetricRow::counter("network_transmit_errors_total", "", "Sent packets with errors.", |n| total(n, |n| n.tx_errors.0)),
    MetricRow::counter("network_receive_dropped_total", "", "Received packets dropped.", |n| total(n, |n| n.rx_dropped.0)),
    MetricRow::counter("network_transmit_dropped_total", "", "Packets dropped before they were sent.", |n| total(n, |n| n.tx_dropped.0)),
];

/// Use of a GPU by the processes of a pod or container.
#[rustfmt::skip]
static SHARE: &[MetricRow<GpuUse>] = &[
    MetricRow::gauge("gpu_memory_used_bytes", "bytes", "GPU memory that the processes hold, by GPU.", |s| s.memory_used.number()),
    MetricRow::gauge("gpu_sm_ratio", "ratio", "SM use of the processes, by GPU.", |s| s.sm.number()),
    MetricRow::gauge("gpu_processes", "", "Processes on the GPU, by GPU.", |s| Reading::Measured(SampleValue::Whole(u64::from(s.processes)), Monotonic(0))),
];

const PROMISED: MetricFamily = MetricFamily {
    name: "gpu_memory_promised_bytes",
    kind: MetricType::Gauge,
    unit: "bytes",
    help: "GPU memory that the pod's containers together claim, by GPU or MIG instance; no series where memory is not limited.",
};

const OVER_USE: MetricFamily = MetricFamily {
    name: "over_use_bytes",
    kind: MetricType::Gauge,
    unit: "bytes",
    help: "GPU memory that the pod holds beyond its claim, once it has done so for half a minute; no series otherwise.",
};

const OWNER: MetricFamily = MetricFamily {
    name: "owner_info",
    kind: MetricType::Info,
    unit: "",
    help: "Owner of the pod: the controller among its ownerReferences; no series for a pod without a controller.",
};

const LABELS: MetricFamily = MetricFamily {
    name: "labels_info",
    kind: MetricType::Info,
    unit: "",
    help: "Labels of the pod that --pod-labels names; no series for a pod that has none of them.",
};

/// The tally of a pod.
#[rustfmt::skip]
static TALLY: &[MetricRow<GpuTally>] = &[
    MetricRow::counter("gpu_seconds_total", "seconds", "GPU time of the pod, by GPU: each second of a GPU is divided among its holders. The sum begins at 0 when the agent starts.", |t| Reading::Measured(t.held.in_base_units(), Monotonic(0))),
    MetricRow::counter("gpu_energy_joules_total", "joules", "The pod's part of the energy that the GPU drew, by GPU: divided by SM use, or else like GPU time. The sum begins at 0 when the agent starts.", |t| Reading::Measured(t.energy.in_base_units(), Monotonic(0))),
];

const REASON: MetricFamily = MetricFamily {
    name: "network_absent",
    kind: MetricType::Gauge,
    unit: "",
    help: "1 where the network totals are absent, with the reason.",
};

fn limit<T: Copy>(reading: &Reading<Option<T>>, number: impl FnOnce(T) -> SampleValue) -> Reading<SampleValue> {
    match reading {
        Reading::Measured(Some(value), at) => Reading::Measured(number(*value), *at),
        Reading::Measured(None, _) => Reading::Absent(model::Absence::SwitchedOff),
        Reading::Absent(why) => Reading::Absent(*why),
    }
}

fn pressed(sample: &CgroupSample, pick: impl FnOnce(model::cgroup::Pressure) -> Nanos) -> Reading<SampleValue> {
    sample.pressure.map(pick).number()
}

fn total(network: &Reading<NetworkSample>, pick: impl FnOnce(&NetworkSample) -> u64) -> Reading<SampleValue> {
    match network {
        Reading::Measured(sample, at) => Reading::Measured(SampleValue::Whole(pick(sample)), *at),
        Reading::Absent(why) => Reading::Absent(*why),
    }
}

/// The readings that pods and containers have in common.
trait Holds {
    fn sample(&self) -> &CgroupSample;
    fn network(&self) -> &Reading<NetworkSample>;
    fn gpus(&self) -> &[GpuUse];
}

impl Holds for PodView {
    fn sample(&self) -> &CgroupSample {
        &self.sample
    }
    fn network(&self) -> &Reading<NetworkSample> {
        &self.network
    }
    fn gpus(&self) -> &[GpuUse] {
        &self.gpus
    }
}

impl Holds for ContainerView {
    fn sample(&self) -> &CgroupSample {
        &self.sample
    }
    fn network(&self) -> &Reading<NetworkSample> {
        &self.network
    }
    fn gpus(&self) -> &[GpuUse] {
        &self.gpus
    }
}

/// Writes the metrics of pods and containers.
pub fn write(view: &NodeView, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let pods: Vec<_> = subjects.pods.iter().map(|pod| (pod.seen, pod.labels.as_str())).collect();
    let containers: Vec<_> = subjects.containers.iter().map(|it| (it.seen, it.labels.as_str())).collect();
    one(POD, &pods, subjects, out);
    out.prefixed(POD, &REASON);
    for (pod, labels) in &pods {
        if let Reading::Absent(why) = pod.network {
            let reason = MetricLabels::new().with("reason", why.code());
            out.sample(&[labels, reason.as_str()], SampleValue::Whole(1));
        }
    }
    against_promises(view, subjects, out);
    over_time(view, subjects, out);
    one(CONTAINER, &containers, subjects, out);
}

/// Writes only the metrics of pods that are about GPUs.
pub fn write_shares(view: &NodeView, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let pods: Vec<_> = subjects.pods.iter().map(|pod| (pod.seen, pod.labels.as_str())).collect();
    shares(POD, &pods, subjects, out);
    against_promises(view, subjects, out);
    tallies(view, &labels_of(subjects), subjects, out);
}

fn labels_of<'a>(subjects: &'a LabelledSubjects<'_>) -> HashMap<&'a PodUid, &'a str> {
    subjects.pods.iter().map(|pod| (&pod.seen.uid, pod.labels.as_str())).collect()
}

fn against_promises(view: &NodeView, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let labels = |uid: &PodUid| subjects.pods.iter().find(|pod| &pod.seen.uid == uid).map(|pod| pod.labels.as_str());
    out.prefixed(POD, &PROMISED);
    for claim in view.memory_claims.iter() {
        if let Some(pod) = labels(&claim.pod) {
            out.sample(&[pod, subjects.device(&claim.device).as_str()], SampleValue::Whole(claim.memory.0));
        }
    }
    out.prefixed(POD, &OVER_USE);
    for over in &view.over_uses {
        if let (Some(pod), Some(used)) = (labels(&over.pod), over.used.value()) {
            let beyond = used.0.saturating_sub(over.claimed.0);
            out.sample(&[pod, subjects.device(&over.device).as_str()], SampleValue::Whole(beyond));
        }
    }
}

/// Writes owner, labels and tallies of pods.
fn over_time(view: &NodeView, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let labels = labels_of(subjects);
    out.prefixed(POD, &OWNER);
    for (uid, owner) in view.pod_owners.iter() {
        if let Some(pod) = labels.get(uid) {
            let owner = MetricLabels::new().with("owner_kind", &owner.kind).with("owner_name", &owner.name);
            out.sample(&[pod, owner.as_str()], SampleValue::Whole(1));
        }
    }
    out.prefixed(POD, &LABELS);
    for (uid, pod_labels) in view.pod_labels.iter() {
        if let Some(pod) = labels.get(uid) {
            let add = |to: MetricLabels, (key, value): &(Arc<str>, Arc<str>)| to.with(&label_name(key), value);
            let pod_labels = pod_labels.iter().fold(MetricLabels::new(), add);
            out.sample(&[pod, pod_labels.as_str()], SampleValue::Whole(1));
        }
    }
    tallies(view, &labels, subjects, out);
}

/// The metric label for a pod's label, formed as in kube-state-metrics: `label_app_kubernetes_io_name`.
fn label_name(key: &str) -> String {
    let fits = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    format!("label_{}", key.chars().map(fits).collect::<String>())
}

/// Writes the tallies of pods.
fn tallies(
    view: &NodeView,
    labels: &HashMap<&PodUid, &str>,
    subjects: &LabelledSubjects<'_>,
    out: &mut Exposition<'_>,
) {
    for row in TALLY {
        out.prefixed(POD, &row.family);
        for tally in view.tallies.iter() {
            if let (Some(pod), Reading::Measured(value, _)) = (labels.get(&tally.pod), (row.read)(tally)) {
                out.sample(&[pod, subjects.device(&tally.gpu).as_str()], value);
            }
        }
    }
}

fn one<T: Holds>(prefix: &'static str, all: &[(&T, &str)], subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    for row in CGROUP {
        out.prefixed(prefix, &row.family);
        for (it, labels) in all {
            if let Reading::Measured(value, _) = (row.read)(it.sample()) {
                out.sample(&[labels], value);
            }
        }
    }
    for row in NETWORK {
        out.prefixed(prefix, &row.family);
        for (it, labels) in all {
            if let Reading::Measured(value, _) = (row.read)(it.network()) {
                out.sample(&[labels], value);
            }
        }
    }
    shares(prefix, all, subjects, out);
}

fn shares<T: Holds>(
    prefix: &'static str,
    all: &[(&T, &str)],
    subjects: &LabelledSubjects<'_>,
    out: &mut Exposition<'_>,
) {
    for row in SHARE {
        out.prefixed(prefix, &row.family);
        for (it, labels) in all {
            for share in it.gpus() {
                if let Reading::Measured(value, _) = (row.read)(share) {
                    out.sample(&[labels, subjects.share(share).as_str()], value);
                }
            }
        }
    }
}
