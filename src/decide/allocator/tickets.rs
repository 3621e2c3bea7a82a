//! Tickets that were given out, in order: what stands behind an id when the kubelet's checkpoint cannot say it.

use model::claim::DeviceShare;
use model::id::{ContainerKey, Ticket};
use model::ticket::IssuedTicket;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tickets that are kept: 500 pods of a node with 16 containers each. Beyond this the oldest go, and with them only what
/// helps where kubelet's checkpoint is lost; devices given early are then refused at the start, not guessed.
pub const MAX_ISSUED: usize = 8192;

/// The tickets.
#[derive(Clone, Debug, Default)]
pub(super) struct Tickets {
    by_ticket: BTreeMap<Ticket, IssuedTicket>,
    by_order: BTreeMap<u64, Ticket>,
    held: BTreeMap<ContainerKey, Ticket>,
}

impl Tickets {
    /// Takes one over, new or changed.
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

    /// The number of the next one.
    pub(super) fn next(&self) -> u64 {
        self.by_order.last_key_value().map_or(1, |(order, _)| order.saturating_add(1))
    }

    pub(super) fn get(&self, ticket: &Ticket) -> Option<&IssuedTicket> {
        self.by_ticket.get(ticket)
    }

    /// The one that was given out last.
    pub(super) fn newest(&self) -> Option<&IssuedTicket> {
        self.by_order.last_key_value().and_then(|(_, ticket)| self.by_ticket.get(ticket))
    }

    /// Those that stand for exactly these ids, in order.
    pub(super) fn of(&self, ids: &BTreeSet<&str>) -> Vec<&IssuedTicket> {
        let same = |issued: &&IssuedTicket| issued.ids.iter().map(|id| &**id).collect::<BTreeSet<&str>>() == *ids;
        self.by_order.values().filter_map(|ticket| self.by_ticket.get(ticket)).filter(same).collect()
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &IssuedTicket> {
        self.by_order.values().filter_map(|ticket| self.by_ticket.get(ticket))
    }

    /// The ticket of a container, once kubelet has said so.
    pub(super) fn held_by(&self, holder: &ContainerKey) -> Option<&IssuedTicket> {
        self.held.get(holder).and_then(|ticket| self.by_ticket.get(ticket))
    }

    /// What a container was given and its claim need not say.
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

/// A ticket that is about to be given out.
pub(super) fn new(
    order: u64,
    ticket: Ticket,
    ids: &[Arc<str>],
    early: Option<(ContainerKey, Vec<DeviceShare>)>,
) -> IssuedTicket {
    let (meant, given) = early.unzip();
    IssuedTicket { ticket, order, ids: ids.to_vec(), meant, holder: None, given }
}
