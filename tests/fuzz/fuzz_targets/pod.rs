//! Pods of the API server: every input gives a pod within the limits, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::pod::{MAX_ANNOTATIONS, MAX_CONTAINERS};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(pod) = wire::pod::decode_with(bytes, &["app".into()]) {
        let size: usize = pod.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(size <= MAX_ANNOTATIONS && pod.containers.len() <= MAX_CONTAINERS);
        assert!(!pod.name.name.is_empty() && !pod.name.name.contains(char::is_control));
    }
});
