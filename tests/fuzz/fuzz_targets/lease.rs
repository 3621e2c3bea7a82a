//! The Lease of a leader election.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::lease::decode(bytes);
});
