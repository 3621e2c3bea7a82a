//! The state from which the leader places pods: all nodes with their GPUs, all claims, and the proposals of the filter.
//!
//! ```text
//!   Nodes, pods (watches) ──▶ node_is, pod_is, pod_gone … ──▶ ClusterState: one ledger for each node
//!   filter    proposes a node, writes nothing     ──▶ FilterVerdict
//!   wakes     pods that no node fitted, and for which there is room now ──▶ Wake
//!   bind      chooses devices and reserves them   ──▶ BindOrder ──OrderStages: POST, read, fence──▶ bind_ended
//!   streams of the agents ──▶ agent_reports, agent_closed … ──▶ LeaderView, evidence of starts and ends
//! ```
//!
//! A claim is *assumed* from the decision to bind until the pod watch shows it, then *bound*, then *started* when a
//! container of the pod has run. Only evidence releases it: the binding was refused and will never be made; or the pod
//! has ended, is gone, or is bound to another node. If the agent of the node reports, it must also report that no
//! process of the pod is left. A deadline never releases a claim: if an answer was lost, the API server may still carry
//! the request out, until the pod has another version ([`OrderStages`]).
//!
//! What must never happen here: one leader claims more than a GPU has; a node takes new claims while the claim of a pod
//! on it cannot be read; one change causes work for all nodes.

mod closed;
mod names;
mod version;
mod static_pods;
mod agent_link;
mod handshake_age;
mod belief;
mod node;
mod rank;
mod verdicts;
mod recent_pods;
mod node_set;
mod waiting;
mod wake;
mod recent_scores;
mod namespace_shares;
mod state;
mod pods;
mod closing;
mod refusal_details;
mod real_memory;
mod survey;
mod filter;
mod gang;
mod nominated;
mod beside;
mod preempt;
mod bind;
mod open_writes;
mod order;
pub mod planted;
mod agents;
mod summary;

pub use agent_link::StreamId;
pub use agents::{ReportRefusal, STREAM_BACK_WITHIN};
pub use belief::AgentBelief;
pub use bind::{BindOutcome, BindRefusal};
pub use closed::{ClosedReason, Closing, ClosingChange};
pub use filter::{CheckCounts, ExplainedScore, FilterVerdict, RefusedNode, Scoring, filter, score};
pub use node::NodeClaims;
pub use order::{
    BindResult, BindStep, ConfirmStep, Confirmation, OrderStages, PostAnswer, ReadAnswer, ReadPod, ReadRequest,
    RepeatedBind,
};
pub use preempt::PreemptVerdict;
pub use real_memory::{FailedCheck, UnknownMemory, UsageChange};
pub use state::{AnsweredNodes, ClusterRules, ClusterState, DEFAULT_SCORE_STEP, MAX_PENDING, NodeChoice, NodeNames};
pub use summary::RefusalSummary;
pub use survey::StateAccess;
pub use wake::{Wake, WakeStep};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod burst;
#[cfg(test)]
mod interleavings;
