//! The Kubernetes API server: one connection, one client for all reads and writes, and the objects that a program follows.
//!
//! ```text
//!   flag, KUBECONFIG, service account, ~/.kube/config ── connect ──▶ ApiConnection ──▶ client: get, list, watch,
//!                                                                       │               patch, create, delete, bind, evict
//!                                                      error ◀──────────┤
//!   own_node versions   reads of the agent's own Node ◀─────────────────┤
//!   writes              annotations, labels, events, evictions ─────────┤
//!   lease               the Lease of a leader election ─────────────────┤
//!   kept_object         one Secret or ConfigMap ────────────────────────┤
//!   port_forward        a connection to a port of a pod ────────────────┤
//!   kind absence by_importance store page_size read_objects room_pace follow
//!                        list, then watch ──▶ changes, for a listener ◀────────┘
//!   resource            the kinds of objects, and their paths at the API server
//!   chance              random numbers for pauses
//! ```
//!
//! While the server cannot be reached, the last list stays valid.
//!
//! What must never happen here: an answer without a limit in time and size; a write that no caller requested, or a retry of
//! a write; a list that is older than what was seen; an object that counts as gone because a list, or a server that cannot
//! be reached, does not show it.

pub mod chance;
pub mod resource;
pub mod error;
pub mod connect;
pub mod client;
pub mod own_node;
pub mod versions;
pub mod writes;
pub mod lease;
pub mod kept_object;
pub mod port_forward;
pub mod kind;
mod absence;
mod by_importance;
mod page_size;
mod read_objects;
mod room_pace;
pub mod store;
pub mod follow;
#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod follow_tests;

pub use connect::{ApiConnection, NotConnected, connect};
pub use error::{ApiCall, ApiError, ApiFailure, ApiVerb};
