//! Tickets as they are kept: what is read is read back as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(issued) = wire::issued::decode(bytes) {
        assert_eq!(wire::issued::decode(wire::issued::encode(&issued).unwrap().as_bytes()), Ok(issued));
    }
});
