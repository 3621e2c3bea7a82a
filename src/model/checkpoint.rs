//! The kubelet's checkpoint: its file of the devices that it has allocated.

use crate::id::{ContainerKey, Ticket};
use std::sync::Arc;

/// One row of the kubelet's checkpoint: which container holds which slots, and the ticket that we gave for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// Who holds them.
    pub holder: ContainerKey,
    /// The ids, as kubelet spells them; ids of a plugin that ran here before us stand among them.
    pub ids: Vec<Arc<str>>,
    /// Our ticket; absent in an answer that was not ours or carried none.
    pub ticket: Option<Ticket>,
    /// Whether the answer has something in it and nothing of ours: it is that of another plugin.
    pub foreign: bool,
    /// Whether everything was given with the ticket, before it was known whose it is.
    pub early: bool,
}
