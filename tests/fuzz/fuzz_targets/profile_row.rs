//! Rows of the file of histories: decoded steps are the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for steps in [60, wire::profile_row::MAX_STEPS] {
        if let Ok(block) = wire::profile_row::decode(bytes, steps)
            && let Some(row) = wire::profile_row::encode(&block)
        {
            assert_eq!(wire::profile_row::decode(&row, steps), Ok(block));
        }
    }
});
