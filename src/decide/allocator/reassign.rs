//! Moves of claims to other devices than they named: two claims exchange devices, or one claim moves to the devices
//! that the kubelet chose or that `Allocate` gave.
//!
//! A claim moves only if every device that it touches has room for all claims on it, those of started pods and of
//! others. Memory and SM time of a container never change.

use super::state::NodeAllocator;
use crate::ledger::{DeviceDemand, demand_of};
use model::claim::{Claim, DeviceShare};
use model::id::{ContainerKey, GpuUuid, PodUid};
use model::slot::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The whole claims of the pods as they would be after a move.
pub(super) type NewClaims = BTreeMap<PodUid, Claim>;

/// How a container came to the devices that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// Another claim took the container's devices in exchange.
    Exchanged,
    /// The devices had room, so no other claim changed.
    Alone,
}

impl NodeAllocator {
    /// Makes `given` the claim of container `at` of a pod, if the devices have room for it and the pod accepts any GPU.
    /// `expected` is the container that the agent expected behind the `Allocate` that gave these devices.
    pub(super) fn reassign(
        &mut self,
        (uid, at): (&PodUid, usize),
        given: &[DeviceShare],
        expected: Option<&ContainerKey>,
    ) -> Option<Moved> {
        // The agent does not judge conditions of pods: what the scheduler chose is right, and other devices may not be.
        if self.pods.by_uid.get(uid)?.chooses_gpus {
            return None;
        }
        let mut claim = self.claim(uid)?;
        let own = claim.get(at)?.clone();
        if !same_shape(&own, given) || !given.iter().all(|device_share| self.devices.contains_key(&device_share.device))
        {
            return None;
        }
        claim[at] = given.to_vec();
        for (partner, other) in self.partners(uid, at, given, expected) {
            let mut new_claims = NewClaims::from([(uid.clone(), claim.clone())]);
            let theirs = match new_claims.get_mut(&partner) {
                Some(same) => same,
                None => new_claims.entry(partner.clone()).or_insert(self.claim(&partner)?),
            };
            theirs[other].clone_from(&own);
            if self.all_fit(&new_claims) {
                self.commit(new_claims);
                return Some(Moved::Exchanged);
            }
        }
        let new_claims = NewClaims::from([(uid.clone(), claim)]);
        self.all_fit(&new_claims).then(|| {
            self.commit(new_claims);
            Moved::Alone
        })
    }

    /// The device shares of `own`, moved to where the kubelet's slots are. A device share stays if the kubelet chose
    /// its device or a device on the same NUMA node, because the scheduler decides which device of a NUMA node a
    /// container gets. The others take the devices that are left, in order. `None` if all device shares can stay, if
    /// the kubelet chose fewer different devices than the claim names or another number of slots, or if a slot cannot be read.
    pub(super) fn moved_to_kubelet_choice(&self, own: &[DeviceShare], ids: &[Arc<str>]) -> Option<Vec<DeviceShare>> {
        let slots: Option<Vec<Slot>> = ids.iter().map(|id| Slot::parse(id)).collect();
        let mut left: Vec<GpuUuid> = slots?.into_iter().map(|slot| slot.device).collect();
        let distinct = |devices: &mut dyn Iterator<Item = &GpuUuid>| devices.collect::<BTreeSet<_>>().len();
        if left.len() != own.len()
            || distinct(&mut left.iter()) < distinct(&mut own.iter().map(|device_share| &device_share.device))
        {
            return None;
        }
        left.sort();
        let numa = |device: &GpuUuid| self.devices.get(device).and_then(|gpu| gpu.numa);
        let same = |one: &GpuUuid, other: &GpuUuid| one == other;
        let near = |one: &GpuUuid, other: &GpuUuid| numa(one).is_some() && numa(one) == numa(other);
        let mut stays = vec![false; own.len()];
        for fits in [&same as &dyn Fn(&GpuUuid, &GpuUuid) -> bool, &near] {
            for (device_share, stays) in own.iter().zip(&mut stays).filter(|(_, stays)| !**stays) {
                if let Some(place) = left.iter().position(|device| fits(device, &device_share.device)) {
                    left.remove(place);
                    *stays = true;
                }
            }
        }
        if left.is_empty() {
            return None;
        }
        let mut left = left.into_iter();
        let moved = own.iter().zip(stays).map(|(device_share, stays)| {
            let device = if stays { Some(device_share.device.clone()) } else { left.next() };
            device.map(|device| DeviceShare { device, ..device_share.clone() })
        });
        moved.collect()
    }

    /// Whether the devices of `device_shares` are healthy and have room for the claim after the move.
    pub(super) fn would_fit(&self, uid: &PodUid, at: usize, device_shares: &[DeviceShare]) -> bool {
        let Some(mut claim) = self.claim(uid) else { return false };
        let Some(own) = claim.get_mut(at) else { return false };
        *own = device_shares.to_vec();
        device_shares.iter().all(|device_share| self.devices.get(&device_share.device).is_some_and(|gpu| gpu.healthy))
            && self.all_fit(&NewClaims::from([(uid.clone(), claim)]))
    }

    /// The whole claim that holds for a pod.
    #[must_use]
    pub fn claim(&self, uid: &PodUid) -> Option<Claim> {
        self.effective_claim(self.pods.by_uid.get(uid)?).given().cloned()
    }

    /// Containers whose claim is exactly `given` and whose devices are not final yet. The expected container comes
    /// first.
    fn partners(
        &self,
        uid: &PodUid,
        at: usize,
        given: &[DeviceShare],
        expected: Option<&ContainerKey>,
    ) -> Vec<(PodUid, usize)> {
        let mut found = Vec::new();
        for gpu_pod in self.pods.by_uid.values().filter(|gpu_pod| !gpu_pod.finished && !gpu_pod.chooses_gpus) {
            let Some(claim) = self.effective_claim(gpu_pod).given() else { continue };
            for (other, (request, device_shares)) in gpu_pod.requests.iter().zip(claim).enumerate() {
                let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
                let itself = gpu_pod.uid == *uid && other == at;
                if device_shares == given && !itself && !self.settled(&key) {
                    found.push((expected != Some(&key), gpu_pod.uid.clone(), other));
                }
            }
        }
        found.sort();
        found.into_iter().map(|(_, uid, other)| (uid, other)).collect()
    }

    /// Whether the devices of a container are final.
    fn settled(&self, key: &ContainerKey) -> bool {
        self.tickets.held_by(key).is_some() || self.held.get(key).is_some_and(|row| !row.early)
    }

    /// Whether every device of these claims has room for all claims on it, or is at least claimed no more than before.
    fn all_fit(&self, new_claims: &NewClaims) -> bool {
        let mut touched: BTreeSet<&GpuUuid> = BTreeSet::new();
        for claim in new_claims.values() {
            touched.extend(claim.iter().flatten().map(|device_share| &device_share.device));
        }
        touched.into_iter().all(|device| {
            let Some(gpu) = self.devices.get(device) else { return false };
            let (mut before, mut after) = (DeviceDemand::default(), DeviceDemand::default());
            let (mut clashed, mut clashes) = (0_u32, 0_u32);
            // No other pod takes anything of this device, before or after the move.
            let pods: BTreeSet<&PodUid> = self.ledger.pods_on(device).chain(new_claims.keys()).collect();
            for uid in pods {
                let (Some(gpu_pod), Some(held)) = (self.pods.by_uid.get(uid), self.ledger.get(uid)) else { continue };
                let of_now = held.demand(device);
                let then = new_claims.get(uid).map_or(of_now, |claim| demand_of(gpu_pod, claim, device));
                clashed += u32::from(of_now.clashes_with(before, gpu.cores));
                clashes += u32::from(then.clashes_with(after, gpu.cores));
                before.add(of_now);
                after.add(then);
            }
            let fits = |after: u64, before: u64, total: u64| after <= total || after <= before;
            fits(after.memory, before.memory, gpu.memory.0)
                && fits(after.cores, before.cores, u64::from(gpu.cores))
                && fits(after.containers, before.containers, u64::from(gpu.slots))
                && clashes <= clashed
        })
    }

    fn commit(&mut self, new_claims: NewClaims) {
        for (uid, claim) in new_claims {
            // Of what a started pod holds, only the containers that move change.
            let before = self.claim(&uid).unwrap_or_default();
            if let Some(kept) = self.claims.given.get_mut(&uid) {
                for ((kept, before), now) in kept.iter_mut().zip(before).zip(&claim) {
                    if before != *now {
                        kept.clone_from(now);
                    }
                }
            }
            self.due.rewritten.insert(uid.clone());
            self.claims.moved.insert(uid.clone(), claim);
            self.enter(&uid);
        }
    }
}

/// Whether both have the same number of device shares with the same memory and SM time, so that a container with one
/// claim can have the devices of the other.
pub(super) fn same_shape(one: &[DeviceShare], other: &[DeviceShare]) -> bool {
    let shape = |device_share: &DeviceShare| (device_share.memory, device_share.cores);
    one.len() == other.len() && one.iter().map(shape).eq(other.iter().map(shape))
}

#[cfg(test)]
mod tests;
