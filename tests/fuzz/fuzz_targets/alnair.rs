//! Alnair's annotations of a Node: no text causes a panic, and what is read is the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::alnair;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let _ = alnair::decode_maximum(&text);
    if let Ok((facts, form)) = alnair::decode_static(&text) {
        let again = alnair::decode_static(&alnair::encode_static(&facts, form)).map(|(facts, _)| facts);
        assert!(again.is_ok_and(|again| again.count == facts.count && facts.model.starts_with(&*again.model)));
    }
    if let Ok((snapshot, form)) = alnair::decode_snapshot(&text) {
        assert!(alnair::decode_snapshot(&alnair::encode_snapshot(&snapshot, form)).is_ok());
    }
});
