//! Takes from Nodes what agents wrote there: labels and annotations that are ours by their field manager, and nothing else.
//!
//! ```text
//!   agent --clean-node         this node, after its agent has ended
//!   agent --clean-node=all     every node, after the last agent has: the chart's hook at `helm uninstall`
//!   a running agent            its own, when the last GPU is gone
//! ```

use decide::labels::{self, Labelling, PresentLabel};
use effects::apiserver::{ANNOTATOR, ApiServer, LABELLER, NotWritten};
use model::id::NodeName;
use sources::kubernetes::ApiConnection;
use sources::kubernetes::own_node::{node_now, nodes_now};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::key;
use wire::node::NodeObject;

/// Tries for a Node that changes meanwhile: the kubelet writes on it every few seconds at most.
const TRIES: usize = 5;
/// An agent that still runs looks at its Node this often at least, and writes anew what was taken away.
const LOOKS_WITHIN: Duration = Duration::from_secs(15);

/// Whose Nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The one of this name.
    One(NodeName),
    /// Every one.
    All,
}

/// What of a Node is ours.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ours {
    annotations: Vec<&'static str>,
    labels: Vec<&'static str>,
}

impl Ours {
    /// What stands on this Node and was written by agents. HAMi's scheduler writes its question over our handshake; it is left
    /// to whoever answers it where the list of GPUs is not ours.
    pub(super) fn on(node: &NodeObject) -> Ours {
        let register = node.annotated_by(key::REGISTER, ANNOTATOR);
        let asked = register && node.annotation(key::HANDSHAKE).is_some();
        let rows = [(register, key::REGISTER), (asked || node.annotated_by(key::HANDSHAKE, ANNOTATOR), key::HANDSHAKE)];
        let labels = labels::due(Labelling::Off, None, &standing(node), (false, key::LABEL_PRESENT));
        Ours {
            annotations: rows.into_iter().filter_map(|(ours, key)| ours.then_some(key)).collect(),
            labels: labels.into_keys().collect(),
        }
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty()
    }

    /// Takes it away from the Node that it was seen on.
    pub(super) async fn remove(&self, api: &ApiServer, seen: &NodeObject) -> Result<(), NotWritten> {
        api.clean_node((&self.annotations, &self.labels), &seen.version).await
    }
}

/// Labels of a Node that we might write, and whose each is.
pub(super) fn standing(node: &NodeObject) -> BTreeMap<&'static str, PresentLabel> {
    let one = |key: &&'static str| {
        let (ours, others) = (node.written_by(key, LABELLER), node.written_by_another(key, LABELLER).is_some());
        Some((*key, PresentLabel { value: node.label(key)?.to_owned(), ours, others }))
    };
    key::LABELS.into_iter().flatten().filter_map(one).collect()
}

/// Cleans, and says of how many Nodes something was taken.
///
/// # Errors
/// A sentence that says what could not be done, and what to do.
pub(crate) async fn clean(connection: &ApiConnection, scope: &Scope) -> Result<usize, String> {
    let cleaned = round(connection, scope).await?;
    let who = match scope {
        Scope::One(_) => "the agent of this node",
        Scope::All => {
            // Those that are about to end may write once more.
            let pause = if cleaned > 0 { LOOKS_WITHIN } else { Duration::ZERO };
            tokio::time::sleep(pause).await;
            "an agent"
        }
    };
    let again: Vec<String> = list(connection, scope)
        .await?
        .into_iter()
        .filter(|node| !Ours::on(node).is_empty())
        .map(|node| node.name)
        .collect();
    match again.first() {
        None => Ok(cleaned),
        Some(first) => Err(format!(
            "{who} still runs and has written anew what was taken away ({} Nodes, {first} first); end it, and try again",
            again.len()
        )),
    }
}

async fn round(connection: &ApiConnection, scope: &Scope) -> Result<usize, String> {
    let mut cleaned = 0;
    let mut last = None;
    for _ in 0..TRIES {
        let nodes = list(connection, scope).await?;
        if let (Scope::One(name), []) = (scope, &*nodes) {
            return Err(format!("there is no Node {name}; give its name with --node-name"));
        }
        last = None;
        for node in &nodes {
            let ours = Ours::on(node);
            let Ok(name) = NodeName::parse(&node.name) else { continue };
            if ours.is_empty() {
                continue;
            }
            let api = ApiServer::new(connection.client.clone(), name);
            match ours.remove(&api, node).await {
                Ok(()) => {
                    cleaned += 1;
                    tracing::info!(node = node.name, annotations = ?ours.annotations, labels = ?ours.labels, "taken away from the Node");
                }
                Err(NotWritten::Refused { code: 404, .. }) => {}
                // It has changed since it was read, or this one is refused and others are not.
                Err(error) => last = Some(error),
            }
        }
        if !matches!(last, Some(NotWritten::Refused { code: 409, .. })) {
            break;
        }
    }
    last.map_or(Ok(cleaned), |error| Err(error.to_string()))
}

async fn list(connection: &ApiConnection, scope: &Scope) -> Result<Vec<NodeObject>, String> {
    match scope {
        Scope::One(name) => Ok(node_now(connection, name).await?.into_iter().collect()),
        Scope::All => nodes_now(connection).await,
    }
}
