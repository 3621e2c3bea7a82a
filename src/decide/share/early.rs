//! Early binding, for runtimes that know no CDI: everything is given at `Allocate`, which names nobody.
//!
//! ```text
//!   Allocate ──▶ meant      the pod that kubelet must be admitting, by its books and the order of pods and containers
//!   the next Allocate, or the start ──▶ settle      kubelet's books say whose the ticket is
//!       devices and numbers are what it was promised           fine, whoever was meant
//!       the numbers are, and the devices are another's          the two claims exchange devices
//!       else                                                    it never starts
//! ```
//!
//! kubelet admits one pod at a time, asks for its containers one after the other (init containers first), and writes its
//! books before it asks for the next; so at each call everything before it is certain, and one wrong guess does not lead to
//! the next.
//!
//! What must never happen here: a container starts with devices or numbers that are not its own by the books.

use super::seat::{Moved, same_shape};
use super::state::Share;
use super::tickets;
use model::id::{PodRef, PodUid, Ticket};
use model::share::{Ask, Assignment, ContainerKey, Held, Issued, Portion, Role, Tenant};
use std::collections::BTreeSet;
use std::sync::Arc;

/// For whom an `Allocate` must be, and what it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant {
    /// Who.
    pub holder: ContainerKey,
    /// Names of the pod.
    pub pod: PodRef,
    /// What it gets.
    pub portions: Vec<Portion>,
}

impl Share {
    /// Whether devices are given at `Allocate`: then kubelet is advised to take the ids of the pod that it admits.
    pub fn bind_early(&mut self, early: bool) {
        self.early = early;
    }

    /// Whether it is known that what a ticket stands for reaches no container of this node. Then who was given one and nothing
    /// else does not start.
    pub fn tickets_are_lost(&mut self, lost: bool) {
        self.tickets_lost = lost;
    }

    /// Containers that stay, of pods that have started with a ticket and nothing else, by kubelet's books as they were last read.
    #[must_use]
    pub fn started_by_ticket(&self) -> Vec<(ContainerKey, PodRef)> {
        let late = self.held.values().filter(|row| row.ticket.is_some() && !row.early).map(|row| &row.holder);
        let of = |holder: &ContainerKey| {
            let tenant = self.tenants.get(&holder.pod).filter(|tenant| !tenant.finished)?;
            let stays = |ask: &Ask| ask.container == holder.container && ask.role != Role::Init;
            tenant.asks.iter().any(stays).then(|| (holder.clone(), tenant.pod.clone()))
        };
        late.filter(|holder| self.started.contains(&holder.pod)).filter_map(of).collect()
    }

    /// Tickets with which containers got their devices at `Allocate`, and whose they are, by kubelet's books as they were last read.
    #[must_use]
    pub fn early_tickets(&self) -> Vec<(&PodUid, &Ticket)> {
        let early = self.held.values().filter(|row| row.early);
        early.filter_map(|row| Some((&row.holder.pod, row.ticket.as_ref()?))).collect()
    }

    /// Tickets of an earlier life of the program.
    pub fn recall_tickets(&mut self, issued: Vec<Issued>) {
        for issued in issued {
            self.tickets.keep(issued);
        }
    }

    /// What is known of a ticket.
    #[must_use]
    pub fn issued(&self, ticket: &Ticket) -> Option<&Issued> {
        self.tickets.get(ticket)
    }

    /// The ticket that was given out last for exactly these ids.
    #[must_use]
    pub fn newest_ticket(&self, ids: &[Arc<str>]) -> Option<&Ticket> {
        let ids = ids.iter().map(|id| &**id).collect();
        self.tickets.of(&ids).last().map(|issued| &issued.ticket)
    }

    /// Tickets that nobody holds any more.
    pub fn forget_tickets(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            self.tickets.forget(ticket);
        }
    }

    /// Keeps a ticket that is about to be given out for `ids`, with what is given with it.
    pub fn issue(&mut self, ticket: Ticket, ids: &[Arc<str>], early: Option<Meant>) -> Issued {
        let early = early.map(|meant| (meant.holder, meant.portions));
        let issued = tickets::new(self.tickets.next(), ticket, ids, early);
        self.tickets.keep(issued.clone());
        issued
    }

    /// For whom these ids are. None while no pod is known that waits for so many, and, for as long as there is patience,
    /// while kubelet has admitted a pod that is not known yet (what it was given was meant for another) or while all that
    /// wait are not to start. Such a pod gets nothing: its start is refused with the reason, where kubelet would fail it for
    /// good and its controller make another without an end.
    pub fn allocate(&mut self, ids: &[Arc<str>], books: Option<&[Held]>, patient: bool) -> Option<Meant> {
        if let Some(books) = books {
            self.books_are(books);
            self.settle(books);
            if patient && books.iter().any(|row| self.of_a_stranger(row)) {
                return None;
            }
        }
        let certain = books.is_some();
        let next = self.next_container(ids.len(), certain);
        let hopeless = || if patient { None } else { self.next_of_all(ids.len(), certain) };
        let (uid, at) = next.or_else(hopeless)?;
        let tenant = self.tenants.get(&uid)?;
        let holder = ContainerKey { pod: uid.clone(), container: tenant.asks.get(at)?.container.clone() };
        let pod = tenant.pod.clone();
        let portions = match self.assignment(tenant) {
            Assignment::Given(claim) => {
                let own = claim.get(at)?.clone();
                let moved = self.follows_kubelet.then(|| self.where_kubelet_is(&own, ids)).flatten();
                moved.filter(|moved| self.could_sit(&uid, at, moved)).unwrap_or(own)
            }
            Assignment::None if self.shares(&uid) => self.share_of(tenant.asks.get(at)?, ids).ok()?,
            Assignment::None | Assignment::Unreadable(_) | Assignment::BadRequest(_) => Vec::new(),
        };
        // Its start is refused.
        let portions = if self.repeated(&portions).is_some() { Vec::new() } else { portions };
        Some(Meant { holder, pod, portions })
    }

    /// Looks in kubelet's books whose the tickets are that were given out early.
    pub(super) fn settle(&mut self, books: &[Held]) {
        for row in books.iter().filter(|row| row.early) {
            let issued = row.ticket.as_ref().and_then(|ticket| self.tickets.get(ticket));
            let Some(issued) = issued.filter(|issued| issued.holder.is_none()).cloned() else { continue };
            let Some(given) = &issued.given else { continue };
            let Some(tenant) = self.tenants.get(&row.holder.pod).filter(|tenant| !tenant.finished) else { continue };
            let Some(at) = tenant.asks.iter().position(|ask| ask.container == row.holder.container) else { continue };
            let own = match self.assignment(tenant) {
                Assignment::Given(claim) => claim.get(at).cloned(),
                Assignment::None if self.shares(&tenant.uid) => self.share_of(&tenant.asks[at], &row.ids).ok(),
                _ => None,
            };
            let Some(own) = own else { continue };
            let right = own == *given
                || match self.seat((&row.holder.pod, at), given, issued.meant.as_ref()) {
                    Some(Moved::Exchanged) => {
                        self.due.exchanged += 1;
                        true
                    }
                    Some(Moved::Alone) => {
                        self.due.reseated += 1;
                        true
                    }
                    None => false,
                };
            if right {
                let settled = Issued { holder: Some(row.holder.clone()), ..issued };
                self.tickets.keep(settled.clone());
                self.due.tickets.insert(settled.ticket.clone(), settled);
            }
        }
    }

    /// The container that kubelet asks for, by its number of devices. With `certain` books, what does not stand there is not
    /// held by anybody.
    pub(super) fn next_container(&self, size: usize, certain: bool) -> Option<(PodUid, usize)> {
        self.next_among(size, certain, |tenant| match self.assignment(tenant) {
            Assignment::Given(_) => true,
            Assignment::None => self.may_share(),
            Assignment::Unreadable(_) | Assignment::BadRequest(_) => false,
        })
    }

    /// The same where pods count too that are not to start.
    fn next_of_all(&self, size: usize, certain: bool) -> Option<(PodUid, usize)> {
        self.next_among(size, certain, |_| true)
    }

    fn next_among(&self, size: usize, certain: bool, counts: impl Fn(&Tenant) -> bool) -> Option<(PodUid, usize)> {
        let on_the_way: BTreeSet<&ContainerKey> = self
            .tickets
            .iter()
            .filter(|issued| issued.holder.is_none() && !self.in_books(&issued.ticket))
            .filter_map(|issued| issued.meant.as_ref())
            .collect();
        let next_of = |uid: &PodUid| {
            let tenant = self.tenants.get(uid)?;
            let mut key = ContainerKey { pod: uid.clone(), container: "".into() };
            let mut taken = 0_usize;
            for (at, ask) in tenant.asks.iter().enumerate().filter(|(_, ask)| ask.slots > 0) {
                key.container = ask.container.clone();
                if self.held.contains_key(&key) || !certain && on_the_way.contains(&key) {
                    taken += 1;
                } else {
                    return Some((at, ask.slots as usize, taken));
                }
            }
            None
        };
        // A pod that kubelet is in the middle of: not one that has started, though books that were lost do not hold it.
        if let Some(newest) = self.tickets.newest() {
            let holder = self.held.values().find(|row| row.ticket.as_ref() == Some(&newest.ticket));
            let holder = holder.map(|row| &row.holder).or(newest.meant.as_ref().filter(|_| !certain));
            if let Some(key) = holder.filter(|key| self.waits(&key.pod))
                && let Some((at, slots, _)) = next_of(&key.pod)
                && slots == size
            {
                return Some((key.pod.clone(), at));
            }
        }
        // A new one. What was on its way to a pod and is not in the books went wrong, and kubelet has given that pod up.
        let given_up: BTreeSet<&PodUid> = on_the_way.iter().map(|key| &key.pod).collect();
        let fresh = self.waiting().into_iter().filter_map(|tenant| {
            let (at, slots, 0) = next_of(&tenant.uid)? else { return None };
            (counts(tenant) && slots == size).then_some((&tenant.uid, at))
        });
        // Of those that are alike the first.
        fresh.min_by_key(|(uid, _)| given_up.contains(uid)).map(|(uid, at)| (uid.clone(), at))
    }

    /// Whether a pod that is not known holds something that was meant for another.
    fn of_a_stranger(&self, row: &Held) -> bool {
        let issued = row.ticket.as_ref().and_then(|ticket| self.tickets.get(ticket));
        row.early && issued.is_some_and(|issued| issued.holder.is_none()) && !self.tenants.contains_key(&row.holder.pod)
    }

    fn in_books(&self, ticket: &Ticket) -> bool {
        self.held.values().any(|row| row.ticket.as_ref() == Some(ticket))
    }

    /// What was given with a ticket that is not its holder's.
    pub(super) fn mistaken(&self, issued: &Issued, own: &[Portion]) -> &'static str {
        match &issued.given {
            Some(given) if same_shape(given, own) => "devices",
            _ => "memory or SM time",
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod played;
