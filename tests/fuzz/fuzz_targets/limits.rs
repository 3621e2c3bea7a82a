//! The limits file of a container: decoded limits are the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(limits) = wire::limits::decode(bytes) {
        assert_eq!(wire::limits::decode(wire::limits::encode(&limits).unwrap().as_bytes()), Ok(limits));
    }
});
