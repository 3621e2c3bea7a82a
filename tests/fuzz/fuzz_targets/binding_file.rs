//! What was found about CDI as it is kept: what is read is read back as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((found, runtime)) = wire::binding_file::decode(bytes) {
        assert_eq!(wire::binding_file::encode(found, &runtime).as_bytes(), bytes);
    }
});
