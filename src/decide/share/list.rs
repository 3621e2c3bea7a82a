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
        let held: BTreeSet<Slot> =
            self.held.values().flat_map(|row| row.ids.iter()).filter_map(|id| Slot::parse(id)).collect();
        for card in self.cards.values().filter(|card| !card.healthy) {
            let mut left = usize::from(card.slots);
            let occupied = self.ids_that_use(&card.device);
            for listed in list.iter_mut().filter(|listed| occupied.contains(&listed.slot)) {
                listed.healthy = false;
                left = left.saturating_sub(1);
            }
            for own in [true, false] {
                let free = list.iter_mut().filter(|listed| {
                    listed.healthy && !held.contains(&listed.slot) && (listed.slot.device == card.device) == own
                });
                for listed in free.take(left) {
                    listed.healthy = false;
                    left -= 1;
                }
            }
        }
        list
    }

    /// The ids of containers whose claim is on `device`. Where a container holds several, the id that stands at the place
    /// of the claim on `device` is the one.
    fn ids_that_use(&self, device: &GpuUuid) -> BTreeSet<Slot> {
        let mut ids = BTreeSet::new();
        for (key, row) in &self.held {
            let slots: Vec<Slot> = row.ids.iter().filter_map(|id| Slot::parse(id)).collect();
            let portions = self.tenants.get(&key.pod).and_then(|tenant| {
                let at = tenant.asks.iter().position(|ask| ask.container == key.container)?;
                match self.assignment(tenant) {
                    Assignment::Given(portions) => portions.get(at).cloned(),
                    _ => None,
                }
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
