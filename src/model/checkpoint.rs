//! The kubelet's checkpoint: its file of the devices that it has allocated.

use crate::id::{ContainerKey, Ticket};
use crate::slot::Slot;
use std::sync::Arc;

/// One row of the kubelet's checkpoint: a container, the slots that it holds, and the ticket that the agent issued for
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The container that holds the slots.
    pub holder: ContainerKey,
    /// Device ids, as the kubelet spells them; ids of a plugin that ran here earlier can be among them.
    pub ids: Vec<Arc<str>>,
    /// The agent's ticket; `None` if another plugin gave the answer, or the answer holds no ticket.
    pub ticket: Option<Ticket>,
    /// Whether another plugin gave the answer: it is not empty and holds nothing of this agent.
    pub foreign: bool,
    /// Whether the answer to `Allocate` held the devices: by an earlier release, if the runtime had no CDI.
    pub early: bool,
}

impl CheckpointEntry {
    /// Whether another plugin answered the kubelet for this entry.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.ticket.is_none() && (self.foreign || self.ids.iter().any(|id| Slot::parse(id).is_none()))
    }
}

/// The devices that a container got from another plugin, or under a resource other than the agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignEntry {
    /// The container.
    pub holder: ContainerKey,
    /// Whether the devices are of the agent's resource.
    pub own_resource: bool,
    /// The GPUs in the answer of the other plugin; if it names no GPU, the device ids.
    pub devices: Vec<Arc<str>>,
    /// The minor numbers of the GPUs whose device nodes are in that answer.
    pub nodes: Vec<u32>,
}
