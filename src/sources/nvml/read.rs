//! The readings of one GPU: the cheap ones every second, the others less often.

use crate::clock;
use crate::nvml::polled_gpu::PolledGpu;
use crate::nvml::raw;
use crate::nvml::{upkeep, utilization};
use model::gpu::{EccErrors, GpmSample, GpuSample, MigSample, RecoveryAction, RemappedRows, Violations};
use model::time::{Monotonic, Now};
use model::unit::{Bytes, BytesPerSecond, Celsius, Count, Megahertz, Millijoules, Nanos, Watts};
use model::{Absence, Reading};
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, TemperatureSensor,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
};
use std::path::Path;

/// `nvml.h`: this scope means the sum over all links.
const ALL_LINKS: u32 = u32::MAX;
/// `nvml.h` gives PCIe throughput in KB a second and NVLink throughput counters in KiB; NVIDIA's KB is 1,024 bytes.
const PCIE_UNIT: f64 = 1024.0;
const NVLINK_UNIT: u64 = 1024;

/// Makes the cheap calls, which take microseconds each. Returns `false` if the GPU answers that it is lost.
pub(super) fn often(gpu: &mut PolledGpu, now: Now) -> bool {
    let at = now.monotonic;
    let _ = gpu.asker.take_lost();
    gpu.skew.look(now);
    memory(gpu, at);
    utilization::read(gpu, now);
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let sample = &mut gpu.sample;
    let power = asker.ask("power", || device.power_usage());
    sample.power = Reading::from_result(power.map(|milliwatts| Watts(f64::from(milliwatts) / 1000.0)), at);
    let energy = asker.ask("energy", || device.total_energy_consumption());
    sample.energy = Reading::from_result(energy.map(Millijoules), at);
    let sm = asker.ask("clock sm", || device.clock_info(Clock::SM));
    sample.clock_sm = Reading::from_result(sm.map(Megahertz), at);
    let memory = asker.ask("clock memory", || device.clock_info(Clock::Memory));
    sample.clock_memory = Reading::from_result(memory.map(Megahertz), at);
    let reasons = asker.ask("throttle reasons", || device.current_throttle_reasons());
    sample.throttle_reasons = Reading::from_result(reasons.map(|reasons| reasons.bits()), at);
    let temperature = asker.ask("temperature", || device.temperature(TemperatureSensor::Gpu));
    sample.temperature = Reading::from_result(temperature.and_then(|number| degrees(number.into())), at);
    let memory = asker.ask_field("temperature memory", || field(device, NVML_FI_DEV_MEMORY_TEMP, 0));
    sample.temperature_memory = Reading::from_result(memory.and_then(degrees), at);
    instances(gpu, at);
    let sample = &gpu.sample;
    let told = sample.memory_used.at().or(sample.utilization.at()).or(sample.temperature.at()).or(sample.power.at());
    if told.is_none() {
        gpu.asker.ask_permission_again();
    }
    !gpu.asker.take_lost()
}

fn memory(gpu: &mut PolledGpu, at: Monotonic) {
    let info = gpu.asker.ask("memory", || gpu.known.device.memory_info());
    let sample = &mut gpu.sample;
    match info {
        Ok(info) => {
            sample.memory_used = Reading::Measured(Bytes(info.used), at);
            sample.memory_reserved = Reading::Measured(Bytes(info.reserved), at);
            sample.memory_free = Reading::Measured(Bytes(info.free), at);
        }
        Err(why) => {
            sample.memory_used = Reading::Absent(why);
            sample.memory_reserved = Reading::Absent(why);
            sample.memory_free = Reading::Absent(why);
        }
    }
}

/// Memory of the MIG instances; their profiling counters keep their last readings.
fn instances(gpu: &mut PolledGpu, at: Monotonic) {
    let mut samples = Vec::with_capacity(gpu.known.instances.len());
    for instance in &gpu.known.instances {
        let uuid = &instance.identity.uuid;
        let gpm = gpu
            .sample
            .mig
            .iter()
            .find(|sample| sample.uuid == *uuid)
            .map_or(GpmSample::absent(Absence::NotYet), |sample| sample.gpm);
        let info = gpu.asker.ask_instance("memory of a MIG instance", uuid, || instance.device.memory_info());
        let of = |part: fn(&nvml_wrapper::struct_wrappers::device::MemoryInfo) -> u64| {
            Reading::from_result(info.as_ref().map(|info| Bytes(part(info))).map_err(|why| *why), at)
        };
        samples.push(MigSample {
            uuid: uuid.clone(),
            memory_used: of(|info| info.used),
            memory_free: of(|info| info.free),
            memory_reserved: of(|info| info.reserved),
            gpm,
        });
    }
    gpu.sample.mig = samples;
}

/// Makes the expensive calls, and those whose answer rarely changes.
pub(super) fn seldom(gpu: &mut PolledGpu, sysfs: &Path) {
    let at = clock::monotonic();
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let sample = &mut gpu.sample;
    let replays = asker.ask("pcie replays", || device.pcie_replay_counter());
    sample.pcie_replays = Reading::from_result(replays.map(|count| Count(count.into())), at);
    let remapped = asker.ask("remapped rows", || raw::remapped_rows(device));
    sample.remapped = match remapped {
        Ok(rows) => RemappedRows {
            correctable: Reading::Measured(Count(rows.correctable.into()), at),
            uncorrectable: Reading::Measured(Count(rows.uncorrectable.into()), at),
            pending: Reading::Measured(rows.pending, at),
            failed: Reading::Measured(rows.failed, at),
        },
        Err(why) => GpuSample::absent(why).remapped,
    };
    let recovery = asker.ask_field("recovery action", || field(device, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0));
    sample.recovery = Reading::from_result(
        recovery.map(|number| RecoveryAction::from_nvml(u32::try_from(number).unwrap_or(u32::MAX))),
        at,
    );
    let persistence = asker.ask("persistence mode", || device.is_in_persistent_mode());
    sample.persistence = Reading::from_result(persistence, at);
    let both = [NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX];
    let links = asker.ask_field("nvlink throughput", || {
        let [sent, received] = raw::fields(device, both, ALL_LINKS)?;
        Ok(sent.and_then(|sent| Ok(sent.saturating_add(received?))))
    });
    sample.nvlink_bytes = Reading::from_result(links.map(|kib| Bytes(kib.saturating_mul(NVLINK_UNIT))), at);
    ecc(gpu, at);
    violations(gpu, at);
    throughput(gpu);
    upkeep::read(gpu, sysfs);
}

/// Reads for how long each policy held the clocks down. `nvml.h`: nanoseconds since the driver was loaded.
fn violations(gpu: &mut PolledGpu, at: Monotonic) {
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let mut held = |name, policy| {
        let told = asker.ask(name, || device.violation_status(policy));
        Reading::from_result(told.map(|told| Nanos(told.violation_time)), at)
    };
    gpu.sample.violations = Violations {
        power: held("violation power", PerformancePolicy::Power),
        thermal: held("violation thermal", PerformancePolicy::Thermal),
        sync_boost: held("violation sync boost", PerformancePolicy::SyncBoost),
        board_limit: held("violation board limit", PerformancePolicy::BoardLimit),
        low_utilization: held("violation low utilization", PerformancePolicy::LowUtilization),
        reliability: held("violation reliability", PerformancePolicy::Reliability),
        application_clocks: held("violation application clocks", PerformancePolicy::TotalAppClocks),
        base_clocks: held("violation base clocks", PerformancePolicy::TotalBaseClocks),
    };
}

fn ecc(gpu: &mut PolledGpu, at: Monotonic) {
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let mut count = |name, error, counter| {
        Reading::from_result(asker.ask(name, || device.total_ecc_errors(error, counter)).map(Count), at)
    };
    gpu.sample.ecc_volatile = EccErrors {
        corrected: count("ecc volatile corrected", MemoryError::Corrected, EccCounter::Volatile),
        uncorrected: count("ecc volatile uncorrected", MemoryError::Uncorrected, EccCounter::Volatile),
    };
    gpu.sample.ecc_aggregate = EccErrors {
        corrected: count("ecc aggregate corrected", MemoryError::Corrected, EccCounter::Aggregate),
        uncorrected: count("ecc aggregate uncorrected", MemoryError::Uncorrected, EccCounter::Aggregate),
    };
}

/// PCIe throughput where GPM does not count it. The library measures for 20 ms in each direction while the thread
/// waits, and sees nothing of the time between two rounds.
fn throughput(gpu: &mut PolledGpu) {
    if gpu.sample.gpm.pcie_tx.get().is_some() && gpu.sample.gpm.pcie_rx.get().is_some() {
        return;
    }
    let device = &gpu.known.device;
    let speed = |units: u32| BytesPerSecond(f64::from(units) * PCIE_UNIT);
    let sent = gpu.asker.ask("pcie sent", || device.pcie_throughput(PcieUtilCounter::Send));
    gpu.sample.pcie_tx = Reading::from_result(sent.map(speed), clock::monotonic());
    let received = gpu.asker.ask("pcie received", || device.pcie_throughput(PcieUtilCounter::Receive));
    gpu.sample.pcie_rx = Reading::from_result(received.map(speed), clock::monotonic());
}

/// One field of one scope. The outer result is that of the call, the inner one that of the field.
fn field(device: &nvml_wrapper::Device<'static>, id: u32, scope: u32) -> Result<Result<u64, NvmlError>, NvmlError> {
    let [value] = raw::fields(device, [id], scope)?;
    Ok(value)
}

/// NVML has no negative temperatures; a number that is too large is not a temperature.
fn degrees(number: u64) -> Result<Celsius, Absence> {
    i32::try_from(number).map(Celsius).map_err(|_| Absence::Unreadable)
}
