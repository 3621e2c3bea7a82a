//! The Secret and the ConfigMap of the extenders' certificate authority: what was read is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::authority::{decode_bundle, decode_secret, encode_secret};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(read) = decode_secret(bytes)
        && let Some(set) = &read.content
    {
        let text = encode_secret(("n", "s"), Some(&read.version), set).to_string();
        assert_eq!(decode_secret(text.as_bytes()), Ok(read));
    }
    let _ = decode_bundle(bytes);
});
