//! Tickets: the CDI device names that stand for a container until it is known which container it is.

use crate::claim::DeviceShare;
use crate::id::{ContainerKey, Ticket};
use std::sync::Arc;

/// A ticket as it was given out at `Allocate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedTicket {
    /// Which.
    pub ticket: Ticket,
    /// Higher than that of every ticket given out before it.
    pub order: u64,
    /// The ids that it stands for.
    pub ids: Vec<Arc<str>>,
    /// For whom it was meant, where devices were given with it.
    pub meant: Option<ContainerKey>,
    /// Whose it is, once kubelet has said so.
    pub holder: Option<ContainerKey>,
    /// What its container has, where the claim alone does not say it.
    pub given: Option<Vec<DeviceShare>>,
}

impl IssuedTicket {
    /// Whether devices were given with it.
    #[must_use]
    pub fn early(&self) -> bool {
        self.meant.is_some()
    }
}
