//! The handshake annotation: no text causes a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::handshake::decode(&String::from_utf8_lossy(bytes));
});
