//! The versions of the kubelet and the container runtime, as this node's Node object states them.

use crate::client::{ApiClient, ObjectForm, ReadAge};
use crate::connect::ApiConnection;
use model::id::NodeName;
use wire::versions::{self, NodeVersions};

/// Why the versions are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionsUnknown {
    /// The kubelet has not written the versions yet: the Node does not exist, or names no versions. Until then the
    /// kubelet has no pods.
    #[error("{0}")]
    NoKubelet(String),
    /// The server does not answer, or its answer is not a Node.
    #[error("{0}")]
    Unanswered(String),
}

/// Reads the versions once.
///
/// # Errors
/// A sentence for the log.
pub async fn of_own_node(connection: &ApiConnection, node: &NodeName) -> Result<NodeVersions, VersionsUnknown> {
    let server = &connection.server;
    let client = ApiClient::new(connection.clone());
    let bytes = match client.get_node(node, &ReadAge::Any, ObjectForm::Whole).await {
        Ok(bytes) => bytes,
        Err(error) if error.code() == Some(404) => {
            return Err(VersionsUnknown::NoKubelet(format!("there is no node {node} at {server} yet")));
        }
        Err(error) => return Err(VersionsUnknown::Unanswered(error.to_string())),
    };
    let versions = versions::decode(&bytes)
        .map_err(|error| VersionsUnknown::Unanswered(format!("node {node} at {server}: {error}")))?;
    if versions.kubelet.is_empty() || versions.runtime.is_empty() {
        return Err(VersionsUnknown::NoKubelet(format!("node {node} at {server} does not name its versions yet")));
    }
    Ok(versions)
}
