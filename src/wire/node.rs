//! The metadata of Nodes from the API server: identity, annotations, labels, and the field managers that own them.
//!
//! ```text
//!   {"metadata":{"uid":…,"annotations":{…},"labels":{…},
//!     "managedFields":[{"manager":"nfd-master",
//!                       "fieldsV1":{"f:metadata":{"f:labels":{"f:nvidia.com/gpu.count":{}}}}}]}}
//! ```
//!
//! The caller limits the length of the answer, and so of all texts in it. The list of field managers is limited here,
//! and entries that cannot be read are skipped. This is safe: field managers only keep programs from overwriting each
//! other's labels, and give no permissions.

use crate::object_list::ObjectList;
use crate::pod::{Annotations, OrNull};
use crate::timestamp;
use model::followed_node::FollowedNode;
use model::id::{NodeName, NotAName, ObjectUid};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of entries of `managedFields` that are read. The API server merges the oldest updates beyond ten. It
/// does not merge entries of server-side apply, but a node has about a dozen programs that apply.
const MAX_WRITERS: usize = 64;
/// Prefix of a field name in `fieldsV1`.
const FIELD: &str = "f:";

/// The metadata of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeObject {
    /// UID; empty if the answer has no UID.
    pub uid: String,
    /// Name; empty if the answer has no name.
    pub name: String,
    /// Resource version. The API server refuses a write with this version once there is a newer version.
    pub version: String,
    annotations: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    /// The field managers that own each label.
    writers: Writers,
    /// The field managers that own each annotation.
    annotators: Writers,
}

type Writers = BTreeMap<String, BTreeSet<String>>;

/// One page of a list of Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeList {
    /// The Nodes of this page.
    pub nodes: Vec<NodeObject>,
    /// The `continue` token for the next page; empty on the last page.
    pub more: String,
}

/// Why an answer cannot be read as a Node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the JSON of a Node's metadata: {0}")]
pub struct NotANode(String);

/// Why an answer cannot be read as a Node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAFollowedNode {
    /// The text is not the JSON of a Node.
    #[error("not the JSON of a Node's metadata: {0}")]
    Json(String),
    /// The UID or the name is missing or invalid.
    #[error("metadata: {0}")]
    Name(#[from] NotAName),
}

#[derive(Deserialize)]
struct TrimmedObject {
    metadata: TrimmedMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TrimmedMetadata {
    uid: String,
    name: String,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    annotations: OrNull<Annotations>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    managed_fields: Option<Vec<serde_json::Value>>,
}

impl NodeObject {
    /// The annotation with this key.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// All annotations, in order.
    pub fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        self.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The label with this key.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    /// All labels, in order.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether the field manager `manager` owns the label.
    #[must_use]
    pub fn written_by(&self, label: &str, manager: &str) -> bool {
        self.writers.get(label).is_some_and(|managers| managers.contains(manager))
    }

    /// A field manager other than `manager` that owns the label.
    #[must_use]
    pub fn written_by_another(&self, label: &str, manager: &str) -> Option<&str> {
        self.writers.get(label)?.iter().map(String::as_str).find(|other| *other != manager)
    }

    /// Whether the field manager `manager` owns the annotation.
    #[must_use]
    pub fn annotated_by(&self, annotation: &str, manager: &str) -> bool {
        self.annotators.get(annotation).is_some_and(|managers| managers.contains(manager))
    }

    fn of(metadata: Metadata) -> NodeObject {
        let Metadata { uid, name, resource_version, annotations, labels, managed_fields } = metadata;
        let (labels, annotations) = (labels.unwrap_or_default(), annotations.unwrap_or_default());
        let managed = managed_fields.unwrap_or_default();
        NodeObject {
            uid: uid.unwrap_or_default(),
            name: name.unwrap_or_default(),
            version: resource_version.unwrap_or_default(),
            writers: writers(&managed, "f:labels", &labels),
            annotators: writers(&managed, "f:annotations", &annotations),
            annotations,
            labels,
        }
    }
}

/// The field managers of each key in `present`.
fn writers(managed: &[serde_json::Value], part: &str, present: &BTreeMap<String, String>) -> Writers {
    let mut writers = Writers::new();
    for entry in managed.iter().take(MAX_WRITERS) {
        let Some(manager) = entry["manager"].as_str() else { continue };
        let owned = entry["fieldsV1"]["f:metadata"][part].as_object();
        for key in owned.into_iter().flatten().filter_map(|(field, _)| field.strip_prefix(FIELD)) {
            // The entry of a manager may still list a key that was removed from the Node.
            if present.contains_key(key) {
                writers.entry(key.to_owned()).or_default().insert(manager.to_owned());
            }
        }
    }
    writers
}

/// Reads a whole Node, or a Node with only its metadata.
///
/// # Errors
/// [`NotANode`] if the text is not a Node.
pub fn decode(json: &[u8]) -> Result<NodeObject, NotANode> {
    let object: Object = serde_json::from_slice(json).map_err(|error| NotANode(error.to_string()))?;
    Ok(NodeObject::of(object.metadata))
}

/// Reads the fields of a Node that a GPU scheduler needs; its annotations are bounded like a pod's.
///
/// # Errors
/// [`NotAFollowedNode`] if its UID or its name cannot be read.
pub fn decode_followed_node(json: &[u8]) -> Result<FollowedNode, NotAFollowedNode> {
    let object: TrimmedObject =
        serde_json::from_slice(json).map_err(|error| NotAFollowedNode::Json(error.to_string()))?;
    let TrimmedMetadata { uid, name, resource_version, creation_timestamp, annotations } = object.metadata;
    let Annotations { kept, left_out, assumed, .. } = annotations.0;
    Ok(FollowedNode {
        uid: ObjectUid::parse(&uid)?,
        name: NodeName::parse(&name)?,
        created_at: creation_timestamp.as_deref().and_then(timestamp::rfc3339),
        version: resource_version.as_deref().and_then(|text| text.parse().ok()),
        arrival: None,
        annotations: kept,
        annotations_left_out: left_out,
        assumed,
    })
}

/// Reads a list of whole Nodes, or of Nodes with metadata only.
///
/// # Errors
/// [`NotANode`] if the text is not a list, or one of its items is not a Node.
pub fn decode_list(json: &[u8]) -> Result<NodeList, NotANode> {
    let list: ObjectList<Object> = serde_json::from_slice(json).map_err(|error| NotANode(error.to_string()))?;
    let (objects, more) = list.into_parts();
    let nodes = objects.into_iter().map(|object| NodeObject::of(object.metadata)).collect();
    Ok(NodeList { nodes, more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn entries_of_other_writers_are_recognised_by_their_manager() {
        let text = json!({ "kind": "PartialObjectMetadata", "metadata": {
            "name": "n", "uid": "u-1", "resourceVersion": "7", "annotations": { "hami.io/a": "1" }, "labels": { "a/x": "1", "a/y": "2" },
            "managedFields": [
                { "manager": "nfd", "fieldsV1": { "f:metadata": { "f:labels": { ".": {}, "f:a/x": {}, "f:gone": {} } } } },
                { "manager": "us", "fieldsV1": { "f:metadata": { "f:labels": { "f:a/y": {} }, "f:annotations": { "f:hami.io/a": {}, "f:a/x": {} } } } },
                { "fieldsV1": 7 },
            ],
        } });
        let node = decode(text.to_string().as_bytes()).unwrap();
        assert_eq!((node.annotation("hami.io/a"), node.annotation("b")), (Some("1"), None));
        assert_eq!((node.label("a/x"), node.label("b"), &*node.uid), (Some("1"), None, "u-1"));
        assert_eq!(node.written_by_another("a/x", "us"), Some("nfd"));
        assert!(node.written_by("a/y", "us") && node.written_by_another("a/y", "us").is_none());
        assert!(node.written_by_another("gone", "us").is_none());
        assert!(node.annotated_by("hami.io/a", "us") && !node.annotated_by("hami.io/a", "nfd"));
        assert!(!node.annotated_by("a/x", "us"), "that is a label");
        assert_eq!((&*node.name, &*node.version), ("n", "7"));
        let list = json!({ "metadata": { "continue": "next" }, "items": [text, { "metadata": { "name": "m" } }] });
        let list = decode_list(list.to_string().as_bytes()).unwrap();
        assert_eq!((list.nodes[0] == node, &*list.nodes[1].name, &*list.more), (true, "m", "next"));
        assert_eq!(decode_list(b"{}"), Ok(NodeList::default()));
        assert!(decode_list(br#"{"items":[7]}"#).is_err());
    }

    #[test]
    fn a_node_of_the_cluster_has_the_annotations_about_gpus_alone() {
        let text = json!({ "kind": "PartialObjectMetadata", "metadata": {
            "name": "n1", "uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-11-21T10:00:00Z",
            "labels": { "a": "1" }, "annotations": { "hami.io/node-nvidia-register": "[]", "other/x": "1" },
        } });
        let node = decode_followed_node(text.to_string().as_bytes()).unwrap();
        assert_eq!((node.name.as_str(), node.uid.as_str(), node.version), ("n1", "u-1", Some(7)));
        assert_eq!((node.annotations.len(), node.annotation("hami.io/node-nvidia-register")), (1, Some("[]")));
        for text in [r#"{"metadata":{"name":"n1"}}"#, r#"{"metadata":{"uid":"u","name":""}}"#, "{}", "[]"] {
            assert!(decode_followed_node(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_assumed_of_a_node_takes_no_room_of_its_register() {
        let of = |assumed: usize| {
            let annotations = json!({
                "hami.io/node-nvidia-assume": "x".repeat(assumed), "hami.io/node-nvidia-register": "y".repeat(16_000),
            });
            let text = json!({ "metadata": { "name": "n1", "uid": "u-1", "annotations": annotations } });
            decode_followed_node(text.to_string().as_bytes()).unwrap()
        };
        for (size, kept) in [(10, true), (8192, true), (8193, false), (100_000, false)] {
            let node = of(size);
            assert_eq!(node.assumed.map(|text| text.len()), kept.then_some(size));
            assert_eq!((node.annotations.len(), node.annotations_left_out), (1, 0), "{size}");
        }
    }

    /// Sixteen GPUs have more text about their load than the bound of a Node's annotations.
    #[test]
    fn what_a_node_says_about_the_load_of_its_gpus_takes_no_room_of_its_register() {
        let mut annotations = serde_json::Map::new();
        for index in 0..16 {
            annotations.insert(format!("gpu-steward.io/gpu-{index}-profile"), "x".repeat(1024).into());
            annotations.insert(format!("ai.centaurus.io/gpu-{index}"), "y".repeat(500).into());
        }
        annotations.insert("hami.io/node-nvidia-register".into(), "z".repeat(4000).into());
        let text = json!({ "metadata": { "name": "n1", "uid": "u-1", "annotations": annotations } });
        let node = decode_followed_node(text.to_string().as_bytes()).unwrap();
        assert_eq!((node.annotations.len(), node.annotations_left_out), (1, 0));
        assert_eq!(decode(text.to_string().as_bytes()).unwrap().annotations().count(), 33);
    }

    #[test]
    fn missing_fields_are_empty_and_other_json_is_an_error() {
        for text in [
            r#"{"metadata":{"namespace":"n"}}"#,
            r#"{"metadata":{"annotations":null,"labels":null,"managedFields":null}}"#,
        ] {
            assert_eq!(decode(text.as_bytes()), Ok(NodeObject::default()), "{text}");
        }
        for text in ["{}", "[]", "", r#"{"metadata":7}"#, r#"{"metadata":{"annotations":{"a":1}}}"#] {
            assert!(decode(text.as_bytes()).unwrap_err().to_string().starts_with("not the JSON of a Node"), "{text}");
        }
    }

    #[test]
    fn the_list_of_writers_is_bounded() {
        let entry = |n: usize| json!({ "manager": format!("m{n}"), "fieldsV1": { "f:metadata": { "f:labels": { "f:a": {} } } } });
        let entries: Vec<_> = (0..MAX_WRITERS * 2).map(entry).collect();
        let text = json!({ "metadata": { "labels": { "a": "1" }, "managedFields": entries } }).to_string();
        assert_eq!(decode(text.as_bytes()).unwrap().writers["a"].len(), MAX_WRITERS);
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (decode(&bytes), decode_list(&bytes), decode_followed_node(&bytes));
        }

        #[test]
        fn no_similar_text_causes_a_panic(inner in "[\\[\\]{}:,\"a-z0-9. ]{0,120}") {
            let node = format!(r#"{{"metadata":{{"labels":{{"a":"1"}},"managedFields":[{inner}]}}}}"#);
            let _ = decode_followed_node(node.as_bytes());
            let _ = (decode(node.as_bytes()), decode_list(format!(r#"{{"items":[{node},{inner}]}}"#).as_bytes()));
        }

        #[test]
        fn texts_are_read_unchanged(pairs in prop::collection::btree_map(".{1,20}", ".{0,20}", 0..6)) {
            let text = json!({ "metadata": { "annotations": pairs.clone(), "labels": pairs.clone() } }).to_string();
            let node = decode(text.as_bytes()).unwrap();
            for (key, value) in &pairs {
                prop_assert_eq!(node.annotation(key), Some(value.as_str()));
                prop_assert_eq!(node.label(key), Some(value.as_str()));
            }
        }
    }
}
