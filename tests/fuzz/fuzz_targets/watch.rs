//! Lists and watches of the API server: no bytes end the program, and it does not matter how a stream is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::watch::{WatchLines, page, refusal};

fuzz_target!(|bytes: &[u8]| {
    let _ = page(bytes, &["app".into()]);
    let _ = refusal(500, bytes);
    let whole = WatchLines::default().feed(bytes);
    let mut stream = WatchLines::default();
    let mut lines = Vec::new();
    let cut = bytes.chunks(7).try_for_each(|piece| stream.feed(piece).map(|more| lines.extend(more)));
    assert_eq!(whole.is_ok(), cut.is_ok());
    if let Ok(whole) = whole {
        assert_eq!(whole, lines);
    }
});
