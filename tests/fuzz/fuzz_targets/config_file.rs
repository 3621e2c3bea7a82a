//! The configuration file. Its parser is in `steward`, which is a program and not a library, so its two files are compiled
//! here.
#![no_main]

#[allow(dead_code)]
#[path = "../../../src/steward/settings"]
mod settings {
    pub(crate) mod file;
    pub(crate) mod table;
}

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = settings::file::parse(bytes);
});
