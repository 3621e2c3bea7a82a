//! The device string of a pod: decoding and encoding do not change it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(claim) = wire::claim::decode(wire::annotation_keys::ALLOCATED, &String::from_utf8_lossy(bytes))
        && let Ok(text) = wire::claim::encode(wire::annotation_keys::ALLOCATED, &claim)
    {
        assert_eq!(wire::claim::decode(wire::annotation_keys::ALLOCATED, &text), Ok(claim));
    }
});
