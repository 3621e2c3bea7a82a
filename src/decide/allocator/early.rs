//! Early binding, for runtimes without CDI: the answer to `Allocate`, which names no pod, holds the devices.
//!
//! ```text
//!   Allocate ──▶ the expected container, by the checkpoint and the order of pods and containers
//!   the next Allocate, or the start ──▶ settle: the checkpoint names the container that holds the ticket
//!       its claim has the given amounts and devices              it keeps them, whichever container was expected
//!       its claim has the given amounts and other devices        two claims exchange devices, or its claim moves
//!       its claim has other amounts                              the container never starts
//! ```
//!
//! The amounts are memory and SM time. The kubelet admits one pod at a time. It calls `Allocate` for the containers of
//! the pod one after the other (init containers first), and writes its checkpoint before the next call. So at each call
//! the holders of all earlier tickets are certain, and one wrong expectation does not lead to the next.
//!
//! What must never happen here: a container starts with devices or amounts that are not its own by the checkpoint.

use super::effective_claim::EffectiveClaim;
use super::reassign::{Moved, same_shape};
use super::state::NodeAllocator;
use super::tickets;
use model::checkpoint::CheckpointEntry;
use model::claim::DeviceShare;
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, PodRef, PodUid, Ticket};
use model::request::{ContainerRequest, ContainerRole};
use model::ticket::IssuedTicket;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The container that the agent expects behind a call of `Allocate`, and the devices for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedRequest {
    /// The container.
    pub holder: ContainerKey,
    /// Namespace and name of the pod.
    pub pod: PodRef,
    /// The device shares that it gets; none if its start is to be refused.
    pub device_shares: Vec<DeviceShare>,
}

impl NodeAllocator {
    /// Sets whether the answer to `Allocate` holds the devices. If so, the kubelet is advised to take slots of the
    /// devices that the expected container claims.
    pub fn set_early_binding(&mut self, early: bool) {
        self.policy.early = early;
    }

    /// Sets whether it is known that the CDI device of a ticket reaches no container of this node. Then a container
    /// that got only a ticket does not start.
    pub fn set_tickets_lost(&mut self, lost: bool) {
        self.policy.tickets_lost = lost;
    }

    /// Containers of started pods that got only a ticket at `Allocate`, without init containers, by the kubelet's
    /// checkpoint as it was read last.
    #[must_use]
    pub fn started_by_ticket(&self) -> Vec<(ContainerKey, PodRef)> {
        let late = self.held.values().filter(|row| row.ticket.is_some() && !row.early).map(|row| &row.holder);
        let of = |holder: &ContainerKey| {
            let gpu_pod = self.pods.by_uid.get(&holder.pod).filter(|gpu_pod| !gpu_pod.finished)?;
            let stays = |request: &ContainerRequest| {
                request.container == holder.container && request.role != ContainerRole::Init
            };
            gpu_pod.requests.iter().any(stays).then(|| (holder.clone(), gpu_pod.pod.clone()))
        };
        late.filter(|holder| self.pods.started.contains(&holder.pod)).filter_map(of).collect()
    }

    /// Tickets of early binding, each with the pod that holds it, by the kubelet's checkpoint as it was read last.
    #[must_use]
    pub fn early_tickets(&self) -> Vec<(&PodUid, &Ticket)> {
        let early = self.held.values().filter(|row| row.early);
        early.filter_map(|row| Some((&row.holder.pod, row.ticket.as_ref()?))).collect()
    }

    /// Takes over the tickets that an earlier process issued.
    pub fn recall_tickets(&mut self, issued: Vec<IssuedTicket>) {
        for issued in issued {
            self.tickets.keep(issued);
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

    /// Forgets tickets that no container holds any more.
    pub fn forget_tickets(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            self.tickets.forget(ticket);
        }
    }

    /// Stores a ticket that the agent is about to issue for `ids`, with the devices that the answer holds in early
    /// binding.
    pub fn issue(&mut self, ticket: Ticket, ids: &[Arc<str>], early: Option<MatchedRequest>) -> IssuedTicket {
        let early = early.map(|matched| (matched.holder, matched.device_shares));
        let issued = tickets::new(self.tickets.next(), ticket, ids, early);
        self.tickets.keep(issued.clone());
        issued
    }

    /// Picks the container that these ids belong to. `None` while no known pod waits for as many slots.
    ///
    /// While the call `may_wait`, it is also `None` in two cases: an unknown pod holds a ticket, so it has devices that
    /// the agent expected another pod to get; or no pod that waits may start. When the call may not wait, such a pod
    /// gets an answer without devices, and its start is refused with the reason. An error at `Allocate` would fail the
    /// pod for good, and its controller would create new pods without end.
    pub fn allocate(
        &mut self,
        ids: &[Arc<str>],
        checkpoint: Option<&[CheckpointEntry]>,
        may_wait: bool,
    ) -> Option<MatchedRequest> {
        if let Some(checkpoint) = checkpoint {
            self.set_checkpoint(checkpoint);
            self.settle(checkpoint);
            if may_wait && checkpoint.iter().any(|row| self.is_of_unknown_pod(row)) {
                return None;
            }
        }
        let certain = checkpoint.is_some();
        let next = self.next_container(ids.len(), certain);
        let next_that_may_not_start = || if may_wait { None } else { self.next_of_all(ids.len(), certain) };
        let (uid, at) = next.or_else(next_that_may_not_start)?;
        let gpu_pod = self.pods.by_uid.get(&uid)?;
        let holder = ContainerKey { pod: uid.clone(), container: gpu_pod.requests.get(at)?.container.clone() };
        let pod = gpu_pod.pod.clone();
        let device_shares = match self.effective_claim(gpu_pod) {
            EffectiveClaim::Given(claim) => {
                let own = claim.get(at)?.clone();
                let moved = self.policy.follows_kubelet.then(|| self.moved_to_kubelet_choice(&own, ids)).flatten();
                moved.filter(|moved| self.would_fit(&uid, at, moved)).unwrap_or(own)
            }
            EffectiveClaim::None if self.shares(&uid) => self.share_of(gpu_pod.requests.get(at)?, ids).ok()?,
            EffectiveClaim::None | EffectiveClaim::Unreadable(_) | EffectiveClaim::BadRequest(_) => Vec::new(),
        };
        // The start of a container that would get the same GPU twice is refused.
        let device_shares = if self.repeated(&device_shares).is_some() { Vec::new() } else { device_shares };
        Some(MatchedRequest { holder, pod, device_shares })
    }

    /// Finds in the kubelet's checkpoint the containers that hold tickets of early binding, and moves claims where they
    /// got other devices.
    pub(super) fn settle(&mut self, checkpoint: &[CheckpointEntry]) {
        for row in checkpoint.iter().filter(|row| row.early) {
            let issued = row.ticket.as_ref().and_then(|ticket| self.tickets.get(ticket));
            let Some(issued) = issued.filter(|issued| issued.holder.is_none()).cloned() else { continue };
            let Some(given) = &issued.given else { continue };
            let Some(gpu_pod) = self.pods.by_uid.get(&row.holder.pod).filter(|gpu_pod| !gpu_pod.finished) else {
                continue;
            };
            let Some(at) = gpu_pod.requests.iter().position(|request| request.container == row.holder.container) else {
                continue;
            };
            let own = match self.effective_claim(gpu_pod) {
                EffectiveClaim::Given(claim) => claim.get(at).cloned(),
                EffectiveClaim::None if self.shares(&gpu_pod.uid) => {
                    self.share_of(&gpu_pod.requests[at], &row.ids).ok()
                }
                _ => None,
            };
            let Some(own) = own else { continue };
            let right = own == *given
                || match self.reassign((&row.holder.pod, at), given, issued.expected.as_ref()) {
                    Some(Moved::Exchanged) => {
                        self.due.exchanged += 1;
                        true
                    }
                    Some(Moved::Alone) => {
                        self.due.reassigned += 1;
                        true
                    }
                    None => false,
                };
            if right {
                let settled = IssuedTicket { holder: Some(row.holder.clone()), ..issued };
                self.tickets.keep(settled.clone());
                self.due.tickets.insert(settled.ticket.clone(), settled);
            }
        }
    }

    /// The container that `Allocate` is called for, by its number of slots. If the checkpoint is `certain`, a container
    /// without an entry in it holds no slots; if not, a ticket that is not in it yet counts for the container that was
    /// expected.
    pub(super) fn next_container(&self, size: usize, certain: bool) -> Option<(PodUid, usize)> {
        self.next_among(size, certain, |gpu_pod| match self.effective_claim(gpu_pod) {
            EffectiveClaim::Given(_) => true,
            EffectiveClaim::None => self.may_share(),
            EffectiveClaim::Unreadable(_) | EffectiveClaim::BadRequest(_) => false,
        })
    }

    /// Like [`Self::next_container`], but pods that may not start count too.
    fn next_of_all(&self, size: usize, certain: bool) -> Option<(PodUid, usize)> {
        self.next_among(size, certain, |_| true)
    }

    fn next_among(&self, size: usize, certain: bool, counts: impl Fn(&GpuPod) -> bool) -> Option<(PodUid, usize)> {
        let on_the_way: BTreeSet<&ContainerKey> = self
            .tickets
            .iter()
            .filter(|issued| issued.holder.is_none() && !self.in_checkpoint(&issued.ticket))
            .filter_map(|issued| issued.expected.as_ref())
            .collect();
        let next_of = |uid: &PodUid| {
            let gpu_pod = self.pods.by_uid.get(uid)?;
            let mut key = ContainerKey { pod: uid.clone(), container: "".into() };
            let mut taken = 0_usize;
            for (at, request) in gpu_pod.requests.iter().enumerate().filter(|(_, request)| request.slots > 0) {
                key.container = request.container.clone();
                if self.held.contains_key(&key) || !certain && on_the_way.contains(&key) {
                    taken += 1;
                } else {
                    return Some((at, request.slots as usize, taken));
                }
            }
            None
        };
        // First the pod that the kubelet is admitting now. A started pod is none, even if a lost checkpoint has no
        // entry for it.
        if let Some(newest) = self.tickets.newest() {
            let holder = self.held.values().find(|row| row.ticket.as_ref() == Some(&newest.ticket));
            let holder = holder.map(|row| &row.holder).or(newest.expected.as_ref().filter(|_| !certain));
            if let Some(key) = holder.filter(|key| self.waits(&key.pod))
                && let Some((at, slots, _)) = next_of(&key.pod)
                && slots == size
            {
                return Some((key.pod.clone(), at));
            }
        }
        // Else a new pod. If a ticket for a pod is not in the checkpoint, the call failed, and the kubelet has given
        // that pod up.
        let given_up: BTreeSet<&PodUid> = on_the_way.iter().map(|key| &key.pod).collect();
        let fresh = self.waiting().into_iter().filter_map(|gpu_pod| {
            let (at, slots, 0) = next_of(&gpu_pod.uid)? else { return None };
            (counts(gpu_pod) && slots == size).then_some((&gpu_pod.uid, at))
        });
        // The first of the others; pods that the kubelet gave up come last.
        fresh.min_by_key(|(uid, _)| given_up.contains(uid)).map(|(uid, at)| (uid.clone(), at))
    }

    /// Whether an unknown pod holds a ticket of early binding. The agent expected another pod to get its devices.
    fn is_of_unknown_pod(&self, row: &CheckpointEntry) -> bool {
        let issued = row.ticket.as_ref().and_then(|ticket| self.tickets.get(ticket));
        row.early
            && issued.is_some_and(|issued| issued.holder.is_none())
            && !self.pods.by_uid.contains_key(&row.holder.pod)
    }

    fn in_checkpoint(&self, ticket: &Ticket) -> bool {
        self.held.values().any(|row| row.ticket.as_ref() == Some(ticket))
    }

    /// What differs between the devices given with a ticket and those that its holder claims.
    pub(super) fn difference(&self, issued: &IssuedTicket, own: &[DeviceShare]) -> &'static str {
        match &issued.given {
            Some(given) if same_shape(given, own) => "devices",
            _ => "memory or SM time",
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod simulation;
