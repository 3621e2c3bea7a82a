//! Pods of the API server: every input gives a pod within the limits, or an error, and the scheduler's reading of a pod that is
//! bound (`bound_pod`) has the UID of the API server. The size of a pod's status counts its commands with their `variables`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::pod::{ANNOTATION_BYTES, MAX_ANNOTATIONS, MAX_CONTAINERS};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(pod) = wire::pod::decode_with(bytes, &["app".into()]) {
        let _ = wire::claim_origin::epoch(&pod);
        let _ = wire::claim_origin::of(&pod, &model::lease::LeaseName::new("gpu", "extender"));
        let bound = wire::bound_pod::of(&pod, &wire::resource::RequestRules::default());
        assert_eq!(bound.is_some(), pod.node.is_some());
        assert!(bound.and_then(|bound| bound.gpu_pod).is_none_or(|gpu_pod| gpu_pod.uid == pod.uid));
        let size: usize = pod.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        // Beside them there are up to eight misspelt keys.
        assert!(pod.annotations.len() <= MAX_ANNOTATIONS / ANNOTATION_BYTES + 8);
        assert!(size <= MAX_ANNOTATIONS && pod.containers.len() <= MAX_CONTAINERS);
        assert!(!pod.name.name.is_empty() && !pod.name.name.contains(char::is_control));
    }
});
