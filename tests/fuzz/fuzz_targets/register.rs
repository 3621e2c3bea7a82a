//! The register annotation: a decoded register is the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(gpus) = wire::register::decode(&text) {
        let again = wire::register::decode(&wire::register::encode(&gpus).unwrap()).unwrap();
        assert!(again.len() == gpus.len() && again.iter().all(|gpu| gpus.contains(gpu)));
    }
});
