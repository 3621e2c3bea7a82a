//! The streams between agents and the leading extender: the built programs with a fake API server. A test that needs a
//! misbehaving agent sends the agent's messages itself.

pub(crate) mod stream_extender;
pub(crate) mod stream_client;
mod hostile;
mod preempt;
mod leader_change;
mod agent_process;
mod expiry;
mod bad_calls;
mod told_closings;
mod readiness;
mod freshness;
mod forced_deletion;
mod realtime;
mod stranger;
