//! Calls that the wrapper does not offer, or offers incompletely, and all unsafe code of the NVML source.

#![expect(unsafe_code, reason = "foreign calls that nvml-wrapper has no safe form of")]

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, EventSet, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t, nvmlMemory_t,
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlReturn_t,
};

/// `NVML_VALUE_TYPE_…` of the numbers that fields carry.
const UNSIGNED_INT: u32 = 1;
const UNSIGNED_LONG: u32 = 2;
const UNSIGNED_LONG_LONG: u32 = 3;

/// More sessions than the agent ever has open: after a failure, it closes a session before it opens another session.
const MOST_SESSIONS: u32 = 8;

/// Counts of remapped memory rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) correctable: u32,
    pub(super) uncorrectable: u32,
    pub(super) pending: bool,
    pub(super) failed: bool,
}

/// An event from the library, with the MIG instance that the wrapper leaves out.
#[derive(Debug)]
pub(super) struct NvmlEvent {
    pub(super) device: Device<'static>,
    pub(super) kind: u64,
    pub(super) data: u64,
    pub(super) gpu_instance: u32,
    pub(super) compute_instance: u32,
}

/// A second handle of the same device. A handle is a plain number that stays valid while the library is initialised,
/// and the agent never unloads the library.
pub(super) fn again(device: &Device<'static>) -> Device<'static> {
    // SAFETY: the handle comes from a live `Device` of the same library, which is never unloaded.
    unsafe { Device::new(device.handle(), device.nvml()) }
}

/// Whether both are handles of one device.
pub(super) fn same(one: &Device<'static>, other: &Device<'static>) -> bool {
    // SAFETY: the handles are only compared.
    unsafe { one.handle() == other.handle() }
}

/// Initialises a library again that is already loaded.
pub(super) fn initialise(nvml: &'static Nvml) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlInit_v2.as_ref())?;
    // SAFETY: takes no argument, and may be called any number of times (NVML counts).
    nvml_try(unsafe { call() })
}

/// Closes a session; the library stays loaded. The caller must not use GPU handles afterwards until it has read new
/// handles, and must drop event sets and samples before.
pub(super) fn shut_down(nvml: &'static Nvml) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlShutdown.as_ref())?;
    // SAFETY: takes no argument; NVML answers calls after it with an error.
    nvml_try(unsafe { call() })
}

/// Closes every open session, so that no file of the driver stays open. NVML counts sessions, and a session that was
/// opened again after an error may be open twice. NVML accepts more calls than there are sessions.
pub(super) fn shut_down_all(nvml: &'static Nvml) -> Result<(), NvmlError> {
    for _ in 0..MOST_SESSIONS {
        match shut_down(nvml) {
            Ok(()) => {}
            Err(NvmlError::Uninitialized) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Memory of a GPU or MIG instance, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) used: u64,
    pub(super) free: u64,
    /// `None`: the driver does not report it, and `used` contains it.
    pub(super) reserved: Option<u64>,
}

/// Whether the library does not have this version of a call, so that an earlier version is worth a try.
fn too_new(error: &NvmlError) -> bool {
    use NvmlError::{FailedToLoadSymbol, FunctionNotFound, UnexpectedVariant};
    matches!(error, FunctionNotFound | FailedToLoadSymbol(_) | UnexpectedVariant(VERSION_OF_ARGUMENT | DEPRECATED))
}

/// Reads the memory, by the first version of the call if the driver (before R510) lacks the second version. (The wrapper
/// has only the second.)
pub(super) fn memory(device: &Device<'static>) -> Result<Memory, NvmlError> {
    match device.memory_info() {
        Ok(info) => Ok(Memory { total: info.total, used: info.used, free: info.free, reserved: Some(info.reserved) }),
        Err(error) if too_new(&error) => first_memory(device),
        Err(error) => Err(error),
    }
}

fn first_memory(device: &Device<'static>) -> Result<Memory, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle is live, and the structure outlives the call.
    nvml_try(unsafe { call(device.handle(), &mut memory) })?;
    Ok(Memory { total: memory.total, used: memory.used, free: memory.free, reserved: None })
}

/// One of NVML's lists of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessList {
    Compute,
    Mps,
    Graphics,
}

/// Reads a list, by the newest version of the call that the driver has: the third since R510, the second since R450,
/// otherwise the first, which does not name MIG instances.
pub(super) fn processes(device: &Device<'static>, list: ProcessList) -> Result<Vec<ProcessInfo>, NvmlError> {
    let third = match list {
        ProcessList::Compute => device.running_compute_processes(),
        ProcessList::Mps => device.mps_running_compute_processes(),
        ProcessList::Graphics => device.running_graphics_processes(),
    };
    if !third.as_ref().is_err_and(too_new) {
        return third;
    }
    let lib = device.nvml().lib();
    let second = nvml_sym(match list {
        ProcessList::Compute => lib.nvmlDeviceGetComputeRunningProcesses_v2.as_ref(),
        ProcessList::Mps => lib.nvmlDeviceGetMPSComputeRunningProcesses_v2.as_ref(),
        ProcessList::Graphics => lib.nvmlDeviceGetGraphicsRunningProcesses_v2.as_ref(),
    });
    let blank = nvmlProcessInfo_v2_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
    match second.and_then(|call| list_of(device, *call, blank)) {
        Err(error) if too_new(&error) => {}
        answer => return answer.map(|infos| infos.into_iter().map(ProcessInfo::from).collect()),
    }
    let first = nvml_sym(match list {
        ProcessList::Compute => lib.nvmlDeviceGetComputeRunningProcesses.as_ref(),
        ProcessList::Mps => lib.nvmlDeviceGetMPSComputeRunningProcesses.as_ref(),
        ProcessList::Graphics => lib.nvmlDeviceGetGraphicsRunningProcesses.as_ref(),
    })?;
    let one = |info: nvmlProcessInfo_v1_t| ProcessInfo {
        pid: info.pid,
        used_gpu_memory: UsedGpuMemory::from(info.usedGpuMemory),
        gpu_instance_id: None,
        compute_instance_id: None,
    };
    let infos = list_of(device, *first, nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 })?;
    Ok(infos.into_iter().map(one).collect())
}

/// A call that writes at most as many entries as the number says, and then the number of entries.
type ListCall<T> = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut T) -> nvmlReturn_t;

/// Room for processes that start between the call for the length of a list and the call for the list.
const ROOM: u32 = 5;

/// Reads a list with entries of the type that this version of the call writes. (The wrapper does not offer all of them.)
fn list_of<T: Copy>(device: &Device<'static>, call: ListCall<T>, blank: T) -> Result<Vec<T>, NvmlError> {
    let mut count = 0;
    // SAFETY: the handle is live; with a length of 0 and no list there is nothing to write to.
    match nvml_try(unsafe { call(device.handle(), &mut count, std::ptr::null_mut()) }) {
        Ok(()) => return Ok(Vec::new()),
        Err(NvmlError::InsufficientSize(_)) => {}
        Err(error) => return Err(error),
    }
    count = count.saturating_add(ROOM);
    let mut entries = vec![blank; count as usize];
    // SAFETY: the handle is live, and the array holds as many entries as `count` says.
    nvml_try(unsafe { call(device.handle(), &mut count, entries.as_mut_ptr()) })?;
    entries.truncate(count as usize);
    Ok(entries)
}

/// Reads the row remapper.
pub(super) fn remapped_rows(device: &Device<'static>) -> Result<Rows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is live, and the four numbers outlive the call.
    nvml_try(unsafe { call(device.handle(), &mut correctable, &mut uncorrectable, &mut pending, &mut failed) })?;
    Ok(Rows { correctable, uncorrectable, pending: pending != 0, failed: failed != 0 })
}

/// `NVML_PAGE_RETIREMENT_CAUSE_…`.
pub(super) const AFTER_CORRECTED: u32 = 0;
pub(super) const AFTER_UNCORRECTED: u32 = 1;

/// Number of memory pages that were retired for a cause. (The wrapper also reads the addresses, in two calls between
/// which another page may be retired.)
pub(super) fn retired_pages(device: &Device<'static>, cause: u32) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRetiredPages.as_ref())?;
    let mut count = 0;
    // SAFETY: the handle is live; with a length of 0 and no list there is nothing to write to.
    match nvml_try(unsafe { call(device.handle(), cause, &mut count, std::ptr::null_mut()) }) {
        Ok(()) | Err(NvmlError::InsufficientSize(_)) => Ok(count),
        Err(error) => Err(error),
    }
}

/// Errors of one NVLink by the number of their kind, `NVML_NVLINK_ERROR_DL_…`. (The wrapper calls another library
/// function for each kind.)
pub(super) fn link_errors(device: &Device<'static>, link: u32, kind: u32) -> Result<u64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkErrorCounter.as_ref())?;
    let mut count = 0;
    // SAFETY: the handle is live, and the number outlives the call.
    nvml_try(unsafe { call(device.handle(), link, kind, &mut count) })?;
    Ok(count)
}

/// The GPU's place in the NVLink fabric, and NVML's health summary, which the second version of the structure (drivers
/// before R570) lacks. (The wrapper does not offer this.)
pub(super) fn fabric(device: &Device<'static>) -> Result<(nvmlGpuFabricInfoV_t, Option<u8>), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    // SAFETY: a C structure of numbers, for which all zeroes is a valid value.
    let mut info: nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
    info.version = version::<nvmlGpuFabricInfoV_t>(3);
    // SAFETY: the handle is live, and the structure has the version that its field says.
    match nvml_try(unsafe { call(device.handle(), &mut info) }) {
        Ok(()) => Ok((info, Some(info.healthSummary))),
        Err(NvmlError::UnexpectedVariant(VERSION_OF_ARGUMENT)) => {
            info.version = version::<nvmlGpuFabricInfo_v2_t>(2);
            // SAFETY: as above; the third version begins with the second.
            nvml_try(unsafe { call(device.handle(), &mut info) })?;
            Ok((info, None))
        }
        Err(error) => Err(error),
    }
}

/// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`, which the wrapper has no name for.
const VERSION_OF_ARGUMENT: u32 = 25;
/// `NVML_ERROR_DEPRECATED`.
const DEPRECATED: u32 = 26;

/// `NVML_STRUCT_VERSION`.
fn version<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(0) | number << 24
}

/// GPU instance and compute instance of a MIG device.
pub(super) fn instance_ids(device: &Device<'static>) -> Result<(u32, u32), NvmlError> {
    let lib = device.nvml().lib();
    let gpu_instance = nvml_sym(lib.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute_instance = nvml_sym(lib.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute) = (0, 0);
    // SAFETY: the handle is live, and both numbers outlive the calls.
    unsafe {
        nvml_try(gpu_instance(device.handle(), &mut gpu))?;
        nvml_try(compute_instance(device.handle(), &mut compute))?;
    }
    Ok((gpu, compute))
}

/// Integer fields of one scope, each with its own result; for fields of NVLinks the scope is the link, or `u32::MAX`
/// for all links. (The wrapper always uses scope 0.)
pub(super) fn fields<const N: usize>(
    device: &Device<'static>,
    ids: [u32; N],
    scope: u32,
) -> Result<[Result<u64, NvmlError>; N], NvmlError> {
    let values = field_list(device, &ids, scope)?;
    values.try_into().map_err(|_| NvmlError::InsufficientSize(None))
}

/// The same for a list of fields that is known only at run time.
pub(super) fn field_list(
    device: &Device<'static>,
    ids: &[u32],
    scope: u32,
) -> Result<Vec<Result<u64, NvmlError>>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let field = |id: &u32| {
        // SAFETY: a C structure of numbers, for which all zeroes is a valid value.
        let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        value.fieldId = *id;
        value.scopeId = scope;
        value
    };
    let mut values: Vec<nvmlFieldValue_t> = ids.iter().map(field).collect();
    let count = i32::try_from(values.len()).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: the handle is live, and the array holds as many values as `count` says.
    nvml_try(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    Ok(values.iter().map(|value| nvml_try(value.nvmlReturn).and_then(|()| whole(value))).collect())
}

fn whole(value: &nvmlFieldValue_t) -> Result<u64, NvmlError> {
    // SAFETY: the tag says which member of the union was written, and every pattern of bits is a number.
    unsafe {
        match value.valueType {
            UNSIGNED_INT => Ok(value.value.uiVal.into()),
            UNSIGNED_LONG => Ok(value.value.ulVal),
            UNSIGNED_LONG_LONG => Ok(value.value.ullVal),
            other => Err(NvmlError::UnexpectedVariant(other)),
        }
    }
}

/// The kind of device at the far end of an NVLink: `NVML_NVLINK_DEVICE_TYPE_…`. (The wrapper discards NVML's answer.)
pub(super) fn far_end(device: &Device<'static>, link: u32) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = 0;
    // SAFETY: the handle is live, and the number outlives the call.
    nvml_try(unsafe { call(device.handle(), link, &mut kind) })?;
    Ok(kind)
}

/// Adds a device's events to a set. (The wrapper drops the whole set when one device refuses.)
pub(super) fn register(device: &Device<'static>, kinds: u64, set: &EventSet<'static>) -> Result<(), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: both handles are live.
    nvml_try(unsafe { call(device.handle(), kinds, set.handle()) })
}

/// Waits for one event.
pub(super) fn wait(set: &EventSet<'static>, timeout_ms: u32) -> Result<NvmlEvent, NvmlError> {
    let nvml = set.nvml;
    let call = nvml_sym(nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    // SAFETY: a C structure of numbers and one pointer, for which all zeroes is a valid value.
    let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live, and the structure outlives the call.
    nvml_try(unsafe { call(set.handle(), &mut data, timeout_ms) })?;
    Ok(NvmlEvent {
        // SAFETY: a successful wait fills in the handle of a device of this library.
        device: unsafe { Device::new(data.device, nvml) },
        kind: data.eventType,
        data: data.eventData,
        gpu_instance: data.gpuInstanceId,
        compute_instance: data.computeInstanceId,
    })
}
