//! How long the calls take that the agent makes, beside an idle and beside a busy GPU.

use crate::Outcome;
use crate::machine::Machine;
use crate::record::Record;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, Sampling, TemperatureSensor,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use std::time::{Duration, Instant};

/// Enough for a 99th percentile.
const REPEATS: usize = 200;
/// A call that takes milliseconds is repeated for this long only.
const BUDGET: Duration = Duration::from_millis(1500);

type Call = fn(&Device<'_>) -> Result<(), NvmlError>;

/// `NVML_FI_DEV_…` of `nvml.h`.
const MEMORY_TEMPERATURE: u32 = 82;
const ENERGY: u32 = 83;
const POWER_INSTANT: u32 = 186;

/// The calls, in the order in which the agent makes them: each second, then the rarer ones.
const CALLS: &[(&str, Call)] = &[
    ("memory", |gpu| gpu.memory_info().map(drop)),
    ("utilization samples", |gpu| gpu.samples(Sampling::GpuUtilization, None).map(drop)),
    ("memory copy samples", |gpu| gpu.samples(Sampling::MemoryUtilization, None).map(drop)),
    ("encoder samples", |gpu| gpu.samples(Sampling::EncoderUtilization, None).map(drop)),
    ("decoder samples", |gpu| gpu.samples(Sampling::DecoderUtilization, None).map(drop)),
    ("new utilization samples", |gpu| gpu.samples(Sampling::GpuUtilization, now()).map(drop)),
    ("utilization rates", |gpu| gpu.utilization_rates().map(drop)),
    ("encoder utilization", |gpu| gpu.encoder_utilization().map(drop)),
    ("decoder utilization", |gpu| gpu.decoder_utilization().map(drop)),
    ("power", |gpu| gpu.power_usage().map(drop)),
    ("energy", |gpu| gpu.total_energy_consumption().map(drop)),
    ("energy as a field", |gpu| field(gpu, ENERGY)),
    ("clock sm", |gpu| gpu.clock_info(Clock::SM).map(drop)),
    ("clock memory", |gpu| gpu.clock_info(Clock::Memory).map(drop)),
    ("throttle reasons", |gpu| gpu.current_throttle_reasons().map(drop)),
    ("temperature", |gpu| gpu.temperature(TemperatureSensor::Gpu).map(drop)),
    ("temperature memory", |gpu| field(gpu, MEMORY_TEMPERATURE)),
    ("power now", |gpu| field(gpu, POWER_INSTANT)),
    ("compute processes", |gpu| gpu.running_compute_processes().map(drop)),
    ("graphics processes", |gpu| gpu.running_graphics_processes().map(drop)),
    ("process use", |gpu| gpu.process_utilization_stats(None).map(drop)),
    ("new process use", |gpu| gpu.process_utilization_stats(now()).map(drop)),
    ("profiling counters", |gpu| gpu.gpm_sample().map(drop)),
    ("pcie sent", |gpu| gpu.pcie_throughput(PcieUtilCounter::Send).map(drop)),
    ("pcie replays", |gpu| gpu.pcie_replay_counter().map(drop)),
    ("ecc", |gpu| gpu.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile).map(drop)),
    ("violation power", |gpu| gpu.violation_status(PerformancePolicy::Power).map(drop)),
    ("persistence mode", |gpu| gpu.is_in_persistent_mode().map(drop)),
    ("pci info", |gpu| gpu.pci_info().map(drop)),
];

/// One call.
#[derive(Debug)]
pub(crate) struct Timed {
    name: &'static str,
    took: Took,
    /// Why the driver refuses the call, if it does. A refusal takes time too.
    refused: Option<NvmlError>,
}

/// The durations of a call.
#[derive(Clone, Copy, Debug)]
struct Took {
    half: Duration,
    most: Duration,
    /// The mean CPU time of this thread: the agent pays it, a wait costs nothing.
    cpu: Duration,
    calls: u32,
}

/// The wall clock in microseconds, by which NVML stamps samples: only samples after it are wanted.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn field(gpu: &Device<'_>, id: u32) -> Result<(), NvmlError> {
    let answer = gpu.field_values_for(&[FieldId(id)])?;
    answer.into_iter().next().ok_or(NvmlError::NotFound)?.and_then(|sample| sample.value).map(drop)
}

/// Times each call on the first GPU.
pub(crate) fn time(machine: &Machine) -> Outcome<Vec<Timed>> {
    let nvml = machine.nvml()?;
    let gpu = nvml.device_by_index(0)?;
    let budget = BUDGET.min(machine.length / 10);
    Ok(CALLS.iter().map(|&(name, call)| time_one(&gpu, (name, call), budget)).collect())
}

fn time_one(gpu: &Device<'_>, (name, call): (&'static str, Call), budget: Duration) -> Timed {
    let (began, before) = (Instant::now(), cpu());
    let mut took = Vec::with_capacity(REPEATS);
    let mut refused = None;
    while took.len() < REPEATS && (took.is_empty() || began.elapsed() < budget) {
        let start = Instant::now();
        refused = call(gpu).err();
        took.push(start.elapsed());
    }
    let calls = u32::try_from(took.len()).unwrap_or(u32::MAX);
    let cpu = (cpu() - before) / calls;
    took.sort();
    let at = |share: usize| took[(took.len() - 1) * share / 100];
    Timed { name, took: Took { half: at(50), most: at(99), cpu, calls }, refused }
}

/// Writes the table.
pub(crate) fn report(record: &mut Record, idle: &[Timed], busy: &[Timed]) {
    record.part("time of NVML's calls (microseconds; idle, then under load)");
    record.line("call                          p50      p99  CPU/call  calls |      p50      p99  CPU/call  calls");
    for (idle, busy) in idle.iter().zip(busy) {
        let refused = idle.refused.as_ref().or(busy.refused.as_ref());
        let refused = refused.map_or(String::new(), |error| format!("  refused: {error}"));
        record.line(&format!("{:<24} {} | {}{refused}", idle.name, idle.took.cells(), busy.took.cells()));
    }
    let answered = busy.iter().filter(|timed| timed.refused.is_none()).count();
    record.check(answered > 0, &format!("{answered} of {} calls are answered", busy.len()));
}

impl Took {
    fn cells(&self) -> String {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let (half, most, cpu) = (micros(self.half), micros(self.most), micros(self.cpu));
        format!("{half:>8.1} {most:>8.1} {cpu:>9.1} {:>6}", self.calls)
    }
}
