//! The list of slots for the kubelet (`ListAndWatch`): all slots, and which slots the kubelet may allocate.

use super::device::ListedSlot;
use super::state::NodeAllocator;
use model::id::GpuUuid;
use model::slot::Slot;
use std::collections::BTreeSet;

impl NodeAllocator {
    /// Every slot of every device, ordered by device and number.
    ///
    /// For an unhealthy device with n slots, n slots are reported as unhealthy. First come the slots of the containers
    /// that have a claim on the device; the kubelet may count slots of other devices for them. Then come free slots of
    /// the device, then free slots of other devices. So the kubelet never has more free slots than the healthy devices
    /// can serve, and no slot of a pod on a healthy device is reported as unhealthy.
    ///
    /// For a cordoned device that could take m more containers, m free slots are reported as unhealthy, its own slots
    /// first. The slots of the containers on it stay healthy. A device that another owner holds counts as cordoned, and
    /// if no device may get new containers, all devices do.
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

    /// The slots of pods that have not finished, and the slots of unknown pods. The checkpoint keeps entries of pods
    /// that are gone until the kubelet needs their slots, and it has entries of pods that the agent's watch has not
    /// shown yet.
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

    /// The slots of containers with a claim on `device`, without pods that have finished. If a container holds several
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
