//! Tickets: CDI device names that stand for a container until the agent knows which container it is.

use crate::claim::DeviceShare;
use crate::id::{ContainerKey, Ticket};
use std::sync::Arc;

/// A ticket that the agent made to answer one `Allocate` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedTicket {
    /// The ticket.
    pub ticket: Ticket,
    /// Sequence number, higher than the number of every ticket issued before.
    pub order: u64,
    /// The slot ids that the ticket stands for.
    pub ids: Vec<Arc<str>>,
    /// Set if an earlier release issued the ticket and gave the devices in its answer to `Allocate`: the container for
    /// which the agent expected the call to be.
    pub expected: Option<ContainerKey>,
    /// The container that holds the ticket, once the kubelet's checkpoint names it.
    pub holder: Option<ContainerKey>,
    /// The device shares of the ticket's container, if they cannot be derived from the claim alone.
    pub given: Option<Vec<DeviceShare>>,
}

impl IssuedTicket {
    /// Whether an earlier release gave the devices in its answer to `Allocate`.
    #[must_use]
    pub fn early(&self) -> bool {
        self.expected.is_some()
    }
}
