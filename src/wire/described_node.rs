//! A Node as `doctor` describes it: readiness, versions, slots, and the annotations of GPU schedulers of all vendors.
//!
//! The caller limits the length of the list. Texts are cut here, because they are shown to people.

use crate::decode_error::DecodeError;
use crate::described_event::cut;
use crate::object_list::ObjectList;
use crate::pod::OrNull;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The start of the annotations that are kept. Registers and handshakes of all vendors have it.
const HAMI: &str = "hami.io/";

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedNode {
    /// The name.
    pub name: String,
    /// Whether the kubelet reports the Node as ready; `None` if it has never reported.
    pub ready: Option<bool>,
    /// Why the Node is not ready, as the kubelet or the node controller says.
    pub why_not_ready: String,
    /// Whether `kubectl cordon` keeps pods away.
    pub cordoned: bool,
    /// The runtime with its version: `containerd://2.1.4`.
    pub runtime: String,
    /// The version of the kubelet.
    pub kubelet: String,
    /// The amounts of resources that the kubelet offers to pods.
    pub allocatable: BTreeMap<String, String>,
    /// The Node's labels.
    pub labels: BTreeMap<String, String>,
    /// The Node's annotations whose keys begin with `hami.io/`.
    pub annotations: BTreeMap<String, String>,
}

/// One page of a list of Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedNodes {
    /// The Nodes of this page.
    pub nodes: Vec<DescribedNode>,
    /// The `continue` token for the next page; empty on the last page.
    pub more: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: OrNull<Metadata>,
    spec: OrNull<Spec>,
    status: OrNull<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    annotations: OrNull<BTreeMap<String, String>>,
    labels: OrNull<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: OrNull<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: OrNull<Vec<Condition>>,
    allocatable: OrNull<BTreeMap<String, String>>,
    node_info: OrNull<NodeInfo>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    message: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfo {
    kubelet_version: String,
    container_runtime_version: String,
}

impl From<Object> for DescribedNode {
    fn from(object: Object) -> DescribedNode {
        let (metadata, status) = (object.metadata.0, object.status.0);
        let ready = status.conditions.0.into_iter().find(|condition| condition.kind == "Ready");
        let is_ready = ready.as_ref().map(|condition| condition.status == "True");
        let mut annotations = metadata.annotations.0;
        annotations.retain(|key, _| key.starts_with(HAMI));
        DescribedNode {
            name: cut(&metadata.name),
            ready: is_ready,
            why_not_ready: ready.filter(|_| is_ready == Some(false)).map(|why| cut(&why.message.0)).unwrap_or_default(),
            cordoned: object.spec.0.unschedulable.0,
            runtime: cut(&status.node_info.0.container_runtime_version),
            kubelet: cut(&status.node_info.0.kubelet_version),
            allocatable: status.allocatable.0,
            labels: metadata.labels.0,
            annotations,
        }
    }
}

/// Reads a whole Node.
///
/// # Errors
/// [`DecodeError`] if the text is not the JSON of a Node.
pub fn decode(json: &[u8]) -> Result<DescribedNode, DecodeError> {
    serde_json::from_slice::<Object>(json)
        .map(DescribedNode::from)
        .map_err(|error| DecodeError::json("Node", json, &error))
}

/// Reads a list of whole Nodes.
///
/// # Errors
/// [`DecodeError`] if the text is not a list of Nodes.
pub fn decode_list(json: &[u8]) -> Result<DescribedNodes, DecodeError> {
    let list: ObjectList<Object> =
        serde_json::from_slice(json).map_err(|error| DecodeError::json("list of Nodes", json, &error))?;
    let (nodes, more) = list.into_parts();
    Ok(DescribedNodes { nodes: nodes.into_iter().map(DescribedNode::from).collect(), more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_node_has_its_readiness_versions_slots_and_the_annotations_of_schedulers() {
        let node = json!({
            "metadata": {
                "name": "n1", "labels": { "a": "1" },
                "annotations": { "hami.io/node-handshake": "1", "other/x": "1" },
            },
            "spec": { "unschedulable": true },
            "status": {
                "conditions": [{ "type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status." }],
                "allocatable": { "nvidia.com/gpu": "80", "cpu": "8" },
                "nodeInfo": { "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" },
            },
        });
        let list = json!({ "metadata": { "continue": "next" }, "items": [node, { "metadata": { "name": "n2" } }] });
        let DescribedNodes { nodes, more } = decode_list(list.to_string().as_bytes()).unwrap();
        let [first, second] = &nodes[..] else { panic!("{nodes:?}") };
        assert_eq!(*first, decode(node.to_string().as_bytes()).unwrap());
        assert_eq!((&*first.name, first.ready, first.cordoned, &*more), ("n1", Some(false), true, "next"));
        assert_eq!(first.why_not_ready, "Kubelet stopped posting node status.");
        assert_eq!((&*first.runtime, &*first.kubelet), ("containerd://2.1.4", "v1.34.9"));
        assert_eq!(first.annotations.keys().collect::<Vec<_>>(), ["hami.io/node-handshake"]);
        assert_eq!((&*first.allocatable["nvidia.com/gpu"], &*first.labels["a"]), ("80", "1"));
        assert_eq!(*second, DescribedNode { name: "n2".into(), ..DescribedNode::default() });
        assert!(decode_list(b"7").is_err() && decode(b"8").is_err());
        assert_eq!(decode_list(br#"{"items":null}"#), Ok(DescribedNodes::default()));
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (decode(&bytes), decode_list(&bytes));
        }

        #[test]
        fn no_similar_text_causes_a_panic(inner in "[\\[\\]{}:,\"a-z0-9. ]{0,120}") {
            let _ = decode_list(format!(r#"{{"items":[{{"status":{{"conditions":[{inner}]}}}}]}}"#).as_bytes());
        }
    }
}
