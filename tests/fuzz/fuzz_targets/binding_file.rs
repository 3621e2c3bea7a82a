//! The file with what an agent found out about CDI: decoding and encoding give the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((found, runtime)) = wire::binding_file::decode(bytes) {
        assert_eq!(wire::binding_file::encode(found, &runtime).as_bytes(), bytes);
    }
});
