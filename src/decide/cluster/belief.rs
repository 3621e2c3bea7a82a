//! What the leader believes about the agent of a node, to show to people.

use super::agent_link::LinkState;
use super::node::NodeClaims;
use model::agent_stream::AgentPhase;
use model::id::GpuUuid;
use model::time::Monotonic;
use model::unit::Bytes;
use std::time::Duration;

/// The stream of an agent, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentBelief {
    /// `open`, `closed` (the agent may soon open another stream) or `away`.
    pub state: &'static str,
    /// Time since the agent's last message.
    pub age: Duration,
    /// Whether the agent accepts new pods, by its last message.
    pub phase: AgentPhase,
}

impl NodeClaims {
    /// The stream of the agent; `None` if the agent has never opened a stream to this leader.
    #[must_use]
    pub fn agent_belief(&self, now: Monotonic) -> Option<AgentBelief> {
        let link = self.agent()?;
        let state = match link.state {
            LinkState::Open => "open",
            LinkState::Closed(_) => "closed",
            LinkState::Away => "away",
        };
        Some(AgentBelief { state, age: now.since(link.heard), phase: link.report.phase })
    }

    /// The memory in use of a device, as its agent last reported it; `None` if it is not known.
    #[must_use]
    pub fn memory_used(&self, device: &GpuUuid) -> Option<Bytes> {
        self.agent()?.report.gpus.get(device)?.memory_used.get()
    }
}
