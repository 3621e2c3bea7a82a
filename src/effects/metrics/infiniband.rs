//! InfiniBand ports, and the GPUs that are nearest to them.

use super::row::MetricRow;
use super::subject::LabelledSubjects;
use model::Reading;
use model::infiniband::{DeviceAffinity, InfinibandPort};
use model::sample_value::SampleValue;
use model::view::{GpuView, NodeView};
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};

const PREFIX: &str = "gpu_steward_infiniband_";

#[rustfmt::skip]
static PORT: &[MetricRow<InfinibandPort>] = &[
    MetricRow::gauge("active", "", "1 while the port is active.", |p| p.active.number()),
    MetricRow::counter("receive_bytes_total", "bytes", "Bytes received by the port.", |p| p.received.number()),
    MetricRow::counter("transmit_bytes_total", "bytes", "Bytes sent by the port.", |p| p.sent.number()),
    MetricRow::counter("receive_packets_total", "", "Packets received by the port.", |p| p.packets_received.number()),
    MetricRow::counter("transmit_packets_total", "", "Packets sent by the port.", |p| p.packets_sent.number()),
    MetricRow::counter("receive_errors_total", "", "Packets received with errors.", |p| p.receive_errors.number()),
    MetricRow::counter("transmit_discards_total", "", "Packets that could not be sent.", |p| p.send_discards.number()),
    MetricRow::counter("symbol_errors_total", "", "Errors of single symbols on the link.", |p| p.symbol_errors.number()),
    MetricRow::counter("link_recoveries_total", "", "Times that the link was retrained without going down.", |p| p.recoveries.number()),
    MetricRow::counter("link_downs_total", "", "Times that the link went down.", |p| p.downs.number()),
];

const AFFINITY: MetricFamily = MetricFamily {
    name: "gpu_steward_gpu_infiniband_affinity",
    kind: MetricType::Gauge,
    unit: "",
    help: "1 for each GPU that is nearest to an InfiniBand device, and what they have in common: pcie_switch, host_bridge, numa.",
};

/// Writes the metrics of InfiniBand ports.
pub fn write(view: &NodeView, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    for row in PORT {
        out.prefixed(PREFIX, &row.family);
        for port in view.infiniband.iter() {
            if let Reading::Measured(value, _) = (row.read)(port) {
                let labels = MetricLabels::new().with("device", &port.device).with("port", &port.number.to_string());
                out.sample(&[labels.as_str()], value);
            }
        }
    }
    out.family(&AFFINITY);
    let mut last = None;
    for port in view.infiniband.iter() {
        // A device with two ports has one set of affinity series.
        if last.replace(&port.device) == Some(&port.device) {
            continue;
        }
        let near = |gpu: &GpuView| {
            let paths = (&gpu.gpu.board.pci_path, &port.pci_path);
            DeviceAffinity::of(paths, (gpu.gpu.numa_node, port.numa_node))
        };
        let Some(nearest) = subjects.gpus.iter().filter_map(|gpu| near(gpu.seen)).min() else { continue };
        for gpu in subjects.gpus.iter().filter(|gpu| near(gpu.seen) == Some(nearest)) {
            let labels = MetricLabels::new().with("device", &port.device).with("path", nearest.code());
            out.sample(&[gpu.labels.as_str(), labels.as_str()], SampleValue::Whole(1));
        }
    }
}
