//! Uses the kubelet's PodResources service to decide about a start when the checkpoint cannot be read. The service
//! lists the pod and container that hold each set of ids, but no tickets. The agent also knows the order in which it
//! issued the tickets for a set of ids. It decides only if exactly one assignment of tickets to containers is possible.
//!
//! PodResources does not list init containers that run to an end. An app container reuses the ids of init containers
//! that requested the same number of slots, and the kubelet called `Allocate` for each init container first. So the
//! last tickets for a set of ids belong to these init containers, in the order of the pod's spec, and then to the
//! listed container.

use super::start::{StartVerdict, WaitReason};
use super::state::NodeAllocator;
use model::checkpoint::CheckpointEntry;
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, PodRef, PodUid};
use model::observation::ContainerDevices;
use model::request::{ContainerRequest, ContainerRole};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The checkpoint and PodResources name different pods for the same ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HolderDisagreement {
    /// The pod that the checkpoint names.
    pub checkpoint: PodRef,
    /// The pod that PodResources names.
    pub listed: PodRef,
    /// The ids.
    pub ids: Vec<Arc<str>>,
}

impl NodeAllocator {
    /// Decides about a start by the current PodResources list of the agent's resource. If information is missing, the
    /// start waits; it is never refused for that.
    pub fn start_by_listing(&mut self, ids: &[Arc<str>], listed: &[ContainerDevices]) -> StartVerdict {
        let Some(rows) = self.rows_of(ids, listed) else { return StartVerdict::Wait(WaitReason::Checkpoint) };
        let mut checkpoint = rows.clone();
        checkpoint.extend(self.others(&rows, listed));
        let verdict = self.judge(ids, &checkpoint);
        if matches!(verdict, StartVerdict::Fill { .. }) {
            self.held.extend(rows.into_iter().map(|row| (row.holder.clone(), row)));
        }
        verdict
    }

    /// The ids for which PodResources contradicts the checkpoint that was read last. Finished pods do not count,
    /// because kubelets before 1.34 still list them.
    #[must_use]
    pub fn disagreements(&self, listed: &[ContainerDevices]) -> Vec<HolderDisagreement> {
        let mut found = BTreeSet::new();
        for listed in listed {
            let ids: BTreeSet<&str> = listed.ids.iter().map(|id| &**id).collect();
            let name = PodRef { namespace: listed.namespace.clone(), name: listed.pod.clone() };
            let rows = self.held.values().filter(|row| row.ids.iter().map(|id| &**id).collect::<BTreeSet<_>>() == ids);
            let holders: Vec<&GpuPod> = rows
                .filter_map(|row| self.pods.by_uid.get(&row.holder.pod))
                .filter(|gpu_pod| !gpu_pod.finished)
                .collect();
            if let Some(other) = holders.first()
                && holders.iter().all(|gpu_pod| gpu_pod.pod != name)
                && self.pods.by_uid.values().any(|gpu_pod| gpu_pod.pod == name && !gpu_pod.finished)
            {
                found.insert(HolderDisagreement {
                    checkpoint: other.pod.clone(),
                    listed: name,
                    ids: listed.ids.clone(),
                });
            }
        }
        found.into_iter().collect()
    }

    /// The rows that the checkpoint must have for these ids; `None` if they are not certain.
    fn rows_of(&self, ids: &[Arc<str>], listed: &[ContainerDevices]) -> Option<Vec<CheckpointEntry>> {
        let id_set: BTreeSet<&str> = ids.iter().map(|id| &**id).collect();
        let gpu_pod = self.only_pod_of(&id_set, listed)?;
        let of_pod = |one: &&ContainerDevices| one.namespace == gpu_pod.pod.namespace && one.pod == gpu_pod.pod.name;
        let mut own = listed
            .iter()
            .filter(of_pod)
            .filter(|one| one.ids.len() == id_set.len() && one.ids.iter().all(|id| id_set.contains(&**id)));
        let (last, None) = (own.next()?, own.next()) else { return None };
        let last = gpu_pod.requests.iter().position(|request| request.container == last.container)?;
        let issued = self.tickets.of(&id_set);
        // Whether an earlier pod, which is gone or finished, held the ticket.
        let gone = |holder: &ContainerKey| {
            holder.pod != gpu_pod.uid && self.pods.by_uid.get(&holder.pod).is_none_or(|gpu_pod| gpu_pod.finished)
        };
        let issued: Vec<_> = issued.into_iter().filter(|one| !one.holder.as_ref().is_some_and(gone)).collect();
        let key = |request: &ContainerRequest| ContainerKey {
            pod: gpu_pod.uid.clone(),
            container: request.container.clone(),
        };
        // Init containers that may have had these ids, without init containers that had other ids.
        let elsewhere = |holder: &ContainerKey| {
            self.tickets.held_by(holder).is_some_and(|known| issued.iter().all(|one| one.ticket != known.ticket))
        };
        let before = gpu_pod.requests[..last]
            .iter()
            .filter(|request| request.role == ContainerRole::Init && request.slots as usize == id_set.len());
        let mut holders: Vec<ContainerKey> = before.map(key).filter(|holder| !elsewhere(holder)).collect();
        // The last ticket belongs to the listed container. If there is only one ticket, no init container had these
        // ids.
        if issued.len() == 1 {
            holders.clear();
        }
        holders.push(key(&gpu_pod.requests[last]));
        let agrees = |(issued, holder): (&&model::ticket::IssuedTicket, &ContainerKey)| {
            issued.holder.as_ref().is_none_or(|known| known == holder)
                && self.tickets.held_by(holder).is_none_or(|known| known.ticket == issued.ticket)
        };
        // Earlier tickets belonged to pods that the kubelet dropped during admission.
        let issued = &issued[issued.len().checked_sub(holders.len())?..];
        if !issued.iter().zip(&holders).all(agrees) {
            return None;
        }
        let row = |(issued, holder): (&&model::ticket::IssuedTicket, ContainerKey)| CheckpointEntry {
            holder,
            ids: issued.ids.clone(),
            ticket: Some(issued.ticket.clone()),
            foreign: false,
            early: issued.early(),
        };
        Some(issued.iter().zip(holders).map(row).collect())
    }

    /// Rows of the other listed containers of the pod that holds `rows`, with their ids and without tickets.
    fn others(&self, rows: &[CheckpointEntry], listed: &[ContainerDevices]) -> Vec<CheckpointEntry> {
        let Some(gpu_pod) = rows.first().and_then(|row| self.pods.by_uid.get(&row.holder.pod)) else {
            return Vec::new();
        };
        let of_pod = |one: &&ContainerDevices| one.namespace == gpu_pod.pod.namespace && one.pod == gpu_pod.pod.name;
        let known = |one: &&ContainerDevices| rows.iter().any(|row| row.holder.container == one.container);
        let other = listed.iter().filter(of_pod).filter(|one| !known(one));
        let row = |one: &ContainerDevices| CheckpointEntry {
            holder: ContainerKey { pod: gpu_pod.uid.clone(), container: one.container.clone() },
            ids: one.ids.clone(),
            ticket: None,
            foreign: false,
            early: false,
        };
        other.map(row).collect()
    }

    /// The only pod that has not finished and whose containers are listed with some of these ids.
    fn only_pod_of(&self, id_set: &BTreeSet<&str>, listed: &[ContainerDevices]) -> Option<&GpuPod> {
        let mut found: BTreeSet<&PodUid> = BTreeSet::new();
        for one in listed.iter().filter(|one| one.ids.iter().any(|id| id_set.contains(&**id))) {
            let same = |gpu_pod: &&GpuPod| gpu_pod.pod.namespace == one.namespace && gpu_pod.pod.name == one.pod;
            let mut pods = self.pods.by_uid.values().filter(same).peekable();
            // The listed pod, or its successor of the same name, is not known yet.
            pods.peek()?;
            found.extend(pods.filter(|gpu_pod| !gpu_pod.finished).map(|gpu_pod| &gpu_pod.uid));
        }
        match (found.len(), found.first()) {
            (1, Some(uid)) => self.pods.by_uid.get(*uid),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
