//! Removes from Nodes only the labels and annotations that agents wrote. It finds them by their field manager. From all
//! Nodes it also removes the annotation of the extender; an agent has no right to do so.
//!
//! ```text
//!   clean-node [NODE]     one Node, after the agent there has ended
//!   clean-node --all      all Nodes, after the last agent has ended: the chart's hook at `helm uninstall`
//!   a running agent       its own Node, when the last GPU is gone
//! ```

use super::prepare::node_name;
use super::profile_annotations;
use super::settings::AgentSettings;
use apiserver::own_node::{node_now, nodes_now};
use apiserver::writes::{ANNOTATOR, ASSUMER, ApiServer, LABELLER};
use apiserver::{ApiConnection, ApiError};
use decide::labels::{self, Labelling, PresentLabel};
use model::id::NodeName;
use serve::exit::Exit;
use serve::lifecycle::{self, StartError};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::annotation_keys;
use wire::node::NodeObject;
use wire::profile_keys::ProfileKey;

/// Maximum number of attempts if the Node changes between the read and the write. The kubelet writes to its Node at
/// most every few seconds.
const TRIES: usize = 5;
/// A running agent reads its Node at least this often, and restores what was removed.
const WRITES_AGAIN_WITHIN: Duration = Duration::from_secs(15);

/// The Nodes to clean.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// The Node of this name.
    One(NodeName),
    /// Every Node.
    All,
}

impl Scope {
    /// What is removed from this Node.
    fn on(&self, node: &NodeObject) -> Ours {
        let mut ours = Ours::on(node);
        if *self == Scope::All && node.annotated_by(annotation_keys::ASSUMED, ASSUMER) {
            ours.annotations.push(annotation_keys::ASSUMED.to_owned());
        }
        ours
    }
}

/// The annotations and labels of a Node that agents wrote.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ours {
    annotations: Vec<String>,
    labels: Vec<&'static str>,
}

impl Ours {
    /// Finds the agent's annotations and labels on this Node. HAMi's scheduler overwrites the handshake annotation with
    /// a request. The request counts as the agent's only if the register annotation is the agent's; otherwise it stays
    /// for the device plugin that answers it.
    pub(super) fn on(node: &NodeObject) -> Ours {
        let register = node.annotated_by(annotation_keys::REGISTER, ANNOTATOR);
        let requested = register && node.annotation(annotation_keys::HANDSHAKE).is_some();
        let rows = [
            (register, annotation_keys::REGISTER),
            (node.annotated_by(annotation_keys::NODE_LINKS, ANNOTATOR), annotation_keys::NODE_LINKS),
            (requested || node.annotated_by(annotation_keys::HANDSHAKE, ANNOTATOR), annotation_keys::HANDSHAKE),
        ];
        let written = rows.into_iter().filter(|(ours, _)| *ours).map(|(_, key)| key.to_owned());
        let profiles = profile_annotations::ours(node).map(ProfileKey::text);
        let labels = labels::due(Labelling::Off, None, &present_labels(node), (false, annotation_keys::LABEL_PRESENT));
        Ours { annotations: written.chain(profiles).collect(), labels: labels.into_keys().collect() }
    }

    /// Whether the Node has no annotation or label that an agent wrote.
    pub(super) fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty()
    }

    /// Removes these annotations and labels from `seen`, the Node on which they were found.
    pub(super) async fn remove(&self, api: &ApiServer, seen: &NodeObject) -> Result<(), ApiError> {
        let annotations: Vec<&str> = self.annotations.iter().map(String::as_str).collect();
        api.clean_node((&annotations, &self.labels), &seen.version).await
    }
}

/// The labels of a Node that an agent may write, each with its writer.
pub(super) fn present_labels(node: &NodeObject) -> BTreeMap<&'static str, PresentLabel> {
    let one = |key: &&'static str| {
        let (ours, others) = (node.written_by(key, LABELLER), node.written_by_another(key, LABELLER).is_some());
        Some((*key, PresentLabel { value: node.label(key)?.to_owned(), ours, others }))
    };
    annotation_keys::LABELS.into_iter().flatten().filter_map(one).collect()
}

/// Removes what agents wrote on this node's Node, or on all Nodes.
pub fn run(settings: &AgentSettings, all: bool) -> Exit {
    let cleaned = || {
        let scope = if all { Scope::All } else { Scope::One(node_name(settings)?) };
        let cleaned = lifecycle::run_once(async {
            let connection = apiserver::connect(settings.kubeconfig.as_deref()).await;
            let connection = connection.map_err(|error| StartError::usage(error.to_string()))?;
            clean(&connection, &scope).await.map_err(StartError::unavailable)
        });
        let nodes = cleaned.map_err(|error| StartError::io("start", &error))??;
        tracing::info!(nodes, "nothing that an agent wrote is left");
        Ok(Exit::Ok)
    };
    lifecycle::outcome(cleaned())
}

/// Cleans the Nodes, and returns the number of Nodes from which it removed something.
///
/// # Errors
/// A sentence that says what failed, and what to do.
async fn clean(connection: &ApiConnection, scope: &Scope) -> Result<usize, String> {
    let cleaned = round(connection, scope).await?;
    let agent = match scope {
        Scope::One(_) => "the agent of this node",
        Scope::All => {
            // Wait before the last look: an agent that is about to end may write once more.
            let pause = if cleaned > 0 { WRITES_AGAIN_WITHIN } else { Duration::ZERO };
            tokio::time::sleep(pause).await;
            "an agent"
        }
    };
    let again: Vec<String> = list(connection, scope)
        .await?
        .into_iter()
        .filter(|node| !scope.on(node).is_empty())
        .map(|node| node.name)
        .collect();
    match again.first() {
        None => Ok(cleaned),
        Some(first) => Err(format!(
            "{agent} still runs and has restored what was removed ({} Nodes, first {first}); stop it, and try again",
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
            return Err(format!("there is no Node {name}; give the right name: gpu-steward clean-node NODE"));
        }
        last = None;
        for node in &nodes {
            let ours = scope.on(node);
            let Ok(name) = NodeName::parse(&node.name) else { continue };
            if ours.is_empty() {
                continue;
            }
            let api = ApiServer::new(connection.clone(), name);
            match ours.remove(&api, node).await {
                Ok(()) => {
                    cleaned += 1;
                    tracing::info!(node = node.name, annotations = ?ours.annotations, labels = ?ours.labels, "removed from the Node");
                }
                Err(error) if error.code() == Some(404) => {}
                // The Node has changed since it was read (409), or the API server refuses this Node, but perhaps not
                // others.
                Err(error) => last = Some(error),
            }
        }
        if last.as_ref().and_then(ApiError::code) != Some(409) {
            break;
        }
    }
    last.map_or(Ok(cleaned), |error| Err(error.to_string()))
}

async fn list(connection: &ApiConnection, scope: &Scope) -> Result<Vec<NodeObject>, String> {
    let nodes = match scope {
        Scope::One(name) => node_now(connection, name).await.map(|node| node.into_iter().collect()),
        Scope::All => nodes_now(connection).await,
    };
    nodes.map_err(|error| error.to_string())
}
