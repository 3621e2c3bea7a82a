//! Metrics of NVSwitches, from their errors in the kernel log.

use model::sample_value::SampleValue;
use model::view::NodeView;
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};

const SXIDS: MetricFamily = MetricFamily {
    name: "gpu_steward_nvswitch_errors_total",
    kind: MetricType::Counter,
    unit: "",
    help: "Errors of NVSwitches (SXids) in the kernel's log since the program started, by code and whether fatal.",
};

/// Writes the metrics of NVSwitches.
pub fn write(view: &NodeView, out: &mut Exposition<'_>) {
    out.family(&SXIDS);
    for switch in &view.switches {
        for (code, fatal, count) in &switch.sxids {
            let labels = MetricLabels::new()
                .with("pci_bus_id", &switch.pci_bus_id)
                .with("sxid", &code.to_string())
                .with("fatal", if *fatal { "true" } else { "false" });
            out.sample(&[labels.as_str()], SampleValue::Whole(*count));
        }
    }
}
