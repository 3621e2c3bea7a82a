//! Slots and claims by device, for the node view and its metrics.

use super::state::NodeAllocator;
use model::claim::ContainerClaim;
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodRef, PodUid};
use model::plugin::DeviceSlots;
use std::collections::BTreeSet;
use std::sync::Arc;

impl NodeAllocator {
    /// Counts for each device the slots that are free, held and reported as unhealthy, and the claims. Ordered by
    /// device.
    #[must_use]
    pub fn tally(&self) -> Vec<DeviceSlots> {
        let (held, _) = self.held_ids();
        let mut all: Vec<DeviceSlots> = self
            .devices
            .values()
            .map(|gpu| DeviceSlots {
                device: gpu.device.clone(),
                free: 0,
                used: 0,
                unhealthy: 0,
                used_unhealthy: 0,
                claims: u32::try_from(self.claimants(std::slice::from_ref(&gpu.device)).count()).unwrap_or(u32::MAX),
                healthy: gpu.healthy,
                cordoned: self.cordon.devices.contains(&gpu.device),
                taken: self.taken.contains_key(&gpu.device),
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

    /// The pods that have not finished and claim a share of one of these devices.
    #[must_use]
    pub fn holders(&self, devices: &[GpuUuid]) -> Vec<(PodUid, PodRef)> {
        self.claimants(devices).map(|gpu_pod| (gpu_pod.uid.clone(), gpu_pod.pod.clone())).collect()
    }

    /// The started pods that hold a device which is not among these, with that device.
    #[must_use]
    pub fn without_device(&self, there: &BTreeSet<&GpuUuid>) -> Vec<(PodUid, PodRef, GpuUuid)> {
        let mut missing = BTreeSet::new();
        for gpu_pod in
            self.pods.started.iter().filter_map(|uid| self.pods.by_uid.get(uid)).filter(|gpu_pod| !gpu_pod.finished)
        {
            let kept = self.claims.given.get(&gpu_pod.uid).into_iter().flatten().flatten();
            let gone = kept.map(|share| &share.device).filter(|device| !there.contains(device));
            missing.extend(gone.map(|device| (gpu_pod.uid.clone(), gpu_pod.pod.clone(), device.clone())));
        }
        missing.into_iter().collect()
    }

    /// The device shares of each container of the pods that have not finished, ordered by pod and container.
    #[must_use]
    pub fn claims(&self) -> Vec<ContainerClaim> {
        let mut all = Vec::new();
        for gpu_pod in self.pods.by_uid.values().filter(|gpu_pod| !gpu_pod.finished) {
            let Some(claim) = self.effective_claim(gpu_pod).given() else { continue };
            let of_containers = gpu_pod.requests.iter().zip(claim).filter(|(_, shares)| !shares.is_empty());
            all.extend(of_containers.map(|(request, shares)| {
                let holder = ContainerKey { pod: gpu_pod.uid.clone(), container: Arc::clone(&request.container) };
                ContainerClaim { holder, device_shares: shares.clone() }
            }));
        }
        all.sort_by(|a, b| a.holder.cmp(&b.holder));
        all
    }

    fn claimants(&self, devices: &[GpuUuid]) -> impl Iterator<Item = &GpuPod> {
        let living = self.pods.by_uid.values().filter(|gpu_pod| !gpu_pod.finished);
        living.filter(move |gpu_pod| {
            let claim = self.effective_claim(gpu_pod).given();
            claim.is_some_and(|claim| claim.shares().any(|share| devices.contains(&share.device)))
        })
    }
}
