//! CDI specs: a decoded spec can be encoded, and decoding and encoding it again changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(spec) = wire::cdi::decode(bytes)
        && let Ok(text) = wire::cdi::encode(&spec, None)
    {
        let again = wire::cdi::decode(text.as_bytes()).unwrap();
        assert_eq!(wire::cdi::encode(&again, None).unwrap(), text);
    }
});
