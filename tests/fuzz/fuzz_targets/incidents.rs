//! The file of incidents: decoded incidents are the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((boot, kept)) = wire::incidents::decode(bytes) {
        let text = wire::incidents::encode(&boot, &kept, model::time::Now::default()).unwrap();
        assert_eq!(wire::incidents::decode(text.as_bytes()), Ok((boot, kept)));
    }
});
