//! The query of a request to `/api/v1`. Only the file of its parser is compiled here, because the rest of `effects` has many
//! dependencies.
#![no_main]

#[path = "../../../src/effects/api/query.rs"]
mod query;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(filter) = query::ApiFilter::parse(text) {
        let kept = [filter.namespace, filter.pod, filter.gpu];
        assert!(kept.into_iter().flatten().map(|value| value.len()).sum::<usize>() <= text.len());
    }
});
