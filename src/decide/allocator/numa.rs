//! Moves a claim to the NUMA node that the kubelet chose.
//!
//! A claim moves only if every device that it touches has room for all claims on it, whether their pods have started or
//! not. Memory and SM time of a container never change.

use super::state::NodeAllocator;
use crate::ledger::{DeviceDemand, demand_of};
use model::checkpoint::CheckpointEntry;
use model::claim::{Claim, DeviceShare};
use model::gpu_pod::GpuPod;
use model::id::{GpuUuid, PodUid};
use model::slot::Slot;
use model::ticket::IssuedTicket;
use std::collections::BTreeSet;
use std::sync::Arc;

impl NodeAllocator {
    /// If the kubelet aligns devices by topology, a claim that has not started yet moves to the NUMA node that the
    /// kubelet chose, provided that the devices there have room for all claims on them.
    pub(super) fn follow_kubelet(&mut self, gpu_pod: &GpuPod, rows: &[&CheckpointEntry]) {
        if !self.policy.follows_kubelet {
            return;
        }
        for row in rows.iter().filter(|row| !row.early) {
            let new = row.ticket.as_ref().and_then(|ticket| self.tickets.get(ticket));
            let Some(issued) = new.filter(|issued| issued.holder.is_none()).cloned() else { continue };
            let Some(at) = gpu_pod.requests.iter().position(|request| request.container == row.holder.container) else {
                continue;
            };
            let own = self.claim(&gpu_pod.uid).and_then(|claim| claim.get(at).cloned());
            let moved = own.and_then(|own| self.moved_to_kubelet_choice(&own, &row.ids));
            let Some(moved) = moved else { continue };
            if self.move_claim((&gpu_pod.uid, at), &moved) {
                self.due.moved += 1;
                let kept = IssuedTicket { holder: Some(row.holder.clone()), given: Some(moved), ..issued };
                self.tickets.keep(kept.clone());
                self.due.tickets.insert(kept.ticket.clone(), kept);
            }
        }
    }

    /// Moves the device shares `own` to the devices of the kubelet's slots. A share stays if the kubelet chose its
    /// device or another device on the same NUMA node, because the scheduler decides which device of a NUMA node a
    /// container gets. The other shares move to the kubelet's remaining devices, in order. Returns `None` if all shares
    /// can stay, if the kubelet chose another number of slots or fewer different devices than the claim names, or if a
    /// slot id cannot be read.
    fn moved_to_kubelet_choice(&self, own: &[DeviceShare], ids: &[Arc<str>]) -> Option<Vec<DeviceShare>> {
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

    /// Makes `moved` the claim of container `at` of a pod, if the pod does not state which GPUs it accepts, and the
    /// devices are healthy and have room for the claim. Returns whether the claim was moved.
    fn move_claim(&mut self, (uid, at): (&PodUid, usize), moved: &[DeviceShare]) -> bool {
        // Only the scheduler checks which GPUs a pod accepts. If a pod states them, its claim stays: other devices may
        // be wrong.
        let Some(gpu_pod) = self.pods.by_uid.get(uid).filter(|gpu_pod| !gpu_pod.chooses_gpus) else { return false };
        let Some(mut claim) = self.claim(uid) else { return false };
        let Some(own) = claim.get_mut(at) else { return false };
        *own = moved.to_vec();
        let healthy = |share: &DeviceShare| self.devices.get(&share.device).is_some_and(|gpu| gpu.healthy);
        if !moved.iter().all(healthy) || !self.has_room(gpu_pod, &claim) {
            return false;
        }
        // In a started pod, only the devices of this container change.
        if let Some(kept) = self.claims.given.get_mut(uid).and_then(|kept| kept.get_mut(at)) {
            *kept = moved.to_vec();
        }
        self.due.rewritten.insert(uid.clone());
        self.claims.moved.insert(uid.clone(), claim);
        self.enter(uid);
        true
    }

    /// The whole claim that holds for a pod.
    #[must_use]
    pub fn claim(&self, uid: &PodUid) -> Option<Claim> {
        self.effective_claim(self.pods.by_uid.get(uid)?).given().cloned()
    }

    /// Whether the claim may be moved. On each of its devices, all claims must fit after the move, or take no more than
    /// before it.
    fn has_room(&self, moves: &GpuPod, claim: &Claim) -> bool {
        let devices: BTreeSet<&GpuUuid> = claim.iter().flatten().map(|device_share| &device_share.device).collect();
        devices.into_iter().all(|device| {
            let Some(gpu) = self.devices.get(device) else { return false };
            let (mut before, mut after) = (DeviceDemand::default(), DeviceDemand::default());
            let (mut clashed, mut clashes) = (0_u32, 0_u32);
            // Only these pods use the device, before or after the move.
            let pods: BTreeSet<&PodUid> = self.ledger.pods_on(device).chain([&moves.uid]).collect();
            for uid in pods {
                let Some(held) = self.ledger.get(uid) else { continue };
                let of_now = held.demand(device);
                let then = if *uid == moves.uid { demand_of(moves, claim, device) } else { of_now };
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
}

#[cfg(test)]
mod tests;
