//! Which ids kubelet should take, where it has a choice: those of the GPUs that the next claim names, else one of each of
//! the emptiest GPUs. Advice only: kubelet may take others, and then the claim is what holds.

use super::state::Share;
use model::id::GpuUuid;
use model::share::{Assignment, Slot};
use std::collections::{BTreeMap, BTreeSet};

impl Share {
    /// `size` of `available`, with all of `must` among them; fewer where there are not so many.
    #[must_use]
    pub fn prefer(&self, available: &[Slot], must: &[Slot], size: usize) -> Vec<Slot> {
        let mut chosen: Vec<Slot> = must.iter().take(size).cloned().collect();
        let mut free: BTreeMap<GpuUuid, BTreeSet<u16>> = BTreeMap::new();
        for slot in available.iter().filter(|slot| !must.contains(slot)) {
            free.entry(slot.device.clone()).or_default().insert(slot.number);
        }
        if must.is_empty() {
            for device in self.next_claim(size) {
                take(&mut free, &device, &mut chosen, size);
            }
        }
        while chosen.len() < size {
            let of_device = |device: &GpuUuid| chosen.iter().filter(|slot| &slot.device == device).count();
            // A container that asks for two GPUs wants two cards; then the emptiest card; then the order of UUIDs.
            let best = free
                .iter()
                .filter(|(_, numbers)| !numbers.is_empty())
                .min_by_key(|(device, numbers)| (of_device(device), std::cmp::Reverse(numbers.len())))
                .map(|(device, _)| device.clone());
            let Some(device) = best else { break };
            take(&mut free, &device, &mut chosen, size);
        }
        chosen
    }

    /// The devices of the first container that waits for its slots and asks for `size` of them.
    fn next_claim(&self, size: usize) -> Vec<GpuUuid> {
        if self.early {
            let next = self.next_container(size, false);
            let claim = next.and_then(|(uid, at)| self.claim(&uid)?.get(at).cloned());
            return claim.into_iter().flatten().map(|portion| portion.device).collect();
        }
        for tenant in self.waiting() {
            let Assignment::Given(portions) = &tenant.assignment else { continue };
            for (ask, portions) in tenant.asks.iter().zip(portions) {
                let key = model::share::ContainerKey { pod: tenant.uid.clone(), container: ask.container.clone() };
                if portions.len() == size && !self.held.contains_key(&key) {
                    return portions.iter().map(|portion| portion.device.clone()).collect();
                }
            }
        }
        Vec::new()
    }
}

fn take(free: &mut BTreeMap<GpuUuid, BTreeSet<u16>>, device: &GpuUuid, chosen: &mut Vec<Slot>, size: usize) {
    if chosen.len() < size
        && let Some(number) = free.get_mut(device).and_then(BTreeSet::pop_first)
    {
        chosen.push(Slot { device: device.clone(), number });
    }
}
