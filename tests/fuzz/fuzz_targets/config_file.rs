//! The configuration file. Its decoder lives in the front door, which is a program and no library, so its two files are
//! taken as they stand.
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
