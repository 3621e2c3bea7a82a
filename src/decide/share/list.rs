//! The list of slots that kubelet gets to see, and which of them it may hand out.

use super::card::Listed;
use super::state::Share;
use model::id::GpuUuid;
use model::share::{Assignment, Slot};
use std::collections::BTreeSet;

impl Share {
    /// Every slot of every device, ordered by device and number.
    ///
    /// A sick device makes as many slots unhealthy as it has: first the ids that containers with a claim on it hold, which
    /// need not be its own, then free ids of its own, then free ids of others. So kubelet never has more free slots than
    /// the well devices can serve, and no well pod's id is marked for a neighbour's sickness.
    ///
    /// A cordoned device makes as many free slots unhealthy as it has places free, own ones first; what runs on it stays.
    /// So does every device where none may get new containers.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let mut list: Vec<Listed> = self
            .cards
            .values()
            .flat_map(|card| {
                (0..card.slots).map(|number| Listed {
                    slot: Slot { device: card.device.clone(), number },
                    healthy: true,
                    numa: card.numa,
                })
            })
            .collect();
        let (held, doubtful) = self.held_ids();
        for card in self.cards.values() {
            let cordoned = self.closed || self.cordoned.contains(&card.device);
            if card.healthy && !cordoned {
                continue;
            }
            let occupied = self.ids_that_use(&card.device);
            let mut left = usize::from(card.slots).saturating_sub(occupied.len());
            if !card.healthy {
                list.iter_mut()
                    .filter(|listed| occupied.contains(&listed.slot))
                    .for_each(|listed| listed.healthy = false);
            }
            for (own, doubt) in [(true, false), (true, true), (false, false)] {
                let free = list.iter_mut().filter(|listed| {
                    listed.healthy
                        && !held.contains(&listed.slot)
                        && doubtful.contains(&listed.slot) == doubt
                        && (listed.slot.device == card.device) == own
                });
                for listed in free.take(left) {
                    listed.healthy = false;
                    left -= 1;
                }
            }
        }
        list
    }

    /// The ids that living pods hold, and those of pods that are not known: kubelet keeps rows of pods that are gone until
    /// it needs their ids, and writes rows of pods that our watch has not shown yet.
    pub(super) fn held_ids(&self) -> (BTreeSet<Slot>, BTreeSet<Slot>) {
        let (mut held, mut doubtful) = (BTreeSet::new(), BTreeSet::new());
        for (key, row) in &self.held {
            let ids = row.ids.iter().filter_map(|id| Slot::parse(id));
            match self.tenants.get(&key.pod) {
                Some(tenant) if tenant.finished => {}
                Some(_) => held.extend(ids),
                None => doubtful.extend(ids),
            }
        }
        (held, doubtful)
    }

    /// The ids of living containers whose claim is on `device`. Where a container holds several, the id that stands at the place
    /// of the claim on `device` is the one.
    fn ids_that_use(&self, device: &GpuUuid) -> BTreeSet<Slot> {
        let mut ids = BTreeSet::new();
        for (key, row) in &self.held {
            let Some(tenant) = self.tenants.get(&key.pod).filter(|tenant| !tenant.finished) else { continue };
            let slots: Vec<Slot> = row.ids.iter().filter_map(|id| Slot::parse(id)).collect();
            let at = tenant.asks.iter().position(|ask| ask.container == key.container);
            let portions = at.and_then(|at| match self.assignment(tenant) {
                Assignment::Given(portions) => portions.get(at).cloned(),
                _ => None,
            });
            match portions {
                Some(portions) => {
                    ids.extend(
                        portions
                            .iter()
                            .zip(slots)
                            .filter(|(portion, _)| &portion.device == device)
                            .map(|(_, slot)| slot),
                    );
                }
                None => ids.extend(slots.into_iter().filter(|slot| &slot.device == device)),
            }
        }
        ids
    }
}
