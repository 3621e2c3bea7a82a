//! The state of the allocator: devices, pods, the kubelet's checkpoint, claims and issued tickets.

use super::device::SharedDevice;
use super::taken::{OtherHolding, TakenDevices};
use super::tickets::Tickets;
use super::withdrawn::SeenDevices;
use crate::ledger::Ledger;
use model::checkpoint::CheckpointEntry;
use model::claim::{Claim, DeviceShare, PodClaim};
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodUid, Ticket};
use model::ticket::IssuedTicket;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Upper bound on the GPU pods that are kept. The kubelet allows 110 pods on a node by default and 500 in the largest
/// setups. Beyond this bound the pods with the highest UIDs are left out; a start of such a pod waits and is then
/// refused with a reason.
pub const MAX_GPU_PODS: usize = 4096;

/// What happens to a GPU pod that no scheduler with knowledge of GPUs has placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutClaim {
    /// `Share` if no scheduler that knows GPUs (HAMi's, or a scheduler with the GPU extender) has ever placed a pod on
    /// this node, otherwise `Refuse`.
    Auto,
    /// The pod gets the GPUs of its slots, as with time-slicing.
    Share,
    /// The containers of the pod do not start.
    Refuse,
}

/// The rules of the allocator. They change only with the agent's settings or the runtime of the node.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// What happens to pods without a claim.
    pub without_claim: WithoutClaim,
    /// Whether it is known that the CDI device of a ticket reaches no container of this node.
    pub tickets_lost: bool,
    /// Why the runtime would refuse the CDI specs of tickets.
    pub unreadable_specs: Option<Arc<str>>,
    /// Whether a claim moves to the devices that the kubelet chose.
    pub follows_kubelet: bool,
    /// Whether a container may get the same GPU twice.
    pub same_gpu_twice: bool,
}

/// The devices that get no new containers.
#[derive(Clone, Debug, Default)]
pub(super) struct Cordon {
    /// The devices that an operator has cordoned; UUIDs that no device of this node has are allowed.
    pub devices: BTreeSet<GpuUuid>,
    /// Whether no device of the node gets new containers.
    pub all: bool,
}

/// The GPU pods of this node.
#[derive(Clone, Debug, Default)]
pub(super) struct PodTable {
    /// At most [`MAX_GPU_PODS`].
    pub by_uid: BTreeMap<PodUid, GpuPod>,
    /// Pods that got devices at a start, from this process or from an earlier process.
    pub started: BTreeSet<PodUid>,
    /// Whether a scheduler that knows GPUs has ever placed a pod on this node.
    pub served_by_scheduler: bool,
}

/// The device shares that containers hold, which may differ from the annotations of their pods.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldClaims {
    /// The claims of started pods: for each container the device shares that it got last, or will get when it starts.
    /// They stay when the claim on the pod changes or becomes unreadable. A container of a pod without a claim has no
    /// device share here until it is known which slots the kubelet allocated to it.
    pub given: BTreeMap<PodUid, Claim>,
    /// Claims that differ from the claims on the pods: the devices that the containers really have.
    pub moved: BTreeMap<PodUid, Claim>,
    /// Pods without a claim whose containers have got all that they request, while this is not written on the pod yet.
    pub unwritten: BTreeSet<PodUid>,
    /// The device shares in the limits files that an earlier process wrote, by container.
    pub in_limits_files: BTreeMap<ContainerKey, Vec<DeviceShare>>,
}

/// The state that decides on one node. It has one owner and no clock. A copy of it can try out a decision.
#[derive(Clone, Debug)]
pub struct NodeAllocator {
    pub(super) policy: Policy,
    pub(super) devices: BTreeMap<GpuUuid, SharedDevice>,
    /// What else is known of the node's devices.
    pub(super) seen: SeenDevices,
    /// Devices that live pods got from other plugins, or under other resources.
    pub(super) others: Vec<OtherHolding>,
    /// The devices that another owner holds.
    pub(super) taken: TakenDevices,
    pub(super) cordon: Cordon,
    pub(super) pods: PodTable,
    /// The entry of each container in the kubelet's checkpoint, as last read.
    pub(super) held: BTreeMap<ContainerKey, CheckpointEntry>,
    pub(super) claims: HeldClaims,
    /// How much the claims take of each device.
    pub(super) ledger: Ledger,
    pub(super) tickets: Tickets,
    /// Changes that the owner of the allocator has to save or to write.
    pub(super) due: Due,
}

/// Changes since the last call of [`NodeAllocator::take_changes`].
#[derive(Clone, Debug, Default)]
pub(super) struct Due {
    pub(super) tickets: BTreeMap<Ticket, IssuedTicket>,
    pub(super) rewritten: BTreeSet<PodUid>,
    pub(super) shared: BTreeSet<PodUid>,
    pub(super) moved: u64,
}

/// Changes that the owner of the allocator saves in the ticket journal, writes on pods and counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorChanges {
    /// Tickets whose container has become known.
    pub tickets: Vec<IssuedTicket>,
    /// Claims to write on their pods.
    pub claims: Vec<(GpuPod, Claim)>,
    /// Claims to write on pods without a claim, with a mark that this agent made them: an earlier process may have
    /// ended before it wrote them.
    pub shares: Vec<(GpuPod, Claim)>,
    /// Number of containers whose claim moved to the devices that the kubelet chose.
    pub moved: u64,
}

impl NodeAllocator {
    /// The state of an agent that has just started. `served_by_scheduler` is what earlier processes saw.
    #[must_use]
    pub fn new(without_claim: WithoutClaim, served_by_scheduler: bool) -> Self {
        NodeAllocator {
            policy: Policy {
                without_claim,
                tickets_lost: false,
                unreadable_specs: None,
                follows_kubelet: false,
                same_gpu_twice: false,
            },
            devices: BTreeMap::new(),
            seen: SeenDevices::default(),
            others: Vec::new(),
            taken: TakenDevices::new(),
            cordon: Cordon::default(),
            pods: PodTable { served_by_scheduler, ..PodTable::default() },
            held: BTreeMap::new(),
            claims: HeldClaims::default(),
            ledger: Ledger::default(),
            tickets: Tickets::default(),
            due: Due::default(),
        }
    }

    /// Sets whether a claim moves to the devices that the kubelet chose, if they have room for it.
    pub fn follow_topology(&mut self, follow: bool) {
        self.policy.follows_kubelet = follow;
    }

    /// Returns and clears the changes since the last call.
    pub fn take_changes(&mut self) -> AllocatorChanges {
        let due = std::mem::take(&mut self.due);
        let claim = |uid: &PodUid| Some((self.pods.by_uid.get(uid)?.clone(), self.claims.moved.get(uid)?.clone()));
        let kept = |uid: &PodUid| Some((self.pods.by_uid.get(uid)?.clone(), self.claims.given.get(uid)?.clone()));
        AllocatorChanges {
            claims: due.rewritten.iter().filter_map(claim).collect(),
            shares: due.shared.iter().filter_map(kept).collect(),
            tickets: due.tickets.into_values().collect(),
            moved: due.moved,
        }
    }

    /// Sets the devices of this node. Returns whether the kubelet's list of slots changes.
    pub fn set_devices(&mut self, devices: Vec<SharedDevice>) -> bool {
        let devices = devices.into_iter().map(|gpu| (gpu.device.clone(), gpu)).collect();
        // The agent calls this every second; without this check each call would make the list of all slots twice.
        if devices == self.devices {
            return false;
        }
        let before = self.list();
        self.devices = devices;
        self.note_offered();
        self.find_taken();
        let changes = self.list() != before;
        if changes {
            self.keep_claims_of_own_answers();
        }
        changes
    }

    /// Sets the devices that an operator has cordoned. Returns whether the kubelet's list of slots changes.
    pub fn set_cordoned(&mut self, cordoned: BTreeSet<GpuUuid>) -> bool {
        if cordoned == self.cordon.devices {
            return false;
        }
        let before = self.list();
        self.cordon.devices = cordoned;
        self.list() != before
    }

    /// Sets whether all devices are closed to new containers. Returns whether the kubelet's list of slots changes.
    pub fn close(&mut self, closed: bool) -> bool {
        if self.cordon.all == closed {
            return false;
        }
        let before = self.list();
        self.cordon.all = closed;
        self.list() != before
    }

    /// Replaces the list of GPU pods. Returns whether a pod is gone.
    pub fn set_gpu_pods(&mut self, gpu_pods: Vec<GpuPod>) -> bool {
        let now: BTreeMap<PodUid, GpuPod> =
            gpu_pods.into_iter().take(MAX_GPU_PODS).map(|gpu_pod| (gpu_pod.uid.clone(), gpu_pod)).collect();
        let gone: Vec<PodUid> = self.pods.by_uid.keys().filter(|uid| !now.contains_key(*uid)).cloned().collect();
        for uid in &gone {
            self.remove_gpu_pod(uid);
        }
        self.pods.started.retain(|uid| now.contains_key(uid));
        self.claims.in_limits_files.retain(|key, _| now.contains_key(&key.pod));
        for gpu_pod in now.into_values() {
            self.set_gpu_pod(gpu_pod);
        }
        self.count_as_started();
        self.find_taken();
        !gone.is_empty()
    }

    /// Adds or replaces one GPU pod.
    pub fn set_gpu_pod(&mut self, gpu_pod: GpuPod) {
        // A claim that cannot be read does not show that a scheduler wrote it.
        if matches!(gpu_pod.claim, PodClaim::Given(_)) && !gpu_pod.placed_here {
            self.pods.served_by_scheduler = true;
        }
        if gpu_pod.finished {
            // After an etcd restore the pod may return and be placed again: then it starts like any other pod.
            self.forget_start(&gpu_pod.uid);
        } else if gpu_pod.started {
            self.pods.started.insert(gpu_pod.uid.clone());
        }
        if matches!(gpu_pod.claim, PodClaim::Given(_)) {
            self.claims.unwritten.remove(&gpu_pod.uid);
        }
        self.overlay(&gpu_pod);
        if self.pods.started.contains(&gpu_pod.uid) {
            self.keep_started(&gpu_pod);
        }
        if self.pods.by_uid.len() < MAX_GPU_PODS || self.pods.by_uid.contains_key(&gpu_pod.uid) {
            let uid = gpu_pod.uid.clone();
            self.pods.by_uid.insert(uid.clone(), gpu_pod);
            self.enter(&uid);
        }
    }

    /// Keeps the device shares that the containers really have in place of the claim on the pod, until that claim is
    /// equal to them.
    fn overlay(&mut self, gpu_pod: &GpuPod) {
        let PodClaim::Given(written) = &gpu_pod.claim else { return };
        match self.claims.moved.get(&gpu_pod.uid) {
            Some(moved) if moved == written => {
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
                    // An earlier process may have ended before it could write this on the pod.
                    self.due.rewritten.insert(gpu_pod.uid.clone());
                    self.claims.moved.insert(gpu_pod.uid.clone(), real);
                }
            }
        }
    }

    /// Stores `claim` as what a started pod holds. It replaces what is stored only for containers that are `given`
    /// their devices now, and for containers about which nothing is stored yet.
    pub(super) fn keep(&mut self, gpu_pod: &GpuPod, claim: &Claim, given: &dyn Fn(&str) -> bool) {
        let kept = self.claims.given.entry(gpu_pod.uid.clone()).or_insert_with(|| claim.clone());
        for ((request, kept), now) in gpu_pod.requests.iter().zip(kept).zip(claim) {
            if kept.is_empty() || given(&request.container) {
                kept.clone_from(now);
            }
        }
        self.enter(&gpu_pod.uid);
    }

    /// Forgets the devices that a pod got, because it no longer runs.
    fn forget_start(&mut self, uid: &PodUid) {
        self.pods.started.remove(uid);
        self.claims.given.remove(uid);
        self.claims.in_limits_files.retain(|key, _| key.pod != *uid);
        self.claims.moved.remove(uid);
    }

    /// Forgets a pod that is gone.
    pub fn remove_gpu_pod(&mut self, uid: &PodUid) {
        self.pods.by_uid.remove(uid);
        self.forget_start(uid);
        self.claims.unwritten.remove(uid);
        self.ledger.remove(uid);
        let of_it = |row: &&CheckpointEntry| &row.holder.pod == uid;
        let tickets: Vec<Ticket> = self.held.values().filter(of_it).filter_map(|row| row.ticket.clone()).collect();
        for ticket in tickets {
            self.tickets.forget(&ticket);
        }
        self.held.retain(|key, _| &key.pod != uid);
    }

    /// Sets the kubelet's checkpoint. Returns whether the kubelet's list of slots changes.
    pub fn set_checkpoint(&mut self, rows: &[CheckpointEntry]) -> bool {
        // Every start passes the checkpoint, and most of the time it has not changed.
        if self.held.len() == rows.len() && rows.iter().all(|row| self.held.get(&row.holder) == Some(row)) {
            return false;
        }
        let before = self.list();
        self.held = rows.iter().map(|row| (row.holder.clone(), row.clone())).collect();
        self.list() != before
    }

    /// Whether a scheduler that knows GPUs has ever placed a pod on this node; the agent saves this across restarts.
    #[must_use]
    pub fn served_by_scheduler(&self) -> bool {
        self.pods.served_by_scheduler
    }

    /// A GPU pod by its UID.
    #[must_use]
    pub fn gpu_pod(&self, uid: &PodUid) -> Option<&GpuPod> {
        self.pods.by_uid.get(uid)
    }

    /// Whether a pod is known, has not finished, and none of its containers has started.
    pub(super) fn waits(&self, uid: &PodUid) -> bool {
        self.pods.by_uid.get(uid).is_some_and(|gpu_pod| !gpu_pod.finished) && !self.pods.started.contains(uid)
    }

    /// Pods without a container that has started, in the order in which they came to this node. The kubelet admits
    /// pods in that order too.
    pub(super) fn waiting(&self) -> Vec<&GpuPod> {
        let mut waiting: Vec<&GpuPod> = self.pods.by_uid.values().filter(|gpu_pod| self.waits(&gpu_pod.uid)).collect();
        waiting.sort_by_key(|gpu_pod| gpu_pod.arrival.map_or(u64::MAX, |arrival| arrival.0));
        waiting
    }
}
