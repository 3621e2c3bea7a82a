//! What is promised of one device: sums over the pods that have started, as the scheduler that placed them counts.

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
}

impl Promised {
    pub(super) fn add(&mut self, other: Promised) {
        self.memory = self.memory.saturating_add(other.memory);
        self.cores = self.cores.saturating_add(other.cores);
        self.containers = self.containers.saturating_add(other.containers);
    }

    fn max(self, other: Promised) -> Promised {
        Promised {
            memory: self.memory.max(other.memory),
            cores: self.cores.max(other.cores),
            containers: self.containers.max(other.containers),
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
            if let Assignment::Given(portions) = self.assignment(tenant) {
                sum.add(of_pod(tenant, &portions, device));
            }
        }
        sum
    }
}
