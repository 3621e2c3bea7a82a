//! The scenario file that a tester writes. `README.md` describes every key with examples; an unknown key makes the file
//! invalid.

use crate::code::Code;
use crate::profile::GpuModel;
use crate::trace::Trace;
use crate::value::{Program, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Largest number of GPUs: the largest hosts have 16.
pub const MAX_GPUS: usize = 16;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Driver version.
    pub driver: String,
    /// NVML version.
    pub nvml: String,
    /// CUDA version: 12040 is 12.4.
    pub cuda: i32,
    /// The error of `nvmlInit`; `None` is success.
    pub init_error: Option<Code>,
    /// A changed number means that the driver was loaded again: an initialised library works again only after as many
    /// calls of `nvmlShutdown` as of `nvmlInit`.
    pub driver_epoch: u64,
    /// How time passes.
    pub clock: Clock,
    /// When NVML lists a GPU that appears.
    pub list: List,
    /// The GPUs, in NVML's order.
    pub gpus: Vec<FakeGpu>,
    /// The faults of calls.
    pub faults: Vec<CallFault>,
    /// The events to deliver.
    pub xids: Vec<XidEvent>,
    /// Whether each call is logged in `calls.log` next to this file.
    pub log_calls: bool,
}

/// One idle H100.
impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            driver: "550.127.08".into(),
            nvml: "12.550.127.08".into(),
            cuda: 12_040,
            init_error: None,
            driver_epoch: 0,
            clock: Clock::default(),
            list: List::default(),
            gpus: vec![FakeGpu::default()],
            faults: Vec::new(),
            xids: Vec::new(),
            log_calls: false,
        }
    }
}

/// How scenario time passes. It begins at 0 when the library reads its first scenario.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clock {
    /// Scenario seconds in a real second.
    pub scale: f64,
    /// Time stops at this scenario second.
    pub frozen_at_s: Option<f64>,
    /// Wall clock at scenario second 0, in microseconds since 1970; `None`: when the first scenario was read.
    pub origin_us: Option<u64>,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { scale: 1.0, frozen_at_s: None, origin_us: None }
    }
}

/// When a GPU that appears or disappears changes NVML's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// Immediately.
    #[default]
    Live,
    /// At the next `nvmlInit`, as with the real library; until then a removed GPU is lost.
    AtInit,
}

/// One GPU, or `count` equal GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeGpu {
    /// Short name of a [`GpuModel`].
    pub model: String,
    /// The number of equal GPUs.
    pub count: u32,
    /// UUID; `None`: made from the GPU's position in the file.
    pub uuid: Option<String>,
    /// Name, if not the model's.
    pub name: Option<String>,
    /// `N` of `/dev/nvidiaN`, if not the GPU's position in the file.
    pub minor: Option<u32>,
    /// PCI bus id, such as `00000000:65:00.0`.
    pub pci_bus_id: Option<String>,
    /// NUMA node; `None`: the first half of the GPUs is on 0, the rest on 1.
    pub numa_node: Option<u32>,
    /// Whether the GPU is in the machine.
    pub present: bool,
    /// Whether the GPU has fallen off the bus.
    pub lost: bool,
    /// Numbers that replace those of the model and the processes.
    pub values: BTreeMap<ReadingKind, Value>,
    /// A changed number sets the counters of energy and NVLink to 0, as a reload of the driver does.
    pub energy_epoch: u64,
    /// MIG instances; with at least one, MIG mode is on.
    pub mig: Vec<MigSlot>,
    /// MIG mode, if it does not follow from `mig`.
    pub mig_enabled: Option<bool>,
    /// Processes on the GPU.
    pub processes: Vec<FakeProcess>,
    /// Processes that start and end.
    pub churn: Option<Churn>,
    /// Connections to other GPUs, where they differ from the default.
    pub links: Vec<FakeLink>,
    /// NVLinks with errors.
    pub nvlinks: Vec<SickLink>,
    /// C functions (or `field:N`) that return `NOT_SUPPORTED`, besides those of the model.
    pub not_supported: Vec<String>,
    /// Fields of `nvmlDeviceGetFieldValues` that this driver does not know: `INVALID_ARGUMENT`.
    pub unknown_fields: Vec<u32>,
    /// The meaning of a process's utilisation sample.
    pub process_samples: ProcessSamples,
}

/// The answer of `nvmlDeviceGetProcessUtilization` for each process. `nvml.h` allows both interpretations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessSamples {
    /// The process's newest sample that is not 0.
    #[default]
    Newest,
    /// The mean over all samples since the requested time stamp, with the stamp of the process's newest sample that is not 0.
    Mean,
}

impl Default for FakeGpu {
    fn default() -> Self {
        FakeGpu {
            model: "H100".into(),
            count: 1,
            uuid: None,
            name: None,
            minor: None,
            pci_bus_id: None,
            numa_node: None,
            present: true,
            lost: false,
            values: BTreeMap::new(),
            energy_epoch: 0,
            mig: Vec::new(),
            mig_enabled: None,
            processes: Vec::new(),
            churn: None,
            links: Vec::new(),
            nvlinks: Vec::new(),
            not_supported: Vec::new(),
            unknown_fields: Vec::new(),
            process_samples: ProcessSamples::default(),
        }
    }
}

/// A number that a scenario may set. The unit is in the name, or given here. A scenario file writes it in snake case
/// (`memory_used_bytes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadingKind {
    /// Default: the model's.
    MemoryTotalBytes,
    /// Default: the model's.
    MemoryReservedBytes,
    /// Default: the sum of the processes.
    MemoryUsedBytes,
    /// Default: the sum of the processes, at most 100.
    UtilizationPercent,
    /// Default: the sum of the processes, at most 100.
    MemoryCopyPercent,
    /// Default: the sum of the processes, at most 100.
    EncoderPercent,
    /// Default: the sum of the processes, at most 100.
    DecoderPercent,
    /// Default: between the model's idle and highest power, by utilisation.
    PowerWatts,
    /// Default: the model's.
    PowerLimitWatts,
    /// Default: the sum of the power since the epoch began.
    EnergyMillijoules,
    /// Default: the model's.
    ClockSmMhz,
    /// Default: the model's.
    ClockMemoryMhz,
    /// Default: 1 (idle) or 0.
    ThrottleReasons,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationPowerNanos,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationThermalNanos,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationSyncBoostNanos,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationBoardLimitNanos,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationLowUtilizationNanos,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationReliabilityNanos,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationApplicationClocksNanos,
    /// `nvmlDeviceGetViolationStatus`, which `nvml.h` gives in nanoseconds since the driver was loaded. Default: 0.
    ViolationBaseClocksNanos,
    /// Default: follows utilisation.
    TemperatureCelsius,
    /// Default: follows utilisation.
    TemperatureMemoryCelsius,
    /// Default: follows utilisation.
    PcieTxBytesPerSecond,
    /// Default: follows utilisation.
    PcieRxBytesPerSecond,
    /// Default: 0.
    PcieReplays,
    /// Default: the highest of the model; an idle GPU, a riser that trained at x8 or a bent pin have less.
    PcieGeneration,
    /// Default: the highest of the model; an idle GPU, a riser that trained at x8 or a bent pin have less.
    PcieWidth,
    /// Default: 0.
    EccVolatileCorrected,
    /// Default: 0.
    EccVolatileUncorrected,
    /// Default: 0.
    EccAggregateCorrected,
    /// Default: 0.
    EccAggregateUncorrected,
    /// Default: 0.
    RetiredPagesSbe,
    /// Default: 0.
    RetiredPagesDbe,
    /// Default: 0.
    RetiredPagesPending,
    /// Default: 0.
    RemappedCorrectable,
    /// Default: 0.
    RemappedUncorrectable,
    /// Default: 0.
    RemappedPending,
    /// Default: 0.
    RemappedFailed,
    /// Default: 0.
    RecoveryAction,
    /// Default: the model's.
    NvlinksActive,
    /// Default: 0.
    NvlinkTxBytesPerSecond,
    /// Default: 0.
    NvlinkRxBytesPerSecond,
    /// Default: the sum of the rates since the epoch began.
    NvlinkTxBytes,
    /// Default: the sum of the rates since the epoch began.
    NvlinkRxBytes,
    /// Default: 3 (completed) for Hopper and later if NVLinks end at a switch, else 0 (no fabric). 1 is the permanent state
    /// on a node without a running fabric manager, where `cuInit` fails.
    FabricState,
    /// Default: 0.
    FabricStatus,
    /// Default: 0.
    FabricCluster,
    /// Default: 0.
    FabricClique,
    /// Default: 0.
    FabricHealth,
    /// Default: 1 (healthy). Drivers of branch 570 and later report it, because they have the third version of the structure.
    FabricSummary,
    /// Default: 0 when busy, 8 when idle.
    PerformanceState,
    /// Default: 0.
    ComputeMode,
    /// Default: 1.
    PersistenceMode,
    /// Default: `NOT_SUPPORTED`.
    FanPercent,
    /// Default: the model's.
    SampleMillis,
    /// Default: follows utilisation.
    GpmGraphicsPercent,
    /// Default: follows utilisation.
    GpmSmPercent,
    /// Default: follows utilisation.
    GpmSmOccupancyPercent,
    /// Default: follows utilisation.
    GpmTensorPercent,
    /// Default: follows utilisation.
    GpmDramPercent,
    /// Default: 0.
    GpmFp64Percent,
    /// Default: follows utilisation.
    GpmFp32Percent,
    /// Default: follows utilisation.
    GpmFp16Percent,
}

/// A MIG instance: a profile's name alone, or with ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MigSlot {
    /// `1g.10gb`.
    Profile(String),
    /// A profile with ids.
    Detailed(MigDetail),
}

/// A MIG instance with all its ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MigDetail {
    /// `1g.10gb`, or `1c.2g.20gb` for a compute instance that is a part of a GPU instance.
    pub profile: String,
    /// GPU instance id; `None`: its position in the list plus 1 (0 for the whole GPU).
    pub gpu_instance: Option<u32>,
    /// Compute instance id.
    pub compute_instance: u32,
    /// `MIG-…`.
    pub uuid: Option<String>,
}

/// A process on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeProcess {
    /// Process id.
    pub pid: u32,
    /// Bytes of device memory; `null` if the driver does not report them (vGPU, WSL).
    pub memory: Option<Value>,
    /// SM use in percent. A process with 0 in all four numbers has no utilisation sample.
    pub sm: Value,
    /// Memory copy use in percent.
    pub mem: Value,
    /// Encoder use in percent.
    pub enc: Value,
    /// Decoder use in percent.
    pub dec: Value,
    /// The list that the process is in.
    pub kind: ProcessList,
    /// Position of its MIG instance in the GPU's list.
    pub mig: Option<u32>,
    /// Scenario second at which the process appears.
    pub from_s: f64,
    /// Scenario second at which the process ends.
    pub until_s: Option<f64>,
}

impl Default for FakeProcess {
    fn default() -> Self {
        let idle = Value::Constant(0.0);
        FakeProcess {
            pid: 1,
            memory: Some(idle.clone()),
            sm: idle.clone(),
            mem: idle.clone(),
            enc: idle.clone(),
            dec: idle,
            kind: ProcessList::Compute,
            mig: None,
            from_s: 0.0,
            until_s: None,
        }
    }
}

/// NVML's three lists of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessList {
    /// CUDA.
    #[default]
    Compute,
    /// Graphics.
    Graphics,
    /// CUDA through the MPS server.
    Mps,
}

/// Processes that start and end: at second `t` the process `from_pid + floor(t * per_second)` and the next `live - 1`
/// processes are on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// The first process id.
    pub from_pid: u32,
    /// Processes at a time.
    pub live: u32,
    /// Processes that start (and end) in a scenario second.
    pub per_second: f64,
    /// Memory of each process.
    #[serde(default)]
    pub memory: u64,
    /// SM use of each process, in percent.
    #[serde(default)]
    pub sm: u32,
}

/// A connection to another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeLink {
    /// The position of the other GPU in the file.
    pub peer: u32,
    /// `PSB`, `PIX`, `PXB`, `PHB`, `NODE` or `SYS`.
    pub path: LinkPath,
    /// Direct NVLinks.
    #[serde(default)]
    pub nvlinks: u32,
}

/// An NVLink with errors. The counts begin when the driver is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SickLink {
    /// Its number on the GPU.
    pub link: u32,
    /// Whether it is down.
    pub down: bool,
    /// Checksum errors of flow-control digits.
    pub crc_flit: u32,
    /// Checksum errors of data.
    pub crc_data: u32,
    /// Packets sent again.
    pub replay: u32,
    /// Times that the link was trained again.
    pub recovery: u32,
    /// Times that training failed.
    pub recovery_failed: u32,
    /// Packets received with errors.
    pub received: u32,
    /// Symbols received with errors.
    pub symbol: u32,
}

/// The connection types of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "nvidia-smi's words")]
pub enum LinkPath {
    Psb,
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

/// A fault of calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallFault {
    /// The C function, `*`, or a prefix with `*` at its end.
    pub call: String,
    /// The GPU, or the MIG instance by its UUID; `None`: all calls. With a GPU, calls that name no GPU are not affected.
    pub gpu: Option<Which>,
    /// The error that the call returns; without it the call continues after the delay.
    pub error: Option<Code>,
    /// Real milliseconds that the call takes.
    pub latency_ms: u64,
    /// Whether the call hangs while a fault equal to this one is in the file.
    pub hang: bool,
    /// The number of calls that are affected; `None`: all.
    pub times: Option<u32>,
    /// The number of earlier calls, which are not affected.
    pub after: u32,
    /// An id that makes two otherwise equal faults different, so that `times` begins again.
    pub id: u32,
}

impl Default for CallFault {
    fn default() -> Self {
        CallFault { call: "*".into(), gpu: None, error: None, latency_ms: 0, hang: false, times: None, after: 0, id: 0 }
    }
}

/// A GPU by its position in the file or its UUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Which {
    /// Position in the file, counted with `count`, absent GPUs included.
    Place(u32),
    /// UUID.
    Uuid(String),
}

/// An event, delivered once to the first event set that waits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidEvent {
    /// The id of the event. An id that has been delivered is not delivered again.
    pub id: u64,
    /// The GPU.
    pub gpu: Which,
    /// The XID, which is the event's data.
    pub code: u64,
    /// Bit of `nvmlEventType*`; the default is 8, a critical XID.
    #[serde(default = "critical_xid")]
    pub event: u64,
    /// Scenario second at which the event happens.
    #[serde(default)]
    pub at_s: f64,
    /// Position of the MIG instance, if the event happened in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<u32>,
}

fn critical_xid() -> u64 {
    8
}

impl Scenario {
    /// Parses the text of a file. Traces with a relative path are read from `directory`.
    ///
    /// # Errors
    /// A message that names the mistake in the text.
    pub fn parse(text: &[u8], directory: &Path) -> Result<Scenario, String> {
        let mut scenario: Scenario = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let count: u64 = scenario.gpus.iter().map(|gpu| u64::from(gpu.count)).sum();
        if count > MAX_GPUS as u64 {
            return Err(format!("{count} GPUs, at most {MAX_GPUS} are possible"));
        }
        for gpu in &mut scenario.gpus {
            if GpuModel::named(&gpu.model).is_none() {
                let known: Vec<&str> = crate::profile::PROFILES.iter().map(|profile| profile.model).collect();
                return Err(format!("no GPU model {:?}; known are {}", gpu.model, known.join(", ")));
            }
            let of_processes = gpu.processes.iter_mut().flat_map(|process| {
                let memory = process.memory.iter_mut();
                memory.chain([&mut process.sm, &mut process.mem, &mut process.enc, &mut process.dec])
            });
            for value in gpu.values.values_mut().chain(of_processes) {
                load(value, directory)?;
            }
        }
        Ok(scenario)
    }
}

/// Reads the recording that a value replays.
fn load(value: &mut Value, directory: &Path) -> Result<(), String> {
    if let Value::Program(Program::Replay(replay)) = value {
        let filter = replay.filter.as_ref().map(|(column, text)| (column.as_str(), text.as_str()));
        replay.trace = Arc::new(Trace::read(&directory.join(&replay.path), &replay.column, filter)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut scenario = Scenario::default();
        scenario.gpus[0].processes.push(FakeProcess { pid: 7, sm: Value::Constant(3.0), ..FakeProcess::default() });
        scenario.gpus[0].mig.push(MigSlot::Profile("1g.10gb".into()));
        scenario.faults.push(CallFault { error: Some(Code(999)), gpu: Some(Which::Place(0)), ..CallFault::default() });
        let text = serde_json::to_vec(&scenario).unwrap();
        assert_eq!(Scenario::parse(&text, Path::new("/")), Ok(scenario));
    }

    #[test]
    fn mistakes_are_reported() {
        for (text, word) in [
            (r#"{"gpus":[{"model":"RTX"}]}"#, "known are H100"),
            (r#"{"gpus":[{"count":17}]}"#, "at most 16"),
            (r#"{"gpu":[]}"#, "unknown field"),
            (r#"{"faults":[{"error":"NO_SUCH"}]}"#, "not an NVML error"),
            (r#"{"gpus":[{"#, "EOF"),
        ] {
            let error = Scenario::parse(text.as_bytes(), Path::new("/")).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
