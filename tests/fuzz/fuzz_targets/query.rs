//! The query of a request to `/api/v1`. Only the file of its parser is compiled here, because the rest of `serve` has many
//! dependencies.
#![no_main]

#[path = "../../../src/serve/query.rs"]
mod query;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(values) = query::values(text, ["namespace", "pod", "gpu"]) {
        assert!(values.into_iter().flatten().map(|value| value.len()).sum::<usize>() <= text.len());
    }
});
