//! The Kubernetes API server: one connection, one client for all reads and writes, and the pods that a program follows.
//!
//! ```text
//!   flag, KUBECONFIG, service account, ~/.kube/config ── connect ──▶ ApiConnection ──▶ client: get, list, watch,
//!                                                                       │               patch, create, delete, bind, evict
//!                                                      error ◀──────────┤
//!   own_node versions   reads of the agent's own Node ◀─────────────────┤
//!   writes              annotations, labels, events, evictions ─────────┤
//!   store follow        list, then watch ──▶ the pods, for a listener ◀─┘
//! ```
//!
//! While the server cannot be reached, the last list stays valid.
//!
//! What must never happen here: an answer without a limit in time and size; a write that no caller asked for, or a
//! retry of one; a list that is older than what was seen; a pod that counts as gone because the server cannot be
//! reached.

pub mod resource;
pub mod error;
pub mod connect;
pub mod client;
pub mod own_node;
pub mod versions;
pub mod writes;
mod store;
pub mod follow;
#[cfg(test)]
mod client_tests;

pub use connect::{ApiConnection, NotConnected, connect};
pub use error::{ApiCall, ApiError, ApiFailure, ApiVerb};
