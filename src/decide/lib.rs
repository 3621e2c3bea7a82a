//! The verbs: what follows from what was observed. Pure: the same observations at the same times give the same view.
//!
//! ```text
//!   Observation, Now ──▶ Node::apply ──▶ remarks (what is worth a log line)
//!                        Node::view  ──▶ NodeView (what every server shows)
//! ```
//!
//! What must never happen here: no clock, file, socket, async or logger; what it would log is in what it returns.

// A pure room answers every input; what cannot be is an error or a type, not an end of the program.
#![deny(clippy::expect_used)]

mod evidence;
pub mod health;
pub mod attribute;
pub mod node_event;
pub mod names;
pub mod api_pods;
#[cfg(test)]
mod unread;
pub mod occupants;
pub mod switches;
pub mod gpus;
pub mod workload;
pub mod pods;
pub mod tally;
pub mod overuse;
pub mod node;
pub mod ledger;
pub mod allocator;
pub mod pod_writes;
pub mod announce;
pub mod labels;
pub mod guard;
