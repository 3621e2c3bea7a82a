//! Which ids kubelet should take, where it has a choice: those of the GPUs that the next claim names, else one of each of
//! the emptiest GPUs that can keep what the next container without a claim asks for. Advice only: kubelet may take others,
//! and then the claim is what holds.

use super::state::NodeAllocator;
use crate::ledger::{ALL_CORES, DeviceDemand};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid};
use model::request::ContainerRequest;
use model::slot::Slot;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl NodeAllocator {
    /// `size` of `available`, with all of `must` among them; fewer where there are not so many.
    #[must_use]
    pub fn prefer(&self, available: &[Slot], must: &[Slot], size: usize) -> Vec<Slot> {
        let mut chosen: Vec<Slot> = must.iter().take(size).cloned().collect();
        let mut free: BTreeMap<GpuUuid, BTreeSet<u16>> = BTreeMap::new();
        for slot in available.iter().filter(|slot| !must.contains(slot)) {
            free.entry(slot.device.clone()).or_default().insert(slot.number);
        }
        if must.is_empty() {
            for device in self.next_claim(available, size) {
                take(&mut free, &device, &mut chosen, size);
            }
        }
        let request = self.next_without_claim(size);
        let room: BTreeMap<GpuUuid, (bool, usize)> =
            free.keys().map(|device| (device.clone(), self.room(device, request))).collect();
        while chosen.len() < size {
            let of_device = |device: &GpuUuid| chosen.iter().filter(|slot| &slot.device == device).count();
            // A container that asks for two GPUs wants two GPUs; then a GPU that can keep what is asked; then the emptiest
            // one, by kubelet's ids and by the claims, which need not name the same; then the order of UUIDs.
            let best = free
                .iter()
                .filter(|(_, numbers)| !numbers.is_empty())
                .min_by_key(|(device, numbers)| {
                    let (keeps, slots) = room.get(*device).copied().unwrap_or_default();
                    (of_device(device), !keeps, Reverse(slots.min(numbers.len())), Reverse(numbers.len()))
                })
                .map(|(device, _)| device.clone());
            let Some(device) = best else { break };
            take(&mut free, &device, &mut chosen, size);
        }
        chosen
    }

    /// Whether one more container that requests so much of `device` can be kept beside all claims of this node, started or not,
    /// and how many slots they leave. Nothing is known of a container that has not been seen yet.
    fn room(&self, device: &GpuUuid, request: Option<&ContainerRequest>) -> (bool, usize) {
        let Some(gpu) = self.devices.get(device) else { return (false, 0) };
        let promised = self.ledger.claimed(device);
        let memory = match request.and_then(|request| request.memory) {
            Some(memory) => memory.of(gpu.memory).0,
            // Without a limit it can do with what there is, and has no use for none.
            None => 1,
        };
        let cores = request.and_then(|request| request.cores).map_or(0, |cores| cores.0);
        let wanted =
            DeviceDemand { memory, cores: u64::from(cores), containers: 1, exclusive: u64::from(cores >= ALL_CORES) };
        let fits = |promised: u64, wanted: u64, total: u64| promised.saturating_add(wanted) <= total;
        let keeps = fits(promised.memory, wanted.memory, gpu.memory.0)
            && fits(promised.cores, wanted.cores, u64::from(gpu.cores))
            && !wanted.clashes_with(promised, gpu.cores);
        let slots = u64::from(gpu.slots).saturating_sub(promised.containers);
        (keeps && slots > 0, usize::try_from(slots).unwrap_or(usize::MAX))
    }

    /// What the first container asks that waits for so many slots and has no claim.
    fn next_without_claim(&self, size: usize) -> Option<&ContainerRequest> {
        let unplaced = |gpu_pod: &&GpuPod| self.effective_claim(gpu_pod).given().is_none();
        let mut requests = self.waiting().into_iter().filter(unplaced).flat_map(|gpu_pod| {
            gpu_pod.requests.iter().filter(|request| {
                let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
                usize::try_from(request.slots) == Ok(size) && !self.held.contains_key(&key)
            })
        });
        requests.next()
    }

    /// The devices of the first container that waits for its slots and asks for `size` of them.
    pub(super) fn next_claim(&self, available: &[Slot], size: usize) -> Vec<GpuUuid> {
        if self.policy.early {
            let next = self.next_container(size, false);
            let claim = next.and_then(|(uid, at)| self.claim(&uid)?.get(at).cloned());
            return claim.into_iter().flatten().map(|device_share| device_share.device).collect();
        }
        let mut open = self.open(size);
        for given in self.given_since(available, size) {
            let same = |claim: &Vec<GpuUuid>| *claim == given;
            // One that names no devices may have got any; else kubelet chose others than those of the claim.
            let place = open.iter().position(same).or_else(|| open.iter().position(Vec::is_empty)).unwrap_or(0);
            if place < open.len() {
                open.remove(place);
            }
        }
        open.into_iter().find(|claim| !claim.is_empty()).unwrap_or_default()
    }

    /// The containers that ask for `size` slots and hold none by the kubelet's checkpoint, in the order in which kubelet serves them:
    /// the devices of each by its claim, sorted; none where it has no claim.
    fn open(&self, size: usize) -> Vec<Vec<GpuUuid>> {
        let mut open = Vec::new();
        for gpu_pod in self.waiting() {
            for (at, request) in
                gpu_pod.requests.iter().enumerate().filter(|(_, request)| usize::try_from(request.slots) == Ok(size))
            {
                let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
                if self.held.contains_key(&key) {
                    continue;
                }
                let claim = match &gpu_pod.claim {
                    PodClaim::Given(device_shares) => device_shares.get(at).map_or(&[][..], Vec::as_slice),
                    PodClaim::None | PodClaim::Unreadable(_) | PodClaim::BadRequest(_) => &[],
                };
                let mut devices: Vec<GpuUuid> = claim.iter().map(|device_share| device_share.device.clone()).collect();
                devices.sort();
                open.push(devices);
            }
        }
        open
    }

    /// The tickets for `size` slots that were given out after the checkpoint were read last, by the devices of their ids, sorted.
    /// What kubelet may give once more it does not hold: then the ticket is an old one.
    fn given_since(&self, available: &[Slot], size: usize) -> Vec<Vec<GpuUuid>> {
        let noted: BTreeSet<&str> = self.held.values().flat_map(|row| &row.ids).map(|id| &**id).collect();
        let mut newer: BTreeSet<Slot> = BTreeSet::new();
        let mut given = Vec::new();
        for issued in self.tickets.iter().rev() {
            let slots: Vec<Slot> = issued.ids.iter().filter_map(|id| Slot::parse(id)).collect();
            let gone =
                |slot: &Slot| newer.contains(slot) || available.contains(slot) || noted.contains(&*slot.to_string());
            if issued.holder.is_none() && slots.len() == size && !slots.iter().any(gone) {
                let mut devices: Vec<GpuUuid> = slots.iter().map(|slot| slot.device.clone()).collect();
                devices.sort();
                given.push(devices);
            }
            newer.extend(slots);
        }
        given.reverse();
        given
    }
}

fn take(free: &mut BTreeMap<GpuUuid, BTreeSet<u16>>, device: &GpuUuid, chosen: &mut Vec<Slot>, size: usize) {
    if chosen.len() < size
        && let Some(number) = free.get_mut(device).and_then(BTreeSet::pop_first)
    {
        chosen.push(Slot { device: device.clone(), number });
    }
}
