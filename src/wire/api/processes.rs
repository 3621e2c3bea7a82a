//! `/api/v1/processes`: processes of the host, each with its owner and its use of GPUs.

use super::gpus::kind_word;
use super::head::ViewHeadJson;
use super::pods::Each;
use super::process_owner::{OwnerNames, ProcessOwnerJson};
use super::reading::{ReadingAges, ReadingJson};
use model::id::GpuUuid;
use model::process::{GpuProcess, HostProcess};
use model::unit::Nanos;
use model::view::{NodeView, ProcessView};
use model::{Absence, Reading as Noun};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessesJson {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// Number of processes beyond the limit of the agent.
    pub left_out: u32,
    /// Processes, the highest CPU use first; processes that only a GPU lists come last.
    pub processes: Vec<ProcessJson>,
}

/// Writes the same JSON as [`ProcessesJson`], and converts one process at a time.
#[derive(Debug)]
pub struct ProcessesListing<'a> {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// Number of processes beyond the limit of the agent.
    pub left_out: u32,
    /// The requested processes.
    pub rows: Vec<&'a ProcessRow<'a>>,
    /// The names of the view.
    pub names: &'a OwnerNames<'a>,
    /// The time of the answer, for the ages.
    pub ages: ReadingAges,
}

/// A process from the process list of the host, from the process lists of GPUs, or from both.
#[derive(Debug)]
pub struct ProcessRow<'a> {
    /// The process in `/proc` of the host.
    pub host: Option<&'a ProcessView>,
    /// One entry for each GPU and MIG instance that the process uses.
    pub gpus: GpuEntries<'a>,
}

/// The entries of a process in the process lists of GPUs.
pub type GpuEntries<'a> = Vec<(&'a GpuUuid, &'a GpuProcess)>;

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::process::HostProcess` with their unit")]
pub struct ProcessJson {
    pub pid: u32,
    pub start_ticks: Option<u64>,
    pub command: String,
    pub owner: ProcessOwnerJson,
    pub cpu_cores: ReadingJson<f64>,
    pub cpu_user_seconds: ReadingJson<f64>,
    pub cpu_system_seconds: ReadingJson<f64>,
    pub rss_bytes: ReadingJson<u64>,
    pub threads: ReadingJson<u64>,
    pub read_bytes: ReadingJson<u64>,
    pub write_bytes: ReadingJson<u64>,
    /// The process's use of GPUs.
    pub gpus: Vec<ProcessOnGpuJson>,
}

/// A process on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::process::GpuProcess` with their unit")]
pub struct ProcessOnGpuJson {
    pub gpu: String,
    pub mig: Option<String>,
    /// `compute`, `graphics` or `mps`.
    pub kind: String,
    pub memory_used_bytes: ReadingJson<u64>,
    pub sm_ratio: ReadingJson<f64>,
    pub encoder_ratio: ReadingJson<f64>,
    pub decoder_ratio: ReadingJson<f64>,
}

/// The processes of `view`: the entries of host and GPUs, joined by PID and start time.
#[must_use]
pub fn rows(view: &NodeView) -> Vec<ProcessRow<'_>> {
    let mut on_gpu: BTreeMap<(u32, Option<u64>), GpuEntries<'_>> = BTreeMap::new();
    for gpu in &view.gpus {
        for process in gpu.processes.value().into_iter().flat_map(|list| list.iter()) {
            let key = (process.pid, process.key.map(|key| key.start_ticks));
            on_gpu.entry(key).or_default().push((&gpu.gpu.uuid, process));
        }
    }
    let mut rows: Vec<ProcessRow<'_>> = view
        .processes
        .iter()
        .map(|host| {
            let key = host.process.key;
            ProcessRow { host: Some(host), gpus: on_gpu.remove(&(key.pid, Some(key.start_ticks))).unwrap_or_default() }
        })
        .collect();
    rows.extend(on_gpu.into_values().map(|gpus| ProcessRow { host: None, gpus }));
    rows
}

// === conversions ===

impl Serialize for ProcessesListing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut document = serializer.serialize_struct("Document", 3)?;
        document.serialize_field("view", &self.view)?;
        document.serialize_field("left_out", &self.left_out)?;
        document
            .serialize_field("processes", &Each(&self.rows, |row: &ProcessRow<'_>| row.show(self.names, self.ages)))?;
        document.end()
    }
}

impl ProcessRow<'_> {
    /// The owner of the process.
    #[must_use]
    pub fn owner(&self, names: &OwnerNames<'_>) -> ProcessOwnerJson {
        let host = self.host.map(|host| &host.process.owner);
        let on_gpu = self.gpus.first().map(|(_, process)| &process.owner);
        // Host and GPUs are read at different times, so one of them may not know the owner yet.
        let known = host.filter(|owner| **owner != model::process::ProcessOwner::Unknown);
        known.or(on_gpu).map_or_else(ProcessOwnerJson::unknown, |owner| names.of_process(owner))
    }

    fn show(&self, names: &OwnerNames<'_>, ages: ReadingAges) -> ProcessJson {
        let first = self.gpus.first().map(|(_, process)| *process);
        let host = self.host.map(|host| &host.process);
        let cpu = |pick: fn(&HostProcess) -> Nanos| ages.of(&read(host, pick));
        ProcessJson {
            pid: host.map(|it| it.key.pid).or(first.map(|it| it.pid)).unwrap_or_default(),
            start_ticks: host.map(|it| it.key).or(first.and_then(|it| it.key)).map(|key| key.start_ticks),
            command: host
                .map(|it| &it.command)
                .or(first.map(|it| &it.command))
                .map(ToString::to_string)
                .unwrap_or_default(),
            owner: self.owner(names),
            cpu_cores: ages.of(&self.host.map_or(Noun::Absent(Absence::NotAttributable), |it| it.cpu)),
            cpu_user_seconds: cpu(|it| it.cpu_user),
            cpu_system_seconds: cpu(|it| it.cpu_system),
            rss_bytes: ages.of(&read(host, |it| it.rss)),
            threads: ages.of(&read(host, |it| it.threads)),
            read_bytes: ages.of(&host.map_or(Noun::Absent(Absence::NotAttributable), |it| it.read_bytes)),
            write_bytes: ages.of(&host.map_or(Noun::Absent(Absence::NotAttributable), |it| it.write_bytes)),
            gpus: self.gpus.iter().map(|(gpu, process)| ProcessOnGpuJson::of(gpu, process, ages)).collect(),
        }
    }
}

/// A value from the process list of the host, as a reading.
fn read<T>(host: Option<&HostProcess>, pick: impl FnOnce(&HostProcess) -> T) -> Noun<T> {
    host.map_or(Noun::Absent(Absence::NotAttributable), |it| Noun::Measured(pick(it), it.at))
}

impl ProcessOnGpuJson {
    fn of(gpu: &GpuUuid, process: &GpuProcess, ages: ReadingAges) -> ProcessOnGpuJson {
        ProcessOnGpuJson {
            gpu: gpu.to_string(),
            mig: process.mig.as_ref().map(ToString::to_string),
            kind: kind_word(process.kind).to_owned(),
            memory_used_bytes: ages.of(&process.memory_used),
            sm_ratio: ages.of(&process.sm),
            encoder_ratio: ages.of(&process.encoder),
            decoder_ratio: ages.of(&process.decoder),
        }
    }
}
