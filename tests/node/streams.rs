//! The streams between agents and the leading extender: the built programs at a fake API server. Where a test needs an agent
//! that lies, it speaks for itself.

mod stream_extender;
mod stream_client;
mod hostile;
mod leader_change;
mod agent_process;
mod expiry;
mod bad_calls;
mod told_closings;
mod readiness;
mod freshness;
