//! What is known: devices, pods, kubelet's books, and what was given.

use super::card::Card;
use super::tickets::Tickets;
use model::id::{GpuUuid, PodUid, Ticket};
use model::share::{Assignment, ContainerKey, Held, Issued, Portion, Tenant};
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

/// The state: one owner, no clock of its own. A copy is for trying out what would be decided.
#[derive(Clone, Debug)]
pub struct Share {
    pub(super) without_claim: WithoutClaim,
    pub(super) cards: BTreeMap<GpuUuid, Card>,
    /// Devices that get no new containers because an operator says so; ids that are no device's do no harm.
    pub(super) cordoned: BTreeSet<GpuUuid>,
    /// No device gets new containers.
    pub(super) closed: bool,
    pub(super) tenants: BTreeMap<PodUid, Tenant>,
    /// Whether a scheduler that knows GPUs has placed a pod here, ever.
    pub(super) served_by_scheduler: bool,
    /// Pods whose start was answered with a grant, in this life of the program or an earlier one.
    pub(super) started: BTreeSet<PodUid>,
    /// kubelet's books as they were last read: by container, the ids it holds.
    pub(super) held: BTreeMap<ContainerKey, Held>,
    /// What pods that have started hold: for each container what it was given last, or will be when it starts. It stays when
    /// the claim on the pod changes or cannot be read any more. A container of a pod without a claim of which it is not known
    /// what kubelet gave it has nothing in it yet.
    pub(super) kept: BTreeMap<PodUid, Vec<Vec<Portion>>>,
    /// Pods without a claim that have been given all they ask for, which is not written on them yet.
    pub(super) unwritten: BTreeSet<PodUid>,
    /// What containers were told by an earlier life of the program.
    pub(super) told: BTreeMap<ContainerKey, Vec<Portion>>,
    /// Whether devices are given at `Allocate`.
    pub(super) early: bool,
    /// Whether it is known that what a ticket stands for reaches no container here.
    pub(super) tickets_lost: bool,
    /// Whether a claim moves to the devices that kubelet chose.
    pub(super) follows_kubelet: bool,
    /// Whether a container may get the same GPU twice.
    pub(super) same_gpu_twice: bool,
    /// Tickets that were given out.
    pub(super) tickets: Tickets,
    /// Claims that are not as they stand on the pod: the devices that its containers really have.
    pub(super) seated: BTreeMap<PodUid, Vec<Vec<Portion>>>,
    /// What others must be told.
    pub(super) due: Due,
}

/// What has changed and must be kept or told.
#[derive(Clone, Debug, Default)]
pub(super) struct Due {
    pub(super) tickets: BTreeMap<Ticket, Issued>,
    pub(super) rewritten: BTreeSet<PodUid>,
    pub(super) shared: BTreeSet<PodUid>,
    pub(super) exchanged: u64,
    pub(super) reseated: u64,
}

/// The same, for whoever keeps and tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Tickets of which more is known.
    pub tickets: Vec<Issued>,
    /// Claims that are to be written on their pods.
    pub claims: Vec<(Tenant, Vec<Vec<Portion>>)>,
    /// The same of pods that nobody placed, with a mark that it was us: an earlier life of the program may have ended before.
    pub shares: Vec<(Tenant, Vec<Vec<Portion>>)>,
    /// Containers that exchanged devices.
    pub exchanged: u64,
    /// Containers that moved to other devices.
    pub reseated: u64,
}

impl Share {
    /// The state of a program that has just begun. `served_by_scheduler` is what an earlier life had seen.
    #[must_use]
    pub fn new(without_claim: WithoutClaim, served_by_scheduler: bool) -> Self {
        Share {
            without_claim,
            cards: BTreeMap::new(),
            cordoned: BTreeSet::new(),
            closed: false,
            tenants: BTreeMap::new(),
            served_by_scheduler,
            started: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            held: BTreeMap::new(),
            kept: BTreeMap::new(),
            told: BTreeMap::new(),
            early: false,
            tickets_lost: false,
            follows_kubelet: false,
            same_gpu_twice: false,
            tickets: Tickets::default(),
            seated: BTreeMap::new(),
            due: Due::default(),
        }
    }

    /// Whether a claim moves to the devices that kubelet chose, where they can keep it.
    pub fn follow_topology(&mut self, follow: bool) {
        self.follows_kubelet = follow;
    }

    /// What has changed since this was last asked.
    pub fn take_changes(&mut self) -> Changes {
        let due = std::mem::take(&mut self.due);
        let claim = |uid: &PodUid| Some((self.tenants.get(uid)?.clone(), self.seated.get(uid)?.clone()));
        let kept = |uid: &PodUid| Some((self.tenants.get(uid)?.clone(), self.kept.get(uid)?.clone()));
        Changes {
            claims: due.rewritten.iter().filter_map(claim).collect(),
            shares: due.shared.iter().filter_map(kept).collect(),
            tickets: due.tickets.into_values().collect(),
            exchanged: due.exchanged,
            reseated: due.reseated,
        }
    }

    /// Takes over the devices of this node as they are now. Says whether kubelet's list changes by it.
    pub fn cards_are(&mut self, cards: Vec<Card>) -> bool {
        let cards = cards.into_iter().map(|card| (card.device.clone(), card)).collect();
        // Asked each second: a list of all slots would be made twice to find that nothing has changed.
        if cards == self.cards {
            return false;
        }
        let before = self.list();
        self.cards = cards;
        let changes = self.list() != before;
        if changes {
            self.keep_shares_that_were_given();
        }
        changes
    }

    /// Takes over which devices an operator keeps from new containers. Says whether kubelet's list changes by it.
    pub fn cordoned_are(&mut self, cordoned: BTreeSet<GpuUuid>) -> bool {
        if cordoned == self.cordoned {
            return false;
        }
        let before = self.list();
        self.cordoned = cordoned;
        self.list() != before
    }

    /// Keeps all devices from new containers, or does so no more. Says whether kubelet's list changes by it.
    pub fn close(&mut self, closed: bool) -> bool {
        if self.closed == closed {
            return false;
        }
        let before = self.list();
        self.closed = closed;
        self.list() != before
    }

    /// Whether all devices are kept from new containers.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes over the whole list of pods. Says whether one has gone.
    pub fn tenants_are(&mut self, tenants: Vec<Tenant>) -> bool {
        let now: BTreeMap<PodUid, Tenant> =
            tenants.into_iter().take(MAX_TENANTS).map(|tenant| (tenant.uid.clone(), tenant)).collect();
        let gone: Vec<PodUid> = self.tenants.keys().filter(|uid| !now.contains_key(uid)).cloned().collect();
        for uid in &gone {
            self.tenant_gone(uid);
        }
        self.started.retain(|uid| now.contains_key(uid));
        self.told.retain(|key, _| now.contains_key(&key.pod));
        for tenant in now.into_values() {
            self.tenant_is(tenant);
        }
        !gone.is_empty()
    }

    /// Takes over one pod.
    pub fn tenant_is(&mut self, tenant: Tenant) {
        // What cannot be read says nothing of who wrote it.
        if matches!(tenant.assignment, Assignment::Given(_)) && !tenant.placed_here {
            self.served_by_scheduler = true;
        }
        if tenant.started && !tenant.finished {
            self.started.insert(tenant.uid.clone());
        }
        if matches!(tenant.assignment, Assignment::Given(_)) {
            self.unwritten.remove(&tenant.uid);
        }
        self.overlay(&tenant);
        if self.started.contains(&tenant.uid) {
            self.keep_what_started(&tenant);
        }
        if self.tenants.len() < MAX_TENANTS || self.tenants.contains_key(&tenant.uid) {
            self.tenants.insert(tenant.uid.clone(), tenant);
        }
    }

    /// What a container really has stands against what is written on its pod, until that says the same.
    fn overlay(&mut self, tenant: &Tenant) {
        let Assignment::Given(written) = &tenant.assignment else { return };
        match self.seated.get(&tenant.uid) {
            Some(seated) if seated == written => {
                self.seated.remove(&tenant.uid);
            }
            Some(_) => {}
            None => {
                let mut real = written.clone();
                for (ask, portions) in tenant.asks.iter().zip(&mut real) {
                    let key = ContainerKey { pod: tenant.uid.clone(), container: ask.container.clone() };
                    if let Some(given) = self.tickets.given_to(&key) {
                        *portions = given.to_vec();
                    }
                }
                if real != *written {
                    // An earlier life of the program may have ended before it could write this.
                    self.due.rewritten.insert(tenant.uid.clone());
                    self.seated.insert(tenant.uid.clone(), real);
                }
            }
        }
    }

    /// A pod that has started holds `claim`: what was `given` now, and what was not known before.
    pub(super) fn keep(&mut self, tenant: &Tenant, claim: &[Vec<Portion>], given: &dyn Fn(&str) -> bool) {
        let kept = self.kept.entry(tenant.uid.clone()).or_insert_with(|| claim.to_vec());
        for ((ask, kept), now) in tenant.asks.iter().zip(kept).zip(claim) {
            if kept.is_empty() || given(&ask.container) {
                kept.clone_from(now);
            }
        }
    }

    /// A pod is not there any more.
    pub fn tenant_gone(&mut self, uid: &PodUid) {
        self.tenants.remove(uid);
        self.started.remove(uid);
        self.unwritten.remove(uid);
        self.kept.remove(uid);
        self.told.retain(|key, _| key.pod != *uid);
        self.seated.remove(uid);
        let of_it = |row: &&Held| &row.holder.pod == uid;
        let tickets: Vec<Ticket> = self.held.values().filter(of_it).filter_map(|row| row.ticket.clone()).collect();
        for ticket in tickets {
            self.tickets.forget(&ticket);
        }
        self.held.retain(|key, _| &key.pod != uid);
    }

    /// Takes over kubelet's books. Says whether kubelet's list changes by it.
    pub fn books_are(&mut self, rows: &[Held]) -> bool {
        // Every start is judged by books that mostly say what they said before.
        if self.held.len() == rows.len() && rows.iter().all(|row| self.held.get(&row.holder) == Some(row)) {
            return false;
        }
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

    /// Whether nothing of a pod has started yet.
    pub(super) fn waits(&self, uid: &PodUid) -> bool {
        self.tenants.get(uid).is_some_and(|tenant| !tenant.finished) && !self.started.contains(uid)
    }

    /// Pods of which nothing has started yet, in the order in which they came to this node: that of kubelet.
    pub(super) fn waiting(&self) -> Vec<&Tenant> {
        let mut waiting: Vec<&Tenant> = self.tenants.values().filter(|tenant| self.waits(&tenant.uid)).collect();
        waiting.sort_by_key(|tenant| tenant.arrival.map_or(u64::MAX, |arrival| arrival.0));
        waiting
    }

    /// What holds of a pod: what a scheduler wrote, or, without it, what it was given.
    pub(super) fn assignment(&self, tenant: &Tenant) -> Assignment {
        if let Some(seated) = self.seated.get(&tenant.uid) {
            return Assignment::Given(seated.clone());
        }
        match &tenant.assignment {
            Assignment::Given(_) => tenant.assignment.clone(),
            lost => match self.kept.get(&tenant.uid).filter(|claim| tenant.is_whole(claim)) {
                Some(kept) => Assignment::Given(kept.clone()),
                None => lost.clone(),
            },
        }
    }
}
