//! Issues tickets, and answers which tickets and containers are known.

use super::state::NodeAllocator;
use model::id::{ContainerKey, PodRef, PodUid, Ticket};
use model::request::{ContainerRequest, ContainerRole};
use model::ticket::IssuedTicket;
use std::sync::Arc;

impl NodeAllocator {
    /// Sets whether it is known that the CDI device of a ticket reaches no container of this node. If so, a container
    /// that got only a ticket does not start.
    pub fn set_tickets_lost(&mut self, lost: bool) {
        self.policy.tickets_lost = lost;
    }

    /// Sets why the runtime would refuse the CDI specs of tickets; `None` if it reads them. While there is a reason, a
    /// container that got only a ticket does not start.
    pub fn set_unreadable_specs(&mut self, why: Option<Arc<str>>) {
        self.policy.unreadable_specs = why;
    }

    /// Why the runtime would refuse the CDI specs of tickets.
    #[must_use]
    pub fn unreadable_specs(&self) -> Option<&str> {
        self.policy.unreadable_specs.as_deref()
    }

    /// Stores a ticket that the kubelet gets for `ids`.
    pub fn issue(&mut self, ticket: Ticket, ids: &[Arc<str>]) -> IssuedTicket {
        let order = self.tickets.next();
        let issued = IssuedTicket { ticket, order, ids: ids.to_vec(), expected: None, holder: None, given: None };
        self.tickets.keep(issued.clone());
        issued
    }

    /// Restores the tickets that an earlier process issued.
    pub fn recall_tickets(&mut self, issued: Vec<IssuedTicket>) {
        for issued in issued {
            self.tickets.keep(issued);
        }
    }

    /// Forgets tickets that no container holds any longer.
    pub fn forget_tickets(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            self.tickets.forget(ticket);
        }
    }

    /// An issued ticket by its name.
    #[must_use]
    pub fn issued(&self, ticket: &Ticket) -> Option<&IssuedTicket> {
        self.tickets.get(ticket)
    }

    /// The ticket that was issued last for exactly these ids.
    #[must_use]
    pub fn newest_ticket(&self, ids: &[Arc<str>]) -> Option<&Ticket> {
        let ids = ids.iter().map(|id| &**id).collect();
        self.tickets.of(&ids).last().map(|issued| &issued.ticket)
    }

    /// Containers of started pods that got only a ticket at `Allocate`, by the kubelet's checkpoint as last read. Init
    /// containers are left out.
    #[must_use]
    pub fn started_by_ticket(&self) -> Vec<(ContainerKey, PodRef)> {
        let by_ticket = self.held.values().filter(|row| row.ticket.is_some() && !row.early).map(|row| &row.holder);
        let of = |holder: &ContainerKey| {
            let gpu_pod = self.pods.by_uid.get(&holder.pod).filter(|gpu_pod| !gpu_pod.finished)?;
            let stays = |request: &ContainerRequest| {
                request.container == holder.container && request.role != ContainerRole::Init
            };
            gpu_pod.requests.iter().any(stays).then(|| (holder.clone(), gpu_pod.pod.clone()))
        };
        by_ticket.filter(|holder| self.pods.started.contains(&holder.pod)).filter_map(of).collect()
    }

    /// The tickets of containers to which an earlier release gave their devices at `Allocate`, each with its pod, by
    /// the kubelet's checkpoint as last read. Pods that have finished are left out.
    #[must_use]
    pub fn early_tickets(&self) -> Vec<(&PodUid, &Ticket)> {
        let here = |uid: &PodUid| self.pods.by_uid.get(uid).is_some_and(|gpu_pod| !gpu_pod.finished);
        let early = self.held.values().filter(|row| row.early && here(&row.holder.pod));
        early.filter_map(|row| Some((&row.holder.pod, row.ticket.as_ref()?))).collect()
    }
}
