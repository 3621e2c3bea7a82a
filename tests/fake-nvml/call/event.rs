//! Event sets. Each XID is delivered once, to the first event set that waits for it. A set with a lost GPU delivers its
//! pending events and then fails, also for its other GPUs.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use crate::answer::{calls, device, put};
use crate::code::Code;
use crate::gpu::NO_INSTANCE;
use crate::state::{Subject, any_lost, handle as handle_of, next_event};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};
use parking_lot::Mutex;
use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

/// Single and double bit ECC errors, state changes, critical XIDs, clock changes.
const SUPPORTED: c_ulonglong = 0x1f;
/// Pause between two checks of the scenario. The real library sleeps in the kernel; with a shorter pause, most of an
/// agent's measured CPU time would be these checks.
const PAUSE: Duration = Duration::from_millis(500);

/// The target of an event set's pointer: UUIDs and their requested types of events.
type Registered = Mutex<Vec<(String, u64)>>;

calls! {
    fn nvmlDeviceGetSupportedEventTypes(handle: nvmlDevice_t, types: *mut c_ulonglong) of device(handle); |view| {
        view.board()?;
        put(types, SUPPORTED)
    }

    fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) of Subject::System; |_view| {
        put(set, Box::into_raw(Box::<Registered>::default()).cast())
    }

    fn nvmlDeviceRegisterEvents(
        handle: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t,
    ) of device(handle); |view| {
        if set.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if types & !SUPPORTED != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        (*set.cast::<Registered>()).lock().push((view.board()?.uuid.clone(), types));
        Ok(())
    }

    fn nvmlEventSetWait_v2(
        set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint,
    ) of Subject::System; |_view| {
        if set.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        loop {
            let registered = (*set.cast::<Registered>()).lock().clone();
            if let Some((event, view)) = next_event(&registered) {
                let board = view.board()?;
                let instance = event.mig.and_then(|at| board.instances.get(at as usize));
                return put(data, nvmlEventData_t {
                    device: handle_of(&board.uuid, None) as nvmlDevice_t,
                    eventType: event.event,
                    eventData: event.code,
                    gpuInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.gpu_instance),
                    computeInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.compute_instance),
                });
            }
            if any_lost(&registered) {
                return Err(Code::GPU_IS_LOST);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Code::TIMEOUT);
            }
            std::thread::sleep(left.min(PAUSE));
        }
    }

    fn nvmlEventSetFree(set: nvmlEventSet_t) of Subject::System; |_view| {
        if !set.is_null() {
            drop(Box::from_raw(set.cast::<Registered>()));
        }
        Ok(())
    }
}
