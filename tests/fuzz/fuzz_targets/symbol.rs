//! The body of a request for symbols. The crate `pprof` keeps the file private, so it is compiled here.
#![no_main]

#[path = "../../../src/pprof/symbol_request.rs"]
mod symbol_request;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let found = symbol_request::addresses(body);
    assert!(found.len() <= symbol_request::MAX_SYMBOLS && found.len() <= body.len());
});
