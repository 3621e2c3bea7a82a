//! Load on the first GPU through the driver's own interface, without the CUDA toolkit: the driver compiles the kernel.

#![expect(unsafe_code, reason = "libcuda is a C library that is loaded while running")]

use crate::Outcome;
use crate::machine::LOAD_MIB;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{from_mut, null_mut};
use std::time::{Duration, Instant};

/// Reads, multiplies and writes each word of a buffer, `rounds` times.
const KERNEL: &str = concat!(include_str!("load.ptx"), "\0");
const BLOCKS: c_uint = 1024;
const THREADS: c_uint = 256;
/// About 5 ms of an H100: short enough that the load can stop, long enough that starting a kernel costs nothing.
const ROUNDS: u32 = 8;
/// Half a period of [`Pattern::Square`]: several times the slowest refresh that is known (1 s of power on Ampere is a mean).
const HALF: Duration = Duration::from_millis(700);

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type ContextCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
type ContextSynchronize = unsafe extern "C" fn() -> c_int;
type MemoryAllocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type ModuleLoad = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type GetFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// How the load uses the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Always.
    Steady,
    /// On and off.
    Square,
}

impl Pattern {
    /// Its word in `GPU_CHECK_PATTERN`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Pattern::Steady => "steady",
            Pattern::Square => "square",
        }
    }
}

/// Finds one function of the library.
///
/// # Safety
/// `F` is the type of the function of that name.
unsafe fn function<F>(library: *mut c_void, name: &CStr) -> Outcome<F> {
    // SAFETY: the handle comes from dlopen and the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("libcuda.so.1 has no {}", name.to_string_lossy()).into());
    }
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: a function pointer of the size that was checked; its type is the caller's promise.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

fn call(name: &str, code: c_int) -> Outcome<()> {
    if code == 0 { Ok(()) } else { Err(format!("{name}: CUDA error {code}").into()) }
}

/// The load in its own process. It ends when it is killed.
pub(crate) fn load_from_environment() -> Outcome<()> {
    let pattern = match std::env::var("GPU_CHECK_PATTERN")?.as_str() {
        "steady" => Pattern::Steady,
        "square" => Pattern::Square,
        "none" => {
            println!("ready");
            loop {
                std::thread::park();
            }
        }
        other => return Err(format!("no such pattern: {other:?}").into()),
    };
    // SAFETY: libcuda is loaded once and never unloaded; the functions have the types that cuda.h gives them, every pointer
    // is to a local variable of the type that is written, and the kernel gets the three arguments that load.ptx names.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return Err("libcuda.so.1 comes with the driver and could not be opened".into());
        }
        call("cuInit", function::<Init>(library, c"cuInit")?(0))?;
        let (mut device, mut context, mut memory) = (0, null_mut(), 0_u64);
        call("cuDeviceGet", function::<DeviceGet>(library, c"cuDeviceGet")?(&raw mut device, 0))?;
        let create = function::<ContextCreate>(library, c"cuCtxCreate_v2")?;
        call("cuCtxCreate", create(&raw mut context, 0, device))?;
        let bytes = LOAD_MIB << 20;
        let allocate = function::<MemoryAllocate>(library, c"cuMemAlloc_v2")?;
        call("cuMemAlloc", allocate(&raw mut memory, usize::try_from(bytes)?))?;
        let (mut module, mut kernel) = (null_mut(), null_mut());
        let load = function::<ModuleLoad>(library, c"cuModuleLoadData")?;
        call("cuModuleLoadData", load(&raw mut module, KERNEL.as_ptr().cast()))?;
        let find = function::<GetFunction>(library, c"cuModuleGetFunction")?;
        call("cuModuleGetFunction", find(&raw mut kernel, module, c"burn".as_ptr()))?;
        let launch = function::<Launch>(library, c"cuLaunchKernel")?;
        let synchronize = function::<ContextSynchronize>(library, c"cuCtxSynchronize")?;
        let (mut words, mut rounds) = (u32::try_from(bytes / 4)?, ROUNDS);
        let began = Instant::now();
        let mut ready = false;
        loop {
            if pattern == Pattern::Square && (began.elapsed().as_millis() / HALF.as_millis()) % 2 == 1 {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let mut arguments: [*mut c_void; 3] =
                [from_mut(&mut memory).cast(), from_mut(&mut words).cast(), from_mut(&mut rounds).cast()];
            let started =
                launch(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut());
            call("cuLaunchKernel", started)?;
            call("cuCtxSynchronize", synchronize())?;
            if !std::mem::replace(&mut ready, true) {
                println!("ready");
            }
        }
    }
}
