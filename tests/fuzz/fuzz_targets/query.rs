//! The query of a request to `/api/v1`. Its reader lives among the servers, which bring much that is not needed here, so
//! its file is taken as it stands.
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
