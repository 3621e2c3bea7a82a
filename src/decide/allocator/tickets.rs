//! The issued tickets, in order. They show which container holds an id when the kubelet's checkpoint cannot be read.

use model::claim::DeviceShare;
use model::id::{ContainerKey, Ticket};
use model::ticket::IssuedTicket;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Upper bound on the tickets that are kept, enough for 500 pods with 16 containers each. Beyond it, the oldest tickets
/// are forgotten. A forgotten ticket matters only if the kubelet's checkpoint is lost.
pub const MAX_ISSUED: usize = 8192;

/// The issued tickets, by name, by order and by holder.
#[derive(Clone, Debug, Default)]
pub(super) struct Tickets {
    by_ticket: BTreeMap<Ticket, IssuedTicket>,
    by_order: BTreeMap<u64, Ticket>,
    held: BTreeMap<ContainerKey, Ticket>,
}

impl Tickets {
    /// Stores a new or changed ticket.
    pub(super) fn keep(&mut self, issued: IssuedTicket) {
        if let Some(old) = self.by_ticket.get(&issued.ticket) {
            self.by_order.remove(&old.order);
        }
        if let Some(holder) = &issued.holder {
            self.held.insert(holder.clone(), issued.ticket.clone());
        }
        self.by_order.insert(issued.order, issued.ticket.clone());
        self.by_ticket.insert(issued.ticket.clone(), issued);
        while self.by_ticket.len() > MAX_ISSUED
            && let Some((_, oldest)) = self.by_order.pop_first()
        {
            self.forget(&oldest);
        }
    }

    /// The sequence number of the next ticket.
    pub(super) fn next(&self) -> u64 {
        self.by_order.last_key_value().map_or(1, |(order, _)| order.saturating_add(1))
    }

    pub(super) fn get(&self, ticket: &Ticket) -> Option<&IssuedTicket> {
        self.by_ticket.get(ticket)
    }

    /// The tickets that stand for exactly these ids, in order.
    pub(super) fn of(&self, ids: &BTreeSet<&str>) -> Vec<&IssuedTicket> {
        let same = |issued: &&IssuedTicket| issued.ids.iter().map(|id| &**id).collect::<BTreeSet<&str>>() == *ids;
        self.by_order.values().filter_map(|ticket| self.by_ticket.get(ticket)).filter(same).collect()
    }

    /// All tickets, in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &IssuedTicket> {
        self.by_order.values().filter_map(|ticket| self.by_ticket.get(ticket))
    }

    /// The ticket of a container, once the container is known to hold it.
    pub(super) fn held_by(&self, holder: &ContainerKey) -> Option<&IssuedTicket> {
        self.held.get(holder).and_then(|ticket| self.by_ticket.get(ticket))
    }

    /// Whether a container may have these ids by a ticket that it holds, or whose holder is not known.
    pub(super) fn may_be_of(&self, holder: &ContainerKey, ids: &[Arc<str>]) -> bool {
        self.iter().any(|issued| {
            issued.holder.as_ref().is_none_or(|known| known == holder) && ids.iter().all(|id| issued.ids.contains(id))
        })
    }

    /// The device shares that a container was given with its ticket, which may differ from its claim.
    pub(super) fn given_to(&self, holder: &ContainerKey) -> Option<&[DeviceShare]> {
        self.held_by(holder).and_then(|issued| issued.given.as_deref())
    }

    pub(super) fn forget(&mut self, ticket: &Ticket) {
        let Some(gone) = self.by_ticket.remove(ticket) else { return };
        self.by_order.remove(&gone.order);
        if let Some(holder) = gone.holder
            && self.held.get(&holder) == Some(ticket)
        {
            self.held.remove(&holder);
        }
    }
}
