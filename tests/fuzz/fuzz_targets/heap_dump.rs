//! Any bytes as jemalloc's heap dump.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(dump) = wire::heap_dump::parse(bytes) {
        assert!(dump.stacks.len() <= wire::heap_dump::MAX_STACKS);
        assert!(dump.since(&dump).is_empty());
    }
});
