//! The agent's decisions, as pure functions and states: the same observations at the same times give the same view.
//!
//! ```text
//!   Observation, Now ──▶ NodeState::apply ──▶ NodeEvent (worth a log line)
//!                        NodeState::view  ──▶ NodeView (what every server shows)
//! ```
//!
//! What must never happen here: use of a clock, file, socket, async or logger. Events to be logged are return values.

// A pure crate never panics on an input: an impossible case is an error value or excluded by a type.
#![deny(clippy::expect_used)]

mod evidence;
pub mod health;
pub mod attribute;
pub mod node_event;
pub mod names;
pub mod api_pods;
#[cfg(test)]
mod fixtures;
pub mod occupants;
pub mod switches;
pub mod gpus;
pub mod workload;
pub mod pods;
pub mod tally;
pub mod overuse;
pub mod node;
pub mod ledger;
pub mod placement;
pub mod cluster;
pub mod agent_report;
pub mod report_pace;
pub mod token_pace;
pub mod leader_search;
pub mod message_rate;
pub mod authority;
pub mod election;
pub mod cdi;
pub mod second_connection;
pub mod allocator;
pub mod rival_ids;
pub mod settled_file;
pub mod device_injection;
pub mod call_wait;
pub mod bind_phases;
pub mod sent_events;
pub mod eviction;
pub mod pod_writes;
pub mod announce;
pub mod labels;
pub mod guard;
