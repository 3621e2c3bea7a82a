//! Other devices than the claim named: two claims exchange theirs, or one moves to where kubelet or `Allocate` has put it.
//!
//! A move is made only where every device that it touches can keep all that is promised of it, by every pod of this node
//! with a claim, whether it has started or not. Memory and SM time of a container never change.

use super::ledger::{Promised, of_pod};
use super::state::Share;
use model::id::{GpuUuid, PodUid};
use model::share::{Assignment, ContainerKey, Portion, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The whole claims of pods as a move would make them.
pub(super) type Seats = BTreeMap<PodUid, Vec<Vec<Portion>>>;

/// How a container came to the devices that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// Another claim took its devices in return.
    Exchanged,
    /// They were free.
    Alone,
}

impl Share {
    /// Makes `given` the claim of container `at` of a pod, if that can be kept. `meant` is whose devices these were when
    /// they were given.
    pub(super) fn seat(
        &mut self,
        (uid, at): (&PodUid, usize),
        given: &[Portion],
        meant: Option<&ContainerKey>,
    ) -> Option<Moved> {
        let mut claim = self.claim(uid)?;
        let own = claim.get(at)?.clone();
        if !same_shape(&own, given) || !given.iter().all(|portion| self.cards.contains_key(&portion.device)) {
            return None;
        }
        claim[at] = given.to_vec();
        for (partner, other) in self.partners(uid, at, given, meant) {
            let mut seats = Seats::from([(uid.clone(), claim.clone())]);
            let theirs = match seats.get_mut(&partner) {
                Some(same) => same,
                None => seats.entry(partner.clone()).or_insert(self.claim(&partner)?),
            };
            theirs[other].clone_from(&own);
            if self.holds(&seats) {
                self.commit(seats);
                return Some(Moved::Exchanged);
            }
        }
        let seats = Seats::from([(uid.clone(), claim)]);
        self.holds(&seats).then(|| {
            self.commit(seats);
            Moved::Alone
        })
    }

    /// Where kubelet's ids are, for a claim that is elsewhere: each portion stays where it can, the others take the devices
    /// that are left, in order. Staying on the NUMA node that kubelet chose is enough: which of its devices a container gets
    /// is the scheduler's to say. None where the claim is as near as kubelet's choice, or kubelet's choice puts on one device
    /// what was to be on two.
    pub(super) fn where_kubelet_is(&self, own: &[Portion], ids: &[Arc<str>]) -> Option<Vec<Portion>> {
        let slots: Option<Vec<Slot>> = ids.iter().map(|id| Slot::parse(id)).collect();
        let mut left: Vec<GpuUuid> = slots?.into_iter().map(|slot| slot.device).collect();
        let distinct = |devices: &mut dyn Iterator<Item = &GpuUuid>| devices.collect::<BTreeSet<_>>().len();
        if left.len() != own.len()
            || distinct(&mut left.iter()) < distinct(&mut own.iter().map(|portion| &portion.device))
        {
            return None;
        }
        left.sort();
        let numa = |device: &GpuUuid| self.cards.get(device).and_then(|card| card.numa);
        let same = |one: &GpuUuid, other: &GpuUuid| one == other;
        let near = |one: &GpuUuid, other: &GpuUuid| numa(one).is_some() && numa(one) == numa(other);
        let mut stays = vec![false; own.len()];
        for fits in [&same as &dyn Fn(&GpuUuid, &GpuUuid) -> bool, &near] {
            for (portion, stays) in own.iter().zip(&mut stays).filter(|(_, stays)| !**stays) {
                if let Some(place) = left.iter().position(|device| fits(device, &portion.device)) {
                    left.remove(place);
                    *stays = true;
                }
            }
        }
        if left.is_empty() {
            return None;
        }
        let mut left = left.into_iter();
        let moved = own.iter().zip(stays).map(|(portion, stays)| {
            let device = if stays { Some(portion.device.clone()) } else { left.next() };
            device.map(|device| Portion { device, ..portion.clone() })
        });
        moved.collect()
    }

    /// Whether a claim as it would be moved there can be kept.
    pub(super) fn could_sit(&self, uid: &PodUid, at: usize, portions: &[Portion]) -> bool {
        let Some(mut claim) = self.claim(uid) else { return false };
        let Some(own) = claim.get_mut(at) else { return false };
        *own = portions.to_vec();
        portions.iter().all(|portion| self.cards.get(&portion.device).is_some_and(|card| card.healthy))
            && self.holds(&Seats::from([(uid.clone(), claim)]))
    }

    /// The whole claim that holds of a pod.
    #[must_use]
    pub fn claim(&self, uid: &PodUid) -> Option<Vec<Vec<Portion>>> {
        match self.assignment(self.tenants.get(uid)?) {
            Assignment::Given(portions) => Some(portions),
            _ => None,
        }
    }

    /// Containers whose claim is exactly `given` and that kubelet has not been seen to hold anything for; the one that was
    /// meant first.
    fn partners(
        &self,
        uid: &PodUid,
        at: usize,
        given: &[Portion],
        meant: Option<&ContainerKey>,
    ) -> Vec<(PodUid, usize)> {
        let mut found = Vec::new();
        for tenant in self.tenants.values().filter(|tenant| !tenant.finished) {
            let Assignment::Given(claim) = self.assignment(tenant) else { continue };
            for (other, (ask, portions)) in tenant.asks.iter().zip(&claim).enumerate() {
                let key = ContainerKey { pod: tenant.uid.clone(), container: ask.container.clone() };
                let itself = tenant.uid == *uid && other == at;
                if portions == given && !itself && !self.settled(&key) {
                    found.push((meant != Some(&key), tenant.uid.clone(), other));
                }
            }
        }
        found.sort();
        found.into_iter().map(|(_, uid, other)| (uid, other)).collect()
    }

    /// Whether a container has what it has for good.
    fn settled(&self, key: &ContainerKey) -> bool {
        self.tickets.held_by(key).is_some() || self.held.get(key).is_some_and(|row| !row.early)
    }

    /// Whether every device that is touched can keep what is promised of it, or is at least promised no more than before.
    fn holds(&self, seats: &Seats) -> bool {
        let mut touched: BTreeSet<&GpuUuid> = BTreeSet::new();
        for claim in seats.values() {
            touched.extend(claim.iter().flatten().map(|portion| &portion.device));
        }
        touched.into_iter().all(|device| {
            let Some(card) = self.cards.get(device) else { return false };
            let (mut before, mut after) = (Promised::default(), Promised::default());
            let (mut clashed, mut clashes) = (0_u32, 0_u32);
            for tenant in self.tenants.values().filter(|tenant| !tenant.finished) {
                let Some(now) = self.promised_to(tenant) else { continue };
                let of_now = of_pod(tenant, &now, device);
                let then = of_pod(tenant, seats.get(&tenant.uid).unwrap_or(&now), device);
                clashed += u32::from(of_now.clash(before, card));
                clashes += u32::from(then.clash(after, card));
                before.add(of_now);
                after.add(then);
            }
            let fits = |after: u64, before: u64, total: u64| after <= total || after <= before;
            fits(after.memory, before.memory, card.memory.0)
                && fits(after.cores, before.cores, u64::from(card.cores))
                && fits(after.containers, before.containers, u64::from(card.slots))
                && clashes <= clashed
        })
    }

    fn commit(&mut self, seats: Seats) {
        for (uid, claim) in seats {
            // Of a pod that has started only what has moved.
            let before = self.claim(&uid).unwrap_or_default();
            if let Some(kept) = self.kept.get_mut(&uid) {
                for ((kept, before), now) in kept.iter_mut().zip(before).zip(&claim) {
                    if before != *now {
                        kept.clone_from(now);
                    }
                }
            }
            self.due.rewritten.insert(uid.clone());
            self.seated.insert(uid, claim);
        }
    }
}

/// Whether a container that was promised the one can be told the other and find every number right.
pub(super) fn same_shape(one: &[Portion], other: &[Portion]) -> bool {
    let shape = |portion: &Portion| (portion.memory, portion.cores);
    one.len() == other.len() && one.iter().map(shape).eq(other.iter().map(shape))
}

#[cfg(test)]
mod tests;
