//! The readings of one GPU: the cheap readings every second, the others less often.

use crate::nvml::memory::MemoryParts;
use crate::nvml::polled_gpu::PolledGpu;
use crate::nvml::raw;
use crate::nvml::{hardware, memory, utilization};
use model::gpu::{EccErrors, GpmSample, MemoryKind, MigSample, RemappedRows, Violations};
use model::physical_range::PhysicalRange as Range;
use model::recovery::RecoveryAction;
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
pub(super) fn often(gpu: &mut PolledGpu, procfs: &Path, now: Now) -> bool {
    let at = now.monotonic;
    let _ = gpu.asker.take_lost();
    gpu.skew.look(now);
    memory::read(gpu, procfs, at);
    utilization::read(gpu, at);
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let sample = &mut gpu.sample;
    let power = asker.ask("power", || device.power_usage()).map(|milliwatts| Watts(f64::from(milliwatts) / 1000.0));
    sample.power = Reading::from_result(asker.within(Range::POWER, power), at);
    let sm = asker.ask("clock sm", || device.clock_info(Clock::SM)).map(Megahertz);
    sample.clock_sm = Reading::from_result(asker.within(Range::CLOCK_SM, sm), at);
    let memory = asker.ask("clock memory", || device.clock_info(Clock::Memory)).map(Megahertz);
    sample.clock_memory = Reading::from_result(asker.within(Range::CLOCK_MEMORY, memory), at);
    let reasons = asker.ask("throttle reasons", || device.current_throttle_reasons());
    sample.throttle_reasons = Reading::from_result(reasons.map(|reasons| reasons.bits()), at);
    let temperature = asker.ask("temperature", || device.temperature(TemperatureSensor::Gpu));
    let temperature = temperature.map(|number| degrees(number.into()));
    sample.temperature = Reading::from_result(asker.within(Range::TEMPERATURE, temperature), at);
    let memory = asker.ask_field("temperature memory", || field(device, NVML_FI_DEV_MEMORY_TEMP, 0)).map(degrees);
    sample.temperature_memory = Reading::from_result(asker.within(Range::MEMORY_TEMPERATURE, memory), at);
    instances(gpu, at);
    let sample = &gpu.sample;
    let told = sample.memory_used.at().or(sample.utilization.at()).or(sample.temperature.at()).or(sample.power.at());
    if told.is_none() {
        gpu.asker.ask_permission_again();
    }
    !gpu.asker.take_lost()
}

/// Reads the energy: with each process list, because the call takes 3 to 5 ms of CPU time (`tests/gpu/runs`).
pub(super) fn energy(gpu: &mut PolledGpu, at: Monotonic) {
    let energy = gpu.asker.ask("energy", || gpu.known.device.total_energy_consumption()).map(Millijoules);
    gpu.sample.energy = Reading::from_result(gpu.asker.within(Range::ENERGY, energy), at);
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
        let answer = gpu.asker.ask_instance("memory of a MIG instance", uuid, || raw::memory(&instance.device));
        let MemoryParts { used, free, reserved } = memory::parts(&mut gpu.asker, answer, MemoryKind::Own, at);
        samples.push(MigSample {
            uuid: uuid.clone(),
            memory_used: used,
            memory_free: free,
            memory_reserved: reserved,
            gpm,
        });
    }
    gpu.sample.mig = samples;
}

/// Makes the expensive calls, and the calls whose answer rarely changes.
pub(super) fn seldom(gpu: &mut PolledGpu, sysfs: &Path) {
    let at = clock::monotonic();
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let sample = &mut gpu.sample;
    let replays = asker.ask("pcie replays", || device.pcie_replay_counter());
    let replays = asker.within(Range::PCIE_REPLAYS, replays.map(|count| Count(count.into())));
    sample.pcie_replays = Reading::from_result(replays, at);
    let remapped = asker.ask("remapped rows", || raw::remapped_rows(device));
    sample.remapped = match remapped {
        Ok(rows) => RemappedRows {
            correctable: Reading::from_result(asker.within(Range::REMAPPED, Ok(Count(rows.correctable.into()))), at),
            uncorrectable: Reading::from_result(
                asker.within(Range::REMAPPED, Ok(Count(rows.uncorrectable.into()))),
                at,
            ),
            pending: Reading::Measured(rows.pending, at),
            failed: Reading::Measured(rows.failed, at),
        },
        Err(why) => RemappedRows::absent(why),
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
    let links = asker.within(Range::NVLINK_BYTES, links.map(|kib| Bytes(kib.saturating_mul(NVLINK_UNIT))));
    sample.nvlink_bytes = Reading::from_result(links, at);
    ecc(gpu, at);
    violations(gpu, at);
    throughput(gpu);
    hardware::read(gpu, sysfs);
}

/// Reads for how long each policy held the clocks down. `nvml.h`: nanoseconds since the driver was loaded.
fn violations(gpu: &mut PolledGpu, at: Monotonic) {
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let mut held = |name, policy| {
        let told = asker.ask(name, || device.violation_status(policy)).map(|told| Nanos(told.violation_time));
        Reading::from_result(asker.within(Range::VIOLATION, told), at)
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
        let range = match counter {
            EccCounter::Volatile => Range::ECC_VOLATILE,
            EccCounter::Aggregate => Range::ECC_AGGREGATE,
        };
        let errors = asker.ask(name, || device.total_ecc_errors(error, counter)).map(Count);
        Reading::from_result(asker.within(range, errors), at)
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

/// PCIe throughput, if GPM does not count it. The library measures for 20 ms in each direction while the thread waits,
/// and sees nothing of the time between two rounds.
fn throughput(gpu: &mut PolledGpu) {
    if gpu.sample.gpm.pcie_tx.get().is_some() && gpu.sample.gpm.pcie_rx.get().is_some() {
        return;
    }
    let device = &gpu.known.device;
    let speed = |units: u32| BytesPerSecond(f64::from(units) * PCIE_UNIT);
    let sent = gpu.asker.ask("pcie sent", || device.pcie_throughput(PcieUtilCounter::Send)).map(speed);
    gpu.sample.pcie_tx = Reading::from_result(gpu.asker.within(Range::PCIE_TX, sent), clock::monotonic());
    let received = gpu.asker.ask("pcie received", || device.pcie_throughput(PcieUtilCounter::Receive)).map(speed);
    gpu.sample.pcie_rx = Reading::from_result(gpu.asker.within(Range::PCIE_RX, received), clock::monotonic());
}

/// One field of one scope. The outer result is the call's, the inner result is the field's.
fn field(device: &nvml_wrapper::Device<'static>, id: u32, scope: u32) -> Result<Result<u64, NvmlError>, NvmlError> {
    let [value] = raw::fields(device, [id], scope)?;
    Ok(value)
}

/// NVML has no negative temperatures; a number that is too large is outside the range.
fn degrees(number: u64) -> Celsius {
    Celsius(i32::try_from(number).unwrap_or(i32::MAX))
}

/// For the tests with the fake driver: the calls that give each reading of a GPU, and a value to read.
#[cfg(test)]
pub(super) mod driven {
    use lab::scenario::ReadingKind as Q;
    use model::recovery::RecoveryAction;
    use model::sample_value::{BaseUnits, SampleValue};
    use model::unit::{Bytes, BytesPerSecond, Celsius, Count, Megahertz, Millijoules, Nanos, Percent, Ratio, Watts};

    /// One row of [`model::gpu::GPU_READINGS`].
    pub(in crate::nvml) struct Driven {
        /// The reading's metric and its label.
        pub(in crate::nvml) name: (&'static str, &'static str),
        /// The reading is absent if all of these calls fail.
        pub(in crate::nvml) calls: &'static [&'static str],
        /// The numbers of the fake driver that give the reading `value`.
        pub(in crate::nvml) numbers: &'static [(Q, f64)],
        /// The value that the agent reads, in base units.
        pub(in crate::nvml) value: SampleValue,
    }

    const MEMORY: &[&str] = &["nvmlDeviceGetMemoryInfo*"];
    const UTILIZATION: &[&str] = &["nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates"];
    const CLOCK: &[&str] = &["nvmlDeviceGetClockInfo"];
    const VIOLATION: &[&str] = &["nvmlDeviceGetViolationStatus"];
    const FIELDS: &[&str] = &["nvmlDeviceGetFieldValues"];
    const PCIE: &[&str] = &["nvmlDeviceGetPcieThroughput", "nvmlGpmSampleGet"];
    const ECC: &[&str] = &["nvmlDeviceGetTotalEccErrors"];
    const REMAPPED: &[&str] = &["nvmlDeviceGetRemappedRows"];
    /// The calls of the profiling counters.
    pub(in crate::nvml) const GPM: &[&str] = &["nvmlGpmSampleGet"];

    fn row(
        name: (&'static str, &'static str),
        calls: &'static [&'static str],
        numbers: &'static [(Q, f64)],
        value: impl BaseUnits,
    ) -> Driven {
        Driven { name, calls, numbers, value: value.in_base_units() }
    }

    /// The rows, in the order of that table. No two readings that could be confused have the same value.
    #[rustfmt::skip]
    pub(in crate::nvml) fn rows() -> Vec<Driven> {
        vec![
            row(("memory_total_bytes", ""), MEMORY, &[(Q::MemoryTotalBytes, 8e10)], Bytes(80_000_000_000)),
            row(("memory_used_bytes", ""), MEMORY, &[(Q::MemoryUsedBytes, 5e9)], Bytes(5_000_000_000)),
            row(("memory_reserved_bytes", ""), MEMORY, &[(Q::MemoryReservedBytes, 6e8)], Bytes(600_000_000)),
            row(("memory_free_bytes", ""), MEMORY, &[], Bytes(74_400_000_000)),
            row(("utilization_ratio", ""), UTILIZATION, &[(Q::UtilizationPercent, 42.0)], Percent(42.0)),
            row(("memory_copy_ratio", ""), UTILIZATION, &[(Q::MemoryCopyPercent, 17.0)], Percent(17.0)),
            row(("encoder_ratio", ""), &["nvmlDeviceGetSamples", "nvmlDeviceGetEncoderUtilization"], &[(Q::EncoderPercent, 5.0)], Percent(5.0)),
            row(("decoder_ratio", ""), &["nvmlDeviceGetSamples", "nvmlDeviceGetDecoderUtilization"], &[(Q::DecoderPercent, 6.0)], Percent(6.0)),
            row(("power_watts", ""), &["nvmlDeviceGetPowerUsage"], &[(Q::PowerWatts, 345.5)], Watts(345.5)),
            row(("power_limit_watts", ""), &["nvmlDeviceGetEnforcedPowerLimit"], &[(Q::PowerLimitWatts, 650.0)], Watts(650.0)),
            row(("energy_joules_total", ""), &["nvmlDeviceGetTotalEnergyConsumption"], &[(Q::EnergyMillijoules, 123_456_789.0)], Millijoules(123_456_789)),
            row(("clock_sm_hertz", ""), CLOCK, &[(Q::ClockSmMhz, 1755.0)], Megahertz(1755)),
            row(("clock_memory_hertz", ""), CLOCK, &[(Q::ClockMemoryMhz, 2619.0)], Megahertz(2619)),
            row(("clock_throttle_reasons", ""), &["nvmlDeviceGetCurrentClocks*"], &[(Q::ThrottleReasons, 4.0)], 4_u64),
            row(("violation_seconds_total", "policy=\"power\""), VIOLATION, &[(Q::ViolationPowerNanos, 11e9)], Nanos(11_000_000_000)),
            row(("violation_seconds_total", "policy=\"thermal\""), VIOLATION, &[(Q::ViolationThermalNanos, 12e9)], Nanos(12_000_000_000)),
            row(("violation_seconds_total", "policy=\"sync_boost\""), VIOLATION, &[(Q::ViolationSyncBoostNanos, 13e9)], Nanos(13_000_000_000)),
            row(("violation_seconds_total", "policy=\"board_limit\""), VIOLATION, &[(Q::ViolationBoardLimitNanos, 14e9)], Nanos(14_000_000_000)),
            row(("violation_seconds_total", "policy=\"low_utilization\""), VIOLATION, &[(Q::ViolationLowUtilizationNanos, 15e9)], Nanos(15_000_000_000)),
            row(("violation_seconds_total", "policy=\"reliability\""), VIOLATION, &[(Q::ViolationReliabilityNanos, 16e9)], Nanos(16_000_000_000)),
            row(("violation_seconds_total", "policy=\"application_clocks\""), VIOLATION, &[(Q::ViolationApplicationClocksNanos, 17e9)], Nanos(17_000_000_000)),
            row(("violation_seconds_total", "policy=\"base_clocks\""), VIOLATION, &[(Q::ViolationBaseClocksNanos, 18e9)], Nanos(18_000_000_000)),
            row(("temperature_celsius", ""), &["nvmlDeviceGetTemperature*"], &[(Q::TemperatureCelsius, 61.0)], Celsius(61)),
            row(("memory_temperature_celsius", ""), FIELDS, &[(Q::TemperatureMemoryCelsius, 72.0)], Celsius(72)),
            row(("pcie_transmit_bytes_per_second", ""), PCIE, &[(Q::PcieTxBytesPerSecond, 3e9)], BytesPerSecond(3e9)),
            row(("pcie_receive_bytes_per_second", ""), PCIE, &[(Q::PcieRxBytesPerSecond, 2e9)], BytesPerSecond(2e9)),
            row(("pcie_replays_total", ""), &["nvmlDeviceGetPcieReplayCounter"], &[(Q::PcieReplays, 3.0)], Count(3)),
            row(("nvlink_bytes_total", ""), FIELDS, &[(Q::NvlinkTxBytes, 1024.0 * 5000.0), (Q::NvlinkRxBytes, 1024.0 * 7000.0)], Bytes(1024 * 12_000)),
            row(("nvlinks_active", ""), &["nvmlDeviceGetNvLinkState"], &[(Q::NvlinksActive, 17.0)], 17_u32),
            row(("ecc_volatile_errors_total", "type=\"corrected\""), ECC, &[(Q::EccVolatileCorrected, 1.0)], Count(1)),
            row(("ecc_volatile_errors_total", "type=\"uncorrected\""), ECC, &[(Q::EccVolatileUncorrected, 2.0)], Count(2)),
            row(("ecc_aggregate_errors_total", "type=\"corrected\""), ECC, &[(Q::EccAggregateCorrected, 3.0)], Count(3)),
            row(("ecc_aggregate_errors_total", "type=\"uncorrected\""), ECC, &[(Q::EccAggregateUncorrected, 4.0)], Count(4)),
            row(("remapped_rows_total", "cause=\"corrected\""), REMAPPED, &[(Q::RemappedCorrectable, 5.0)], Count(5)),
            row(("remapped_rows_total", "cause=\"uncorrected\""), REMAPPED, &[(Q::RemappedUncorrectable, 6.0)], Count(6)),
            row(("row_remap_pending", ""), REMAPPED, &[(Q::RemappedPending, 1.0)], true),
            row(("row_remap_failed", ""), REMAPPED, &[(Q::RemappedFailed, 0.0)], false),
            row(("recovery_action", ""), FIELDS, &[(Q::RecoveryAction, 1.0)], RecoveryAction::ResetGpu),
            row(("graphics_active_ratio", ""), GPM, &[(Q::GpmGraphicsPercent, 90.0)], Ratio(0.9)),
            row(("sm_active_ratio", ""), GPM, &[(Q::GpmSmPercent, 80.0)], Ratio(0.8)),
            row(("sm_occupancy_ratio", ""), GPM, &[(Q::GpmSmOccupancyPercent, 70.0)], Ratio(0.7)),
            row(("tensor_active_ratio", ""), GPM, &[(Q::GpmTensorPercent, 25.0)], Ratio(0.25)),
            row(("dram_active_ratio", ""), GPM, &[(Q::GpmDramPercent, 35.0)], Ratio(0.35)),
            row(("fp64_active_ratio", ""), GPM, &[(Q::GpmFp64Percent, 15.0)], Ratio(0.15)),
            row(("fp32_active_ratio", ""), GPM, &[(Q::GpmFp32Percent, 20.0)], Ratio(0.2)),
            row(("fp16_active_ratio", ""), GPM, &[(Q::GpmFp16Percent, 10.0)], Ratio(0.1)),
            row(("counted_pcie_transmit_bytes_per_second", ""), GPM, &[(Q::PcieTxBytesPerSecond, 3e9)], BytesPerSecond(3e9)),
            row(("counted_pcie_receive_bytes_per_second", ""), GPM, &[(Q::PcieRxBytesPerSecond, 2e9)], BytesPerSecond(2e9)),
            row(("counted_nvlink_transmit_bytes_per_second", ""), GPM, &[(Q::NvlinkTxBytesPerSecond, 7e9)], BytesPerSecond(7e9)),
            row(("counted_nvlink_receive_bytes_per_second", ""), GPM, &[(Q::NvlinkRxBytesPerSecond, 8e9)], BytesPerSecond(8e9)),
        ]
    }
}
