//! cAdvisor's container metrics, with the labels that the kubelet gives them: `id,name,image,namespace,pod,container`.
//!
//! As in cAdvisor, a pod's own cgroup is a series with an empty `container` and an empty `image`. It is the sum of
//! the pod, so a query that adds it to the containers counts twice; the usual rules filter by `image!=""` or
//! `container!=""`. Network totals are on the pod's sandbox, also as in cAdvisor. If the image of a container is not
//! known, `image` is `unknown`, so that those filters keep the container. Block I/O is the sum over all devices, so
//! its `device` is `/dev/*`.

use super::input::MetricsInput;
use super::row::MetricRow;
use super::subject::{LabelledSubjects, pod_name};
use model::Reading;
use model::cgroup::{CgroupSample, NetworkSample};
use model::sample_value::SampleValue;
use model::time::Now;
use model::unit::Nanos;
use model::view::{ContainerView, NodeView, PodView};
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};

#[rustfmt::skip]
static CGROUP: &[MetricRow<CgroupSample>] = &[
    MetricRow::counter("container_cpu_usage_seconds_total", "", "Cumulative cpu time consumed in seconds.", |s: &CgroupSample| s.cpu_total.number()).labelled("cpu=\"total\""),
    MetricRow::counter("container_cpu_user_seconds_total", "", "Cumulative user cpu time consumed in seconds.", |s| s.cpu_user.number()),
    MetricRow::counter("container_cpu_system_seconds_total", "", "Cumulative system cpu time consumed in seconds.", |s| s.cpu_system.number()),
    MetricRow::counter("container_cpu_cfs_periods_total", "", "Number of elapsed enforcement period intervals.", |s| s.cfs_periods.number()),
    MetricRow::counter("container_cpu_cfs_throttled_periods_total", "", "Number of throttled period intervals.", |s| s.cfs_throttled_periods.number()),
    MetricRow::counter("container_cpu_cfs_throttled_seconds_total", "", "Total time duration the container has been throttled.", |s| s.cfs_throttled.number()),
    MetricRow::gauge("container_memory_usage_bytes", "", "Current memory usage in bytes, including all memory regardless of when it was accessed.", |s| s.memory_usage.number()),
    MetricRow::gauge("container_memory_working_set_bytes", "", "Current working set in bytes.", |s| s.memory_working_set.number()),
    MetricRow::gauge("container_memory_rss", "", "Size of RSS in bytes.", |s| s.memory_rss.number()),
    MetricRow::gauge("container_memory_cache", "", "Number of bytes of page cache memory.", |s| s.memory_cache.number()),
    MetricRow::gauge("container_memory_swap", "", "Container swap usage in bytes.", |s| s.memory_swap.number()),
    MetricRow::gauge("container_spec_memory_limit_bytes", "", "Memory limit for the container; 0 for none.", |s| s.memory_limit.map(|limit| limit.map_or(0, |bytes| bytes.0)).number()),
    MetricRow::counter("container_oom_events_total", "", "Count of out of memory events observed for the container.", |s| s.oom_kills.number()),
    MetricRow::counter("container_fs_reads_bytes_total", "", "Cumulative count of bytes read.", |s: &CgroupSample| s.io_read.number()).labelled("device=\"/dev/*\""),
    MetricRow::counter("container_fs_writes_bytes_total", "", "Cumulative count of bytes written.", |s: &CgroupSample| s.io_write.number()).labelled("device=\"/dev/*\""),
    MetricRow::counter("container_fs_reads_total", "", "Cumulative count of reads completed.", |s: &CgroupSample| s.io_reads.number()).labelled("device=\"/dev/*\""),
    MetricRow::counter("container_fs_writes_total", "", "Cumulative count of writes completed.", |s: &CgroupSample| s.io_writes.number()).labelled("device=\"/dev/*\""),
    MetricRow::gauge("container_processes", "", "Number of processes running inside the container.", |s| s.processes.number()),
    MetricRow::gauge("container_threads", "", "Number of threads running inside the container.", |s| s.tasks.number()),
    MetricRow::counter("container_pressure_cpu_waiting_seconds_total", "", "Total time duration tasks in the container have waited due to CPU congestion.", |s| pressed(s, |p| p.cpu_waiting)),
    MetricRow::counter("container_pressure_cpu_stalled_seconds_total", "", "Total time duration no tasks in the container could make progress due to CPU congestion.", |s| pressed(s, |p| p.cpu_stalled)),
    MetricRow::counter("container_pressure_memory_waiting_seconds_total", "", "Total time duration tasks in the container have waited due to memory congestion.", |s| pressed(s, |p| p.memory_waiting)),
    MetricRow::counter("container_pressure_memory_stalled_seconds_total", "", "Total time duration no tasks in the container could make progress due to memory congestion.", |s| pressed(s, |p| p.memory_stalled)),
    MetricRow::counter("container_pressure_io_waiting_seconds_total", "", "Total time duration tasks in the container have waited due to IO congestion.", |s| pressed(s, |p| p.io_waiting)),
    MetricRow::counter("container_pressure_io_stalled_seconds_total", "", "Total time duration no tasks in the container could make progress due to IO congestion.", |s| pressed(s, |p| p.io_stalled)),
];

#[rustfmt::skip]
static NETWORK: &[MetricRow<NetworkSample>] = &[
    MetricRow::counter("container_network_receive_bytes_total", "", "Cumulative count of bytes received.", |n| counted(n.rx_bytes.0)),
    MetricRow::counter("container_network_transmit_bytes_total", "", "Cumulative count of bytes transmitted.", |n| counted(n.tx_bytes.0)),
    MetricRow::counter("container_network_receive_packets_total", "", "Cumulative count of packets received.", |n| counted(n.rx_packets.0)),
    MetricRow::counter("container_network_transmit_packets_total", "", "Cumulative count of packets transmitted.", |n| counted(n.tx_packets.0)),
    MetricRow::counter("container_network_receive_errors_total", "", "Cumulative count of errors encountered while receiving.", |n| counted(n.rx_errors.0)),
    MetricRow::counter("container_network_transmit_errors_total", "", "Cumulative count of errors encountered while transmitting.", |n| counted(n.tx_errors.0)),
    MetricRow::counter("container_network_receive_packets_dropped_total", "", "Cumulative count of packets dropped while receiving.", |n| counted(n.rx_dropped.0)),
    MetricRow::counter("container_network_transmit_packets_dropped_total", "", "Cumulative count of packets dropped while transmitting.", |n| counted(n.tx_dropped.0)),
];

const LAST_SEEN: MetricFamily = MetricFamily {
    name: "container_last_seen",
    kind: MetricType::Gauge,
    unit: "",
    help: "Last time a container was seen by the exporter, in seconds since 1970.",
};

fn pressed(sample: &CgroupSample, pick: impl FnOnce(model::cgroup::Pressure) -> Nanos) -> Reading<SampleValue> {
    sample.pressure.map(pick).number()
}

/// A measured count. The time is not shown, so it is 0.
fn counted(value: u64) -> Reading<SampleValue> {
    Reading::Measured(SampleValue::Whole(value), model::time::Monotonic(0))
}

/// Writes cAdvisor's metrics.
pub fn write(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let cgroups = cgroups(input.view, subjects);
    for row in CGROUP {
        out.family(&row.family);
        for (sample, labels) in &cgroups {
            if let Reading::Measured(value, _) = (row.read)(sample) {
                out.sample(&[row.labels, labels.as_str()], value);
            }
        }
    }
    last_seen(input.now, &cgroups, out);
    let networks = networks(input.view);
    for row in NETWORK {
        out.family(&row.family);
        for (network, labels) in &networks {
            if let Reading::Measured(value, _) = (row.read)(network) {
                out.sample(&[labels.as_str()], value);
            }
        }
    }
}

fn last_seen(now: Now, cgroups: &[(&CgroupSample, MetricLabels)], out: &mut Exposition<'_>) {
    out.family(&LAST_SEEN);
    for (sample, labels) in cgroups {
        if let Some(at) = sample.cpu_total.at().or(sample.memory_usage.at()) {
            // Whole seconds, as cAdvisor has them.
            out.sample(&[labels.as_str()], SampleValue::Whole(now.wall_of(at).0 / 1_000_000));
        }
    }
}

/// The cgroups of pods, and of containers except sandboxes. A sandbox uses almost nothing, and the pod's sum includes
/// it.
fn cgroups<'a>(view: &'a NodeView, subjects: &LabelledSubjects<'a>) -> Vec<(&'a CgroupSample, MetricLabels)> {
    let mut all = Vec::with_capacity(subjects.pods.len() + subjects.containers.len());
    for pod in &view.pods {
        all.push((&pod.sample, of_pod(pod)));
        let containers = pod.containers.iter().filter(|container| !container.sandbox);
        all.extend(containers.map(|container| (&container.sample, of_container(Some(pod), container))));
    }
    all.extend(view.containers.iter().map(|container| (&container.sample, of_container(None, container))));
    all
}

fn networks(view: &NodeView) -> Vec<(&NetworkSample, MetricLabels)> {
    let pods = view.pods.iter().filter_map(|pod| {
        let sandbox = pod.containers.iter().find(|container| container.sandbox);
        let labels = sandbox.map_or_else(|| of_pod(pod), |sandbox| of_container(Some(pod), sandbox));
        Some((pod.network.value()?, labels))
    });
    let alone = view.containers.iter().filter_map(|it| Some((it.network.value()?, of_container(None, it))));
    pods.chain(alone).collect()
}

fn of_pod(pod: &PodView) -> MetricLabels {
    let path = pod.cgroup.as_ref().map_or_else(String::new, |cgroup| cgroup.path.to_string());
    // If the pod has no cgroup of its own, its UID makes the series unique.
    let id = if path.is_empty() { format!("pod{}", pod.uid) } else { path };
    let (namespace, name) = pod_name(Some(pod));
    set(["", &id, "", "", namespace, name])
}

fn of_container(pod: Option<&PodView>, container: &ContainerView) -> MetricLabels {
    let (namespace, name) = pod_name(pod);
    let own = if container.sandbox { "" } else { container.name.as_deref().unwrap_or_default() };
    let image = container.image.as_deref().unwrap_or("unknown");
    set([own, &container.cgroup.path, image, container.id.as_str(), namespace, name])
}

/// The labels in the order in which the kubelet writes them.
fn set([container, id, image, name, namespace, pod]: [&str; 6]) -> MetricLabels {
    MetricLabels::new()
        .with("container", container)
        .with("id", id)
        .with("image", image)
        .with("name", name)
        .with("namespace", namespace)
        .with("pod", pod)
}
