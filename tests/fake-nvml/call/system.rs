//! The library itself: `nvmlInit`, `nvmlShutdown`, versions, handles.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use crate::answer::{answer, calls, put, put_text, text};
use crate::code::{Code, NAMES};
use crate::state::{Subject, handle, init, shutdown};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_char, c_int, c_uint};

/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    answer(init)
}

/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    answer(init)
}

/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    answer(shutdown)
}

/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let known = NAMES.iter().any(|(_, number)| *number == result);
    if known { c"an error of the fake NVML".as_ptr() } else { c"Unknown Error".as_ptr() }
}

calls! {
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) of Subject::System; |view| {
        put_text(version, length, &view.scenario.driver)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) of Subject::System; |view| {
        put(version, view.scenario.cuda)
    }

    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) of Subject::System; |view| {
        put(version, view.scenario.cuda)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) of Subject::System; |_view| {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| Code::NOT_FOUND)?;
        put_text(name, length, &path.to_string_lossy())
    }

    fn nvmlDeviceGetCount_v2(count: *mut c_uint) of Subject::System; |view| {
        put(count, c_uint::try_from(view.listed.len()).map_err(|_| Code::UNKNOWN)?)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) of Subject::Index(index); |view| {
        put(device, handle(&view.board()?.uuid, None) as nvmlDevice_t)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) of Subject::Uuid(text(uuid)); |view| {
        put(device, handle(&view.board()?.uuid, view.instance) as nvmlDevice_t)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut nvmlDevice_t) of Subject::Pci(text(id)); |view| {
        put(device, handle(&view.board()?.uuid, None) as nvmlDevice_t)
    }
}

/// Answers even without `nvmlInit`, as the real function does.
///
/// # Safety
/// `version` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    answer(|| {
        let nvml = crate::state::nvml_version()?;
        // SAFETY: the caller guarantees a valid pointer.
        unsafe { put_text(version, length, &nvml) }
    })
}
