//! MIG: modes, instances, and the handles of GPUs and instances.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use crate::answer::{calls, device, put};
use crate::code::Code;
use crate::gpu::Instance;
use crate::state::{View, handle as handle_of};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t};
use std::ffi::c_uint;

/// The MIG instance of a handle. The handle of a whole GPU has none.
fn instance(view: &View) -> Result<&Instance, Code> {
    let at = view.instance.ok_or(Code::INVALID_ARGUMENT)?;
    view.board()?.instances.get(at as usize).ok_or(Code::NOT_FOUND)
}

calls! {
    fn nvmlDeviceGetMigMode(handle: nvmlDevice_t, now: *mut c_uint, pending: *mut c_uint) of device(handle); |view| {
        let board = view.board()?;
        if board.profile.mig_slices == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        put(now, c_uint::from(board.mig_enabled()))?;
        put(pending, c_uint::from(board.mig_enabled()))
    }

    fn nvmlDeviceGetMaxMigDeviceCount(handle: nvmlDevice_t, count: *mut c_uint) of device(handle); |view| {
        put(count, view.board()?.profile.mig_slices)
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(
        handle: nvmlDevice_t, index: c_uint, to: *mut nvmlDevice_t,
    ) of device(handle); |view| {
        let board = view.board()?;
        if index >= board.profile.mig_slices.max(1) {
            return Err(Code::INVALID_ARGUMENT);
        }
        if !board.mig_enabled() || index as usize >= board.instances.len() {
            return Err(Code::NOT_FOUND);
        }
        put(to, handle_of(&board.uuid, Some(index)) as nvmlDevice_t)
    }

    fn nvmlDeviceIsMigDeviceHandle(handle: nvmlDevice_t, is_one: *mut c_uint) of device(handle); |view| {
        put(is_one, c_uint::from(view.instance.is_some()))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        handle: nvmlDevice_t, to: *mut nvmlDevice_t,
    ) of device(handle); |view| {
        instance(&view)?;
        put(to, handle_of(&view.board()?.uuid, None) as nvmlDevice_t)
    }

    fn nvmlDeviceGetGpuInstanceId(handle: nvmlDevice_t, id: *mut c_uint) of device(handle); |view| {
        put(id, instance(&view)?.gpu_instance)
    }

    fn nvmlDeviceGetComputeInstanceId(handle: nvmlDevice_t, id: *mut c_uint) of device(handle); |view| {
        put(id, instance(&view)?.compute_instance)
    }

    fn nvmlDeviceGetAttributes_v2(
        handle: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t,
    ) of device(handle); |view| {
        let instance = instance(&view)?;
        let (slices, to_compute) = instance.slices;
        put(attributes, nvmlDeviceAttributes_t {
            multiprocessorCount: view.board()?.profile.multiprocessors / 8 * to_compute,
            sharedCopyEngineCount: slices,
            sharedDecoderCount: slices,
            sharedEncoderCount: 0,
            sharedJpegCount: slices,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: slices,
            computeInstanceSliceCount: to_compute,
            memorySizeMB: instance.memory_mib,
        })
    }
}
