//! The configuration file. Its parser is in `steward`, which is a program and not a library, so its files are compiled
//! here.
#![no_main]

#[allow(dead_code)]
#[path = "../../../src/steward/settings"]
mod settings {
    pub(crate) mod raw_value;
    pub(crate) mod table;
    pub(crate) mod removed;
    pub(crate) mod file;
}

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = settings::file::parse(bytes);
});
