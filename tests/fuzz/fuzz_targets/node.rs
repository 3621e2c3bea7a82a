//! The metadata of a Node: every input gives a Node or an error, only a label that exists has a writer, and a key of the load of its GPUs
//! is read in its own form only.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::versions::decode(bytes);
    if let Ok(node) = wire::node::decode_followed_node(bytes) {
        assert!(!node.name.as_str().is_empty() && !node.uid.as_str().is_empty());
        let facts = wire::node_facts::of(&node);
        assert!(facts.register.is_ok() || facts.cordoned.is_empty());
    }
    if let Ok(list) = wire::node::decode_list(bytes) {
        for node in list.nodes {
            assert!(node.annotation("absent").is_some() || !node.annotated_by("absent", "us"));
        }
    }
    if let Ok(node) = wire::node::decode(bytes) {
        for (label, value) in node.labels() {
            assert_eq!(node.label(label), Some(value));
            if let Some(other) = node.written_by_another(label, "us") {
                assert!(node.written_by(label, other) && other != "us");
            }
        }
        for (text, _) in node.annotations() {
            assert!(wire::profile_keys::ProfileKey::parse(text).is_none_or(|key| key.text() == *text));
        }
        assert!(node.label("absent").is_some() || node.written_by_another("absent", "").is_none());
    }
});
