//! The profile of a GPU: no text causes a panic, and what is read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(profile) = wire::gpu_profile::decode(&String::from_utf8_lossy(bytes)) {
        let text = wire::gpu_profile::encode(&profile);
        assert!(text.len() <= wire::gpu_profile::MAX_TEXT);
        assert!(wire::gpu_profile::decode(&text).is_ok());
    }
});
