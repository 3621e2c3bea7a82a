//! dcgm-exporter's names, labels and units: dashboards made for dcgm-exporter work unchanged.
//!
//! The labels have dcgm-exporter's order: `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, for MIG `GPU_I_PROFILE`
//! and `GPU_I_ID`, then `Hostname` (every release) and `hostname` (its main branch), `DCGM_FI_DRIVER_VERSION`, and
//! `container`, `namespace`, `pod` if exactly one pod has the GPU or GPU instance to itself. The series of a shared GPU
//! names no pod. Otherwise a sum over pods would count the GPU once for each pod that uses it.
//!
//! On a GPU in MIG mode, memory and profiling series exist only for its GPU instances, because a sum over the GPU and
//! its instances would count twice. All other series exist only for the GPU, without a pod: the GPU's power is not
//! the power of one instance. As in DCGM, the entity is the GPU instance: its compute instances share its memory and
//! counters and have no series of their own.

use super::hardware;
use super::input::MetricsInput;
use super::row::MetricRow;
use super::subject::pod_name;
use model::Reading;
use model::gpu::{GpmSample, MigInstance, MigSample};
use model::nvidia;
use model::sample_value::SampleValue;
use model::unit::{Bytes, BytesPerSecond, Megahertz, Nanos, Percent, Ratio};
use model::view::{GpuView, NodeView, SoleHolder};
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};

#[rustfmt::skip]
static GPU: &[MetricRow<GpuView>] = &[
    MetricRow::gauge("DCGM_FI_DEV_SM_CLOCK", "", "SM clock frequency (in MHz).", |g| mhz(&g.sample.clock_sm)),
    MetricRow::gauge("DCGM_FI_DEV_MEM_CLOCK", "", "Memory clock frequency (in MHz).", |g| mhz(&g.sample.clock_memory)),
    MetricRow::gauge("DCGM_FI_DEV_MEMORY_TEMP", "", "Memory temperature (in C).", |g| g.sample.temperature_memory.map(|t| SampleValue::Real(f64::from(t.0)))),
    MetricRow::gauge("DCGM_FI_DEV_GPU_TEMP", "", "GPU temperature (in C).", |g| g.sample.temperature.map(|t| SampleValue::Real(f64::from(t.0)))),
    MetricRow::gauge("DCGM_FI_DEV_POWER_USAGE", "", "Power draw (in W).", |g| g.sample.power.map(|w| SampleValue::Real(w.0))),
    MetricRow::foreign_counter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since the driver was loaded (in mJ).", |g| g.sample.energy.map(|e| SampleValue::Whole(e.0))),
    MetricRow::foreign_counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", |g| g.sample.pcie_replays.map(|c| SampleValue::Whole(c.0))),
    MetricRow::gauge("DCGM_FI_DEV_GPU_UTIL", "", "GPU utilization (in %).", |g| percent(&g.sample.utilization)),
    MetricRow::gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "", "Memory utilization (in %).", |g| percent(&g.sample.memory_copy)),
    MetricRow::gauge("DCGM_FI_DEV_ENC_UTIL", "", "Encoder utilization (in %).", |g| percent(&g.sample.encoder)),
    MetricRow::gauge("DCGM_FI_DEV_DEC_UTIL", "", "Decoder utilization (in %).", |g| percent(&g.sample.decoder)),
    MetricRow::foreign_counter("DCGM_FI_DEV_POWER_VIOLATION", "Time throttled by power constraints (in ns).", |g| nanos(&g.sample.violations.power)),
    MetricRow::foreign_counter("DCGM_FI_DEV_THERMAL_VIOLATION", "Time throttled by thermal constraints (in ns).", |g| nanos(&g.sample.violations.thermal)),
    MetricRow::foreign_counter("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "Time throttled by sync-boost constraints (in ns).", |g| nanos(&g.sample.violations.sync_boost)),
    MetricRow::foreign_counter("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "Time throttled by board limit constraints (in ns).", |g| nanos(&g.sample.violations.board_limit)),
    MetricRow::foreign_counter("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "Time throttled by low utilization (in ns).", |g| nanos(&g.sample.violations.low_utilization)),
    MetricRow::foreign_counter("DCGM_FI_DEV_RELIABILITY_VIOLATION", "Time throttled by reliability constraints (in ns).", |g| nanos(&g.sample.violations.reliability)),
    MetricRow::foreign_counter("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data over all NVLink lanes, both ways, since the previous reading (in thousands of KiB per second); a rate, though dcgm-exporter calls it a counter.", |g| g.nvlink_rate.map(nvlink)),
    MetricRow::foreign_counter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors.", |g| g.sample.remapped.uncorrectable.map(|c| SampleValue::Whole(c.0))),
    MetricRow::foreign_counter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors.", |g| g.sample.remapped.correctable.map(|c| SampleValue::Whole(c.0))),
    MetricRow::gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "", "Whether remapping of rows has failed.", |g| g.sample.remapped.failed.map(|f| SampleValue::Whole(u64::from(f)))),
];

const XID: MetricFamily = MetricFamily {
    name: "DCGM_FI_DEV_XID_ERRORS",
    kind: MetricType::Gauge,
    unit: "",
    help: "Value of the last XID error encountered.",
};

/// Memory of a GPU or of a MIG instance.
#[derive(Clone, Copy, Debug)]
struct Memory {
    free: Reading<Bytes>,
    used: Reading<Bytes>,
    reserved: Reading<Bytes>,
}

#[rustfmt::skip]
static MEMORY: &[MetricRow<Memory>] = &[
    MetricRow::gauge("DCGM_FI_DEV_FB_FREE", "", "Framebuffer memory free (in MiB).", |m| mib(&m.free)),
    MetricRow::gauge("DCGM_FI_DEV_FB_USED", "", "Framebuffer memory used (in MiB).", |m| mib(&m.used)),
    MetricRow::gauge("DCGM_FI_DEV_FB_RESERVED", "", "Framebuffer memory reserved (in MiB).", |m| mib(&m.reserved)),
];

#[rustfmt::skip]
static PROFILING: &[MetricRow<GpmSample>] = &[
    MetricRow::gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "", "Ratio of time the graphics engine is active.", |g| ratio(&g.graphics_active)),
    MetricRow::gauge("DCGM_FI_PROF_SM_ACTIVE", "", "Ratio of cycles an SM has at least 1 warp assigned.", |g| ratio(&g.sm_active)),
    MetricRow::gauge("DCGM_FI_PROF_SM_OCCUPANCY", "", "Ratio of number of warps resident on an SM.", |g| ratio(&g.sm_occupancy)),
    MetricRow::gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "", "Ratio of cycles the tensor (HMMA) pipe is active.", |g| ratio(&g.tensor_active)),
    MetricRow::gauge("DCGM_FI_PROF_DRAM_ACTIVE", "", "Ratio of cycles the device memory interface is active sending or receiving data.", |g| ratio(&g.dram_active)),
    MetricRow::gauge("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "", "Ratio of cycles the fp64 pipes are active.", |g| ratio(&g.fp64_active)),
    MetricRow::gauge("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "", "Ratio of cycles the fp32 pipes are active.", |g| ratio(&g.fp32_active)),
    MetricRow::gauge("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "", "Ratio of cycles the fp16 pipes are active.", |g| ratio(&g.fp16_active)),
    MetricRow::gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "", "Rate of data transmitted over the PCIe bus (in bytes per second).", |g| speed(&g.pcie_tx)),
    MetricRow::gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "", "Rate of data received over the PCIe bus (in bytes per second).", |g| speed(&g.pcie_rx)),
    MetricRow::gauge("DCGM_FI_PROF_NVLINK_TX_BYTES", "", "Rate of data transmitted over NVLink (in bytes per second).", |g| speed(&g.nvlink_tx)),
    MetricRow::gauge("DCGM_FI_PROF_NVLINK_RX_BYTES", "", "Rate of data received over NVLink (in bytes per second).", |g| speed(&g.nvlink_rx)),
];

fn mhz(reading: &Reading<Megahertz>) -> Reading<SampleValue> {
    reading.map(|clock| SampleValue::Whole(u64::from(clock.0)))
}

fn percent(reading: &Reading<Percent>) -> Reading<SampleValue> {
    reading.map(|share| SampleValue::Real(share.0))
}

fn ratio(reading: &Reading<Ratio>) -> Reading<SampleValue> {
    reading.map(|share| SampleValue::Real(share.0))
}

fn nanos(reading: &Reading<Nanos>) -> Reading<SampleValue> {
    reading.map(|time| SampleValue::Whole(time.0))
}

fn speed(reading: &Reading<BytesPerSecond>) -> Reading<SampleValue> {
    reading.map(|rate| SampleValue::Real(rate.0))
}

/// The rate as DCGM computes it: the difference of NVML's KiB counters, divided by the elapsed seconds and by 1,000,
/// and truncated.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is not negative, and `as` saturates"
)]
fn nvlink(rate: BytesPerSecond) -> SampleValue {
    SampleValue::Whole((rate.0 / 1024.0 / 1000.0) as u64)
}

/// Whole MiB, as NVML's own tools and dcgm-exporter print them.
fn mib(reading: &Reading<Bytes>) -> Reading<SampleValue> {
    reading.map(|bytes| SampleValue::Whole(bytes.0 / Bytes::MIB))
}

/// The last XID; 0 if no XID was seen, as in dcgm-exporter; `None` for a GPU that does not answer.
fn last_xid(gpu: &GpuView) -> Option<u32> {
    let answers = gpu.sample.memory_used.value().is_some() || gpu.sample.utilization.value().is_some();
    gpu.last_xid.as_ref().map(|xid| xid.code).or(answers.then_some(0))
}

/// The set of DCGM's names to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcgmNames {
    /// The names that dcgm-exporter has always had.
    Known,
    /// The names that DCGM 4.6 has given to some of the same fields; DCGM keeps the old names as deprecated macros.
    /// Values, units and types are unchanged: `DCGM_FI_DEV_GPU_UTIL_RATIO` is a percentage.
    Renamed,
}

/// Old and new name of each renamed field, from the end of `dcgm_fields.h` of DCGM 4.6.0.
#[rustfmt::skip]
const RENAMED: [(&str, &str); 25] = [
    ("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS"),
    ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
    ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL"),
    ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
    ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL"),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),
    ("DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL"),
    ("DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL"),
    ("DCGM_FI_DEV_RETIRED_PENDING", "DCGM_FI_DEV_PAGE_RETIRED_PENDING"),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL"),
    ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL"),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL"),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO"),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_FP32_UTIL_RATIO"),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_FP16_UTIL_RATIO"),
];

impl DcgmNames {
    /// The family under these names; `None` if [`DcgmNames::Renamed`] has no name for it.
    fn of(self, family: &MetricFamily) -> Option<MetricFamily> {
        match self {
            DcgmNames::Known => Some(*family),
            DcgmNames::Renamed => {
                let (_, name) = RENAMED.iter().find(|(known, _)| *known == family.name)?;
                Some(MetricFamily { name, ..*family })
            }
        }
    }
}

/// A GPU or a MIG instance with its labels.
struct Entity<'a, T> {
    seen: &'a T,
    labels: MetricLabels,
}

/// Writes every metric that has a name in `names`.
pub fn write(input: &MetricsInput<'_>, names: DcgmNames, out: &mut Exposition<'_>) {
    let view = input.view;
    let entities: Vec<Entity<'_, GpuView>> = view.gpus.iter().map(|gpu| gpu_entity(view, gpu)).collect();
    let mut memories = Vec::new();
    let mut profiles = Vec::new();
    for entity in &entities {
        let gpu = entity.seen;
        if gpu.gpu.divided() {
            for inside in gpu.gpu.gpu_instances() {
                let (Some(first), Some(sample)) = (inside.first(), read_of(gpu, inside)) else { continue };
                let labels = instance_labels(view, gpu, first);
                memories.push((Memory::of_instance(sample), labels.clone()));
                profiles.push((&sample.gpm, labels));
            }
        } else {
            memories.push((Memory::of_gpu(gpu), entity.labels.clone()));
            profiles.push((&gpu.sample.gpm, entity.labels.clone()));
        }
    }
    table((GPU, names), entities.iter().map(|entity| (entity.seen, &entity.labels)), out);
    table((hardware::DCGM, names), entities.iter().map(|entity| (entity.seen, &entity.labels)), out);
    xids(&entities, names, out);
    table((MEMORY, names), memories.iter().map(|(memory, labels)| (memory, labels)), out);
    table((PROFILING, names), profiles.iter().map(|(gpm, labels)| (*gpm, labels)), out);
}

/// Writes the last XIDs. The value and the label `err_code` are the number; `err_msg` has the meaning in our own
/// words.
fn xids(entities: &[Entity<'_, GpuView>], names: DcgmNames, out: &mut Exposition<'_>) {
    let Some(family) = names.of(&XID) else { return };
    out.family(&family);
    for entity in entities {
        let Some(code) = last_xid(entity.seen) else { continue };
        let meaning = match code {
            0 => "No Error",
            _ => model::xid::find(code).map_or("Unknown Error", |entry| entry.meaning),
        };
        let more = MetricLabels::new().with("err_code", &code.to_string()).with("err_msg", meaning);
        out.sample(&[entity.labels.as_str(), more.as_str()], SampleValue::Whole(code.into()));
    }
}

fn table<'a, S: 'a>(
    (rows, names): (&'static [MetricRow<S>], DcgmNames),
    all: impl Iterator<Item = (&'a S, &'a MetricLabels)> + Clone,
    out: &mut Exposition<'_>,
) {
    for row in rows {
        let Some(family) = names.of(&row.family) else { continue };
        out.family(&family);
        for (seen, labels) in all.clone() {
            if let Reading::Measured(value, _) = (row.read)(seen) {
                out.sample(&[labels.as_str()], value);
            }
        }
    }
}

impl Memory {
    fn of_gpu(gpu: &GpuView) -> Memory {
        let sample = &gpu.sample;
        Memory { free: sample.memory_free, used: sample.memory_used, reserved: sample.memory_reserved }
    }

    fn of_instance(sample: &MigSample) -> Memory {
        Memory { free: sample.memory_free, used: sample.memory_used, reserved: sample.memory_reserved }
    }
}

/// The sample of a GPU instance. All its compute instances have the same values, so the first sample that was read is
/// enough.
fn read_of<'a>(gpu: &'a GpuView, inside: &[MigInstance]) -> Option<&'a MigSample> {
    let samples = || gpu.sample.mig.iter().filter(|sample| inside.iter().any(|instance| instance.uuid == sample.uuid));
    samples().find(|sample| sample.memory_used.value().is_some()).or_else(|| samples().next())
}

fn gpu_entity<'a>(view: &NodeView, gpu: &'a GpuView) -> Entity<'a, GpuView> {
    Entity { seen: gpu, labels: held(host(view, identity(gpu)), view, gpu.sole_holders.gpu.as_ref()) }
}

fn instance_labels(view: &NodeView, gpu: &GpuView, instance: &MigInstance) -> MetricLabels {
    let labels = identity(gpu)
        .with("GPU_I_PROFILE", instance.gpu_profile())
        .with("GPU_I_ID", &instance.gpu_instance.to_string());
    let holder = gpu.sole_holders.instances.iter().find(|(id, _)| *id == instance.gpu_instance);
    held(host(view, labels), view, holder.map(|(_, holder)| holder))
}

fn identity(gpu: &GpuView) -> MetricLabels {
    let bus = gpu.gpu.pci_bus_id.value().map_or("", |id| id);
    let device = gpu.gpu.minor.get().unwrap_or(gpu.gpu.index);
    MetricLabels::new()
        .with("gpu", &gpu.gpu.index.to_string())
        .with("UUID", gpu.gpu.uuid.as_str())
        .with("pci_bus_id", bus)
        .with("device", &format!("{}{device}", nvidia::DEVICE_NODE_NAME))
        .with("modelName", &gpu.gpu.model)
}

fn host(view: &NodeView, labels: MetricLabels) -> MetricLabels {
    let labels = labels.with("Hostname", view.name.as_str()).with("hostname", view.name.as_str());
    match &view.driver {
        Some(driver) => labels.with("DCGM_FI_DRIVER_VERSION", driver),
        None => labels,
    }
}

/// Adds `container` (empty unless the holder has exactly one), `namespace` and `pod` of the sole holder.
fn held(labels: MetricLabels, view: &NodeView, holder: Option<&SoleHolder>) -> MetricLabels {
    let Some((holder, pod)) = holder.and_then(|holder| Some((holder, view.pod(&holder.pod)?))) else { return labels };
    let (namespace, name) = pod_name(Some(pod));
    labels
        .with("container", holder.container.as_deref().unwrap_or_default())
        .with("namespace", namespace)
        .with("pod", name)
}

#[cfg(test)]
mod tests;
