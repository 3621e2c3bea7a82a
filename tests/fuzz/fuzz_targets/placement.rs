//! What a pod asks of the scheduler: whatever its annotations, a request within its bounds or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::annotation_keys::{
    AVOID_TYPES, AVOID_UUIDS, GPU_POLICY, NODE_POLICY, NUMA_BIND, REALTIME_CHECK, SCORE_WEIGHTS, SHARING_MODES,
    USE_TYPES, USE_UUIDS,
};

const KEYS: [&str; 10] = [
    USE_TYPES, AVOID_TYPES, USE_UUIDS, AVOID_UUIDS, SHARING_MODES, NUMA_BIND, NODE_POLICY, GPU_POLICY, SCORE_WEIGHTS,
    REALTIME_CHECK,
];

fuzz_target!(|bytes: &[u8]| {
    // One line for each annotation.
    let text = String::from_utf8_lossy(bytes);
    let mut annotations: serde_json::Map<String, serde_json::Value> =
        KEYS.iter().zip(text.lines()).map(|(key, value)| ((*key).to_owned(), value.into())).collect();
    annotations.extend(text.lines().skip(KEYS.len()).map(|name| (format!("nvidia.com/{name}"), "x".into())));
    let pod = serde_json::json!({
        "metadata": {
            "name": "n", "namespace": "ns", "uid": "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11", "annotations": annotations,
        },
        "spec": { "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
    });
    let pod = wire::pod::decode(pod.to_string().as_bytes()).expect("the pod has its names");
    assert!(wire::misspelt_key::of(&pod).count() <= 2);
    if let Ok(request) = wire::placement::of(&pod, &wire::resource::RequestRules::default()) {
        let request = request.expect("the pod asks for a GPU");
        assert!(request.preference.gpu_policy.is_none_or(|policy| (1..=3).contains(&policy.order.len())));
        assert!(request.selection.use_uuids.is_sorted() && request.selection.use_uuids.len() <= 256);
    }
});
