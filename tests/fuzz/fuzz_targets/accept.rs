//! The headers `Accept` and `Accept-Encoding` of a scrape. Only the file of their parser is compiled here, with the one
//! type that it imports, because the rest of `serve` has many dependencies.
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
    let _ = (negotiate::format(header, false), negotiate::format(header, true), negotiate::gzip(header), negotiate::csv(header));
});
