//! Reads the metadata of Node objects, of this node or of all nodes, from the API server's cache or from etcd.

use crate::client::{ApiClient, ApiSelection, ObjectForm, ReadAge};
use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiFailure, ApiVerb};
use crate::resource::ApiResource;
use model::id::NodeName;
use wire::node::{self, NodeObject};

/// Maximum number of Nodes in one page. The metadata of one Node has about 20 KiB.
const PAGE: u32 = 100;
/// Maximum number of Nodes in a list: three times the number that Kubernetes supports.
const MAX_NODES: usize = 15_000;

/// Reads the Node object of this node.
#[derive(Clone, Debug)]
pub struct OwnNodeReader {
    client: ApiClient,
    node: NodeName,
}

impl OwnNodeReader {
    /// A reader of the Node `node` at this API server.
    #[must_use]
    pub fn new(connection: ApiConnection, node: NodeName) -> OwnNodeReader {
        OwnNodeReader { client: ApiClient::new(connection), node }
    }

    /// Reads the Node once. The answer comes from the API server's cache and may be old, but the read is cheap enough
    /// for every few seconds.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn read(&self) -> Result<NodeObject, ApiError> {
        read_node(&self.client, &self.node, &ReadAge::Any).await
    }

    /// Reads the Node once as it is in etcd now. A lagging cache would show a node lock that is already released, or
    /// miss a lock that was just taken.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn read_now(&self) -> Result<NodeObject, ApiError> {
        read_node(&self.client, &self.node, &ReadAge::Newest).await
    }
}

async fn read_node(client: &ApiClient, name: &NodeName, age: &ReadAge) -> Result<NodeObject, ApiError> {
    let bytes = client.get_node(name, age, ObjectForm::Metadata).await?;
    node::decode(&bytes).map_err(|why| {
        let call = ApiCall::new(ApiVerb::Get, ApiResource::Nodes, format!("node {name}"));
        client.error(call, ApiFailure::Unreadable(why.to_string()))
    })
}

/// The Node of this name as it is now, if there is one. It is read by name, because the agent's account may not list
/// Nodes.
///
/// # Errors
/// [`ApiError`].
pub async fn node_now(connection: &ApiConnection, name: &NodeName) -> Result<Option<NodeObject>, ApiError> {
    match read_node(&ApiClient::new(connection.clone()), name, &ReadAge::Newest).await {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All Nodes as they are now.
///
/// # Errors
/// [`ApiError`].
pub async fn nodes_now(connection: &ApiConnection) -> Result<Vec<NodeObject>, ApiError> {
    let client = ApiClient::new(connection.clone());
    let unreadable = |why: String| {
        let call = ApiCall::new(ApiVerb::List, ApiResource::Nodes, "nodes");
        client.error(call, ApiFailure::Unreadable(why))
    };
    let all = ApiSelection::all(ApiResource::Nodes, ObjectForm::Metadata);
    let (mut nodes, mut age) = (Vec::new(), ReadAge::Newest);
    loop {
        let bytes = client.list(&all, &age, Some(PAGE)).await?;
        let part = node::decode_list(&bytes).map_err(|why| unreadable(why.to_string()))?;
        nodes.extend(part.nodes);
        if part.more.is_empty() {
            return Ok(nodes);
        }
        if nodes.len() >= MAX_NODES {
            return Err(unreadable(format!("there are more than {MAX_NODES} Nodes")));
        }
        age = ReadAge::Continued(part.more);
    }
}
