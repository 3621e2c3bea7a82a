//! The names of HAMi's node monitor, new and legacy, for every value that can be read from outside the container.
//!
//! HAMi reads limits, kinds of memory and the time of the last kernel from a file that its library keeps inside each
//! container. The agent does not read that file. It takes the use from the driver's list of processes, and the limit from
//! the container's claim. Only the device plugin knows claims, so an agent in standalone mode has no limits. The agent
//! never writes `hami_vgpu_memory_{context,module,buffer}_bytes`, `hami_container_last_kernel_elapsed_seconds` and their
//! legacy names, nor `Device_memory_desc_of_container`, whose labels are the kinds of memory. As in HAMi, every series has
//! the label `zone="vGPU"`, and ratios are 0 to 100. Every series of a GPU has its node; HAMi 2.10 leaves it out in
//! `hami_host_gpu_memory_controller_utilization_ratio`, which therefore cannot be joined with the other series.

use super::input::MetricsInput;
use super::subject::{LabelledSubjects, pod_name};
use model::Reading;
use model::claim::{ContainerClaim, DeviceShare};
use model::id::GpuUuid;
use model::nvidia;
use model::sample_value::SampleValue;
use model::unit::{Bytes, Percent};
use model::view::{GpuUse, GpuView, NodeView};
use serve::exposition::{Exposition, MetricFamily, MetricLabels};

const HOST_MEMORY: MetricFamily =
    MetricFamily::gauge("hami_host_gpu_memory_used_bytes", "GPU memory in use on the host.");
const HOST_UTIL: MetricFamily =
    MetricFamily::gauge("hami_host_gpu_utilization_ratio", "GPU utilization on the host, 0 to 100.");
const HOST_COPY: MetricFamily = MetricFamily::gauge(
    "hami_host_gpu_memory_controller_utilization_ratio",
    "Memory controller utilization on the host, 0 to 100.",
);
const MEMORY: MetricFamily =
    MetricFamily::gauge("hami_vgpu_memory_used_bytes", "GPU memory that the container's processes hold.");
const LIMIT: MetricFamily = MetricFamily::gauge(
    "hami_vgpu_memory_limit_bytes",
    "GPU memory limit of the container; no series where memory is not limited.",
);
const DEVICE_MEMORY: MetricFamily =
    MetricFamily::gauge("hami_container_device_memory_bytes", "The same as hami_vgpu_memory_used_bytes.");
const DEVICE_UTIL: MetricFamily =
    MetricFamily::gauge("hami_container_device_utilization_ratio", "SM use of the container's processes, 0 to 100.");
const MIG: MetricFamily = MetricFamily::gauge("hami_mig_device_info", "1 for each MIG instance that a container uses.");
const OLD_HOST_MEMORY: MetricFamily =
    MetricFamily::gauge("HostGPUMemoryUsage", "GPU memory in use on the host (bytes; legacy name).");
const OLD_HOST_UTIL: MetricFamily =
    MetricFamily::gauge("HostCoreUtilization", "GPU utilization on the host (0 to 100; legacy name).");
const OLD_MEMORY: MetricFamily = MetricFamily::gauge(
    "vGPU_device_memory_usage_in_bytes",
    "GPU memory that the container's processes hold (legacy name).",
);
const OLD_LIMIT: MetricFamily =
    MetricFamily::gauge("vGPU_device_memory_limit_in_bytes", "GPU memory limit of the container (legacy name).");
const OLD_UTIL: MetricFamily = MetricFamily::gauge(
    "Device_utilization_desc_of_container",
    "SM use of the container's processes (0 to 100; legacy name).",
);
const OLD_MIG: MetricFamily =
    MetricFamily::gauge("MigInfo", "1 for each MIG instance that a container uses (legacy name).");

/// A container on one device, with its labels under new and legacy names.
struct Slot<'a> {
    /// Use of the device by the container's processes, if it has processes there.
    share: Option<&'a GpuUse>,
    /// The container's device share, if its claim names the device.
    device_share: Option<&'a DeviceShare>,
    new: MetricLabels,
    old: MetricLabels,
}

/// Writes HAMi's metrics.
pub fn write(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    hosts(input.view, out);
    let slots = slots(input.view, subjects);
    shares(&MEMORY, &slots, |slot| &slot.new, memory, out);
    shares(&LIMIT, &slots, |slot| &slot.new, limit, out);
    shares(&DEVICE_MEMORY, &slots, |slot| &slot.new, memory, out);
    shares(&DEVICE_UTIL, &slots, |slot| &slot.new, sm, out);
    migs(&MIG, input.view, &slots, false, out);
    shares(&OLD_MEMORY, &slots, |slot| &slot.old, memory, out);
    shares(&OLD_LIMIT, &slots, |slot| &slot.old, limit, out);
    shares(&OLD_UTIL, &slots, |slot| &slot.old, sm, out);
    migs(&OLD_MIG, input.view, &slots, true, out);
}

fn hosts(view: &NodeView, out: &mut Exposition<'_>) {
    let node = view.name.as_str();
    let named = |gpu: &GpuView| device(gpu).with("node", node).with("zone", "vGPU");
    let legacy = |gpu: &GpuView| {
        MetricLabels::new()
            .with("deviceidx", &gpu.gpu.index.to_string())
            .with("devicetype", &product(gpu))
            .with("deviceuuid", gpu.gpu.uuid.as_str())
            .with("nodeid", node)
            .with("zone", "vGPU")
    };
    gpus(&HOST_MEMORY, view, named, |gpu| bytes(&gpu.sample.memory_used), out);
    gpus(&HOST_UTIL, view, named, |gpu| percent(&gpu.sample.utilization), out);
    gpus(&HOST_COPY, view, named, |gpu| percent(&gpu.sample.memory_copy), out);
    gpus(&OLD_HOST_MEMORY, view, legacy, |gpu| bytes(&gpu.sample.memory_used), out);
    gpus(&OLD_HOST_UTIL, view, legacy, |gpu| percent(&gpu.sample.utilization), out);
}

fn device(gpu: &GpuView) -> MetricLabels {
    MetricLabels::new()
        .with("device_index", &gpu.gpu.index.to_string())
        .with("device_type", &product(gpu))
        .with("device_uuid", gpu.gpu.uuid.as_str())
}

/// HAMi's monitor puts the vendor before the product name, even if the product name already contains it.
fn product(gpu: &GpuView) -> String {
    format!("{}-{}", nvidia::VENDOR, gpu.gpu.model)
}

fn gpus(
    family: &MetricFamily,
    view: &NodeView,
    labels: impl Fn(&GpuView) -> MetricLabels,
    read: impl Fn(&GpuView) -> Option<SampleValue>,
    out: &mut Exposition<'_>,
) {
    out.family(family);
    for gpu in &view.gpus {
        if let Some(value) = read(gpu) {
            out.sample(&[labels(gpu).as_str()], value);
        }
    }
}

/// Only containers of pods, by name, as in HAMi. The index of a virtual device is its position in the container's claim.
/// Other devices that the processes use come after the devices of the claim.
fn slots<'a>(view: &'a NodeView, subjects: &LabelledSubjects<'a>) -> Vec<Slot<'a>> {
    let mut slots = Vec::new();
    for pod in &subjects.pods {
        let (namespace, name) = pod_name(Some(pod.seen));
        for container in pod.seen.containers.iter().filter(|container| !container.sandbox) {
            let own = container.name.as_deref().unwrap_or(container.id.as_str());
            let claim = view.plugin.as_deref().and_then(|plugin| plugin.claim(&pod.seen.uid, own));
            for (index, (device_share, share)) in devices_of(claim, &container.gpus).into_iter().enumerate() {
                let uuid = match (share, device_share) {
                    (Some(share), _) => short(&share.gpu),
                    (None, Some(device_share)) => short(gpu_of(view, &device_share.device)),
                    (None, None) => continue,
                };
                let index = index.to_string();
                let new = MetricLabels::new()
                    .with("container", own)
                    .with("device_uuid", uuid)
                    .with("namespace", namespace)
                    .with("pod", name)
                    .with("vdevice_index", &index)
                    .with("zone", "vGPU");
                let old = MetricLabels::new()
                    .with("ctrname", own)
                    .with("deviceuuid", uuid)
                    .with("podname", name)
                    .with("podnamespace", namespace)
                    .with("vdeviceid", &index)
                    .with("zone", "vGPU");
                slots.push(Slot { share, device_share, new, old });
            }
        }
    }
    slots
}

/// A container on one device: its device share, and the use by its processes.
type ClaimedDevice<'a> = (Option<&'a DeviceShare>, Option<&'a GpuUse>);

/// The devices of a claim in their order, each with the use by the container's processes; then devices in use that
/// are not in the claim.
fn devices_of<'a>(claim: Option<&'a ContainerClaim>, shares: &'a [GpuUse]) -> Vec<ClaimedDevice<'a>> {
    let on = |share: &GpuUse, device: &GpuUuid| share.mig.as_ref().unwrap_or(&share.gpu) == device;
    let device_shares = claim.map_or(&[][..], |claim| &claim.device_shares);
    let claimed = device_shares.iter().map(|device_share| {
        let share = shares.iter().find(|share| on(share, &device_share.device));
        (Some(device_share), share)
    });
    let others =
        shares.iter().filter(|share| !device_shares.iter().any(|device_share| on(share, &device_share.device)));
    claimed.chain(others.map(|share| (None, Some(share)))).collect()
}

/// The GPU of a MIG instance, or the GPU itself.
fn gpu_of<'a>(view: &'a NodeView, device: &'a GpuUuid) -> &'a GpuUuid {
    let has = |gpu: &&GpuView| gpu.gpu.instances().iter().any(|instance| &instance.uuid == device);
    view.gpus.iter().find(has).map_or(device, |gpu| &gpu.gpu.uuid)
}

/// The first 40 bytes of the UUID, as in HAMi.
fn short(uuid: &GpuUuid) -> &str {
    uuid.as_str().get(..40).unwrap_or(uuid.as_str())
}

fn shares(
    family: &MetricFamily,
    slots: &[Slot<'_>],
    labels: impl for<'s> Fn(&'s Slot<'_>) -> &'s MetricLabels,
    read: impl Fn(&Slot<'_>) -> Option<SampleValue>,
    out: &mut Exposition<'_>,
) {
    out.family(family);
    for slot in slots {
        if let Some(value) = read(slot) {
            out.sample(&[labels(slot).as_str()], value);
        }
    }
}

fn migs(family: &MetricFamily, view: &NodeView, slots: &[Slot<'_>], legacy: bool, out: &mut Exposition<'_>) {
    out.family(family);
    for slot in slots {
        let Some(uuid) = slot.share.and_then(|share| share.mig.as_ref()) else { continue };
        let mut instances = view.gpus.iter().flat_map(|gpu| gpu.gpu.instances());
        let Some(instance) = instances.find(|instance| &instance.uuid == uuid) else { continue };
        let labels = if legacy {
            slot.old.clone().with("instanceid", &instance.gpu_instance.to_string())
        } else {
            slot.new
                .clone()
                .with("mig_uuid", uuid.as_str())
                .with("profile", &instance.profile)
                .with("gpu_instance_id", &instance.gpu_instance.to_string())
                .with("compute_instance_id", &instance.compute_instance.to_string())
        };
        out.sample(&[labels.as_str()], SampleValue::Whole(1));
    }
}

fn memory(slot: &Slot<'_>) -> Option<SampleValue> {
    bytes(&slot.share?.memory_used)
}

fn limit(slot: &Slot<'_>) -> Option<SampleValue> {
    slot.device_share?.memory.map(|memory| SampleValue::Whole(memory.0))
}

fn sm(slot: &Slot<'_>) -> Option<SampleValue> {
    percent(&slot.share?.sm)
}

fn bytes(reading: &Reading<Bytes>) -> Option<SampleValue> {
    reading.get().map(|bytes| SampleValue::Whole(bytes.0))
}

fn percent(reading: &Reading<Percent>) -> Option<SampleValue> {
    reading.get().map(|share| SampleValue::Real(share.0))
}
