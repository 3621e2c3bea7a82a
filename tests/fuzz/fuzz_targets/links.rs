//! The scores of pairs of GPUs: whatever the text, each pair in both orders with one score.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(links) = wire::links::decode(&String::from_utf8_lossy(bytes)) {
        for ((one, other), score) in &links {
            assert!(one != other && links.get(&(other.clone(), one.clone())) == Some(score));
        }
    }
});
