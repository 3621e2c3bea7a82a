//! Our own metrics of the node.

use super::input::MetricsInput;
use super::row::MetricRow;
use model::Reading;
use model::cgroup::NetworkSample;
use model::host::{HostPressure, HostSample};
use model::observation::GpuSourceState;
use model::sample_value::SampleValue;
use model::unit::Nanos;
use model::view::NodeView;
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};

const PREFIX: &str = "gpu_steward_node_";

#[rustfmt::skip]
static HOST: &[MetricRow<HostSample>] = &[
    MetricRow::counter("cpu_seconds_total", "seconds", "Time of all processors since boot, by mode.", |h: &HostSample| h.cpu_user.number()).labelled("mode=\"user\""),
    MetricRow::counter("cpu_seconds_total", "seconds", "Time of all processors since boot, by mode.", |h: &HostSample| h.cpu_system.number()).labelled("mode=\"system\""),
    MetricRow::counter("cpu_seconds_total", "seconds", "Time of all processors since boot, by mode.", |h: &HostSample| h.cpu_idle.number()).labelled("mode=\"idle\""),
    MetricRow::counter("cpu_seconds_total", "seconds", "Time of all processors since boot, by mode.", |h: &HostSample| h.cpu_iowait.number()).labelled("mode=\"iowait\""),
    MetricRow::counter("cpu_seconds_total", "seconds", "Time of all processors since boot, by mode.", |h: &HostSample| h.cpu_steal.number()).labelled("mode=\"steal\""),
    MetricRow::gauge("processors", "", "Processors online.", |h| h.processors.number()),
    MetricRow::gauge("load", "", "Load average, by period.", |h: &HostSample| h.load.map(|load| load[0]).number()).labelled("period=\"1m\""),
    MetricRow::gauge("load", "", "Load average, by period.", |h: &HostSample| h.load.map(|load| load[1]).number()).labelled("period=\"5m\""),
    MetricRow::gauge("load", "", "Load average, by period.", |h: &HostSample| h.load.map(|load| load[2]).number()).labelled("period=\"15m\""),
    MetricRow::gauge("memory_total_bytes", "bytes", "Installed memory.", |h| h.memory_total.number()),
    MetricRow::gauge("memory_available_bytes", "bytes", "Memory for new work without swapping.", |h| h.memory_available.number()),
    MetricRow::gauge("memory_working_set_bytes", "bytes", "Installed memory minus available memory.", |h| h.memory_working_set.number()),
    MetricRow::gauge("memory_rss_bytes", "bytes", "Anonymous memory.", |h| h.memory_rss.number()),
    MetricRow::gauge("memory_cache_bytes", "bytes", "Page cache and buffers.", |h| h.memory_cache.number()),
    MetricRow::gauge("swap_used_bytes", "bytes", "Swap in use.", |h| h.swap_used.number()),
    MetricRow::counter("oom_kills_total", "", "Processes that the kernel killed for lack of memory.", |h| h.oom_kills.number()),
    MetricRow::counter("disk_read_bytes_total", "bytes", "Bytes read from whole disks.", |h| h.disk_read.number()),
    MetricRow::counter("disk_write_bytes_total", "bytes", "Bytes written to whole disks.", |h| h.disk_write.number()),
    MetricRow::counter("disk_reads_total", "", "Reads from whole disks.", |h| h.disk_reads.number()),
    MetricRow::counter("disk_writes_total", "", "Writes to whole disks.", |h| h.disk_writes.number()),
    MetricRow::counter("network_receive_bytes_total", "bytes", "Bytes received on interfaces that have a hardware device, each byte counted once.", |h| total(h, |n| n.rx_bytes.0)),
    MetricRow::counter("network_transmit_bytes_total", "bytes", "Bytes sent on interfaces that have a hardware device, each byte counted once.", |h| total(h, |n| n.tx_bytes.0)),
    MetricRow::counter("network_receive_packets_total", "", "Packets received on the same interfaces.", |h| total(h, |n| n.rx_packets.0)),
    MetricRow::counter("network_transmit_packets_total", "", "Packets sent on the same interfaces.", |h| total(h, |n| n.tx_packets.0)),
    MetricRow::counter("network_receive_errors_total", "", "Received packets with errors.", |h| total(h, |n| n.rx_errors.0)),
    MetricRow::counter("network_transmit_errors_total", "", "Sent packets with errors.", |h| total(h, |n| n.tx_errors.0)),
    MetricRow::counter("network_receive_dropped_total", "", "Received packets dropped.", |h| total(h, |n| n.rx_dropped.0)),
    MetricRow::counter("network_transmit_dropped_total", "", "Packets dropped before they were sent.", |h| total(h, |n| n.tx_dropped.0)),
    MetricRow::gauge("tasks", "", "Processes and threads.", |h| h.tasks.number()),
    MetricRow::gauge("processes", "", "Processes.", |h| h.processes.number()),
    MetricRow::counter("pressure_cpu_waiting_seconds_total", "seconds", "Time some task waited for a processor.", |h| pressed(h, |p| p.cpu_waiting)),
    MetricRow::counter("pressure_memory_waiting_seconds_total", "seconds", "Time some task waited for memory.", |h| pressed(h, |p| p.memory_waiting)),
    MetricRow::counter("pressure_memory_stalled_seconds_total", "seconds", "Time all tasks waited for memory.", |h| pressed(h, |p| p.memory_stalled)),
    MetricRow::counter("pressure_io_waiting_seconds_total", "seconds", "Time some task waited for I/O.", |h| pressed(h, |p| p.io_waiting)),
    MetricRow::counter("pressure_io_stalled_seconds_total", "seconds", "Time all tasks waited for I/O.", |h| pressed(h, |p| p.io_stalled)),
];

const INFO: MetricFamily =
    MetricFamily { name: "info", kind: MetricType::Info, unit: "", help: "Kernel and cgroup version of the node." };
const GPUS: MetricFamily =
    MetricFamily { name: "gpu_steward_gpus", kind: MetricType::Gauge, unit: "", help: "GPUs that the agent knows." };
const UNIDENTIFIED: MetricFamily = MetricFamily {
    name: "gpu_steward_gpus_unidentified",
    kind: MetricType::Gauge,
    unit: "",
    help: "1 for each GPU that is counted but could not be identified since the start, by index and reason.",
};
const MISSING: MetricFamily = MetricFamily {
    name: "gpu_steward_gpus_missing",
    kind: MetricType::Gauge,
    unit: "",
    help: "1 for each GPU that the machine has and NVML does not list, by PCI address and reason: not_initialised, not_in_nvml, not_on_bus, other_driver.",
};
const EVENTS_HANG: MetricFamily = MetricFamily {
    name: "gpu_steward_gpu_events_hang",
    kind: MetricType::Gauge,
    unit: "",
    help: "1 while the wait for the driver's events does not return: XIDs come from the kernel log only.",
};
const SIMULATED: MetricFamily = MetricFamily {
    name: "gpu_steward_gpus_simulated",
    kind: MetricType::Gauge,
    unit: "",
    help: "1 when the GPUs and all their readings are simulated (--gpus simulated).",
};
const DRIVER: MetricFamily = MetricFamily {
    name: "gpu_steward_driver_info",
    kind: MetricType::Info,
    unit: "",
    help: "Versions of the NVIDIA driver.",
};
const SOURCE: MetricFamily = MetricFamily {
    name: "gpu_steward_gpu_source",
    kind: MetricType::Gauge,
    unit: "",
    help: "1 for the state of the GPU source: working, starting, missing, hanging, released, switched_off.",
};

fn total(host: &HostSample, pick: impl FnOnce(&NetworkSample) -> u64) -> Reading<SampleValue> {
    match &host.network {
        Reading::Measured(network, at) => Reading::Measured(SampleValue::Whole(pick(network)), *at),
        Reading::Absent(why) => Reading::Absent(*why),
    }
}

fn pressed(host: &HostSample, pick: impl FnOnce(HostPressure) -> Nanos) -> Reading<SampleValue> {
    host.pressure.map(pick).number()
}

/// Writes the metrics of the node.
pub fn write(input: &MetricsInput<'_>, out: &mut Exposition<'_>) {
    let view = input.view;
    out.prefixed(PREFIX, &INFO);
    let info = MetricLabels::new()
        .with("node", view.name.as_str())
        .with("kernel", &view.facts.kernel)
        .with("cgroups", view.facts.cgroups.get().map_or("", |version| version.code()));
    out.sample(&[info.as_str()], SampleValue::Whole(1));
    for row in HOST {
        out.prefixed(PREFIX, &row.family);
        if let Reading::Measured(value, _) = (row.read)(&view.host) {
            out.sample(&[row.labels], value);
        }
    }
    write_gpus(view, out);
}

/// Writes the number of GPUs and the state of the GPU source.
pub fn write_gpus(view: &NodeView, out: &mut Exposition<'_>) {
    out.family(&GPUS);
    out.sample(&[], SampleValue::Whole(view.gpus.len() as u64));
    out.family(&UNIDENTIFIED);
    for gpu in &view.gpus_unidentified {
        let labels = MetricLabels::new().with("gpu", &gpu.index.to_string()).with("reason", gpu.why.code());
        out.sample(&[labels.as_str()], SampleValue::Whole(1));
    }
    out.family(&MISSING);
    for gpu in &view.gpus_missing {
        let labels = MetricLabels::new().with("pci_bus_id", &gpu.pci_bus_id).with("reason", gpu.code());
        out.sample(&[labels.as_str()], SampleValue::Whole(1));
    }
    out.family(&SIMULATED);
    out.sample(&[], SampleValue::Whole(u64::from(view.gpu_source.simulated())));
    source(&view.gpu_source, out);
    out.family(&EVENTS_HANG);
    out.sample(&[], SampleValue::Whole(u64::from(view.gpu_events_hang)));
}

fn source(state: &GpuSourceState, out: &mut Exposition<'_>) {
    out.family(&DRIVER);
    if let GpuSourceState::Working { driver, nvml, cuda, simulated } = state {
        let labels = MetricLabels::new()
            .with("driver", driver)
            .with("nvml", nvml)
            .with("cuda", cuda.as_deref().unwrap_or_default())
            .with("simulated", if *simulated { "true" } else { "false" });
        out.sample(&[labels.as_str()], SampleValue::Whole(1));
    }
    let (word, reason) = match state {
        GpuSourceState::SwitchedOff => ("switched_off", ""),
        GpuSourceState::Starting => ("starting", ""),
        GpuSourceState::Working { .. } => ("working", ""),
        GpuSourceState::Missing { why, .. } => ("missing", why.code()),
        GpuSourceState::Hanging => ("hanging", ""),
        GpuSourceState::Released { .. } => ("released", ""),
    };
    out.family(&SOURCE);
    out.sample(&[MetricLabels::new().with("state", word).with("reason", reason).as_str()], SampleValue::Whole(1));
}
