//! The decisions of agent and extender, as pure functions and states: the same observations at the same times give the same view.
//!
//! ```text
//!   Observation, Now ──▶ NodeState::apply ──▶ NodeEvent (worth a log line)
//!                        NodeState::view  ──▶ NodeView (what every server shows)
//! ```
//!
//! ```text
//!   node gpus workload pods switches node_event   the state of one node, and the events that it returns for the log
//!   attribute memory_sums occupants names api_pods evidence   how much of a GPU each pod uses; names; signs of a GPU reset
//!   gone_pods                                     what the pods of the node hold, until their containers are gone
//!   health overuse tally                          which GPUs are healthy; pods above their claim; GPU time and energy of pods
//!   ledger placement                              what claims take of each device; which GPUs of a node fit a pod
//!   cluster wake_pace                             all nodes and claims: filter, bind, preempt, wake; how often pods are woken
//!   election authority                            which extender leads (its times are settings); when certificates are replaced
//!   agent_report report_pace token_pace leader_search message_rate
//!                                                 what an agent reports to the leader, how often, and to which address
//!   allocator call_wait cdi device_injection second_connection rival_ids settled_file
//!                                                 the device plugin: which container gets which shares, and when
//!   bind_phases sent_events eviction pod_writes   what is written on pods
//!   announce labels link_scores guard             what is written on the Node; whether the admission policies are in force
//!   node_profile profile_writes                   what the Node is to say about the load of its GPUs, and when it is written
//!   assume_pace                                   which Node the leader writes on next
//!   fixtures                                      for tests: a GPU and its view
//! ```
//!
//! What must never happen here: use of a clock, file, socket, async or logger. Events to be logged are return values.

// A pure crate never panics on an input: an impossible case is an error value or excluded by a type.
#![deny(clippy::expect_used)]

mod evidence;
pub mod health;
pub mod attribute;
mod memory_sums;
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
pub mod wake_pace;
pub mod cluster;
pub mod gone_pods;
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
pub mod node_profile;
pub mod profile_writes;
pub mod announce;
pub mod assume_pace;
pub mod labels;
pub mod link_scores;
pub mod guard;
