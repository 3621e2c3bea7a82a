//! When kubelet's checkpoint cannot be read: its PodResources service names the containers that hold ids, by pod name and
//! without tickets. With the tickets that were given out, in order, that is enough where it leaves no choice.
//!
//! kubelet lists no init containers that have ended or will end. An app container takes over the ids of init containers
//! that asked for as many, and each of them had its own `Allocate` before; so the last tickets of a set of ids are those of
//! these init containers, in the order of the spec, and then that of the listed container.

use super::start::{Verdict, Waiting};
use super::state::Share;
use model::id::{PodRef, PodUid};
use model::observation::ContainerDevices;
use model::share::{Ask, ContainerKey, Held, Role, Tenant};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Checkpoint and PodResources name different pods for the same ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disagreement {
    /// By the checkpoint.
    pub books: PodRef,
    /// By PodResources.
    pub listed: PodRef,
    /// The ids.
    pub ids: Vec<Arc<str>>,
}

impl Share {
    /// Judges a start by what PodResources lists of our resource now. Never refuses for want of knowledge.
    pub fn start_by_listing(&mut self, ids: &[Arc<str>], listed: &[ContainerDevices]) -> Verdict {
        let Some(rows) = self.rows_of(ids, listed) else { return Verdict::Wait(Waiting::Books) };
        let mut books = rows.clone();
        books.extend(self.others(&rows, listed));
        let verdict = self.judge(ids, &books);
        if matches!(verdict, Verdict::Fill { .. }) {
            self.held.extend(rows.into_iter().map(|row| (row.holder.clone(), row)));
        }
        verdict
    }

    /// Where the books that were last read and PodResources contradict each other. Pods that have ended do not count:
    /// kubelets before 1.34 list them on.
    #[must_use]
    pub fn disagreements(&self, listed: &[ContainerDevices]) -> Vec<Disagreement> {
        let mut found = BTreeSet::new();
        for listed in listed {
            let ids: BTreeSet<&str> = listed.ids.iter().map(|id| &**id).collect();
            let name = PodRef { namespace: listed.namespace.clone(), name: listed.pod.clone() };
            let rows = self.held.values().filter(|row| row.ids.iter().map(|id| &**id).collect::<BTreeSet<_>>() == ids);
            let holders: Vec<&Tenant> =
                rows.filter_map(|row| self.tenants.get(&row.holder.pod)).filter(|tenant| !tenant.finished).collect();
            if let Some(other) = holders.first()
                && holders.iter().all(|tenant| tenant.pod != name)
                && self.tenants.values().any(|tenant| tenant.pod == name && !tenant.finished)
            {
                found.insert(Disagreement { books: other.pod.clone(), listed: name, ids: listed.ids.clone() });
            }
        }
        found.into_iter().collect()
    }

    /// The rows that the checkpoint must have for these ids; none where that is not certain.
    fn rows_of(&self, ids: &[Arc<str>], listed: &[ContainerDevices]) -> Option<Vec<Held>> {
        let asked: BTreeSet<&str> = ids.iter().map(|id| &**id).collect();
        let tenant = self.named(&asked, listed)?;
        let of_pod = |one: &&ContainerDevices| one.namespace == tenant.pod.namespace && one.pod == tenant.pod.name;
        let mut own = listed
            .iter()
            .filter(of_pod)
            .filter(|one| one.ids.len() == asked.len() && one.ids.iter().all(|id| asked.contains(&**id)));
        let (last, None) = (own.next()?, own.next()) else { return None };
        let last = tenant.asks.iter().position(|ask| ask.container == last.container)?;
        let issued = self.tickets.of(&asked);
        // Tickets of these ids that a pod before this one held.
        let gone = |holder: &ContainerKey| {
            holder.pod != tenant.uid && self.tenants.get(&holder.pod).is_none_or(|tenant| tenant.finished)
        };
        let issued: Vec<_> = issued.into_iter().filter(|one| !one.holder.as_ref().is_some_and(gone)).collect();
        let key = |ask: &Ask| ContainerKey { pod: tenant.uid.clone(), container: ask.container.clone() };
        // Init containers that may have had these ids: not those that are known to have had others.
        let elsewhere = |holder: &ContainerKey| {
            self.tickets.held_by(holder).is_some_and(|known| issued.iter().all(|one| one.ticket != known.ticket))
        };
        let before =
            tenant.asks[..last].iter().filter(|ask| ask.role == Role::Init && ask.slots as usize == asked.len());
        let mut holders: Vec<ContainerKey> = before.map(key).filter(|holder| !elsewhere(holder)).collect();
        // The last ticket is that of the container that is listed; if it is the only one, no other container had these ids.
        if issued.len() == 1 {
            holders.clear();
        }
        holders.push(key(&tenant.asks[last]));
        let agrees = |(issued, holder): (&&model::share::Issued, &ContainerKey)| {
            issued.holder.as_ref().is_none_or(|known| known == holder)
                && self.tickets.held_by(holder).is_none_or(|known| known.ticket == issued.ticket)
        };
        // Tickets before these were for pods that kubelet gave up in the middle.
        let issued = &issued[issued.len().checked_sub(holders.len())?..];
        if !issued.iter().zip(&holders).all(agrees) {
            return None;
        }
        let row = |(issued, holder): (&&model::share::Issued, ContainerKey)| Held {
            holder,
            ids: issued.ids.clone(),
            ticket: Some(issued.ticket.clone()),
            foreign: false,
            early: issued.early(),
        };
        Some(issued.iter().zip(holders).map(row).collect())
    }

    /// The other containers of the pod that holds `rows`, as far as they are listed: not whose tickets those are, but which
    /// ids they hold.
    fn others(&self, rows: &[Held], listed: &[ContainerDevices]) -> Vec<Held> {
        let Some(tenant) = rows.first().and_then(|row| self.tenants.get(&row.holder.pod)) else { return Vec::new() };
        let of_pod = |one: &&ContainerDevices| one.namespace == tenant.pod.namespace && one.pod == tenant.pod.name;
        let known = |one: &&ContainerDevices| rows.iter().any(|row| row.holder.container == one.container);
        let other = listed.iter().filter(of_pod).filter(|one| !known(one));
        let row = |one: &ContainerDevices| Held {
            holder: ContainerKey { pod: tenant.uid.clone(), container: one.container.clone() },
            ids: one.ids.clone(),
            ticket: None,
            foreign: false,
            early: false,
        };
        other.map(row).collect()
    }

    /// The one live pod whose containers are listed with these ids.
    fn named(&self, asked: &BTreeSet<&str>, listed: &[ContainerDevices]) -> Option<&Tenant> {
        let mut found: BTreeSet<&PodUid> = BTreeSet::new();
        for one in listed.iter().filter(|one| one.ids.iter().any(|id| asked.contains(&**id))) {
            let same = |tenant: &&Tenant| tenant.pod.namespace == one.namespace && tenant.pod.name == one.pod;
            let mut pods = self.tenants.values().filter(same).peekable();
            // A pod of that name that we have not seen, or its successor.
            pods.peek()?;
            found.extend(pods.filter(|tenant| !tenant.finished).map(|tenant| &tenant.uid));
        }
        match (found.len(), found.first()) {
            (1, Some(uid)) => self.tenants.get(*uid),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
