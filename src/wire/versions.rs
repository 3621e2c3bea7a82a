//! What runs on a node, by its Node's own word: the versions of kubelet and of the container runtime.

use serde::Deserialize;

/// The versions; empty where a Node does not tell one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct NodeVersions {
    /// `v1.34.9`.
    #[serde(default, rename = "kubeletVersion")]
    pub kubelet: String,
    /// `containerd://2.1.4`.
    #[serde(default, rename = "containerRuntimeVersion")]
    pub runtime: String,
}

/// Why an answer tells none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the JSON of a Node with its status: {0}")]
pub struct NoVersions(String);

#[derive(Deserialize)]
struct Object {
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    node_info: NodeVersions,
}

/// Reads a whole Node.
///
/// # Errors
/// [`NoVersions`] where it is none, or metadata alone.
pub fn decode(json: &[u8]) -> Result<NodeVersions, NoVersions> {
    let object: Object = serde_json::from_slice(json).map_err(|error| NoVersions(error.to_string()))?;
    Ok(object.status.node_info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_are_taken_from_a_whole_node() {
        let text = r#"{"kind":"Node","metadata":{"name":"n"},"status":{"images":[{"names":["a"]}],
            "nodeInfo":{"kubeletVersion":"v1.34.9","containerRuntimeVersion":"containerd://2.1.4","osImage":"x"}}}"#;
        let versions = decode(text.as_bytes()).unwrap();
        assert_eq!((&*versions.kubelet, &*versions.runtime), ("v1.34.9", "containerd://2.1.4"));
        assert!(decode(br#"{"metadata":{"name":"n"}}"#).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
