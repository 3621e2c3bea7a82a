//! Nodes as the API server writes their metadata: identity, annotations, labels, and who wrote each of these.
//!
//! ```text
//!   {"metadata":{"uid":…,"annotations":{…},"labels":{…},
//!     "managedFields":[{"manager":"nfd-master","fieldsV1":{"f:metadata":{"f:labels":{"f:nvidia.com/gpu.count":{}}}}}]}}
//! ```
//!
//! Texts are bounded by what the answer may hold (its reader cuts it off); the list of writers is bounded here, and what
//! cannot be read of it says nothing: who wrote a label is a courtesy between programs and never a right.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Entries of `managedFields` that are looked at. The API server folds the oldest updates together beyond ten; appliers are
/// not folded, and one for each program of a node is a dozen.
const MAX_WRITERS: usize = 64;
/// What begins the name of a field in `fieldsV1`.
const FIELD: &str = "f:";

/// What is known of our Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeObject {
    /// The API server's identity of it; empty where it tells none.
    pub uid: String,
    /// Its name; empty where it tells none.
    pub name: String,
    /// The version of the object; a write that names it is refused once there is a newer one.
    pub version: String,
    annotations: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    /// By label, the field managers that own it.
    writers: Writers,
    /// By annotation.
    annotators: Writers,
}

type Writers = BTreeMap<String, BTreeSet<String>>;

/// Nodes, and where the list goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeList {
    /// Those of this part.
    pub nodes: Vec<NodeObject>,
    /// What to ask with for the next part; empty at the end.
    pub more: String,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default)]
    items: Option<Vec<Object>>,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    #[serde(default, rename = "continue")]
    more: Option<String>,
}

/// Why an answer is no Node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the JSON of a Node's metadata: {0}")]
pub struct NotANode(String);

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
    /// The annotation of this key.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// The label of this key.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    /// All labels, in order.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether the field manager of this name owns the label.
    #[must_use]
    pub fn written_by(&self, label: &str, manager: &str) -> bool {
        self.writers.get(label).is_some_and(|managers| managers.contains(manager))
    }

    /// A field manager of another name that owns the label.
    #[must_use]
    pub fn written_by_another(&self, label: &str, manager: &str) -> Option<&str> {
        self.writers.get(label)?.iter().map(String::as_str).find(|other| *other != manager)
    }

    /// Whether the field manager of this name owns the annotation.
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

/// Who wrote what of these is there.
fn writers(managed: &[serde_json::Value], part: &str, there: &BTreeMap<String, String>) -> Writers {
    let mut writers = Writers::new();
    for entry in managed.iter().take(MAX_WRITERS) {
        let Some(manager) = entry["manager"].as_str() else { continue };
        let owned = entry["fieldsV1"]["f:metadata"][part].as_object();
        for key in owned.into_iter().flatten().filter_map(|(field, _)| field.strip_prefix(FIELD)) {
            // Of what is not there nobody is the writer.
            if there.contains_key(key) {
                writers.entry(key.to_owned()).or_default().insert(manager.to_owned());
            }
        }
    }
    writers
}

/// Reads the metadata of a Node, or a whole one.
///
/// # Errors
/// [`NotANode`] where it is none.
pub fn decode(json: &[u8]) -> Result<NodeObject, NotANode> {
    let object: Object = serde_json::from_slice(json).map_err(|error| NotANode(error.to_string()))?;
    Ok(NodeObject::of(object.metadata))
}

/// Reads a list of Nodes, or of their metadata.
///
/// # Errors
/// [`NotANode`] where it is none, or one of them is none.
pub fn decode_list(json: &[u8]) -> Result<NodeList, NotANode> {
    let list: List = serde_json::from_slice(json).map_err(|error| NotANode(error.to_string()))?;
    let nodes = list.items.unwrap_or_default().into_iter().map(|object| NodeObject::of(object.metadata)).collect();
    Ok(NodeList { nodes, more: list.metadata.more.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_others_wrote_is_told_by_its_writer() {
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
    fn what_is_missing_is_empty_and_what_is_no_node_is_an_error() {
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
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (decode(&bytes), decode_list(&bytes));
        }

        #[test]
        fn no_text_near_a_node_panics(inner in "[\\[\\]{}:,\"a-z0-9. ]{0,120}") {
            let node = format!(r#"{{"metadata":{{"labels":{{"a":"1"}},"managedFields":[{inner}]}}}}"#);
            let _ = (decode(node.as_bytes()), decode_list(format!(r#"{{"items":[{node},{inner}]}}"#).as_bytes()));
        }

        #[test]
        fn texts_come_back(pairs in prop::collection::btree_map(".{1,20}", ".{0,20}", 0..6)) {
            let text = json!({ "metadata": { "annotations": pairs.clone(), "labels": pairs.clone() } }).to_string();
            let node = decode(text.as_bytes()).unwrap();
            for (key, value) in &pairs {
                prop_assert_eq!(node.annotation(key), Some(value.as_str()));
                prop_assert_eq!(node.label(key), Some(value.as_str()));
            }
        }
    }
}
