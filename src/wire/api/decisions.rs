//! `/api/v1/decisions` of the extender: the last decisions about pods, and how the scores of a filter decision were made.

use model::request::{ContainerRequest, MemoryRequest};
use serde::{Deserialize, Serialize};

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionsJson {
    /// Number of decisions that the extender keeps, about all pods.
    pub kept: usize,
    /// The requested decisions, the newest first.
    pub decisions: Vec<DecisionJson>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionJson {
    /// When the decision was made, in RFC 3339 with microseconds.
    pub at: String,
    /// Namespace and name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// The call of kube-scheduler that the decision answers.
    pub verb: DecisionVerb,
    /// The decision in one sentence.
    pub result: String,
    /// The nodes with the best scores, the best node first; empty for a bind and a preemption.
    pub scores: Vec<NodeScoreJson>,
    /// What a filter decision was made from; `None` for a bind and a preemption.
    pub detail: Option<FilterDetailJson>,
}

/// A call of kube-scheduler whose answer is a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionVerb {
    /// Which nodes fit the pod.
    Filter,
    /// Binds the pod to a node.
    Bind,
    /// On which nodes evictions make room for the pod.
    Preempt,
}

/// The score of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeScoreJson {
    /// Name of the node.
    pub node: String,
    /// The score.
    pub score: i64,
    /// The terms of the fill.
    pub terms: Vec<ScoreTermJson>,
    /// How full the node is with the pod, from 0 to 1.
    pub fill: f64,
    /// Whether the pod also fits together with the pods that are expected on the node.
    pub beside_expected_pods: bool,
    /// How the fill follows from the terms, and which nodes the policy prefers, as a sentence.
    pub arithmetic: String,
}

/// One term of a fill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreTermJson {
    /// `slots`, `cores` or `memory`.
    pub name: String,
    /// How much of this part is taken, from 0 to 1.
    pub value: f64,
    /// How much the term counts.
    pub weight: u32,
    /// Value times weight.
    pub product: f64,
}

/// What a filter decision was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilterDetailJson {
    /// What the containers request.
    pub asks: Vec<ContainerRequestJson>,
    /// How nodes were scored.
    pub scoring: ScoringJson,
    /// The node that is expected to take the pod.
    pub proposed: Option<String>,
    /// The first nodes that do not fit.
    pub refused: Vec<RefusedNodeJson>,
}

/// What one container requests. Both fields of memory are `None` if it names no memory, and so requests all of each GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerRequestJson {
    /// Name of the container.
    pub container: String,
    /// Number of GPUs.
    pub gpus: u32,
    /// Memory of each GPU, if the pod requests an amount.
    pub memory_bytes: Option<u64>,
    /// Part of the memory of each GPU, from 0 to 1, if the pod requests a percentage.
    pub memory_ratio: Option<f64>,
    /// Percent of the SM time of each GPU; `None` if the pod requests no SM time.
    pub cores: Option<u32>,
}

/// How the nodes of a filter decision were scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoringJson {
    /// `binpack` or `spread`.
    pub node_policy: String,
    /// Difference between the scores of neighbours in the order of the nodes.
    pub score_step: i64,
}

/// A node that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedNodeJson {
    /// Name of the node.
    pub node: String,
    /// Why the node does not fit, as reason codes with the numbers of its GPUs.
    pub why: String,
    /// Why the node takes no new claims, if that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// The node's GPUs whose claims leave room and that have too little memory that is really free, with its users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<String>,
}

impl ContainerRequestJson {
    /// The request of this container.
    #[must_use]
    pub fn of(request: &ContainerRequest) -> ContainerRequestJson {
        ContainerRequestJson {
            container: request.container.to_string(),
            gpus: request.slots,
            memory_bytes: request.memory.and_then(|memory| match memory {
                MemoryRequest::Amount(amount) => Some(amount.bytes().0),
                MemoryRequest::Percent(_) => None,
            }),
            memory_ratio: request.memory.and_then(|memory| match memory {
                MemoryRequest::Amount(_) => None,
                MemoryRequest::Percent(share) => Some(f64::from(share) / 100.0),
            }),
            cores: request.cores.map(|cores| cores.0),
        }
    }
}
