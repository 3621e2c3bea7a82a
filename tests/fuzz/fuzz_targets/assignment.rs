//! A pod's device string: it does not change by being read and written again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(slots) = wire::assignment::decode(wire::key::ALLOCATED, &String::from_utf8_lossy(bytes))
        && let Ok(text) = wire::assignment::encode(wire::key::ALLOCATED, &slots)
    {
        assert_eq!(wire::assignment::decode(wire::key::ALLOCATED, &text), Ok(slots));
    }
});
