//! A CSV file: text, separator, table, number and time of each cell, and every form of the answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use profile::{Choices, Look};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(profile) = profile::csv(bytes, &Choices::default()) {
        assert!(!profile.answers.is_empty());
        let _ = (profile::json(&profile), profile::people(&profile, Look { colour: true, plain: str::to_owned }));
        let _ = profile::svg(&profile);
    }
});
