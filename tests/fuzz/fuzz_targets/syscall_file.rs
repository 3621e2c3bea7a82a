//! Any text as the file `syscall` of a thread. The crate `pprof` keeps the file private, so it is compiled here.
#![no_main]

#[path = "../../../src/pprof/syscall_file.rs"]
mod syscall_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (syscall_file::number(text), syscall_file::registers(text));
    }
});
