//! The file of started pods.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let found = wire::started_pods::decode(bytes);
    let again: String = found.pods.iter().map(wire::started_pods::line).collect();
    assert_eq!(wire::started_pods::decode(again.as_bytes()).pods, found.pods);
});
