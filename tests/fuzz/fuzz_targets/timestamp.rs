//! Times as text: a parsed time can be formatted, to the second.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Some(at) = wire::timestamp::rfc3339(&text) {
        let seconds = model::time::WallTime(at.0 / 1_000_000 * 1_000_000);
        assert_eq!(wire::timestamp::rfc3339(&wire::timestamp::to_rfc3339(at)), Some(seconds));
    }
    let _ = (wire::timestamp::zoneless(&text), wire::timestamp::unix_seconds(&text), wire::timestamp::http_date(&text));
});
