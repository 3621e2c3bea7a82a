//! Allocates memory of a GPU in this process through the driver's own interface, without the CUDA toolkit.

#![expect(unsafe_code, reason = "libcuda is a C library that is loaded while running")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type ContextCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
type MemoryAllocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;

/// Finds one function of the library.
///
/// # Safety
/// `F` is the type of the function of that name.
unsafe fn function<F>(library: *mut c_void, name: &CStr) -> F {
    // SAFETY: the handle comes from dlopen and the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "libcuda.so.1 has no {}", name.to_string_lossy());
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: a function pointer of the size that was checked; its type is the caller's promise.
    unsafe { std::mem::transmute_copy(&found) }
}

/// Allocates `bytes` of the first GPU and keeps them until this process ends.
pub(crate) fn hold(bytes: usize) {
    // SAFETY: libcuda is loaded once and never unloaded; the functions have the types that cuda.h gives them, and every
    // pointer is to a local variable of the type that is written.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "libcuda.so.1 comes with the driver and could not be opened");
        assert_eq!(function::<Init>(library, c"cuInit")(0), 0, "cuInit");
        let (mut device, mut context, mut memory) = (0, null_mut(), 0);
        assert_eq!(function::<DeviceGet>(library, c"cuDeviceGet")(&raw mut device, 0), 0, "cuDeviceGet");
        let create = function::<ContextCreate>(library, c"cuCtxCreate_v2");
        assert_eq!(create(&raw mut context, 0, device), 0, "cuCtxCreate");
        assert_eq!(function::<MemoryAllocate>(library, c"cuMemAlloc_v2")(&raw mut memory, bytes), 0, "cuMemAlloc");
    }
}
