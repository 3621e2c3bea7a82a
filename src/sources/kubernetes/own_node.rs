//! Our own Node object, its metadata only: from the API server's cache, or as it is now.

use super::Connection;
use http_body_util::BodyExt;
use kube::client::Body;
use model::id::NodeName;
use std::time::Duration;
use tokio::time::timeout;
use wire::node::{self, Node};

/// A server that is silent for longer hangs.
const WITHIN: Duration = Duration::from_secs(10);
/// Metadata of one object: etcd takes 1.5 MiB for all of it. Of a page of them: Nodes have some 20 KiB each.
const MAX_BYTES: usize = 4 << 20;
/// Nodes in one answer.
const PAGE: usize = 100;
/// Nodes in all: three times what Kubernetes is made for.
const MAX_NODES: usize = 15_000;
/// Metadata alone: a Node's status lists every image that it holds.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The same of a list.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

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

    /// Looks once, at what may be as old as the API server's cache: cheap enough to be done every few seconds.
    ///
    /// # Errors
    /// A sentence for the log.
    pub async fn look(&self) -> Result<Node, String> {
        self.ask("?resourceVersion=0").await
    }

    /// Looks once, at what stands there now: a cache that lags would show a lock that is gone, or none where one was just
    /// taken.
    ///
    /// # Errors
    /// A sentence for the log.
    pub async fn look_now(&self) -> Result<Node, String> {
        self.ask("").await
    }

    async fn ask(&self, query: &str) -> Result<Node, String> {
        let path = format!("/api/v1/nodes/{}{query}", self.node);
        let bytes = get(&self.connection, &path, METADATA).await;
        let told = |why: String| format!("node {} at {}: {why}", self.node, self.connection.server);
        bytes.and_then(|bytes| node::decode(&bytes).map_err(|error| error.to_string())).map_err(told)
    }
}

/// The Node of this name, or all Nodes, as they are now. One that is not there is not in the list.
///
/// # Errors
/// A sentence for people.
pub async fn nodes_now(connection: &Connection, name: Option<&NodeName>) -> Result<Vec<Node>, String> {
    let told = |why: String| format!("list of Nodes at {}: {why}", connection.server);
    let selector = name.map_or_else(String::new, |name| format!("&fieldSelector=metadata.name%3D{name}"));
    let (mut nodes, mut more) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/v1/nodes?limit={PAGE}{selector}{more}");
        let bytes = get(connection, &path, METADATA_LIST).await.map_err(told)?;
        let part = node::decode_list(&bytes).map_err(|error| told(error.to_string()))?;
        nodes.extend(part.nodes);
        if part.more.is_empty() {
            return Ok(nodes);
        }
        if nodes.len() >= MAX_NODES {
            return Err(told(format!("more than {MAX_NODES} Nodes")));
        }
        // A token of the server's own making; what is no part of a query is left out of it.
        let token: String = part.more.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.~=".contains(*c)).collect();
        more = format!("&continue={token}");
    }
}

async fn get(connection: &Connection, path: &str, accept: &str) -> Result<Vec<u8>, String> {
    let told = |why: &dyn std::fmt::Display| why.to_string();
    let request = http::Request::get(path).header("accept", accept).body(Body::empty());
    let request = request.map_err(|error| told(&error))?;
    let ask = async {
        let answer = connection.client.send(request).await.map_err(|error| told(&error))?;
        let code = answer.status();
        if !code.is_success() {
            return Err(told(&code));
        }
        let body = http_body_util::Limited::new(answer.into_body(), MAX_BYTES).collect().await;
        Ok(body.map_err(|error| told(&error))?.to_bytes().to_vec())
    };
    timeout(WITHIN, ask).await.unwrap_or_else(|_| Err(format!("no answer within {} s", WITHIN.as_secs())))
}
