//! The versions of the kubelet and the container runtime, as this node's Node object states them.

use super::ApiConnection;
use http_body_util::BodyExt;
use kube::client::Body;
use model::id::NodeName;
use std::time::Duration;
use tokio::time::timeout;
use wire::versions::{self, NodeVersions};

/// A server that does not answer within this time hangs.
const WITHIN: Duration = Duration::from_secs(10);
/// Largest answer: a whole Node with its list of images; etcd stores at most 1.5 MiB of an object.
const MAX_BYTES: usize = 4 << 20;

/// Why the versions are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionsUnknown {
    /// The kubelet has not written them: the Node does not exist, or it names no versions. Before that, the kubelet has
    /// no pods.
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
    let told = |why: &dyn std::fmt::Display| {
        VersionsUnknown::Unanswered(format!("node {node} at {}: {why}", connection.server))
    };
    let request = http::Request::get(format!("/api/v1/nodes/{node}?resourceVersion=0"))
        .body(Body::empty())
        .map_err(|error| told(&error))?;
    let ask = async {
        let answer = connection.client.send(request).await.map_err(|error| told(&error))?;
        let code = answer.status();
        if code == http::StatusCode::NOT_FOUND {
            return Err(VersionsUnknown::NoKubelet(format!("there is no node {node} at {} yet", connection.server)));
        }
        if !code.is_success() {
            return Err(told(&code));
        }
        let body = http_body_util::Limited::new(answer.into_body(), MAX_BYTES).collect().await;
        let versions = versions::decode(&body.map_err(|error| told(&error))?.to_bytes());
        let versions = versions.map_err(|error| told(&error))?;
        if versions.kubelet.is_empty() || versions.runtime.is_empty() {
            let server = &connection.server;
            return Err(VersionsUnknown::NoKubelet(format!("node {node} at {server} does not name its versions yet")));
        }
        Ok(versions)
    };
    timeout(WITHIN, ask).await.unwrap_or_else(|_| Err(told(&format!("no answer within {} s", WITHIN.as_secs()))))
}
