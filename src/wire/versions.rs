//! The versions of kubelet and of the container runtime, from the status of a Node.

use serde::Deserialize;

/// The versions of one node; empty if the Node does not give a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct NodeVersions {
    /// Version of kubelet: `v1.34.9`.
    #[serde(default, rename = "kubeletVersion")]
    pub kubelet: String,
    /// Name and version of the container runtime: `containerd://2.1.4`.
    #[serde(default, rename = "containerRuntimeVersion")]
    pub runtime: String,
}

/// Why the versions cannot be read from an answer of the API server.
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

/// Reads the JSON of a whole Node.
///
/// # Errors
/// [`NoVersions`] if the text is not the JSON of a Node, or has no `status.nodeInfo`.
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
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
