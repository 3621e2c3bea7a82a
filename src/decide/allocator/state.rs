//! What is known: devices, pods, the kubelet's checkpoint, and what was given.

use super::device::SharedDevice;
use super::tickets::Tickets;
use crate::ledger::Ledger;
use model::checkpoint::CheckpointEntry;
use model::claim::{Claim, DeviceShare, PodClaim};
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodUid, Ticket};
use model::ticket::IssuedTicket;
use std::collections::{BTreeMap, BTreeSet};

/// GPU pods that are kept. kubelet's own bound is 110 pods a node by default and 500 in the largest setups; beyond this the
/// pods with the highest UIDs would be left out, and a start of theirs waits and is then refused with a sentence.
pub const MAX_GPU_PODS: usize = 4096;

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

/// How the allocator decides; it changes only when the settings or the runtime of the node do.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// What becomes of pods that no scheduler placed.
    pub without_claim: WithoutClaim,
    /// Whether devices are given at `Allocate`.
    pub early: bool,
    /// Whether it is known that a CDI device that stands for a ticket reaches no container of this node.
    pub tickets_lost: bool,
    /// Whether a claim moves to the devices that the kubelet chose.
    pub follows_kubelet: bool,
    /// Whether a container may get the same GPU twice.
    pub same_gpu_twice: bool,
}

/// The devices that get no new containers.
#[derive(Clone, Debug, Default)]
pub(super) struct Cordon {
    /// Those that an operator names; UUIDs that no device of this node has do no harm.
    pub devices: BTreeSet<GpuUuid>,
    /// Whether no device gets any.
    pub all: bool,
}

/// The GPU pods of this node.
#[derive(Clone, Debug, Default)]
pub(super) struct PodTable {
    /// At most [`MAX_GPU_PODS`].
    pub by_uid: BTreeMap<PodUid, GpuPod>,
    /// Pods whose start was answered with devices, by this process or by an earlier one.
    pub started: BTreeSet<PodUid>,
    /// Whether a scheduler that knows GPUs has ever placed a pod here.
    pub served_by_scheduler: bool,
}

/// What containers have, where it is not what the annotations of their pods say.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldClaims {
    /// What pods that have started hold: for each container what it was given last, or will be given when it starts. It stays
    /// when the claim on the pod changes or becomes unreadable. A container of a pod without a claim has no device share here
    /// until it is known what the kubelet gave it.
    pub given: BTreeMap<PodUid, Claim>,
    /// Claims that differ from those on their pods: the devices that the containers really have.
    pub moved: BTreeMap<PodUid, Claim>,
    /// Pods without a claim that were given all that they request, which is not written on them yet.
    pub unwritten: BTreeSet<PodUid>,
    /// The limits that an earlier process wrote for containers.
    pub told: BTreeMap<ContainerKey, Vec<DeviceShare>>,
}

/// The state that decides on one node. It has one owner and no clock of its own. A copy is for trying out what would be decided.
#[derive(Clone, Debug)]
pub struct NodeAllocator {
    pub(super) policy: Policy,
    pub(super) devices: BTreeMap<GpuUuid, SharedDevice>,
    pub(super) cordon: Cordon,
    pub(super) pods: PodTable,
    /// The kubelet's checkpoint as it was read last: the entry of each container.
    pub(super) held: BTreeMap<ContainerKey, CheckpointEntry>,
    pub(super) claims: HeldClaims,
    /// How much the claims take of each device.
    pub(super) ledger: Ledger,
    pub(super) tickets: Tickets,
    /// What the owner has to keep or to write.
    pub(super) due: Due,
}

/// What has changed and must be kept or told.
#[derive(Clone, Debug, Default)]
pub(super) struct Due {
    pub(super) tickets: BTreeMap<Ticket, IssuedTicket>,
    pub(super) rewritten: BTreeSet<PodUid>,
    pub(super) shared: BTreeSet<PodUid>,
    pub(super) exchanged: u64,
    pub(super) reseated: u64,
}

/// The same, for whoever keeps and tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorChanges {
    /// Tickets of which more is known.
    pub tickets: Vec<IssuedTicket>,
    /// Claims that are to be written on their pods.
    pub claims: Vec<(GpuPod, Claim)>,
    /// The same of pods that nobody placed, with a mark that it was us: an earlier life of the program may have ended before.
    pub shares: Vec<(GpuPod, Claim)>,
    /// Containers that exchanged devices.
    pub exchanged: u64,
    /// Containers that moved to other devices.
    pub reseated: u64,
}

impl NodeAllocator {
    /// The state of a program that has just begun. `served_by_scheduler` is what an earlier life had seen.
    #[must_use]
    pub fn new(without_claim: WithoutClaim, served_by_scheduler: bool) -> Self {
        NodeAllocator {
            policy: Policy {
                without_claim,
                early: false,
                tickets_lost: false,
                follows_kubelet: false,
                same_gpu_twice: false,
            },
            devices: BTreeMap::new(),
            cordon: Cordon::default(),
            pods: PodTable { served_by_scheduler, ..PodTable::default() },
            held: BTreeMap::new(),
            claims: HeldClaims::default(),
            ledger: Ledger::default(),
            tickets: Tickets::default(),
            due: Due::default(),
        }
    }

    /// Whether a claim moves to the devices that kubelet chose, where they can keep it.
    pub fn follow_topology(&mut self, follow: bool) {
        self.policy.follows_kubelet = follow;
    }

    /// What has changed since this was last asked.
    pub fn take_changes(&mut self) -> AllocatorChanges {
        let due = std::mem::take(&mut self.due);
        let claim = |uid: &PodUid| Some((self.pods.by_uid.get(uid)?.clone(), self.claims.moved.get(uid)?.clone()));
        let kept = |uid: &PodUid| Some((self.pods.by_uid.get(uid)?.clone(), self.claims.given.get(uid)?.clone()));
        AllocatorChanges {
            claims: due.rewritten.iter().filter_map(claim).collect(),
            shares: due.shared.iter().filter_map(kept).collect(),
            tickets: due.tickets.into_values().collect(),
            exchanged: due.exchanged,
            reseated: due.reseated,
        }
    }

    /// Takes over the devices of this node as they are now. Says whether kubelet's list changes by it.
    pub fn devices_are(&mut self, devices: Vec<SharedDevice>) -> bool {
        let devices = devices.into_iter().map(|gpu| (gpu.device.clone(), gpu)).collect();
        // Asked each second: a list of all slots would be made twice to find that nothing has changed.
        if devices == self.devices {
            return false;
        }
        let before = self.list();
        self.devices = devices;
        let changes = self.list() != before;
        if changes {
            self.keep_shares_that_were_given();
        }
        changes
    }

    /// Takes over which devices an operator keeps from new containers. Says whether kubelet's list changes by it.
    pub fn cordoned_are(&mut self, cordoned: BTreeSet<GpuUuid>) -> bool {
        if cordoned == self.cordon.devices {
            return false;
        }
        let before = self.list();
        self.cordon.devices = cordoned;
        self.list() != before
    }

    /// Keeps all devices from new containers, or does so no more. Says whether kubelet's list changes by it.
    pub fn close(&mut self, closed: bool) -> bool {
        if self.cordon.all == closed {
            return false;
        }
        let before = self.list();
        self.cordon.all = closed;
        self.list() != before
    }

    /// Whether all devices are kept from new containers.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.cordon.all
    }

    /// Takes over the whole list of pods. Says whether one has gone.
    pub fn gpu_pods_are(&mut self, gpu_pods: Vec<GpuPod>) -> bool {
        let now: BTreeMap<PodUid, GpuPod> =
            gpu_pods.into_iter().take(MAX_GPU_PODS).map(|gpu_pod| (gpu_pod.uid.clone(), gpu_pod)).collect();
        let gone: Vec<PodUid> = self.pods.by_uid.keys().filter(|uid| !now.contains_key(uid)).cloned().collect();
        for uid in &gone {
            self.gpu_pod_gone(uid);
        }
        self.pods.started.retain(|uid| now.contains_key(uid));
        self.claims.told.retain(|key, _| now.contains_key(&key.pod));
        for gpu_pod in now.into_values() {
            self.gpu_pod_is(gpu_pod);
        }
        !gone.is_empty()
    }

    /// Takes over one pod.
    pub fn gpu_pod_is(&mut self, gpu_pod: GpuPod) {
        // What cannot be read says nothing of who wrote it.
        if matches!(gpu_pod.claim, PodClaim::Given(_)) && !gpu_pod.placed_here {
            self.pods.served_by_scheduler = true;
        }
        if gpu_pod.started && !gpu_pod.finished {
            self.pods.started.insert(gpu_pod.uid.clone());
        }
        if matches!(gpu_pod.claim, PodClaim::Given(_)) {
            self.claims.unwritten.remove(&gpu_pod.uid);
        }
        self.overlay(&gpu_pod);
        if self.pods.started.contains(&gpu_pod.uid) {
            self.keep_what_started(&gpu_pod);
        }
        if self.pods.by_uid.len() < MAX_GPU_PODS || self.pods.by_uid.contains_key(&gpu_pod.uid) {
            let uid = gpu_pod.uid.clone();
            self.pods.by_uid.insert(uid.clone(), gpu_pod);
            self.enter(&uid);
        }
    }

    /// What a container really has stands against what is written on its pod, until that says the same.
    fn overlay(&mut self, gpu_pod: &GpuPod) {
        let PodClaim::Given(written) = &gpu_pod.claim else { return };
        match self.claims.moved.get(&gpu_pod.uid) {
            Some(seated) if seated == written => {
                self.claims.moved.remove(&gpu_pod.uid);
            }
            Some(_) => {}
            None => {
                let mut real = written.clone();
                for (request, device_shares) in gpu_pod.requests.iter().zip(&mut real) {
                    let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
                    if let Some(given) = self.tickets.given_to(&key) {
                        *device_shares = given.to_vec();
                    }
                }
                if real != *written {
                    // An earlier life of the program may have ended before it could write this.
                    self.due.rewritten.insert(gpu_pod.uid.clone());
                    self.claims.moved.insert(gpu_pod.uid.clone(), real);
                }
            }
        }
    }

    /// A pod that has started holds `claim`: what was `given` now, and what was not known before.
    pub(super) fn keep(&mut self, gpu_pod: &GpuPod, claim: &Claim, given: &dyn Fn(&str) -> bool) {
        let kept = self.claims.given.entry(gpu_pod.uid.clone()).or_insert_with(|| claim.clone());
        for ((request, kept), now) in gpu_pod.requests.iter().zip(kept).zip(claim) {
            if kept.is_empty() || given(&request.container) {
                kept.clone_from(now);
            }
        }
        self.enter(&gpu_pod.uid);
    }

    /// A pod is not there any more.
    pub fn gpu_pod_gone(&mut self, uid: &PodUid) {
        self.pods.by_uid.remove(uid);
        self.pods.started.remove(uid);
        self.claims.unwritten.remove(uid);
        self.claims.given.remove(uid);
        self.claims.told.retain(|key, _| key.pod != *uid);
        self.claims.moved.remove(uid);
        self.ledger.remove(uid);
        let of_it = |row: &&CheckpointEntry| &row.holder.pod == uid;
        let tickets: Vec<Ticket> = self.held.values().filter(of_it).filter_map(|row| row.ticket.clone()).collect();
        for ticket in tickets {
            self.tickets.forget(&ticket);
        }
        self.held.retain(|key, _| &key.pod != uid);
    }

    /// Takes over the kubelet's checkpoint. Says whether kubelet's list changes by it.
    pub fn checkpoint_is(&mut self, rows: &[CheckpointEntry]) -> bool {
        // Every start is judged by checkpoint that mostly say what they said before.
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
        self.pods.served_by_scheduler
    }

    /// A device by its identity.
    #[must_use]
    pub fn device(&self, device: &GpuUuid) -> Option<&SharedDevice> {
        self.devices.get(device)
    }

    /// A pod by its identity.
    #[must_use]
    pub fn gpu_pod(&self, uid: &PodUid) -> Option<&GpuPod> {
        self.pods.by_uid.get(uid)
    }

    /// Whether nothing of a pod has started yet.
    pub(super) fn waits(&self, uid: &PodUid) -> bool {
        self.pods.by_uid.get(uid).is_some_and(|gpu_pod| !gpu_pod.finished) && !self.pods.started.contains(uid)
    }

    /// Pods of which nothing has started yet, in the order in which they came to this node: that of kubelet.
    pub(super) fn waiting(&self) -> Vec<&GpuPod> {
        let mut waiting: Vec<&GpuPod> = self.pods.by_uid.values().filter(|gpu_pod| self.waits(&gpu_pod.uid)).collect();
        waiting.sort_by_key(|gpu_pod| gpu_pod.arrival.map_or(u64::MAX, |arrival| arrival.0));
        waiting
    }
}
