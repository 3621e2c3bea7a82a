//! Slots and claims of each device, counted for those who look at the node.

use super::state::Share;
use model::id::{GpuUuid, PodRef, PodUid};
use model::plugin::DeviceSlots;
use model::share::{Assignment, Claim, ContainerKey, Tenant};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Share {
    /// What is free, held and told as unhealthy of each device, ordered by device.
    #[must_use]
    pub fn tally(&self) -> Vec<DeviceSlots> {
        let (held, _) = self.held_ids();
        let mut all: Vec<DeviceSlots> = self
            .cards
            .values()
            .map(|card| DeviceSlots {
                device: card.device.clone(),
                free: 0,
                used: 0,
                unhealthy: 0,
                used_unhealthy: 0,
                claims: u32::try_from(self.claimants(std::slice::from_ref(&card.device)).count()).unwrap_or(u32::MAX),
                healthy: card.healthy,
                cordoned: self.cordoned.contains(&card.device),
            })
            .collect();
        for listed in self.list() {
            let Ok(at) = all.binary_search_by(|slots| slots.device.cmp(&listed.slot.device)) else { continue };
            let slots = &mut all[at];
            *match (held.contains(&listed.slot), listed.healthy) {
                (false, true) => &mut slots.free,
                (true, true) => &mut slots.used,
                (false, false) => &mut slots.unhealthy,
                (true, false) => &mut slots.used_unhealthy,
            } += 1;
        }
        all
    }

    /// The pods that have not ended and were promised something of one of these devices.
    #[must_use]
    pub fn holders(&self, devices: &[GpuUuid]) -> Vec<(PodUid, PodRef)> {
        self.claimants(devices).map(|tenant| (tenant.uid.clone(), tenant.pod.clone())).collect()
    }

    /// The pods that run and hold a device that is none of these, with that device.
    #[must_use]
    pub fn without_device(&self, there: &BTreeSet<&GpuUuid>) -> Vec<(PodUid, PodRef, GpuUuid)> {
        let mut missing = BTreeSet::new();
        for tenant in self.started.iter().filter_map(|uid| self.tenants.get(uid)).filter(|tenant| !tenant.finished) {
            let kept = self.kept.get(&tenant.uid).into_iter().flatten().flatten();
            let gone = kept.map(|portion| &portion.device).filter(|device| !there.contains(device));
            missing.extend(gone.map(|device| (tenant.uid.clone(), tenant.pod.clone(), device.clone())));
        }
        missing.into_iter().collect()
    }

    /// What containers of pods that have not ended were promised, ordered by pod and container.
    #[must_use]
    pub fn claims(&self) -> Vec<Claim> {
        let mut all = Vec::new();
        for tenant in self.tenants.values().filter(|tenant| !tenant.finished) {
            let Assignment::Given(portions) = self.assignment(tenant) else { continue };
            let of_containers = tenant.asks.iter().zip(portions).filter(|(_, portions)| !portions.is_empty());
            all.extend(of_containers.map(|(ask, portions)| {
                let holder = ContainerKey { pod: tenant.uid.clone(), container: Arc::clone(&ask.container) };
                Claim { holder, portions }
            }));
        }
        all.sort_by(|a, b| a.holder.cmp(&b.holder));
        all
    }

    fn claimants(&self, devices: &[GpuUuid]) -> impl Iterator<Item = &Tenant> {
        let living = self.tenants.values().filter(|tenant| !tenant.finished);
        living.filter(move |tenant| match self.assignment(tenant) {
            Assignment::Given(portions) => portions.iter().flatten().any(|portion| devices.contains(&portion.device)),
            Assignment::None | Assignment::Unreadable(_) | Assignment::BadRequest(_) => false,
        })
    }
}
