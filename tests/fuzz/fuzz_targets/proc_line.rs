//! Lines and links of the folder of a process: no input causes a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::proc_line::{namespace, status};

fuzz_target!(|bytes: &[u8]| {
    let _ = namespace(bytes, "net");
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = status(text, "VmRSS:");
    }
});
