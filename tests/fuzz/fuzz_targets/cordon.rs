//! The cordon annotation: a decoded list is the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(cordoned) = wire::cordon::decode(&String::from_utf8_lossy(bytes)) {
        assert_eq!(wire::cordon::decode(&wire::cordon::encode(&cordoned)), Ok(cordoned));
    }
});
