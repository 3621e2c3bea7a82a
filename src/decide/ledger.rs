//! The ledger: how much of each device the claims of all pods take, kept up to date claim by claim.
//!
//! ```text
//!   set(pod, state, claim) ─┐             ┌─▶ claimed   what the claims on one device take together
//!   remove(pod)             ├──▶ Ledger ──┼─▶ demand    what one pod takes of one device
//!                           ┘             └─▶ pods_on   the pods with a share of one device
//! ```
//!
//! The agent has one ledger. The extender has one for each node. The cost of a change grows with the number of device
//! shares in the claim, and a query about a device is one lookup, which copies no claim and walks over no pods.
//!
//! What must never happen here: a sum that differs from the sum of the claims that it stands for. A change takes out
//! exactly the amounts that the same claim put in, and the sums are wide enough that no addition saturates.

use model::claim::Claim;
use model::gpu_pod::GpuPod;
use model::id::{GpuUuid, PodUid};
use model::request::ContainerRole;
use model::unit::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// All SM time of a device, as claims name it. A claim of 100 % makes its container exclusive on a device that offers
/// exactly 100 %: HAMi's schedulers place no other container on that device, not even a container that names no cores.
pub const ALL_CORES: u32 = 100;

/// How much of one device a container, a pod or several pods take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceDemand {
    /// Bytes of memory.
    pub memory: u64,
    /// Percent of SM time.
    pub cores: u64,
    /// Number of containers that share the device.
    pub containers: u64,
    /// Number of containers that claim all SM time of the device.
    pub exclusive: u64,
}

impl DeviceDemand {
    /// Adds `other`; the numbers saturate.
    pub fn add(&mut self, other: DeviceDemand) {
        self.memory = self.memory.saturating_add(other.memory);
        self.cores = self.cores.saturating_add(other.cores);
        self.containers = self.containers.saturating_add(other.containers);
        self.exclusive = self.exclusive.saturating_add(other.exclusive);
    }

    /// Whether one of two different pods needs a device for itself while the other has a container on it. The device
    /// offers `cores` percent of SM time.
    #[must_use]
    pub fn clashes_with(self, other: DeviceDemand, cores: u32) -> bool {
        let beside = |one: DeviceDemand, other: DeviceDemand| one.exclusive > 0 && other.containers > 0;
        cores == ALL_CORES && (beside(self, other) || beside(other, self))
    }

    /// The larger of the two, number by number.
    #[must_use]
    pub fn max(self, other: DeviceDemand) -> DeviceDemand {
        DeviceDemand {
            memory: self.memory.max(other.memory),
            cores: self.cores.max(other.cores),
            containers: self.containers.max(other.containers),
            exclusive: self.exclusive.max(other.exclusive),
        }
    }
}

/// What a pod with `claim` takes of `device` at any one moment. Init containers run one after the other, alongside the
/// sidecars that have started before them. After them all sidecars and app containers run together.
#[must_use]
pub fn demand_of(gpu_pod: &GpuPod, claim: &Claim, device: &GpuUuid) -> DeviceDemand {
    let (mut together, mut init, mut sidecars) =
        (DeviceDemand::default(), DeviceDemand::default(), DeviceDemand::default());
    for (request, shares) in gpu_pod.requests.iter().zip(claim) {
        let mut own = DeviceDemand::default();
        for share in shares.iter().filter(|share| &share.device == device) {
            own.add(DeviceDemand {
                memory: share.memory.map_or(0, |Bytes(bytes)| bytes),
                cores: share.cores.map_or(0, |cores| u64::from(cores.0)),
                containers: 1,
                exclusive: u64::from(share.cores.is_some_and(|cores| cores.0 >= ALL_CORES)),
            });
        }
        match request.role {
            ContainerRole::App => together.add(own),
            ContainerRole::Sidecar => {
                together.add(own);
                sidecars.add(own);
            }
            ContainerRole::Init => {
                let mut moment = sidecars;
                moment.add(own);
                init = init.max(moment);
            }
        }
    }
    together.max(init)
}

/// How far a claim has come. A claim that is gone is not in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimState {
    /// A decision reserves the claim; it is not written on the pod yet.
    Assumed,
    /// The claim is written on a pod that is bound to a node; no container of the pod has its devices yet.
    Bound,
    /// In the agent: it has given devices to a container of the pod. In the extender: the API server shows that a container
    /// has started.
    Started,
}

/// One claim in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerClaim {
    /// How far the claim has come.
    pub state: ClaimState,
    /// The device shares.
    pub claim: Claim,
    /// Whether the pod accepts only some GPUs.
    pub chooses_gpus: bool,
    /// What the claim takes of each device. Most claims have one device, for which a map would take half a KiB.
    demand: Box<[(GpuUuid, DeviceDemand)]>,
}

impl LedgerClaim {
    /// What the claim takes of `device`.
    #[must_use]
    pub fn demand(&self, device: &GpuUuid) -> DeviceDemand {
        let own = self.demand.iter().find(|(own, _)| own == device);
        own.map(|(_, demand)| *demand).unwrap_or_default()
    }
}

/// A sum of demands. One demand has at most 64 bits for each number and a cluster has fewer than 2^32 pods, so no sum
/// reaches 2^128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    memory: u128,
    cores: u128,
    containers: u128,
    exclusive: u128,
}

impl Sum {
    fn plus(self, demand: DeviceDemand) -> Sum {
        Sum {
            memory: self.memory + u128::from(demand.memory),
            cores: self.cores + u128::from(demand.cores),
            containers: self.containers + u128::from(demand.containers),
            exclusive: self.exclusive + u128::from(demand.exclusive),
        }
    }

    /// Never takes out more than was added: see [`Ledger::remove`].
    fn minus(self, demand: DeviceDemand) -> Sum {
        Sum {
            memory: self.memory.saturating_sub(demand.memory.into()),
            cores: self.cores.saturating_sub(demand.cores.into()),
            containers: self.containers.saturating_sub(demand.containers.into()),
            exclusive: self.exclusive.saturating_sub(demand.exclusive.into()),
        }
    }

    fn demand(self) -> DeviceDemand {
        let cut = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        DeviceDemand {
            memory: cut(self.memory),
            cores: cut(self.cores),
            containers: cut(self.containers),
            exclusive: cut(self.exclusive),
        }
    }
}

/// The claims on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DeviceClaims {
    /// The sum of all claims.
    all: Sum,
    /// The sum of the claims that have started.
    started: Sum,
    /// The pods with a share of the device.
    pods: BTreeSet<PodUid>,
}

/// All claims, by pod and by device. The owner bounds the number of pods; a device stays only while a claim names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    claims: BTreeMap<PodUid, LedgerClaim>,
    devices: BTreeMap<GpuUuid, DeviceClaims>,
}

impl Ledger {
    /// Replaces what a pod holds.
    pub fn set(&mut self, gpu_pod: &GpuPod, state: ClaimState, claim: &Claim) {
        let devices: BTreeSet<&GpuUuid> = claim.shares().map(|share| &share.device).collect();
        let demand: Box<[(GpuUuid, DeviceDemand)]> =
            devices.into_iter().map(|device| (device.clone(), demand_of(gpu_pod, claim, device))).collect();
        let now = self.claims.get(&gpu_pod.uid);
        if now.is_some_and(|now| {
            (now.state, now.chooses_gpus) == (state, gpu_pod.chooses_gpus)
                && now.claim == *claim
                && now.demand == demand
        }) {
            return;
        }
        self.remove(&gpu_pod.uid);
        for (device, demand) in &demand {
            let sums = self.devices.entry(device.clone()).or_default();
            sums.all = sums.all.plus(*demand);
            if state == ClaimState::Started {
                sums.started = sums.started.plus(*demand);
            }
            sums.pods.insert(gpu_pod.uid.clone());
        }
        let (claim, chooses_gpus) = (claim.clone(), gpu_pod.chooses_gpus);
        self.claims.insert(gpu_pod.uid.clone(), LedgerClaim { state, claim, chooses_gpus, demand });
    }

    /// Removes a claim, because its pod is gone, has finished, or no longer has a claim.
    pub fn remove(&mut self, uid: &PodUid) {
        let Some(gone) = self.claims.remove(uid) else { return };
        for (device, demand) in &gone.demand {
            let Some(sums) = self.devices.get_mut(device) else { continue };
            sums.all = sums.all.minus(*demand);
            if gone.state == ClaimState::Started {
                sums.started = sums.started.minus(*demand);
            }
            sums.pods.remove(uid);
            if sums.pods.is_empty() {
                self.devices.remove(device);
            }
        }
    }

    /// A claim has started. Nothing changes if the pod has no claim.
    pub fn has_started(&mut self, uid: &PodUid) {
        let Some(claim) = self.claims.get_mut(uid).filter(|claim| claim.state != ClaimState::Started) else { return };
        claim.state = ClaimState::Started;
        for (device, demand) in &claim.demand {
            if let Some(sums) = self.devices.get_mut(device) {
                sums.started = sums.started.plus(*demand);
            }
        }
    }

    /// Whether no pod holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// All claims, in the order of the UIDs of their pods.
    pub fn claims(&self) -> impl Iterator<Item = (&PodUid, &LedgerClaim)> {
        self.claims.iter()
    }

    /// The claim of a pod.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&LedgerClaim> {
        self.claims.get(uid)
    }

    /// What all claims take of `device` together.
    #[must_use]
    pub fn claimed(&self, device: &GpuUuid) -> DeviceDemand {
        self.devices.get(device).map(|sums| sums.all.demand()).unwrap_or_default()
    }

    /// What the started claims take of `device`, without the claim of the pod `except`.
    #[must_use]
    pub fn started_beside(&self, device: &GpuUuid, except: &PodUid) -> DeviceDemand {
        let Some(sums) = self.devices.get(device) else { return DeviceDemand::default() };
        let own = self.claims.get(except).filter(|claim| claim.state == ClaimState::Started);
        own.map_or(sums.started, |own| sums.started.minus(own.demand(device))).demand()
    }

    /// The devices on which there are claims, in the order of their UUIDs.
    pub fn devices(&self) -> impl Iterator<Item = &GpuUuid> {
        self.devices.keys()
    }

    /// The pods with a share of `device`, in the order of their UIDs.
    pub fn pods_on(&self, device: &GpuUuid) -> impl Iterator<Item = &PodUid> {
        self.devices.get(device).into_iter().flat_map(|sums| &sums.pods)
    }

    /// The claims that have started, in the order of the UIDs of their pods.
    pub fn started(&self) -> impl Iterator<Item = (&PodUid, &LedgerClaim)> {
        self.claims.iter().filter(|(_, claim)| claim.state == ClaimState::Started)
    }
}

#[cfg(test)]
mod tests;
