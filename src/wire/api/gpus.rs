//! `/api/v1/gpus`: the GPUs of the node with their readings, conditions and processes.

use super::head::ViewHeadJson;
use super::process_owner::{OwnerNames, ProcessOwnerJson};
use super::reading::{ReadingAges, ReadingJson};
use model::gpu as noun;
use model::id::PodUid;
use model::process::{self, GpuProcessKind};
use model::time::Monotonic;
use model::view::GpuView;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// The document. The agent writes it with [`WrittenReadings`], and `top` reads it with [`ShownReadingsJson`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpusJson<R = ShownReadingsJson> {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// GPUs, ordered by index.
    pub gpus: Vec<GpuJson<R>>,
    /// GPUs that NVML counts and that the agent could never identify, ordered by index.
    #[serde(default)]
    pub gpus_unidentified: Vec<UnidentifiedGpuJson>,
    /// GPUs that the machine has and NVML does not list.
    #[serde(default)]
    pub gpus_missing: Vec<MissingGpuJson>,
}

/// A GPU that NVML counts and that the agent could never identify.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnidentifiedGpuJson {
    /// NVML's index.
    pub index: u32,
    /// PCI address, if only one address is possible.
    pub pci_bus_id: ReadingJson<String>,
    /// A stable reason code: see [`model::Absence::code`].
    pub absent: String,
    /// The reason as a sentence.
    pub reason: String,
}

/// A GPU that the machine has and NVML does not list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissingGpuJson {
    /// PCI address.
    pub pci_bus_id: String,
    /// A stable reason code: see [`model::gpu::MissingGpu::code`].
    pub code: String,
    /// The reason as half a sentence.
    pub reason: String,
    /// What to do.
    pub advice: String,
}

impl MissingGpuJson {
    /// One missing GPU of a view.
    #[must_use]
    pub fn of(gpu: &noun::MissingGpu) -> MissingGpuJson {
        MissingGpuJson {
            pci_bus_id: gpu.pci_bus_id.to_string(),
            code: gpu.code().to_owned(),
            reason: gpu.reason(),
            advice: gpu.advice().to_owned(),
        }
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::gpu::{Gpu, GpuSample}` with their unit")]
pub struct GpuJson<R = ShownReadingsJson> {
    pub uuid: String,
    pub index: u32,
    pub minor: ReadingJson<u32>,
    pub model: String,
    pub pci_bus_id: ReadingJson<String>,
    pub numa_node: ReadingJson<u32>,
    pub architecture: ReadingJson<String>,
    pub mig_mode: ReadingJson<bool>,
    /// `own`, `own_with_reserved` or `host`: see [`model::gpu::MemoryKind`].
    #[serde(default)]
    pub memory_kind: String,
    pub health: String,
    /// The incidents for which the GPU gets no new containers.
    #[serde(default)]
    pub incidents: Vec<IncidentJson>,
    /// Seconds until the GPU gets new containers again, if no new incident occurs. Missing while a reading still shows an
    /// incident, while a reset is awaited, and on a healthy GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit_in_seconds: Option<f64>,
    /// Whether the GPU gets new containers only after the agent has seen a reset of it, or after an operator cleared the
    /// incident.
    #[serde(default)]
    pub awaits_reset: bool,
    /// The readings of [`noun::GPU_READINGS`] that have a field in JSON.
    #[serde(flatten)]
    pub readings: R,
    pub ecc: EccJson,
    pub remapped: RemappedRowsJson,
    pub recovery_action: ReadingJson<String>,
    pub gpm: GpmJson,
    pub xids: Vec<XidCountJson>,
    pub last_xid: Option<LastXidJson>,
    /// The link to each other GPU of the node.
    pub links: Vec<GpuLinkJson>,
    pub mig: ReadingJson<Vec<MigInstanceJson>>,
    /// Pods with at least one process on the GPU (as far as `processes` is known), and pods with a claim on it. A pod
    /// without a claim is listed if kubelet allocated the GPU to it.
    pub holders: Vec<GpuHolderJson>,
    /// Number of processes on the GPU that belong to no pod.
    pub strangers: ReadingJson<u32>,
    /// Memory in use that is not attributed to a process of a pod.
    pub unattributed_memory_bytes: ReadingJson<u64>,
    /// SM use of the processes that belong to no pod.
    pub unattributed_sm_ratio: ReadingJson<f64>,
    /// The processes on the GPU.
    pub processes: ReadingJson<Vec<GpuProcessJson>>,
    /// Number of processes beyond the limit of the agent.
    pub processes_left_out: u32,
}

/// The readings of a GPU as `top` reads them: the fields that it shows, and all others unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::gpu::GPU_READINGS`")]
pub struct ShownReadingsJson {
    pub memory_total_bytes: ReadingJson<u64>,
    pub memory_used_bytes: ReadingJson<u64>,
    pub utilization_ratio: ReadingJson<f64>,
    pub power_watts: ReadingJson<f64>,
    pub power_limit_watts: ReadingJson<f64>,
    pub clock_sm_hertz: ReadingJson<u64>,
    pub temperature_celsius: ReadingJson<i32>,
    /// Fields that `top` passes on without showing them.
    #[serde(flatten)]
    pub others: serde_json::Map<String, serde_json::Value>,
}

/// The readings of a GPU as the agent writes them.
#[derive(Clone, Copy, Debug)]
pub struct WrittenReadings<'a> {
    seen: &'a GpuView,
    ages: ReadingAges,
}

/// One incident, for which a GPU gets no new containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncidentJson {
    /// A stable code, such as `xid_79`.
    pub incident: String,
    /// The incident as a sentence.
    pub what: String,
    /// What the operator should do.
    pub advice: String,
    /// Seconds since the agent first saw the incident.
    pub age_seconds: f64,
}

/// Counters of ECC errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "volatile: since the driver was loaded; aggregate: in the life of the GPU")]
pub struct EccJson {
    pub volatile_corrected: ReadingJson<u64>,
    pub volatile_uncorrected: ReadingJson<u64>,
    pub aggregate_corrected: ReadingJson<u64>,
    pub aggregate_uncorrected: ReadingJson<u64>,
}

/// State of row remapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::gpu::RemappedRows`")]
pub struct RemappedRowsJson {
    pub correctable_rows: ReadingJson<u64>,
    pub uncorrectable_rows: ReadingJson<u64>,
    pub pending: ReadingJson<bool>,
    pub failed: ReadingJson<bool>,
}

/// GPM metrics of the GPU's profiling unit: ratios from 0 to 1, and bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::gpu::GpmSample`")]
pub struct GpmJson {
    pub graphics_active: ReadingJson<f64>,
    pub sm_active: ReadingJson<f64>,
    pub sm_occupancy: ReadingJson<f64>,
    pub tensor_active: ReadingJson<f64>,
    pub dram_active: ReadingJson<f64>,
    pub fp64_active: ReadingJson<f64>,
    pub fp32_active: ReadingJson<f64>,
    pub fp16_active: ReadingJson<f64>,
    pub pcie_tx_bytes_per_second: ReadingJson<f64>,
    pub pcie_rx_bytes_per_second: ReadingJson<f64>,
    pub nvlink_tx_bytes_per_second: ReadingJson<f64>,
    pub nvlink_rx_bytes_per_second: ReadingJson<f64>,
}

/// The number of times that one XID was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "two plain fields")]
pub struct XidCountJson {
    pub code: u32,
    pub count: u64,
}

/// The newest XID.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::gpu::Xid`")]
pub struct LastXidJson {
    pub code: u32,
    pub age_seconds: f64,
    pub pid: Option<u32>,
    /// `nonfatal` or `fatal`, if the kernel log states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
}

/// The link to another GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuLinkJson {
    /// UUID of the other GPU.
    pub peer: String,
    /// Kind of the path, with the words of `nvidia-smi topo -m`.
    pub path: ReadingJson<String>,
    /// Number of NVLinks directly between the two GPUs; absent with `through_switch` if they go through a switch.
    pub nvlinks: ReadingJson<u32>,
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::gpu::{MigInstance, MigSample}` with their unit")]
pub struct MigInstanceJson {
    pub uuid: String,
    pub index: u32,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub profile: String,
    pub memory_total_bytes: ReadingJson<u64>,
    pub memory_used_bytes: ReadingJson<u64>,
    pub memory_free_bytes: ReadingJson<u64>,
    pub memory_reserved_bytes: ReadingJson<u64>,
    pub gpm: GpmJson,
}

/// A pod that holds or uses the GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names of a pod")]
pub struct GpuHolderJson {
    pub pod_uid: String,
    pub namespace: Option<String>,
    pub pod: Option<String>,
}

/// One process on the GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::process::GpuProcess` with their unit")]
pub struct GpuProcessJson {
    pub pid: u32,
    pub command: String,
    pub owner: ProcessOwnerJson,
    /// `compute`, `graphics` or `mps`.
    pub kind: String,
    pub mig: Option<String>,
    pub memory_used_bytes: ReadingJson<u64>,
    pub sm_ratio: ReadingJson<f64>,
    pub encoder_ratio: ReadingJson<f64>,
    pub decoder_ratio: ReadingJson<f64>,
}

// === conversions ===

impl Serialize for WrittenReadings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (gpu, sample) = (&self.seen.gpu, &self.seen.sample);
        let mut fields = serializer.serialize_map(None)?;
        for (name, read) in noun::GPU_READINGS {
            let Some(field) = name.json else { continue };
            fields.serialize_entry(field, &self.ages.of(&read(gpu, sample)))?;
        }
        fields.end()
    }
}

impl GpuJson {
    /// The known MIG instances.
    pub fn instances(&self) -> &[MigInstanceJson] {
        self.mig.value().map_or(&[], Vec::as_slice)
    }
}

impl<'a> GpuJson<WrittenReadings<'a>> {
    /// One GPU of a view, with the names of the view.
    #[must_use]
    pub fn of(seen: &'a GpuView, names: &OwnerNames<'_>, ages: ReadingAges) -> Self {
        let (gpu, sample, condition) = (&*seen.gpu, &*seen.sample, &seen.condition);
        let counted = seen.xids.iter().filter(|(_, count)| *count > 0);
        GpuJson {
            uuid: gpu.uuid.to_string(),
            index: gpu.index,
            minor: ages.of(&gpu.minor),
            model: gpu.model.to_string(),
            pci_bus_id: ages.of(&gpu.pci_bus_id),
            numa_node: ages.of(&gpu.numa_node),
            architecture: ages.of(&gpu.architecture),
            mig_mode: ages.of(&gpu.mig_mode),
            memory_kind: gpu.memory_kind.code().to_owned(),
            health: seen.health.code().to_owned(),
            incidents: condition.incidents.iter().map(|one| IncidentJson::of(*one, condition, ages)).collect(),
            fit_in_seconds: condition.fit_at.map(|at| at.since(ages.0).as_secs_f64()),
            awaits_reset: condition.awaits_reset,
            readings: WrittenReadings { seen, ages },
            ecc: EccJson::of(sample, ages),
            remapped: RemappedRowsJson::of(&sample.remapped, ages),
            recovery_action: ages.of(&sample.recovery),
            gpm: GpmJson::of(&sample.gpm, ages),
            xids: counted.map(|&(code, count)| XidCountJson { code, count }).collect(),
            last_xid: seen.last_xid.as_ref().map(|xid| LastXidJson::of(xid, ages)),
            links: gpu.links.iter().map(|link| GpuLinkJson::of(link, ages)).collect(),
            mig: ages
                .with(&gpu.mig, |mig| mig.iter().map(|instance| MigInstanceJson::of(instance, sample, ages)).collect()),
            holders: seen.holders.iter().map(|uid| GpuHolderJson::of(uid, names)).collect(),
            strangers: ages.with(&seen.processes, |_| seen.strangers),
            unattributed_memory_bytes: ages.of(&seen.unattributed_memory),
            unattributed_sm_ratio: ages.of(&seen.unattributed_sm),
            processes: ages.with(&seen.processes, |list| {
                list.iter().map(|process| GpuProcessJson::of(process, names, ages)).collect()
            }),
            processes_left_out: seen.processes_left_out,
        }
    }
}

impl UnidentifiedGpuJson {
    /// One unidentified GPU of a view.
    #[must_use]
    pub fn of(gpu: &noun::UnidentifiedGpu, ages: ReadingAges) -> UnidentifiedGpuJson {
        UnidentifiedGpuJson {
            index: gpu.index,
            pci_bus_id: ages.of(&gpu.pci_bus_id),
            absent: gpu.why.code().to_owned(),
            reason: gpu.why.to_string(),
        }
    }
}

impl IncidentJson {
    fn of(
        (incident, since): (model::incident::Incident, Monotonic),
        condition: &model::incident::GpuCondition,
        ages: ReadingAges,
    ) -> IncidentJson {
        IncidentJson {
            incident: incident.code(),
            what: incident.to_string(),
            advice: condition.advice(incident),
            age_seconds: ages.since(since),
        }
    }
}

impl EccJson {
    fn of(sample: &noun::GpuSample, ages: ReadingAges) -> EccJson {
        EccJson {
            volatile_corrected: ages.of(&sample.ecc_volatile.corrected),
            volatile_uncorrected: ages.of(&sample.ecc_volatile.uncorrected),
            aggregate_corrected: ages.of(&sample.ecc_aggregate.corrected),
            aggregate_uncorrected: ages.of(&sample.ecc_aggregate.uncorrected),
        }
    }
}

impl RemappedRowsJson {
    fn of(rows: &noun::RemappedRows, ages: ReadingAges) -> RemappedRowsJson {
        RemappedRowsJson {
            correctable_rows: ages.of(&rows.correctable),
            uncorrectable_rows: ages.of(&rows.uncorrectable),
            pending: ages.of(&rows.pending),
            failed: ages.of(&rows.failed),
        }
    }
}

impl GpmJson {
    fn of(gpm: &noun::GpmSample, ages: ReadingAges) -> GpmJson {
        GpmJson {
            graphics_active: ages.of(&gpm.graphics_active),
            sm_active: ages.of(&gpm.sm_active),
            sm_occupancy: ages.of(&gpm.sm_occupancy),
            tensor_active: ages.of(&gpm.tensor_active),
            dram_active: ages.of(&gpm.dram_active),
            fp64_active: ages.of(&gpm.fp64_active),
            fp32_active: ages.of(&gpm.fp32_active),
            fp16_active: ages.of(&gpm.fp16_active),
            pcie_tx_bytes_per_second: ages.of(&gpm.pcie_tx),
            pcie_rx_bytes_per_second: ages.of(&gpm.pcie_rx),
            nvlink_tx_bytes_per_second: ages.of(&gpm.nvlink_tx),
            nvlink_rx_bytes_per_second: ages.of(&gpm.nvlink_rx),
        }
    }
}

impl LastXidJson {
    fn of(xid: &noun::Xid, ages: ReadingAges) -> LastXidJson {
        let severity = xid.severity.map(|severity| severity.code().to_owned());
        LastXidJson { code: xid.code, age_seconds: ages.since(xid.at), pid: xid.pid, severity }
    }
}

impl GpuLinkJson {
    fn of(link: &noun::GpuLink, ages: ReadingAges) -> GpuLinkJson {
        GpuLinkJson {
            peer: link.peer.to_string(),
            path: ages.with(&link.path, |path| path.code().to_owned()),
            nvlinks: ages.of(&link.nvlinks),
        }
    }
}

impl MigInstanceJson {
    fn of(instance: &noun::MigInstance, sample: &noun::GpuSample, ages: ReadingAges) -> MigInstanceJson {
        let read = sample.mig.iter().find(|mig| mig.uuid == instance.uuid);
        let bytes = |pick: fn(&noun::MigSample) -> &model::Reading<model::unit::Bytes>| {
            ages.of(read.map_or(&model::Reading::NOT_YET, pick))
        };
        MigInstanceJson {
            uuid: instance.uuid.to_string(),
            index: instance.index,
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance,
            profile: instance.profile.to_string(),
            memory_total_bytes: ages.of(&instance.memory_total),
            memory_used_bytes: bytes(|mig| &mig.memory_used),
            memory_free_bytes: bytes(|mig| &mig.memory_free),
            memory_reserved_bytes: bytes(|mig| &mig.memory_reserved),
            gpm: GpmJson::of(read.map_or(&noun::GpmSample::default(), |mig| &mig.gpm), ages),
        }
    }
}

impl GpuHolderJson {
    fn of(uid: &PodUid, names: &OwnerNames<'_>) -> GpuHolderJson {
        let name = names.pod(uid).and_then(|pod| pod.name.as_ref());
        GpuHolderJson {
            pod_uid: uid.to_string(),
            namespace: name.map(|name| name.namespace.to_string()),
            pod: name.map(|name| name.name.to_string()),
        }
    }
}

/// The name of the kind of a GPU process.
#[must_use]
pub fn kind_word(kind: GpuProcessKind) -> &'static str {
    match kind {
        GpuProcessKind::Compute => "compute",
        GpuProcessKind::Graphics => "graphics",
        GpuProcessKind::Mps => "mps",
    }
}

impl GpuProcessJson {
    fn of(process: &process::GpuProcess, names: &OwnerNames<'_>, ages: ReadingAges) -> GpuProcessJson {
        GpuProcessJson {
            pid: process.pid,
            command: process.command.to_string(),
            owner: names.of_process(&process.owner),
            kind: kind_word(process.kind).to_owned(),
            mig: process.mig.as_ref().map(ToString::to_string),
            memory_used_bytes: ages.of(&process.memory_used),
            sm_ratio: ages.of(&process.sm),
            encoder_ratio: ages.of(&process.encoder),
            decoder_ratio: ages.of(&process.decoder),
        }
    }
}
