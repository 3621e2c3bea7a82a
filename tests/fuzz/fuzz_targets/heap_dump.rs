//! Any bytes as jemalloc's heap dump. The crate `pprof` keeps the file private, so it is compiled here.
#![no_main]

#[path = "../../../src/pprof/heap_dump.rs"]
mod heap_dump;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(dump) = heap_dump::parse(bytes) {
        assert!(dump.stacks.len() <= heap_dump::MAX_STACKS);
        assert!(dump.since(&dump).is_empty());
    }
});
