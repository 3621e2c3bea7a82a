//! The processes on a GPU.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use crate::answer::{calls, device, put_list};
use crate::code::Code;
use crate::gpu::{NO_INSTANCE, RING, Running, float, whole};
use crate::scenario::{ProcessList, ProcessSamples};
use crate::state::View;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_t,
};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};

/// The driver's value for memory that it does not report.
const MEMORY_UNKNOWN: c_ulonglong = c_ulonglong::MAX;

/// One of NVML's three lists.
fn list(view: &View, kind: ProcessList) -> Result<Vec<nvmlProcessInfo_t>, Code> {
    let board = view.board()?;
    let here = |process: &Running| process.kind == kind && (view.instance.is_none() || process.mig == view.instance);
    let processes = board.processes(view.time).into_iter().filter(here);
    Ok(processes
        .map(|process| {
            let instance = process.mig.and_then(|at| board.instances.get(at as usize));
            nvmlProcessInfo_t {
                pid: process.pid,
                usedGpuMemory: process.memory.unwrap_or(MEMORY_UNKNOWN),
                gpuInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.gpu_instance),
                computeInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.compute_instance),
            }
        })
        .collect())
}

/// The list with the structure of the first version of the calls, which names no MIG instance.
fn first(list: &[nvmlProcessInfo_t]) -> Vec<nvmlProcessInfo_v1_t> {
    list.iter().map(|info| nvmlProcessInfo_v1_t { pid: info.pid, usedGpuMemory: info.usedGpuMemory }).collect()
}

/// A sample of each process that was active since `after_us`. The driver keeps no samples of idle processes; without
/// any sample it returns `NOT_FOUND`.
fn utilization(view: &View, after_us: u64) -> Result<Vec<nvmlProcessUtilizationSample_t>, Code> {
    let list = match view.board()?.spec.process_samples {
        ProcessSamples::Newest => newest(view, after_us)?,
        ProcessSamples::Mean => means(view, after_us)?,
    };
    if list.is_empty() { Err(Code::NOT_FOUND) } else { Ok(list) }
}

/// The mean of each process over all samples since `after_us`, including samples in which the process was idle.
fn means(view: &View, after_us: u64) -> Result<Vec<nvmlProcessUtilizationSample_t>, Code> {
    let board = view.board()?;
    let period = board.sample_period();
    let last = whole((view.time / period).floor());
    let mut all: BTreeMap<u32, (u64, [u64; 4])> = BTreeMap::new();
    let mut count = 0;
    for number in last.saturating_sub(RING - 1)..=last {
        let time = float(number) * period;
        let stamp = view.stamp_us(time);
        if stamp <= after_us {
            continue;
        }
        count += 1;
        for process in board.processes(time).iter().filter(|process| process.shares.iter().any(|share| *share > 0)) {
            let (newest, sums) = all.entry(process.pid).or_default();
            *newest = stamp;
            for (sum, share) in sums.iter_mut().zip(process.shares) {
                *sum += u64::from(share);
            }
        }
    }
    let mean = |sum: u64| u32::try_from((sum + count / 2) / count.max(1)).unwrap_or(u32::MAX);
    let sample = |(pid, (stamp, sums)): (u32, (u64, [u64; 4]))| nvmlProcessUtilizationSample_t {
        pid,
        timeStamp: stamp,
        smUtil: mean(sums[0]),
        memUtil: mean(sums[1]),
        encUtil: mean(sums[2]),
        decUtil: mean(sums[3]),
    };
    Ok(all.into_iter().map(sample).collect())
}

/// The newest sample of each process.
fn newest(view: &View, after_us: u64) -> Result<Vec<nvmlProcessUtilizationSample_t>, Code> {
    let board = view.board()?;
    let period = board.sample_period();
    let newest = whole((view.time / period).floor());
    let mut list: Vec<nvmlProcessUtilizationSample_t> = Vec::new();
    for number in (newest.saturating_sub(RING - 1)..=newest).rev() {
        let time = float(number) * period;
        let stamp = view.stamp_us(time);
        if stamp <= after_us {
            break;
        }
        for process in board.processes(time) {
            let [sm, mem, enc, dec] = process.shares;
            if sm + mem + enc + dec > 0 && !list.iter().any(|sample| sample.pid == process.pid) {
                list.push(nvmlProcessUtilizationSample_t {
                    pid: process.pid,
                    timeStamp: stamp,
                    smUtil: sm,
                    memUtil: mem,
                    encUtil: enc,
                    decUtil: dec,
                });
            }
        }
        // Without churn the newest sample may already have all processes, so older samples cannot add any.
        if !list.is_empty() && list.len() == board.spec.processes.len() && board.spec.churn.is_none() {
            break;
        }
    }
    Ok(list)
}

calls! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) of device(handle); |view| {
        put_list(count, infos, &list(&view, ProcessList::Compute)?)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) of device(handle); |view| {
        put_list(count, infos, &list(&view, ProcessList::Graphics)?)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) of device(handle); |view| {
        put_list(count, infos, &list(&view, ProcessList::Mps)?)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) of device(handle); |view| {
        put_list(count, infos, &list(&view, ProcessList::Compute)?)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) of device(handle); |view| {
        put_list(count, infos, &list(&view, ProcessList::Graphics)?)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) of device(handle); |view| {
        put_list(count, infos, &list(&view, ProcessList::Mps)?)
    }

    fn nvmlDeviceGetComputeRunningProcesses(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t,
    ) of device(handle); |view| {
        put_list(count, infos, &first(&list(&view, ProcessList::Compute)?))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t,
    ) of device(handle); |view| {
        put_list(count, infos, &first(&list(&view, ProcessList::Graphics)?))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(
        handle: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t,
    ) of device(handle); |view| {
        put_list(count, infos, &first(&list(&view, ProcessList::Mps)?))
    }

    fn nvmlDeviceGetProcessUtilization(
        handle: nvmlDevice_t, samples: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, after_us: c_ulonglong,
    ) of device(handle); |view| {
        let list = utilization(&view, after_us)?;
        put_list(count, samples, &list)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(
        handle: nvmlDevice_t, info: *mut nvmlProcessesUtilizationInfo_t,
    ) of device(handle); |view| {
        if info.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let list: Vec<_> = utilization(&view, (*info).lastSeenTimeStamp)?
            .into_iter()
            .map(|sample| nvmlProcessUtilizationInfo_v1_t {
                timeStamp: sample.timeStamp,
                pid: sample.pid,
                smUtil: sample.smUtil,
                memUtil: sample.memUtil,
                encUtil: sample.encUtil,
                decUtil: sample.decUtil,
                jpgUtil: 0,
                ofaUtil: 0,
            })
            .collect();
        put_list(&raw mut (*info).processSamplesCount, (*info).procUtilArray, &list)
    }
}
