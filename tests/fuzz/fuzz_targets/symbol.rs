//! The body of a request for symbols. Its file is taken as it stands, as that of the query.
#![no_main]

#[path = "../../../src/effects/pprof/asked.rs"]
mod asked;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let found = asked::addresses(body);
    assert!(found.len() <= asked::MAX_SYMBOLS && found.len() <= body.len());
});
