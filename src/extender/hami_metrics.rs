//! The metrics of HAMi's scheduler that have a value here, with HAMi's names, labels and units. They have their own
//! path, `/metrics/hami`, because they are a dozen lines for each GPU of the cluster.

use super::locked_cluster::{ClaimedShare, ScheduledDevice};
use model::sample_value::SampleValue;
use serve::exposition::{Exposition, ExpositionFormat, MetricFamily, MetricLabels};

const MEMORY_LIMIT: MetricFamily =
    MetricFamily { unit: "bytes", ..MetricFamily::gauge("hami_gpu_memory_limit_bytes", "Memory that the GPU offers.") };
const CORE_LIMIT: MetricFamily =
    MetricFamily::gauge("hami_gpu_core_limit_ratio", "Percent of SM time that the GPU offers, despite the name.");
const MEMORY_ALLOCATED: MetricFamily = MetricFamily {
    unit: "bytes",
    ..MetricFamily::gauge("hami_gpu_memory_allocated_bytes", "Memory of the GPU that pods claim.")
};
const SHARED: MetricFamily = MetricFamily::gauge("hami_gpu_shared_count", "Containers that share the GPU.");
const CORE_ALLOCATED: MetricFamily = MetricFamily::gauge(
    "hami_gpu_core_allocated_ratio",
    "Percent of SM time of the GPU that pods claim, despite the name.",
);
const MEMORY_RATIO: MetricFamily =
    MetricFamily::gauge("hami_node_gpu_memory_allocated_ratio", "Part of the GPU's memory that pods claim, 0 to 1.");
const POD_MEMORY: MetricFamily = MetricFamily {
    unit: "bytes",
    ..MetricFamily::gauge("hami_vgpu_memory_allocated_bytes", "Memory of a GPU that a container of a pod claims.")
};
const POD_CORE: MetricFamily = MetricFamily::gauge(
    "hami_vgpu_core_allocated_ratio",
    "Percent of SM time of a GPU that a container of a pod claims, despite the name.",
);

/// The text of a scrape, which has about `bytes` bytes.
pub(super) fn render(
    devices: &[ScheduledDevice],
    shares: &[ClaimedShare],
    (format, bytes): (ExpositionFormat, usize),
) -> Vec<u8> {
    // A text that outgrows its buffer would need up to three times its size.
    let mut text = Vec::with_capacity(bytes + bytes / 16);
    let mut out = Exposition::new(&mut text, format);
    let labels: Vec<MetricLabels> = devices.iter().map(device_labels).collect();
    let mut family = |family: &MetricFamily, value: &dyn Fn(&ScheduledDevice) -> Option<SampleValue>| {
        out.family(family);
        for (device, labels) in devices.iter().zip(&labels) {
            if let Some(value) = value(device) {
                out.sample(&[labels.as_str()], value);
            }
        }
    };
    family(&MEMORY_LIMIT, &|device| Some(SampleValue::Whole(device.capacity.memory)));
    family(&CORE_LIMIT, &|device| Some(SampleValue::Whole(device.capacity.cores)));
    family(&MEMORY_ALLOCATED, &|device| Some(SampleValue::Whole(device.claimed.memory)));
    family(&SHARED, &|device| Some(SampleValue::Whole(device.claimed.containers)));
    family(&CORE_ALLOCATED, &|device| Some(SampleValue::Whole(device.claimed.cores)));
    family(&MEMORY_RATIO, &|device| ratio(device.claimed.memory, device.capacity.memory));
    let labels: Vec<MetricLabels> = shares.iter().map(share_labels).collect();
    out.family(&POD_MEMORY);
    for (share, labels) in shares.iter().zip(&labels) {
        if let Some(memory) = share.memory {
            out.sample(&[labels.as_str()], SampleValue::Whole(memory));
        }
    }
    out.family(&POD_CORE);
    for (share, labels) in shares.iter().zip(&labels) {
        out.sample(&[labels.as_str()], SampleValue::Whole(share.cores.into()));
    }
    out.finish();
    text
}

/// Absent if the GPU offers nothing of this kind.
#[expect(clippy::cast_precision_loss, reason = "bytes of a GPU are far below 2^53")]
fn ratio(part: u64, whole: u64) -> Option<SampleValue> {
    (whole > 0).then(|| SampleValue::Real(part as f64 / whole as f64))
}

fn device_labels(device: &ScheduledDevice) -> MetricLabels {
    MetricLabels::new()
        .with("zone", "vGPU")
        .with("node", device.node.as_str())
        .with("device_uuid", device.uuid.as_str())
        .with("device_index", &device.index.to_string())
        .with("device_type", &device.product)
}

fn share_labels(share: &ClaimedShare) -> MetricLabels {
    MetricLabels::new()
        .with("zone", "vGPU")
        .with("namespace", &share.pod.namespace)
        .with("node", share.node.as_str())
        .with("pod", &share.pod.name)
        .with("container_index", &share.container.to_string())
        .with("device_uuid", share.device.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::ledger::DeviceDemand;
    use decide::placement::Capacity;
    use model::id::{GpuUuid, NodeName, PodRef};

    #[test]
    fn the_lines_are_those_of_hamis_scheduler() {
        let (node, uuid) = (NodeName::parse("n1").unwrap(), GpuUuid::parse("GPU-1").unwrap());
        let device = ScheduledDevice {
            node: node.clone(),
            uuid: uuid.clone(),
            index: 3,
            product: "nvidia h100".into(),
            capacity: Capacity { slots: 10, cores: 100, memory: 80 << 30 },
            claimed: DeviceDemand { memory: 20 << 30, cores: 30, containers: 2, exclusive: 0 },
        };
        let pod = PodRef { namespace: "ml".into(), name: "train-0".into() };
        let share = ClaimedShare { node, pod, container: 1, device: uuid, memory: Some(1 << 30), cores: 30 };
        let text = String::from_utf8(render(&[device], &[share], (ExpositionFormat::Classic, 0))).unwrap();
        let gpu = "{zone=\"vGPU\",node=\"n1\",device_uuid=\"GPU-1\",device_index=\"3\",device_type=\"nvidia h100\"}";
        let pod =
            "{zone=\"vGPU\",namespace=\"ml\",node=\"n1\",pod=\"train-0\",container_index=\"1\",device_uuid=\"GPU-1\"}";
        for line in [
            format!("hami_gpu_memory_limit_bytes{gpu} 85899345920"),
            format!("hami_gpu_memory_allocated_bytes{gpu} 21474836480"),
            format!("hami_gpu_shared_count{gpu} 2"),
            format!("hami_node_gpu_memory_allocated_ratio{gpu} 0.25"),
            format!("hami_vgpu_memory_allocated_bytes{pod} 1073741824"),
            format!("hami_vgpu_core_allocated_ratio{pod} 30"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
