//! GPU time and energy as they are kept: what is read is read back as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tallies) = wire::tally::decode(bytes) {
        assert_eq!(wire::tally::decode(wire::tally::encode(&tallies).unwrap().as_bytes()), Ok(tallies));
    }
});
