//! What is promised of one device: sums over the pods that have started, as the scheduler that placed them counts.

use super::card::Card;
use super::state::Share;
use model::id::{GpuUuid, PodUid};
use model::share::{Assignment, Portion, Role, Tenant};
use model::unit::Bytes;

/// What is promised of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Promised {
    /// Memory.
    pub memory: u64,
    /// Percent of SM time.
    pub cores: u64,
    /// Containers that share it.
    pub containers: u64,
    /// Those of them to which all of its SM time is promised.
    pub alone: u64,
}

/// All SM time of a device, as claims name it. Where as much can be promised and no more, such a claim is on the device
/// alone: HAMi's schedulers put no other beside it, not even one that names no share.
pub(super) const ALL_CORES: u32 = 100;

impl Promised {
    pub(super) fn add(&mut self, other: Promised) {
        self.memory = self.memory.saturating_add(other.memory);
        self.cores = self.cores.saturating_add(other.cores);
        self.containers = self.containers.saturating_add(other.containers);
        self.alone = self.alone.saturating_add(other.alone);
    }

    /// Whether one of these two, each of another pod, was promised the device alone.
    pub(super) fn clash(self, other: Promised, card: &Card) -> bool {
        let beside = |one: Promised, other: Promised| one.alone > 0 && other.containers > 0;
        card.cores == ALL_CORES && (beside(self, other) || beside(other, self))
    }

    fn max(self, other: Promised) -> Promised {
        Promised {
            memory: self.memory.max(other.memory),
            cores: self.cores.max(other.cores),
            containers: self.containers.max(other.containers),
            alone: self.alone.max(other.alone),
        }
    }
}

/// What a pod may use of `device` at any one moment. Init containers run one after the other, beside the sidecars that
/// have started before them; after them all sidecars and all others run together.
#[must_use]
pub(super) fn of_pod(tenant: &Tenant, portions: &[Vec<Portion>], device: &GpuUuid) -> Promised {
    let (mut together, mut init, mut sidecars) = (Promised::default(), Promised::default(), Promised::default());
    for (ask, portions) in tenant.asks.iter().zip(portions) {
        let mut own = Promised::default();
        for portion in portions.iter().filter(|portion| &portion.device == device) {
            own.add(Promised {
                memory: portion.memory.map_or(0, |Bytes(bytes)| bytes),
                cores: portion.cores.map_or(0, u64::from),
                containers: 1,
                alone: u64::from(portion.cores.is_some_and(|cores| cores >= ALL_CORES)),
            });
        }
        match ask.role {
            Role::App => together.add(own),
            Role::Sidecar => {
                together.add(own);
                sidecars.add(own);
            }
            Role::Init => {
                let mut moment = sidecars;
                moment.add(own);
                init = init.max(moment);
            }
        }
    }
    together.max(init)
}

impl Share {
    /// What the started pods other than `but` may use of `device`.
    pub(super) fn promised(&self, device: &GpuUuid, but: &PodUid) -> Promised {
        let mut sum = Promised::default();
        for tenant in self.started.iter().filter(|uid| *uid != but).filter_map(|uid| self.tenants.get(uid)) {
            if tenant.finished {
                continue;
            }
            if let Some(portions) = self.promised_to(tenant) {
                sum.add(of_pod(tenant, &portions, device));
            }
        }
        sum
    }

    /// What counts as promised to a pod: of one that has started what it holds, whatever is written on it since.
    pub(super) fn promised_to(&self, tenant: &Tenant) -> Option<Vec<Vec<Portion>>> {
        if let Some(kept) = self.kept.get(&tenant.uid) {
            return Some(kept.clone());
        }
        match self.assignment(tenant) {
            Assignment::Given(portions) => Some(portions),
            Assignment::None | Assignment::Unreadable(_) | Assignment::BadRequest(_) => None,
        }
    }
}
