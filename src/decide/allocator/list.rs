//! The list of slots for the kubelet (`ListAndWatch`): all slots, and which of them it may allocate.

use super::device::ListedSlot;
use super::state::NodeAllocator;
use model::id::GpuUuid;
use model::slot::Slot;
use std::collections::BTreeSet;

impl NodeAllocator {
    /// Every slot of every device, ordered by device and number.
    ///
    /// An unhealthy device makes as many slots unhealthy as it has: first the ids of containers with a claim on it,
    /// which may be slots of other devices, then free slots of its own, then free slots of other devices. So the
    /// kubelet never has more free slots than the healthy devices can serve, and no slot of a pod on a healthy device
    /// becomes unhealthy.
    ///
    /// A cordoned device makes as many free slots unhealthy as it has room for containers, its own slots first; the
    /// slots of containers on it do not change. If no device may get new containers, every device counts as cordoned. So
    /// does a device that another owner holds.
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
            let cordoned =
                self.cordon.all || self.cordon.devices.contains(&gpu.device) || self.taken.contains_key(&gpu.device);
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

    /// The slots that pods which have not finished hold, and the slots of unknown pods. The kubelet keeps rows of pods
    /// that are gone until it needs their slots, and writes rows of pods that the agent's watch has not shown yet.
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

    /// The slots of containers whose claim is on `device`, of pods that have not finished. If a container holds several
    /// slots, the slot at the position of the device share on `device` counts.
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
                            .filter(|(share, _)| &share.device == device)
                            .map(|(_, slot)| slot),
                    );
                }
                None => ids.extend(slots.into_iter().filter(|slot| &slot.device == device)),
            }
        }
        ids
    }
}
