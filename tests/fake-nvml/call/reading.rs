//! The readings of a GPU.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use crate::answer::{calls, device, put, put_list, version_of};
use crate::code::Code;
use crate::gpu::{Board, RING, float, small, whole};
use crate::scenario::{ReadingKind as Q, SickLink};
use crate::state::{View, log_call, sums};
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlDevice_t, nvmlFieldValue_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlSample_t, nvmlTemperature_t,
    nvmlUtilization_t, nvmlValue_t, nvmlViolationTime_t,
};
use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong};

const VALUE_UNSIGNED_INT: c_uint = 1;
const VALUE_UNSIGNED_LONG_LONG: c_uint = 3;
/// All throttle reasons of nvml.h, from idle (1) to display (0x100).
const ALL_REASONS: u64 = 0x1ff;

/// The value of a GPU's newest sample.
fn sampled(view: &View, what: Q) -> Result<u32, Code> {
    let board = view.board()?;
    Ok(small(board.read(what, board.sampled(view.time))?))
}

fn micros_of_a_sample(view: &View) -> Result<u32, Code> {
    Ok(small(view.board()?.sample_period() * 1e6))
}

/// The reading of a sampling type, and the factor of its unit.
fn sampling(kind: c_uint) -> Option<(Q, f64)> {
    Some(match kind {
        0 => (Q::PowerWatts, 1000.0),
        1 => (Q::UtilizationPercent, 1.0),
        2 => (Q::MemoryCopyPercent, 1.0),
        3 => (Q::EncoderPercent, 1.0),
        4 => (Q::DecoderPercent, 1.0),
        5 => (Q::ClockSmMhz, 1.0),
        6 => (Q::ClockMemoryMhz, 1.0),
        _ => return None,
    })
}

/// The samples in NVML's buffer that are newer than `after_us`, oldest first.
fn samples(view: &View, kind: c_uint, after_us: u64) -> Result<Vec<nvmlSample_t>, Code> {
    let (what, factor) = sampling(kind).ok_or(Code::NOT_SUPPORTED)?;
    let board = view.board()?;
    let period = board.sample_period();
    let newest = whole((view.time / period).floor());
    let mut list = Vec::new();
    for number in newest.saturating_sub(RING - 1)..=newest {
        let time = float(number) * period;
        let stamp = view.stamp_us(time);
        if stamp > after_us {
            let value = nvmlValue_t { ullVal: u64::from(small(board.read(what, time)? * factor)) };
            list.push(nvmlSample_t { timeStamp: stamp, sampleValue: value });
        }
    }
    if list.is_empty() { Err(Code::NOT_FOUND) } else { Ok(list) }
}

/// One field of `nvmlDeviceGetFieldValues`: whether it is a 64-bit number, and the number.
fn field_value(view: &View, field: u32, link: u32) -> Result<(bool, u64), Code> {
    log_call(&format!("field:{field}"), view);
    if view.board()?.spec.unknown_fields.contains(&field) {
        return Err(Code::INVALID_ARGUMENT);
    }
    if view.board()?.refuses(&format!("field:{field}")) {
        return Err(Code::NOT_SUPPORTED);
    }
    if let Some(errors) = link_errors(view.board()?, field, link) {
        return errors.map(|errors| (true, errors));
    }
    let word = |what| Ok((false, whole(view.read(what)?)));
    let milli = |what| Ok((false, whole(view.read(what)? * 1000.0)));
    let links = view.read(Q::NvlinksActive)?;
    if matches!(field, 138..=141 | 202 | 204) && (links == 0.0 || (link != u32::MAX && f64::from(link) >= links)) {
        return Err(Code::NOT_SUPPORTED);
    }
    // The scope is one link, or all links.
    let part = if link == u32::MAX { 1.0 } else { 1.0 / links };
    let sent = |unit: f64| Ok((true, whole(nvlink_bytes(view, true)? * part / unit)));
    let received = |unit: f64| Ok((true, whole(nvlink_bytes(view, false)? * part / unit)));
    match field {
        82 => word(Q::TemperatureMemoryCelsius),
        83 => Ok((true, energy(view)?)),
        91 => word(Q::NvlinksActive),
        94 => word(Q::PcieReplays),
        138 | 140 => sent(1024.0),
        139 | 141 => received(1024.0),
        142 => word(Q::RemappedCorrectable),
        143 => word(Q::RemappedUncorrectable),
        144 => word(Q::RemappedPending),
        145 => word(Q::RemappedFailed),
        185 | 186 => milli(Q::PowerWatts),
        187 => Ok((false, u64::from(view.board()?.profile.power.1) * 250)),
        188 | 189 => Ok((false, u64::from(view.board()?.profile.power.1) * 1000)),
        190 | 192 => milli(Q::PowerLimitWatts),
        202 => sent(1.0),
        204 => received(1.0),
        230 => word(Q::RecoveryAction),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// The errors of one NVLink, if this field counts errors: three fields on Hopper, other fields on Blackwell and later, none
/// on earlier GPUs.
fn link_errors(board: &Board, field: u32, link: u32) -> Option<Result<u64, Code>> {
    let counts: fn(&SickLink) -> u32 = match field {
        161 => |link| link.replay,
        162 | 215 => |link| link.recovery,
        163 => |link| link.crc_flit + link.crc_data,
        208 => |link| link.received,
        214 => |link| link.recovery_failed,
        221 => |link| link.symbol,
        _ => return None,
    };
    let has = if field <= 163 { board.profile.architecture == 9 } else { board.profile.architecture >= 10 };
    let counted = if has { board.link(link) } else { Err(Code::NOT_SUPPORTED) };
    Some(counted.map(|link| u64::from(counts(&link))))
}

/// Bytes over all NVLinks since the epoch began: the number in the file, else the integral of the rate.
fn nvlink_bytes(view: &View, sent: bool) -> Result<f64, Code> {
    let what = if sent { Q::NvlinkTxBytes } else { Q::NvlinkRxBytes };
    if view.board()?.spec.values.contains_key(&what) {
        return view.read(what);
    }
    let sums = sums(view);
    Ok(if sent { sums.nvlink_tx } else { sums.nvlink_rx })
}

/// Energy in millijoules: the number in the file, else the integral of the power.
fn energy(view: &View) -> Result<u64, Code> {
    if view.board()?.spec.values.contains_key(&Q::EnergyMillijoules) {
        return view.read(Q::EnergyMillijoules).map(whole);
    }
    view.read(Q::PowerWatts)?;
    Ok(whole(sums(view).energy_millijoules))
}

/// The clock of graphics (0), SM (1), memory (2) or video (3); the video clock equals the SM clock.
fn clock(view: &View, kind: c_uint, highest: bool) -> Result<u32, Code> {
    let clocks = view.board()?.profile.clocks;
    match (kind, highest) {
        (2, true) => Ok(clocks.1),
        (2, false) => Ok(small(view.read(Q::ClockMemoryMhz)?)),
        (0 | 1 | 3, true) => Ok(clocks.0),
        (0 | 1 | 3, false) => Ok(small(view.read(Q::ClockSmMhz)?)),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

calls! {
    fn nvmlDeviceGetMemoryInfo(handle: nvmlDevice_t, memory: *mut nvmlMemory_t) of device(handle); |view| {
        let [total, reserved, used, free] = view.board()?.memory(view.instance, view.time)?;
        put(memory, nvmlMemory_t { total, free, used: used + reserved })
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) of device(handle); |view| {
        let version = version_of::<nvmlMemory_v2_t>(2);
        if memory.is_null() || (*memory).version != version {
            return Err(Code::VERSION_MISMATCH);
        }
        let [total, reserved, used, free] = view.board()?.memory(view.instance, view.time)?;
        put(memory, nvmlMemory_v2_t { version, total, reserved, free, used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(handle: nvmlDevice_t, memory: *mut nvmlBAR1Memory_t) of device(handle); |view| {
        let [total, ..] = view.board()?.memory(view.instance, view.time)?;
        // The size of a BAR is a power of two.
        let size = total.next_power_of_two();
        put(memory, nvmlBAR1Memory_t { bar1Total: size, bar1Free: size, bar1Used: 0 })
    }

    fn nvmlDeviceGetUtilizationRates(handle: nvmlDevice_t, rates: *mut nvmlUtilization_t) of device(handle); |view| {
        let (gpu, memory) = (sampled(&view, Q::UtilizationPercent)?, sampled(&view, Q::MemoryCopyPercent)?);
        put(rates, nvmlUtilization_t { gpu, memory })
    }

    fn nvmlDeviceGetSamples(
        handle: nvmlDevice_t, kind: c_uint, after_us: c_ulonglong, value_type: *mut c_uint, count: *mut c_uint,
        to: *mut nvmlSample_t,
    ) of device(handle); |view| {
        let list = samples(&view, kind, after_us)?;
        put(value_type, VALUE_UNSIGNED_INT)?;
        if to.is_null() {
            return put(count, c_uint::try_from(list.len()).map_err(|_| Code::UNKNOWN)?);
        }
        put_list(count, to, &list)
    }

    fn nvmlDeviceGetEncoderUtilization(
        handle: nvmlDevice_t, utilization: *mut c_uint, period_us: *mut c_uint,
    ) of device(handle); |view| {
        put(period_us, micros_of_a_sample(&view)?)?;
        put(utilization, sampled(&view, Q::EncoderPercent)?)
    }

    fn nvmlDeviceGetDecoderUtilization(
        handle: nvmlDevice_t, utilization: *mut c_uint, period_us: *mut c_uint,
    ) of device(handle); |view| {
        put(period_us, micros_of_a_sample(&view)?)?;
        put(utilization, sampled(&view, Q::DecoderPercent)?)
    }

    fn nvmlDeviceGetPowerUsage(handle: nvmlDevice_t, milliwatts: *mut c_uint) of device(handle); |view| {
        put(milliwatts, small(view.read(Q::PowerWatts)? * 1000.0))
    }

    fn nvmlDeviceGetEnforcedPowerLimit(handle: nvmlDevice_t, milliwatts: *mut c_uint) of device(handle); |view| {
        put(milliwatts, small(view.read(Q::PowerLimitWatts)? * 1000.0))
    }

    fn nvmlDeviceGetPowerManagementLimit(handle: nvmlDevice_t, milliwatts: *mut c_uint) of device(handle); |view| {
        put(milliwatts, small(view.read(Q::PowerLimitWatts)? * 1000.0))
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(
        handle: nvmlDevice_t, milliwatts: *mut c_uint,
    ) of device(handle); |view| {
        put(milliwatts, view.board()?.profile.power.1 * 1000)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(
        handle: nvmlDevice_t, least: *mut c_uint, most: *mut c_uint,
    ) of device(handle); |view| {
        put(least, view.board()?.profile.power.1 * 250)?;
        put(most, view.board()?.profile.power.1 * 1000)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(
        handle: nvmlDevice_t, millijoules: *mut c_ulonglong,
    ) of device(handle); |view| {
        put(millijoules, energy(&view)?)
    }

    fn nvmlDeviceGetClockInfo(handle: nvmlDevice_t, kind: c_uint, mhz: *mut c_uint) of device(handle); |view| {
        put(mhz, clock(&view, kind, false)?)
    }

    fn nvmlDeviceGetMaxClockInfo(handle: nvmlDevice_t, kind: c_uint, mhz: *mut c_uint) of device(handle); |view| {
        put(mhz, clock(&view, kind, true)?)
    }

    fn nvmlDeviceGetClock(
        handle: nvmlDevice_t, kind: c_uint, id: c_uint, mhz: *mut c_uint,
    ) of device(handle); |view| {
        put(mhz, clock(&view, kind, id != 0)?)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(
        handle: nvmlDevice_t, reasons: *mut c_ulonglong,
    ) of device(handle); |view| {
        put(reasons, whole(view.read(Q::ThrottleReasons)?))
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(
        handle: nvmlDevice_t, reasons: *mut c_ulonglong,
    ) of device(handle); |view| {
        put(reasons, whole(view.read(Q::ThrottleReasons)?))
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(
        handle: nvmlDevice_t, reasons: *mut c_ulonglong,
    ) of device(handle); |view| {
        view.board()?;
        put(reasons, ALL_REASONS)
    }

    fn nvmlDeviceGetViolationStatus(
        handle: nvmlDevice_t, policy: c_uint, time: *mut nvmlViolationTime_t,
    ) of device(handle); |view| {
        let what = match policy {
            0 => Q::ViolationPowerNanos,
            1 => Q::ViolationThermalNanos,
            2 => Q::ViolationSyncBoostNanos,
            3 => Q::ViolationBoardLimitNanos,
            4 => Q::ViolationLowUtilizationNanos,
            5 => Q::ViolationReliabilityNanos,
            10 => Q::ViolationApplicationClocksNanos,
            11 => Q::ViolationBaseClocksNanos,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        put(time, nvmlViolationTime_t {
            referenceTime: view.stamp_us(view.time), violationTime: whole(view.read(what)?),
        })
    }

    fn nvmlDeviceGetTemperature(handle: nvmlDevice_t, sensor: c_uint, celsius: *mut c_uint) of device(handle); |view| {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(celsius, small(view.read(Q::TemperatureCelsius)?))
    }

    fn nvmlDeviceGetTemperatureV(handle: nvmlDevice_t, to: *mut nvmlTemperature_t) of device(handle); |view| {
        if to.is_null() || (*to).version != version_of::<nvmlTemperature_t>(1) {
            return Err(Code::VERSION_MISMATCH);
        }
        (*to).temperature = c_int::try_from(small(view.read(Q::TemperatureCelsius)?)).unwrap_or(c_int::MAX);
        Ok(())
    }

    fn nvmlDeviceGetFieldValues(
        handle: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t,
    ) of device(handle); |view| {
        let count = usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)?;
        if values.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        for value in std::slice::from_raw_parts_mut(values, count) {
            value.timestamp = c_longlong::try_from(view.stamp_us(view.time)).unwrap_or(c_longlong::MAX);
            value.latencyUsec = 1;
            match field_value(&view, value.fieldId, value.scopeId) {
                Ok((wide, number)) => {
                    value.valueType = if wide { VALUE_UNSIGNED_LONG_LONG } else { VALUE_UNSIGNED_INT };
                    value.value = nvmlValue_t { ullVal: number };
                    value.nvmlReturn = 0;
                }
                Err(error) => value.nvmlReturn = error.0,
            }
        }
        Ok(())
    }

    fn nvmlDeviceGetPcieThroughput(
        handle: nvmlDevice_t, counter: c_uint, kib_a_second: *mut c_uint,
    ) of device(handle); |view| {
        let what = if counter == 0 { Q::PcieTxBytesPerSecond } else { Q::PcieRxBytesPerSecond };
        put(kib_a_second, small(view.read(what)? / 1024.0))
    }

    fn nvmlDeviceGetPcieReplayCounter(handle: nvmlDevice_t, replays: *mut c_uint) of device(handle); |view| {
        put(replays, small(view.read(Q::PcieReplays)?))
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(handle: nvmlDevice_t, generation: *mut c_uint) of device(handle); |view| {
        put(generation, small(view.read(Q::PcieGeneration)?))
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(handle: nvmlDevice_t, width: *mut c_uint) of device(handle); |view| {
        put(width, small(view.read(Q::PcieWidth)?))
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(handle: nvmlDevice_t, generation: *mut c_uint) of device(handle); |view| {
        put(generation, view.board()?.profile.pcie.0)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(handle: nvmlDevice_t, width: *mut c_uint) of device(handle); |view| {
        put(width, view.board()?.profile.pcie.1)
    }

    fn nvmlDeviceGetEccMode(handle: nvmlDevice_t, now: *mut c_uint, pending: *mut c_uint) of device(handle); |view| {
        view.board()?;
        put(now, 1)?;
        put(pending, 1)
    }

    fn nvmlDeviceGetTotalEccErrors(
        handle: nvmlDevice_t, kind: c_uint, counter: c_uint, errors: *mut c_ulonglong,
    ) of device(handle); |view| {
        let what = match (kind, counter) {
            (0, 0) => Q::EccVolatileCorrected,
            (1, 0) => Q::EccVolatileUncorrected,
            (0, 1) => Q::EccAggregateCorrected,
            (1, 1) => Q::EccAggregateUncorrected,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        put(errors, whole(view.read(what)?))
    }

    fn nvmlDeviceGetRetiredPages(
        handle: nvmlDevice_t, cause: c_uint, count: *mut c_uint, addresses: *mut c_ulonglong,
    ) of device(handle); |view| {
        let what = if cause == 0 { Q::RetiredPagesSbe } else { Q::RetiredPagesDbe };
        let pages: Vec<c_ulonglong> = (0..whole(view.read(what)?)).map(|page| page << 12).collect();
        put_list(count, addresses, &pages)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        handle: nvmlDevice_t, cause: c_uint, count: *mut c_uint, addresses: *mut c_ulonglong, stamps: *mut c_ulonglong,
    ) of device(handle); |view| {
        let what = if cause == 0 { Q::RetiredPagesSbe } else { Q::RetiredPagesDbe };
        let pages: Vec<c_ulonglong> = (0..whole(view.read(what)?)).map(|page| page << 12).collect();
        put_list(count, addresses, &pages)?;
        put_list(count, stamps, &vec![1_700_000_000; pages.len()])
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(handle: nvmlDevice_t, pending: *mut c_uint) of device(handle); |view| {
        put(pending, small(view.read(Q::RetiredPagesPending)?))
    }

    fn nvmlDeviceGetRemappedRows(
        handle: nvmlDevice_t, correctable: *mut c_uint, uncorrectable: *mut c_uint, pending: *mut c_uint,
        failed: *mut c_uint,
    ) of device(handle); |view| {
        put(correctable, small(view.read(Q::RemappedCorrectable)?))?;
        put(uncorrectable, small(view.read(Q::RemappedUncorrectable)?))?;
        put(pending, small(view.read(Q::RemappedPending)?))?;
        put(failed, small(view.read(Q::RemappedFailed)?))
    }

    fn nvmlDeviceGetFanSpeed(handle: nvmlDevice_t, percent: *mut c_uint) of device(handle); |view| {
        put(percent, small(view.read(Q::FanPercent)?))
    }
}
