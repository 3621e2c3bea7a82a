//! Reads the metadata of Node objects: of this node from the API server's cache or from etcd, and of others.

use super::ApiConnection;
use http_body_util::BodyExt;
use kube::client::Body;
use model::id::NodeName;
use std::time::Duration;
use tokio::time::timeout;
use wire::node::{self, NodeObject};

/// A server that does not answer within this time hangs.
const WITHIN: Duration = Duration::from_secs(10);
/// Largest answer. etcd stores at most 1.5 MiB of one object; metadata of one Node in a page is about 20 KiB.
const MAX_BYTES: usize = 4 << 20;
/// Nodes in one page.
const PAGE: usize = 100;
/// Most Nodes of one list: three times the number that Kubernetes supports.
const MAX_NODES: usize = 15_000;
/// Asks for metadata only: a Node's status lists all images of the node.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The same for a list.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Reads the Node object of this node.
#[derive(Clone, Debug)]
pub struct OwnNodeReader {
    connection: ApiConnection,
    node: NodeName,
}

impl OwnNodeReader {
    /// A reader of the Node `node` at this server.
    #[must_use]
    pub fn new(connection: ApiConnection, node: NodeName) -> OwnNodeReader {
        OwnNodeReader { connection, node }
    }

    /// Reads the Node once. The answer may be as old as the API server's cache, so this is cheap enough for every few
    /// seconds.
    ///
    /// # Errors
    /// A sentence for the log.
    pub async fn look(&self) -> Result<NodeObject, String> {
        self.ask("?resourceVersion=0").await
    }

    /// Reads the Node once as it is in etcd now. A cache that lags would show a node lock that was released, or miss
    /// one that was just taken.
    ///
    /// # Errors
    /// A sentence for the log.
    pub async fn look_now(&self) -> Result<NodeObject, String> {
        self.ask("").await
    }

    async fn ask(&self, query: &str) -> Result<NodeObject, String> {
        let path = format!("/api/v1/nodes/{}{query}", self.node);
        let bytes = get(&self.connection, &path, METADATA).await.map_err(|failed| failed.to_string());
        let told = |why: String| format!("node {} at {}: {why}", self.node, self.connection.server);
        bytes.and_then(|bytes| node::decode(&bytes).map_err(|error| error.to_string())).map_err(told)
    }
}

/// The Node of this name as it is now, if there is one. It is read by name, because the agent's account may not list
/// Nodes.
///
/// # Errors
/// A sentence for people.
pub async fn node_now(connection: &ApiConnection, name: &NodeName) -> Result<Option<NodeObject>, String> {
    let told = |why: String| format!("node {name} at {}: {why}", connection.server);
    match get(connection, &format!("/api/v1/nodes/{name}"), METADATA).await {
        Ok(bytes) => node::decode(&bytes).map(Some).map_err(|error| told(error.to_string())),
        Err(Failed::Refused(code)) if code == http::StatusCode::NOT_FOUND => Ok(None),
        Err(failed) => Err(told(failed.to_string())),
    }
}

/// All Nodes as they are now.
///
/// # Errors
/// A sentence for people.
pub async fn nodes_now(connection: &ApiConnection) -> Result<Vec<NodeObject>, String> {
    let told = |why: String| format!("list of Nodes at {}: {why}", connection.server);
    let (mut nodes, mut more) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/v1/nodes?limit={PAGE}{more}");
        let bytes = get(connection, &path, METADATA_LIST).await.map_err(|failed| told(failed.to_string()))?;
        let part = node::decode_list(&bytes).map_err(|error| told(error.to_string()))?;
        nodes.extend(part.nodes);
        if part.more.is_empty() {
            return Ok(nodes);
        }
        if nodes.len() >= MAX_NODES {
            return Err(told(format!("more than {MAX_NODES} Nodes")));
        }
        // The server makes this token; characters that do not belong into a query are left out.
        let token: String = part.more.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.~=".contains(*c)).collect();
        more = format!("&continue={token}");
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// The server answered with this status code.
    #[error("{0}")]
    Refused(http::StatusCode),
    /// Any other reason, as text.
    #[error("{0}")]
    Other(String),
}

async fn get(connection: &ApiConnection, path: &str, accept: &str) -> Result<Vec<u8>, Failed> {
    let told = |why: &dyn std::fmt::Display| Failed::Other(why.to_string());
    let request = http::Request::get(path).header("accept", accept).body(Body::empty());
    let request = request.map_err(|error| told(&error))?;
    let ask = async {
        let answer = connection.client.send(request).await.map_err(|error| told(&error))?;
        let code = answer.status();
        if !code.is_success() {
            return Err(Failed::Refused(code));
        }
        let body = http_body_util::Limited::new(answer.into_body(), MAX_BYTES).collect().await;
        Ok(body.map_err(|error| told(&error))?.to_bytes().to_vec())
    };
    let silent = |_| Err(Failed::Other(format!("no answer within {} s", WITHIN.as_secs())));
    timeout(WITHIN, ask).await.unwrap_or_else(silent)
}
