//! Lists and watches of the API server: no input causes a panic, and the result does not depend on how a stream is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::watch::{NodePods, WatchLines, object, page, refusal};

fuzz_target!(|bytes: &[u8]| {
    let pods = NodePods { label_keys: ["app".into()].into() };
    let _ = page(bytes).map(|page| page.objects(&pods).count());
    let _ = object(bytes, &pods);
    let _ = refusal(500, bytes);
    let whole = WatchLines::<NodePods>::default().feed(bytes);
    let mut stream = WatchLines::<NodePods>::default();
    let mut lines = Vec::new();
    let cut = bytes.chunks(7).try_for_each(|piece| stream.feed(piece).map(|more| lines.extend(more)));
    assert_eq!(whole.is_ok(), cut.is_ok());
    if let Ok(whole) = whole {
        assert_eq!(whole, lines);
    }
});
