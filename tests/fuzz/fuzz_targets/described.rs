//! Pods, Nodes and events as `doctor` describes them: every input gives an object or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = (wire::described_pod::decode(bytes), wire::described_pod::decode_list(bytes));
    let _ = (wire::described_node::decode(bytes), wire::described_node::decode_list(bytes));
    if let Ok(page) = wire::described_event::decode_list(bytes) {
        assert!(page.events.is_sorted_by(|one, other| one.at >= other.at), "the newest comes first");
    }
});
