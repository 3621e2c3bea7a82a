//! Our own Node object, its metadata only, as old as the API server's cache.

use super::Connection;
use http_body_util::BodyExt;
use kube::client::Body;
use model::id::NodeName;
use std::time::Duration;
use tokio::time::timeout;
use wire::node::{self, Node};

/// A server that is silent for longer hangs.
const WITHIN: Duration = Duration::from_secs(10);
/// Metadata of one object: etcd takes 1.5 MiB for all of it.
const MAX_BYTES: usize = 2 << 20;
/// Metadata alone: a Node's status lists every image that it holds.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Looks at our Node.
#[derive(Clone, Debug)]
pub struct OwnNode {
    connection: Connection,
    node: NodeName,
}

impl OwnNode {
    /// Our Node at this server.
    #[must_use]
    pub fn new(connection: Connection, node: NodeName) -> OwnNode {
        OwnNode { connection, node }
    }

    /// Looks once.
    ///
    /// # Errors
    /// A sentence for the log.
    pub async fn look(&self) -> Result<Node, String> {
        let told = |why: &dyn std::fmt::Display| format!("node {} at {}: {why}", self.node, self.connection.server);
        let request = http::Request::get(format!("/api/v1/nodes/{}?resourceVersion=0", self.node))
            .header("accept", METADATA)
            .body(Body::empty())
            .map_err(|error| told(&error))?;
        let ask = async {
            let answer = self.connection.client.send(request).await.map_err(|error| told(&error))?;
            let code = answer.status();
            if !code.is_success() {
                return Err(told(&code));
            }
            let body = http_body_util::Limited::new(answer.into_body(), MAX_BYTES).collect().await;
            node::decode(&body.map_err(|error| told(&error))?.to_bytes()).map_err(|error| told(&error))
        };
        timeout(WITHIN, ask).await.unwrap_or_else(|_| Err(told(&format!("no answer within {} s", WITHIN.as_secs()))))
    }
}
