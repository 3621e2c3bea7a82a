//! The headers `Accept` and `Accept-Encoding` of a scrape. `effects` keeps their parser private, so its file is compiled
//! here, with the one type that it imports.
#![no_main]

mod exposition {
    pub(crate) enum ExpositionFormat {
        Classic,
        OpenMetrics,
    }
}
#[path = "../../../src/serve/negotiate.rs"]
mod negotiate;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|header: &str| {
    let _ = (negotiate::format(header, false), negotiate::format(header, true), negotiate::gzip(header));
});
