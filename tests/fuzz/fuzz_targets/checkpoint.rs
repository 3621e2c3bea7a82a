//! The kubelet's checkpoint: a decoded container has each id, each GPU and each device node of a foreign answer once and in
//! order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(checkpoint) = wire::checkpoint::parse(bytes) {
        for held in &checkpoint.allocations {
            assert!(held.ids.is_sorted_by(|one, other| one < other));
            assert!(held.answered.is_sorted_by(|one, other| one < other));
            assert!(held.nodes.is_sorted_by(|one, other| one < other));
            assert!((held.answered.is_empty() && held.nodes.is_empty()) || held.foreign);
        }
    }
});
