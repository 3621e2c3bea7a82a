//! What a scraper says it accepts. Its reader is no door of the room it lives in, so its file is taken as it stands, with
//! the one word it borrows from that room.
#![no_main]

mod exposition {
    pub(crate) enum ExpositionFormat {
        Classic,
        OpenMetrics,
    }
}
#[path = "../../../src/effects/http/negotiate.rs"]
mod negotiate;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|header: &str| {
    let _ = (negotiate::format(header, false), negotiate::format(header, true), negotiate::gzip(header));
});
