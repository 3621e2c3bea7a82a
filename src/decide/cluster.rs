//! The state from which the leader places pods: all nodes with their GPUs, all claims, and the proposals of the filter.
//!
//! ```text
//!   Nodes, pods (watches) ──▶ node_is, pod_is, pod_gone … ──▶ ClusterState: one ledger for each node
//!   filter    proposes a node, writes nothing     ──▶ FilterVerdict
//!   bind      chooses devices and reserves them   ──▶ BindOrder ──POST──▶ bind_ended
//! ```
//!
//! A claim is *assumed* from the decision to bind until the pod watch shows it, then *bound*, then *started* when a
//! container of the pod has run, and it is released only by evidence: the binding was refused and never will be made,
//! or the pod has ended, is gone, or is bound to another node. A deadline never releases a claim, because a request whose answer was lost may still be carried
//! out.
//!
//! What must never happen here: claims of more than a GPU has, by decisions of one leader; a node that takes new
//! claims while the claim of a pod on it cannot be read; work for all nodes because of one change.

mod closed;
mod names;
mod node;
mod rank;
mod verdicts;
mod state;
mod pods;
mod closing;
mod filter;
mod bind;
mod summary;

pub use bind::{BindOrder, BindOutcome, BindRefusal};
pub use closed::{ClaimOrigin, ClosedReason, ClosingChange};
pub use filter::{ExplainedScore, FilterVerdict, RefusedNode, Scoring};
pub use node::{NodeClaims, NodeFacts};
pub use pods::BoundPod;
pub use state::{ClusterRules, ClusterState, DEFAULT_SCORE_STEP, MAX_PENDING, NodeChoice};
pub use summary::RefusalSummary;

#[cfg(test)]
mod tests;
