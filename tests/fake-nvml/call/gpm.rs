//! The profiling counters (GPM) of Hopper and later: two samples, and the mean between them.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use crate::answer::{calls, device, put};
use crate::code::Code;
use crate::scenario::ReadingKind as Q;
use crate::state::{Subject, View};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};
use std::ffi::c_uint;

const MIB: f64 = 1_048_576.0;

/// The target of a sample's pointer.
#[derive(Clone, Debug, Default)]
struct Shot {
    uuid: String,
    time: f64,
    /// The MIG instance of the sample; `None` for the whole GPU.
    instance: Option<u32>,
}

/// The reading of a metric, and the divisor of its unit.
fn metric(id: u32) -> Option<(Q, f64)> {
    Some(match id {
        1 => (Q::GpmGraphicsPercent, 1.0),
        2 => (Q::GpmSmPercent, 1.0),
        3 => (Q::GpmSmOccupancyPercent, 1.0),
        5 | 7 => (Q::GpmTensorPercent, 1.0),
        10 => (Q::GpmDramPercent, 1.0),
        11 => (Q::GpmFp64Percent, 1.0),
        12 => (Q::GpmFp32Percent, 1.0),
        13 => (Q::GpmFp16Percent, 1.0),
        20 => (Q::PcieTxBytesPerSecond, MIB),
        21 => (Q::PcieRxBytesPerSecond, MIB),
        60 => (Q::NvlinkRxBytesPerSecond, MIB),
        61 => (Q::NvlinkTxBytesPerSecond, MIB),
        _ => return None,
    })
}

/// The mean of a metric between two samples of one GPU. In a MIG instance the metric is the SM use of its processes.
fn between(view: &View, first: &Shot, second: &Shot, id: u32) -> Result<f64, Code> {
    let (what, unit) = metric(id).ok_or(Code::NOT_SUPPORTED)?;
    let board = view.boards.iter().find(|board| board.uuid == second.uuid).ok_or(Code::GPU_IS_LOST)?;
    let Some(instance) = second.instance else {
        return Ok(board.mean(what, first.time, second.time)? / unit);
    };
    let at = board.instances.iter().position(|known| known.gpu_instance == instance).ok_or(Code::NOT_FOUND)?;
    let at = u32::try_from(at).map_err(|_| Code::UNKNOWN)?;
    let here = |process: &crate::gpu::Running| board.share_memory(process.mig, at);
    let busy: u32 = board.processes(second.time).iter().filter(|process| here(process)).map(|p| p.shares[0]).sum();
    match what {
        Q::GpmGraphicsPercent | Q::GpmSmPercent => Ok(f64::from(busy).min(100.0)),
        Q::GpmSmOccupancyPercent | Q::GpmTensorPercent | Q::GpmDramPercent => Ok(f64::from(busy).min(100.0) / 2.0),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// Refuses GPUs without these counters.
fn counted(view: &View) -> Result<(), Code> {
    if view.board()?.profile.has_gpm() { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

calls! {
    fn nvmlGpmQueryDeviceSupport(handle: nvmlDevice_t, support: *mut nvmlGpmSupport_t) of device(handle); |view| {
        if support.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        (*support).isSupportedDevice = c_uint::from(view.board()?.profile.has_gpm());
        Ok(())
    }

    fn nvmlGpmSampleAlloc(sample: *mut nvmlGpmSample_t) of Subject::System; |_view| {
        put(sample, Box::into_raw(Box::<Shot>::default()).cast())
    }

    fn nvmlGpmSampleGet(handle: nvmlDevice_t, sample: nvmlGpmSample_t) of device(handle); |view| {
        counted(&view)?;
        put(sample.cast(), Shot { uuid: view.board()?.uuid.clone(), time: view.time, instance: None })
    }

    fn nvmlGpmMigSampleGet(
        handle: nvmlDevice_t, gpu_instance: c_uint, sample: nvmlGpmSample_t,
    ) of Subject::Instance(handle as usize, gpu_instance); |view| {
        counted(&view)?;
        if view.instance.is_none() {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(sample.cast(), Shot { uuid: view.board()?.uuid.clone(), time: view.time, instance: Some(gpu_instance) })
    }

    fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) of Subject::System; |_view| {
        if !sample.is_null() {
            drop(Box::from_raw(sample.cast::<Shot>()));
        }
        Ok(())
    }

    fn nvmlGpmMetricsGet(request: *mut nvmlGpmMetricsGet_t) of Subject::System; |view| {
        if request.is_null() || (*request).sample1.is_null() || (*request).sample2.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let request = &mut *request;
        let (first, second) = (&*request.sample1.cast::<Shot>(), &*request.sample2.cast::<Shot>());
        if first.uuid != second.uuid || first.uuid.is_empty() || first.instance != second.instance {
            return Err(Code::INVALID_ARGUMENT);
        }
        for metric in request.metrics.iter_mut().take(request.numMetrics as usize) {
            let value = between(&view, first, second, metric.metricId);
            metric.nvmlReturn = value.map_or_else(|code| code.0, |_| 0);
            metric.value = value.unwrap_or(0.0);
        }
        Ok(())
    }
}
