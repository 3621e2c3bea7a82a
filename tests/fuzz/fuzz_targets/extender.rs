//! Calls of kube-scheduler: whatever the bytes, an error or nodes within the bound, and answers that are JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::followed_node::MAX_CLUSTER_NODES;
use wire::extender::{self, FailedNode};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("an answer is JSON")
}

fuzz_target!(|bytes: &[u8]| {
    let _ = extender::decode_binding(bytes);
    if let Ok(args) = extender::decode_args(bytes) {
        let nodes = &args.nodes;
        assert!(nodes.len() <= MAX_CLUSTER_NODES);
        let (fit, rest): (Vec<usize>, Vec<usize>) = (0..nodes.len()).partition(|place| place % 2 == 0);
        let failed = |place: &usize| FailedNode { place: *place, reason: "\"\n", unresolvable: place % 3 == 0 };
        let failed: Vec<FailedNode<'_>> = rest.iter().map(failed).collect();
        json(&extender::encode_filter(nodes, &fit, &failed));
        json(&extender::encode_scores(nodes, &vec![i64::MIN; nodes.len()]));
    }
    if let Ok(args) = extender::decode_preemption(bytes) {
        assert!(args.nodes.len() <= MAX_CLUSTER_NODES);
        json(&extender::encode_preemption(&args.nodes));
    }
});
