//! The kubelet's checkpoint: a decoded container has each id once and in order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(checkpoint) = wire::checkpoint::parse(bytes) {
        assert!(checkpoint.allocations.iter().all(|held| held.ids.is_sorted_by(|one, other| one < other)));
    }
});
