//! The file of an issued ticket: a decoded ticket is the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(issued) = wire::issued_ticket::decode(bytes) {
        assert_eq!(wire::issued_ticket::decode(wire::issued_ticket::encode(&issued).unwrap().as_bytes()), Ok(issued));
    }
});
