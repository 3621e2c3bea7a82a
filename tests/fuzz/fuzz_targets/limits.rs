//! The promise that a container reads: what is read is read back as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(promise) = wire::limits::decode(bytes) {
        assert_eq!(wire::limits::decode(wire::limits::encode(&promise).unwrap().as_bytes()), Ok(promise));
    }
});
