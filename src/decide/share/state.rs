//! What is known: devices, pods, kubelet's books, and what was given.

use super::card::Card;
use model::id::{GpuUuid, PodUid};
use model::share::{Assignment, ContainerKey, Held, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// Tenants that are kept. kubelet's own bound is 110 pods a node by default and 500 in the largest setups; beyond this the
/// pods with the highest UIDs would be left out, and a start of theirs waits and is then refused with a sentence.
pub const MAX_TENANTS: usize = 4096;

/// What happens to a pod that asks for GPUs and was placed by nobody who knows of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutClaim {
    /// Share where no scheduler of ours or HAMi's has ever placed a pod on this node, else refuse.
    Auto,
    /// It gets the GPUs of its slots, as time-slicing gives them.
    Share,
    /// Its containers do not start.
    Refuse,
}

/// The state: one owner, no clock of its own.
#[derive(Debug)]
pub struct Share {
    pub(super) without_claim: WithoutClaim,
    pub(super) cards: BTreeMap<GpuUuid, Card>,
    pub(super) tenants: BTreeMap<PodUid, Tenant>,
    /// Whether the list of pods has been seen once: before that, an unknown pod is no stranger.
    pub(super) synced: bool,
    /// Whether a scheduler that knows GPUs has placed a pod here, ever.
    pub(super) served_by_scheduler: bool,
    /// Pods whose start was answered with a grant, in this life of the program or an earlier one.
    pub(super) started: BTreeSet<PodUid>,
    /// kubelet's books as they were last read: by container, the ids it holds.
    pub(super) held: BTreeMap<ContainerKey, Held>,
    /// What was given to pods without a claim; for the others the assignment says it.
    pub(super) shared: BTreeMap<PodUid, Assignment>,
}

impl Share {
    /// The state of a program that has just begun. `served_by_scheduler` is what an earlier life had seen.
    #[must_use]
    pub fn new(without_claim: WithoutClaim, served_by_scheduler: bool) -> Self {
        Share {
            without_claim,
            cards: BTreeMap::new(),
            tenants: BTreeMap::new(),
            synced: false,
            served_by_scheduler,
            started: BTreeSet::new(),
            held: BTreeMap::new(),
            shared: BTreeMap::new(),
        }
    }

    /// Pods whose start an earlier life of the program has answered: what they were promised, they hold.
    pub fn recall(&mut self, started: BTreeSet<PodUid>) {
        self.started.extend(started);
    }

    /// Takes over the devices of this node as they are now. Says whether kubelet's list changes by it.
    pub fn cards_are(&mut self, cards: Vec<Card>) -> bool {
        let before = self.list();
        self.cards = cards.into_iter().map(|card| (card.device.clone(), card)).collect();
        self.list() != before
    }

    /// Takes over the whole list of pods.
    pub fn tenants_are(&mut self, tenants: Vec<Tenant>) {
        let now: BTreeMap<PodUid, Tenant> =
            tenants.into_iter().take(MAX_TENANTS).map(|tenant| (tenant.uid.clone(), tenant)).collect();
        let gone: Vec<PodUid> = self.tenants.keys().filter(|uid| !now.contains_key(uid)).cloned().collect();
        for uid in gone {
            self.tenant_gone(&uid);
        }
        self.started.retain(|uid| now.contains_key(uid));
        for tenant in now.into_values() {
            self.tenant_is(tenant);
        }
        self.synced = true;
    }

    /// Takes over one pod.
    pub fn tenant_is(&mut self, tenant: Tenant) {
        if !matches!(tenant.assignment, Assignment::None) && !tenant.placed_here {
            self.served_by_scheduler = true;
        }
        if tenant.started && !tenant.finished {
            self.started.insert(tenant.uid.clone());
        }
        if self.tenants.len() < MAX_TENANTS || self.tenants.contains_key(&tenant.uid) {
            self.tenants.insert(tenant.uid.clone(), tenant);
        }
    }

    /// A pod is not there any more.
    pub fn tenant_gone(&mut self, uid: &PodUid) {
        self.tenants.remove(uid);
        self.started.remove(uid);
        self.shared.remove(uid);
        self.held.retain(|key, _| &key.pod != uid);
    }

    /// Takes over kubelet's books. Says whether kubelet's list changes by it.
    pub fn books_are(&mut self, rows: &[Held]) -> bool {
        let before = self.list();
        self.held = rows.iter().map(|row| (row.holder.clone(), row.clone())).collect();
        self.list() != before
    }

    /// Whether a scheduler that knows GPUs has ever placed a pod here; kept for the next life of the program.
    #[must_use]
    pub fn served_by_scheduler(&self) -> bool {
        self.served_by_scheduler
    }

    /// A device by its identity.
    #[must_use]
    pub fn card(&self, device: &GpuUuid) -> Option<&Card> {
        self.cards.get(device)
    }

    /// A pod by its identity.
    #[must_use]
    pub fn tenant(&self, uid: &PodUid) -> Option<&Tenant> {
        self.tenants.get(uid)
    }

    /// What holds of a pod: what a scheduler wrote, or what it was given without one.
    pub(super) fn assignment(&self, tenant: &Tenant) -> Assignment {
        match &tenant.assignment {
            Assignment::None => self.shared.get(&tenant.uid).cloned().unwrap_or(Assignment::None),
            written => written.clone(),
        }
    }
}
