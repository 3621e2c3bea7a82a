//! The device string of a pod: decoding and encoding do not change it. The version of its format.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    // Who knows more reads at least as much.
    if wire::claim_version::check(&text, 1).is_ok() {
        assert_eq!(wire::claim_version::check(&text, 2), Ok(()));
    }
    if let Ok(claim) = wire::claim::decode(wire::annotation_keys::ALLOCATED, &text)
        && let Ok(text) = wire::claim::encode(wire::annotation_keys::ALLOCATED, &claim)
    {
        assert_eq!(wire::claim::decode(wire::annotation_keys::ALLOCATED, &text), Ok(claim));
    }
});
