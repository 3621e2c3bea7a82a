//! Tokens of service accounts, and the keys that sign them: no input causes a panic, and what is signed is a part of the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(token) = wire::token::decode(&text) {
        assert!(text.as_bytes().starts_with(&token.signed));
    }
    let _ = (wire::token::decode_keys(bytes), wire::token::decode_issuer(bytes));
});
