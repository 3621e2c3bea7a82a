//! The file that a tester writes. Every key is told with examples in `README.md`; an unknown key makes the file invalid.

use crate::code::Code;
use crate::profile::GpuModel;
use crate::trace::Trace;
use crate::value::{Program, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// At most this many cards: the largest hosts carry 16.
pub const MAX_CARDS: usize = 16;

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
    /// What `nvmlInit` returns instead of success.
    pub init_error: Option<Code>,
    /// Another number here is a driver that was loaded anew: a library that was initialised before works again only after
    /// as many `nvmlShutdown` as `nvmlInit`.
    pub driver_epoch: u64,
    /// How time passes.
    pub clock: Clock,
    /// When an appearing card is seen.
    pub list: List,
    /// The cards, in NVML's order.
    pub gpus: Vec<FakeGpu>,
    /// What goes wrong.
    pub faults: Vec<CallFault>,
    /// Events to be delivered.
    pub xids: Vec<XidEvent>,
    /// Whether each call is written to `calls.log` beside this file.
    pub log_calls: bool,
}

/// One H100 on which nothing happens.
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
    /// Time stands at this scenario second.
    pub frozen_at_s: Option<f64>,
    /// Wall clock at scenario second 0, in microseconds since 1970; else that of the first scenario read.
    pub origin_us: Option<u64>,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { scale: 1.0, frozen_at_s: None, origin_us: None }
    }
}

/// When an appearing or disappearing card is seen in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// At once.
    #[default]
    Live,
    /// At the next `nvmlInit`, as with the real library; until then a card taken away is lost.
    AtInit,
}

/// One card, or `count` equal ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeGpu {
    /// Short name of a [`GpuModel`].
    pub model: String,
    /// How many of the kind.
    pub count: u32,
    /// UUID; made from the card's place in the file if it is missing.
    pub uuid: Option<String>,
    /// Name, if not the profile's.
    pub name: Option<String>,
    /// `N` of `/dev/nvidiaN`, if not the card's place in the file.
    pub minor: Option<u32>,
    /// PCI bus id, such as `00000000:65:00.0`.
    pub pci_bus_id: Option<String>,
    /// NUMA node; the first half of the cards is on 0, the rest on 1, if it is missing.
    pub numa_node: Option<u32>,
    /// Whether it is in the machine.
    pub present: bool,
    /// Whether it has fallen off the bus.
    pub lost: bool,
    /// Numbers that differ from what the model and its processes give.
    pub values: BTreeMap<ReadingKind, Value>,
    /// Another number here sets the energy counter and those of NVLink to 0, as a new driver load does.
    pub energy_epoch: u64,
    /// MIG instances; with at least one, MIG mode is on.
    pub mig: Vec<MigSlot>,
    /// MIG mode, where it differs from that.
    pub mig_enabled: Option<bool>,
    /// Processes on the card.
    pub processes: Vec<FakeProcess>,
    /// Processes that come and go.
    pub churn: Option<Churn>,
    /// Ties to other cards, where they differ from the usual.
    pub links: Vec<CardLink>,
    /// NVLinks that are not well.
    pub nvlinks: Vec<SickLink>,
    /// C functions (or `field:N`) that return `NOT_SUPPORTED`, beside those of the model.
    pub not_supported: Vec<String>,
    /// Fields of `nvmlDeviceGetFieldValues` that this driver has not heard of: `INVALID_ARGUMENT`.
    pub unknown_fields: Vec<u32>,
    /// What a process's utilisation sample holds.
    pub process_samples: ProcessSamples,
}

/// What `nvmlDeviceGetProcessUtilization` answers for each process. `nvml.h` can be read either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessSamples {
    /// Its newest sample that is not 0.
    #[default]
    Newest,
    /// The mean over all samples since the stamp that was asked after, with the stamp of its newest sample that is not 0.
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

/// A number that a scenario may set. The unit is in the name, or told here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it; README.md has the table")]
pub enum ReadingKind {
    MemoryTotalBytes,
    MemoryReservedBytes,
    MemoryUsedBytes,
    UtilizationPercent,
    MemoryCopyPercent,
    EncoderPercent,
    DecoderPercent,
    PowerWatts,
    PowerLimitWatts,
    EnergyMillijoules,
    ClockSmMhz,
    ClockMemoryMhz,
    ThrottleReasons,
    ViolationPowerNanos,
    ViolationThermalNanos,
    ViolationSyncBoostNanos,
    ViolationBoardLimitNanos,
    ViolationLowUtilizationNanos,
    ViolationReliabilityNanos,
    ViolationApplicationClocksNanos,
    ViolationBaseClocksNanos,
    TemperatureCelsius,
    TemperatureMemoryCelsius,
    PcieTxBytesPerSecond,
    PcieRxBytesPerSecond,
    PcieReplays,
    PcieGeneration,
    PcieWidth,
    EccVolatileCorrected,
    EccVolatileUncorrected,
    EccAggregateCorrected,
    EccAggregateUncorrected,
    RetiredPagesSbe,
    RetiredPagesDbe,
    RetiredPagesPending,
    RemappedCorrectable,
    RemappedUncorrectable,
    RemappedPending,
    RemappedFailed,
    RecoveryAction,
    NvlinksActive,
    NvlinkTxBytesPerSecond,
    NvlinkRxBytesPerSecond,
    NvlinkTxBytes,
    NvlinkRxBytes,
    FabricState,
    FabricStatus,
    FabricCluster,
    FabricClique,
    FabricHealth,
    FabricSummary,
    PerformanceState,
    ComputeMode,
    PersistenceMode,
    FanPercent,
    SampleMillis,
    GpmGraphicsPercent,
    GpmSmPercent,
    GpmSmOccupancyPercent,
    GpmTensorPercent,
    GpmDramPercent,
    GpmFp64Percent,
    GpmFp32Percent,
    GpmFp16Percent,
}

/// A MIG instance: a profile's name, or that and more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MigSlot {
    /// `1g.10gb`.
    Profile(String),
    /// With numbers of its own.
    Detailed(MigDetail),
}

/// A MIG instance told in full.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MigDetail {
    /// `1g.10gb`, or `1c.2g.20gb` for a part of one.
    pub profile: String,
    /// GPU instance id; its place in the list plus 1 if missing (0 for the whole card).
    pub gpu_instance: Option<u32>,
    /// Compute instance id.
    pub compute_instance: u32,
    /// `MIG-…`.
    pub uuid: Option<String>,
}

/// A process on a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeProcess {
    /// Its number.
    pub pid: u32,
    /// Bytes of device memory; `null` when the driver does not tell (vGPU, WSL).
    pub memory: Option<Value>,
    /// SM use in percent. Nothing is told of a process whose four numbers are 0.
    pub sm: Value,
    /// Memory copy use in percent.
    pub mem: Value,
    /// Encoder use in percent.
    pub enc: Value,
    /// Decoder use in percent.
    pub dec: Value,
    /// In which list it is.
    pub kind: ProcessList,
    /// Place of its MIG instance in the card's list.
    pub mig: Option<u32>,
    /// Scenario second at which it appears.
    pub from_s: f64,
    /// Scenario second at which it is gone.
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

/// NVML keeps three lists.
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

/// Processes that come and go: at second `t` those with the numbers `from_pid + floor(t * per_second)` and the next
/// `live - 1` are on the card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// The first number.
    pub from_pid: u32,
    /// How many at a time.
    pub live: u32,
    /// How many begin (and end) in a scenario second.
    pub per_second: f64,
    /// Memory of each.
    #[serde(default)]
    pub memory: u64,
    /// SM use of each, in percent.
    #[serde(default)]
    pub sm: u32,
}

/// A tie to another card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardLink {
    /// The other's place in the file.
    pub peer: u32,
    /// `PSB`, `PIX`, `PXB`, `PHB`, `NODE` or `SYS`.
    pub path: Way,
    /// Direct NVLinks.
    #[serde(default)]
    pub nvlinks: u32,
}

/// An NVLink that is not well. Counts are those since the driver was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SickLink {
    /// Its number on the card.
    pub link: u32,
    /// It is down.
    pub down: bool,
    /// Checksum errors of flow-control digits.
    pub crc_flit: u32,
    /// Checksum errors of data.
    pub crc_data: u32,
    /// Sent again.
    pub replay: u32,
    /// Trained anew.
    pub recovery: u32,
    /// Could not be trained anew.
    pub recovery_failed: u32,
    /// Packets received broken.
    pub received: u32,
    /// Symbols received wrong.
    pub symbol: u32,
}

/// The words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "nvidia-smi's words")]
pub enum Way {
    Psb,
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

/// What goes wrong with which call on which card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallFault {
    /// C function, `*`, or a beginning with `*` behind it.
    pub call: String,
    /// Which card, or by its UUID which MIG instance; any if missing. A fault of one does not touch calls that name none.
    pub gpu: Option<Which>,
    /// What the call returns; without it the call goes on after the delay.
    pub error: Option<Code>,
    /// Real milliseconds that the call takes.
    pub latency_ms: u64,
    /// The call does not return while a fault equal to this one is in the file.
    pub hang: bool,
    /// Only this many calls are touched.
    pub times: Option<u32>,
    /// Calls that go well before.
    pub after: u32,
    /// Makes two otherwise equal faults different, so that `times` begins again.
    pub id: u32,
}

impl Default for CallFault {
    fn default() -> Self {
        CallFault { call: "*".into(), gpu: None, error: None, latency_ms: 0, hang: false, times: None, after: 0, id: 0 }
    }
}

/// A card by its place in the file or its UUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Which {
    /// Place in the file, counted with `count`, absent cards included.
    Place(u32),
    /// UUID.
    Uuid(String),
}

/// An event, delivered once to the first event set that waits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidEvent {
    /// Makes it distinct; an id that has been delivered is not delivered again.
    pub id: u64,
    /// Which card.
    pub gpu: Which,
    /// XID, the event's data.
    pub code: u64,
    /// Bit of `nvmlEventType*`; 8, a critical XID, if missing.
    #[serde(default = "critical_xid")]
    pub event: u64,
    /// Scenario second at which it happens.
    #[serde(default)]
    pub at_s: f64,
    /// Place of the MIG instance, if it happened in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<u32>,
}

fn critical_xid() -> u64 {
    8
}

impl Scenario {
    /// From the text of a file; traces are read from `directory` if their path is relative.
    ///
    /// # Errors
    /// What is wrong with the text, in words.
    pub fn parse(text: &[u8], directory: &Path) -> Result<Scenario, String> {
        let mut scenario: Scenario = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let cards: u64 = scenario.gpus.iter().map(|card| u64::from(card.count)).sum();
        if cards > MAX_CARDS as u64 {
            return Err(format!("{cards} cards, at most {MAX_CARDS} are possible"));
        }
        for card in &mut scenario.gpus {
            if GpuModel::named(&card.model).is_none() {
                let known: Vec<&str> = crate::profile::PROFILES.iter().map(|profile| profile.model).collect();
                return Err(format!("no card {:?}; known are {}", card.model, known.join(", ")));
            }
            let of_processes = card.processes.iter_mut().flat_map(|process| {
                let memory = process.memory.iter_mut();
                memory.chain([&mut process.sm, &mut process.mem, &mut process.enc, &mut process.dec])
            });
            for value in card.values.values_mut().chain(of_processes) {
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
    fn what_is_wrong_is_told() {
        for (text, word) in [
            (r#"{"gpus":[{"model":"RTX"}]}"#, "known are H100"),
            (r#"{"gpus":[{"count":17}]}"#, "at most 16"),
            (r#"{"gpu":[]}"#, "unknown field"),
            (r#"{"faults":[{"error":"NO_SUCH"}]}"#, "no NVML error"),
            (r#"{"gpus":[{"#, "EOF"),
        ] {
            let error = Scenario::parse(text.as_bytes(), Path::new("/")).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
