//! dcgm-exporter's names, labels and units, so that dashboards made for it work unchanged.
//!
//! Labels in its order: `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, for MIG `GPU_I_PROFILE` and `GPU_I_ID`, then
//! `Hostname` (every release) and `hostname` (its main branch), `DCGM_FI_DRIVER_VERSION`, and `container`, `namespace`,
//! `pod` where exactly one pod holds the card or instance. A shared card names nobody: whoever sums these series over
//! pods must not find one card under two names. On a card with MIG, memory and profiling series exist for instances only
//! (a sum over both would count twice) and the rest for the card only.

use super::number::Row;
use super::scene::Scene;
use super::subject::pod_name;
use crate::exposition::{Exposition, Labels, Number};
use model::Reading;
use model::gpu::{GpmSample, MigInstance, MigSample};
use model::id::GpuUuid;
use model::observation::GpuSourceState;
use model::process::Owner;
use model::unit::{Bytes, BytesPerSecond, Megahertz, Percent, Ratio};
use model::view::{GpuView, NodeView, PodView};

#[rustfmt::skip]
static CARD: &[Row<GpuView>] = &[
    Row::gauge("DCGM_FI_DEV_SM_CLOCK", "", "SM clock frequency (in MHz).", |g| mhz(&g.sample.clock_sm)),
    Row::gauge("DCGM_FI_DEV_MEM_CLOCK", "", "Memory clock frequency (in MHz).", |g| mhz(&g.sample.clock_memory)),
    Row::gauge("DCGM_FI_DEV_MEMORY_TEMP", "", "Memory temperature (in C).", |g| g.sample.temperature_memory.map(|t| Number::Real(f64::from(t.0)))),
    Row::gauge("DCGM_FI_DEV_GPU_TEMP", "", "GPU temperature (in C).", |g| g.sample.temperature.map(|t| Number::Real(f64::from(t.0)))),
    Row::gauge("DCGM_FI_DEV_POWER_USAGE", "", "Power draw (in W).", |g| g.sample.power.map(|w| Number::Real(w.0))),
    Row::foreign_counter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since the driver was loaded (in mJ).", |g| g.sample.energy.map(|e| Number::Whole(e.0))),
    Row::foreign_counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", |g| g.sample.pcie_replays.map(|c| Number::Whole(c.0))),
    Row::gauge("DCGM_FI_DEV_GPU_UTIL", "", "GPU utilization (in %).", |g| percent(&g.sample.utilization)),
    Row::gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "", "Memory utilization (in %).", |g| percent(&g.sample.memory_copy)),
    Row::gauge("DCGM_FI_DEV_ENC_UTIL", "", "Encoder utilization (in %).", |g| percent(&g.sample.encoder)),
    Row::gauge("DCGM_FI_DEV_DEC_UTIL", "", "Decoder utilization (in %).", |g| percent(&g.sample.decoder)),
    Row::gauge("DCGM_FI_DEV_XID_ERRORS", "", "Value of the last XID error encountered.", last_xid),
    Row::foreign_counter("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Bytes over all NVLink lanes since the driver was loaded.", |g| g.sample.nvlink_bytes.map(|b| Number::Whole(b.0))),
    Row::foreign_counter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors.", |g| g.sample.remapped.uncorrectable.map(|c| Number::Whole(c.0))),
    Row::foreign_counter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors.", |g| g.sample.remapped.correctable.map(|c| Number::Whole(c.0))),
    Row::gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "", "Whether remapping of rows has failed.", |g| g.sample.remapped.failed.map(|f| Number::Whole(u64::from(f)))),
];

/// Memory of a card or of a MIG instance.
#[derive(Clone, Copy, Debug)]
struct Memory {
    free: Reading<Bytes>,
    used: Reading<Bytes>,
    reserved: Reading<Bytes>,
}

#[rustfmt::skip]
static MEMORY: &[Row<Memory>] = &[
    Row::gauge("DCGM_FI_DEV_FB_FREE", "", "Framebuffer memory free (in MiB).", |m| mib(&m.free)),
    Row::gauge("DCGM_FI_DEV_FB_USED", "", "Framebuffer memory used (in MiB).", |m| mib(&m.used)),
    Row::gauge("DCGM_FI_DEV_FB_RESERVED", "", "Framebuffer memory reserved (in MiB).", |m| mib(&m.reserved)),
];

#[rustfmt::skip]
static PROFILING: &[Row<GpmSample>] = &[
    Row::gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "", "Ratio of time the graphics engine is active.", |g| ratio(&g.graphics_active)),
    Row::gauge("DCGM_FI_PROF_SM_ACTIVE", "", "Ratio of cycles an SM has at least 1 warp assigned.", |g| ratio(&g.sm_active)),
    Row::gauge("DCGM_FI_PROF_SM_OCCUPANCY", "", "Ratio of number of warps resident on an SM.", |g| ratio(&g.sm_occupancy)),
    Row::gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "", "Ratio of cycles the tensor (HMMA) pipe is active.", |g| ratio(&g.tensor_active)),
    Row::gauge("DCGM_FI_PROF_DRAM_ACTIVE", "", "Ratio of cycles the device memory interface is active sending or receiving data.", |g| ratio(&g.dram_active)),
    Row::gauge("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "", "Ratio of cycles the fp64 pipes are active.", |g| ratio(&g.fp64_active)),
    Row::gauge("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "", "Ratio of cycles the fp32 pipes are active.", |g| ratio(&g.fp32_active)),
    Row::gauge("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "", "Ratio of cycles the fp16 pipes are active.", |g| ratio(&g.fp16_active)),
    Row::gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "", "Rate of data transmitted over the PCIe bus (in bytes per second).", |g| speed(&g.pcie_tx)),
    Row::gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "", "Rate of data received over the PCIe bus (in bytes per second).", |g| speed(&g.pcie_rx)),
    Row::gauge("DCGM_FI_PROF_NVLINK_TX_BYTES", "", "Rate of data transmitted over NVLink (in bytes per second).", |g| speed(&g.nvlink_tx)),
    Row::gauge("DCGM_FI_PROF_NVLINK_RX_BYTES", "", "Rate of data received over NVLink (in bytes per second).", |g| speed(&g.nvlink_rx)),
];

fn mhz(reading: &Reading<Megahertz>) -> Reading<Number> {
    reading.map(|clock| Number::Whole(u64::from(clock.0)))
}

fn percent(reading: &Reading<Percent>) -> Reading<Number> {
    reading.map(|share| Number::Real(share.0))
}

fn ratio(reading: &Reading<Ratio>) -> Reading<Number> {
    reading.map(|share| Number::Real(share.0))
}

fn speed(reading: &Reading<BytesPerSecond>) -> Reading<Number> {
    reading.map(|rate| Number::Real(rate.0))
}

/// Whole MiB, as NVML's own tools and dcgm-exporter print them.
fn mib(reading: &Reading<Bytes>) -> Reading<Number> {
    reading.map(|bytes| Number::Whole(bytes.0 / Bytes::MIB))
}

/// 0 where none was seen, as dcgm-exporter has it; no series for a card that does not answer.
fn last_xid(gpu: &GpuView) -> Reading<Number> {
    match (&gpu.last_xid, gpu.sample.memory_used, gpu.sample.utilization) {
        (Some(xid), _, _) => Reading::Measured(Number::Whole(u64::from(xid.code)), xid.at),
        (None, Reading::Measured(_, at), _) | (None, _, Reading::Measured(_, at)) => {
            Reading::Measured(Number::Whole(0), at)
        }
        (None, Reading::Absent(why), _) => Reading::Absent(why),
    }
}

/// A card or a MIG instance with its labels.
struct Entity<'a, T> {
    seen: &'a T,
    labels: Labels,
}

/// Writes all of it.
pub fn write(scene: &Scene<'_>, out: &mut Exposition<'_>) {
    let view = scene.view;
    let cards: Vec<Entity<'_, GpuView>> = view.gpus.iter().map(|gpu| card(view, gpu)).collect();
    let mut memories = Vec::new();
    let mut profiles = Vec::new();
    for entity in &cards {
        let gpu = entity.seen;
        if gpu.gpu.mig_mode.get() == Some(true) {
            for (instance, sample) in instances(gpu) {
                let labels = instance_labels(view, gpu, instance);
                memories.push((Memory::of_instance(sample), labels.clone()));
                profiles.push((&sample.gpm, labels));
            }
        } else {
            memories.push((Memory::of_card(gpu), entity.labels.clone()));
            profiles.push((&gpu.sample.gpm, entity.labels.clone()));
        }
    }
    table(CARD, cards.iter().map(|entity| (entity.seen, &entity.labels)), out);
    table(MEMORY, memories.iter().map(|(memory, labels)| (memory, labels)), out);
    table(PROFILING, profiles.iter().map(|(gpm, labels)| (*gpm, labels)), out);
}

fn table<'a, S: 'a>(
    rows: &'static [Row<S>],
    all: impl Iterator<Item = (&'a S, &'a Labels)> + Clone,
    out: &mut Exposition<'_>,
) {
    for row in rows {
        out.family(&row.family);
        for (seen, labels) in all.clone() {
            if let Reading::Measured(value, _) = (row.read)(seen) {
                out.sample(&[labels.as_str()], value);
            }
        }
    }
}

impl Memory {
    fn of_card(gpu: &GpuView) -> Memory {
        let sample = &gpu.sample;
        Memory { free: sample.memory_free, used: sample.memory_used, reserved: sample.memory_reserved }
    }

    fn of_instance(sample: &MigSample) -> Memory {
        Memory { free: sample.memory_free, used: sample.memory_used, reserved: sample.memory_reserved }
    }
}

fn instances(gpu: &GpuView) -> impl Iterator<Item = (&MigInstance, &MigSample)> {
    gpu.gpu.instances().iter().filter_map(|instance| {
        let sample = gpu.sample.mig.iter().find(|sample| sample.uuid == instance.uuid)?;
        Some((instance, sample))
    })
}

fn card<'a>(view: &NodeView, gpu: &'a GpuView) -> Entity<'a, GpuView> {
    let holder = gpu.sole_holder().and_then(|uid| view.pod(uid));
    Entity { seen: gpu, labels: held(host(view, identity(gpu)), holder, &gpu.gpu.uuid, None) }
}

fn instance_labels(view: &NodeView, gpu: &GpuView, instance: &MigInstance) -> Labels {
    let labels =
        identity(gpu).with("GPU_I_PROFILE", &instance.profile).with("GPU_I_ID", &instance.gpu_instance.to_string());
    let holder = instance_holder(view, gpu, &instance.uuid);
    held(host(view, labels), holder, &gpu.gpu.uuid, Some(&instance.uuid))
}

fn identity(gpu: &GpuView) -> Labels {
    let bus = gpu.gpu.pci_bus_id.value().map_or("", |id| id);
    let device = gpu.gpu.minor.get().unwrap_or(gpu.gpu.index);
    Labels::new()
        .with("gpu", &gpu.gpu.index.to_string())
        .with("UUID", gpu.gpu.uuid.as_str())
        .with("pci_bus_id", bus)
        .with("device", &format!("nvidia{device}"))
        .with("modelName", &gpu.gpu.model)
}

fn host(view: &NodeView, labels: Labels) -> Labels {
    let labels = labels.with("Hostname", view.name.as_str()).with("hostname", view.name.as_str());
    match &view.gpu_source {
        GpuSourceState::Working { driver, .. } => labels.with("DCGM_FI_DRIVER_VERSION", driver),
        _ => labels,
    }
}

/// `container` (where it is exactly one), `namespace`, `pod`.
fn held(labels: Labels, holder: Option<&PodView>, gpu: &GpuUuid, mig: Option<&GpuUuid>) -> Labels {
    let Some(pod) = holder else { return labels };
    let device = mig.unwrap_or(gpu);
    let mut containers = pod.containers.iter().filter(|container| {
        let shares =
            container.gpus.iter().any(|share| &share.gpu == gpu && (mig.is_none() || share.mig.as_ref() == mig));
        shares || container.holds.contains(device)
    });
    let container = match (containers.next(), containers.next()) {
        (Some(only), None) => only.name.as_deref().unwrap_or_default(),
        _ => "",
    };
    let (namespace, name) = pod_name(Some(pod));
    labels.with("container", container).with("namespace", namespace).with("pod", name)
}

/// The only pod that has a MIG instance: it runs processes there or holds it, and nobody else does.
fn instance_holder<'a>(view: &'a NodeView, gpu: &GpuView, instance: &GpuUuid) -> Option<&'a PodView> {
    let inside = gpu.processes.value()?.iter().filter(|process| process.mig.as_ref() == Some(instance));
    let owners = inside.map(|process| match &process.owner {
        Owner::Cgroup(cgroup) => cgroup.pod(),
        Owner::Host | Owner::Unknown => None,
    });
    let holds = |pod: &&PodView| pod.containers.iter().any(|container| container.holds.contains(instance));
    let holders = view.pods.iter().filter(holds).map(|pod| Some(&pod.uid));
    let mut all = owners.chain(holders);
    let first = all.next()??;
    all.all(|other| other == Some(first)).then(|| view.pod(first))?
}
