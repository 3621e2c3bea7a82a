//! The slots that the kubelet should allocate (`GetPreferredAllocation`): slots of the GPUs that the next claim names.
//! Without a claim: a slot of each of the emptiest GPUs that have room for the next container's request. This is only
//! advice: the kubelet may allocate other slots, and then the claim decides.

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
    /// Chooses `size` slots of `available`, with all of `must` among them; fewer if there are not enough.
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
        let capacities: BTreeMap<GpuUuid, (bool, usize)> =
            free.keys().map(|device| (device.clone(), self.capacity(device, request))).collect();
        while chosen.len() < size {
            let of_device = |device: &GpuUuid| chosen.iter().filter(|slot| &slot.device == device).count();
            // First different GPUs, because a container that requests two needs two; then GPUs with room for the
            // request; then the emptiest GPU, by the kubelet's slots and by the claims, which may name different GPUs;
            // then UUIDs.
            let best = free
                .iter()
                .filter(|(_, numbers)| !numbers.is_empty())
                .min_by_key(|(device, numbers)| {
                    let (keeps, slots) = capacities.get(*device).copied().unwrap_or_default();
                    (of_device(device), !keeps, Reverse(slots.min(numbers.len())), Reverse(numbers.len()))
                })
                .map(|(device, _)| device.clone());
            let Some(device) = best else { break };
            take(&mut free, &device, &mut chosen, size);
        }
        chosen
    }

    /// Whether `device` has room for one more container with `request` alongside all claims on it, started or not, and the
    /// number of slots that these claims leave. `request` is `None` while no waiting container is known.
    fn capacity(&self, device: &GpuUuid, request: Option<&ContainerRequest>) -> (bool, usize) {
        let Some(gpu) = self.devices.get(device).filter(|_| !self.taken.contains_key(device)) else {
            return (false, 0);
        };
        let claimed = self.ledger.claimed(device);
        let memory = match request.and_then(|request| request.memory) {
            Some(memory) => memory.of(gpu.memory).bytes().0,
            // A container without a limit has room wherever some memory is left.
            None => 1,
        };
        let cores = request.and_then(|request| request.cores).map_or(0, |cores| cores.0);
        let requested =
            DeviceDemand { memory, cores: u64::from(cores), containers: 1, exclusive: u64::from(cores >= ALL_CORES) };
        let fits = |claimed: u64, requested: u64, total: u64| claimed.saturating_add(requested) <= total;
        let keeps = fits(claimed.memory, requested.memory, gpu.memory.0)
            && fits(claimed.cores, requested.cores, u64::from(gpu.cores))
            && !requested.clashes_with(claimed, gpu.cores);
        let slots = u64::from(gpu.slots).saturating_sub(claimed.containers);
        (keeps && slots > 0, usize::try_from(slots).unwrap_or(usize::MAX))
    }

    /// The request of the first container without a claim that waits for `size` slots.
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

    /// The devices of the first container that waits for its slots and requests `size` slots.
    pub(super) fn next_claim(&self, available: &[Slot], size: usize) -> Vec<GpuUuid> {
        let mut open = self.open(size);
        for given in self.given_since(available, size) {
            let same = |claim: &Vec<GpuUuid>| *claim == given;
            // A container without a claim may have got any devices; otherwise the kubelet chose other devices than the
            // claim.
            let place = open.iter().position(same).or_else(|| open.iter().position(Vec::is_empty)).unwrap_or(0);
            if place < open.len() {
                open.remove(place);
            }
        }
        open.into_iter().find(|claim| !claim.is_empty()).unwrap_or_default()
    }

    /// The containers that request `size` slots and have no entry in the kubelet's checkpoint, in the order in which
    /// the kubelet serves them. Each is the sorted list of the devices in its claim, empty if it has no claim.
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
                    PodClaim::Given(claim) => claim.get(at).map_or(&[][..], Vec::as_slice),
                    PodClaim::None | PodClaim::Unreadable(_) | PodClaim::BadRequest(_) => &[],
                };
                let mut devices: Vec<GpuUuid> = claim.iter().map(|share| share.device.clone()).collect();
                devices.sort();
                open.push(devices);
            }
        }
        open
    }

    /// The tickets for `size` slots that were issued after the checkpoint was read last, each as the sorted list of the
    /// devices of its slots. A ticket with a slot that the kubelet offers again is old and does not count.
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
