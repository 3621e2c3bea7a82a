//! The file of GPU time and energy: decoded tallies are the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tallies) = wire::tally::decode(bytes) {
        assert_eq!(wire::tally::decode(wire::tally::encode(&tallies).unwrap().as_bytes()), Ok(tallies));
    }
});
