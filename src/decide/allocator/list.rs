//! The list of slots that kubelet gets to see, and which of them it may hand out.

use super::device::ListedSlot;
use super::state::NodeAllocator;
use model::id::GpuUuid;
use model::slot::Slot;
use std::collections::BTreeSet;

impl NodeAllocator {
    /// Every slot of every device, ordered by device and number.
    ///
    /// A sick device makes as many slots unhealthy as it has: first the ids that containers with a claim on it hold, which
    /// need not be its own, then free ids of its own, then free ids of others. So kubelet never has more free slots than
    /// the well devices can serve, and no well pod's id is marked for a neighbour's sickness.
    ///
    /// A cordoned device makes as many free slots unhealthy as it has places free, own ones first; what runs on it stays.
    /// So does every device where none may get new containers.
    #[must_use]
    pub fn list(&self) -> Vec<ListedSlot> {
        let mut list: Vec<ListedSlot> = self
            .devices
            .values()
            .flat_map(|gpu| {
                (0..gpu.slots).map(|number| ListedSlot {
                    slot: Slot { device: gpu.device.clone(), number },
                    healthy: true,
                    numa: gpu.numa,
                })
            })
            .collect();
        let (held, doubtful) = self.held_ids();
        for gpu in self.devices.values() {
            let cordoned = self.cordon.all || self.cordon.devices.contains(&gpu.device);
            if gpu.healthy && !cordoned {
                continue;
            }
            let occupied = self.ids_that_use(&gpu.device);
            let mut left = usize::from(gpu.slots).saturating_sub(occupied.len());
            if !gpu.healthy {
                list.iter_mut()
                    .filter(|listed| occupied.contains(&listed.slot))
                    .for_each(|listed| listed.healthy = false);
            }
            for (own, doubt) in [(true, false), (true, true), (false, false)] {
                let free = list.iter_mut().filter(|listed| {
                    listed.healthy
                        && !held.contains(&listed.slot)
                        && doubtful.contains(&listed.slot) == doubt
                        && (listed.slot.device == gpu.device) == own
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
            match self.pods.by_uid.get(&key.pod) {
                Some(gpu_pod) if gpu_pod.finished => {}
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
            let Some(gpu_pod) = self.pods.by_uid.get(&key.pod).filter(|gpu_pod| !gpu_pod.finished) else { continue };
            let slots: Vec<Slot> = row.ids.iter().filter_map(|id| Slot::parse(id)).collect();
            let at = gpu_pod.requests.iter().position(|request| request.container == key.container);
            let device_shares = at.and_then(|at| self.effective_claim(gpu_pod).given()?.get(at));
            match device_shares {
                Some(device_shares) => {
                    ids.extend(
                        device_shares
                            .iter()
                            .zip(slots)
                            .filter(|(device_share, _)| &device_share.device == device)
                            .map(|(_, slot)| slot),
                    );
                }
                None => ids.extend(slots.into_iter().filter(|slot| &slot.device == device)),
            }
        }
        ids
    }
}
