//! The memory that started pods claim. The agent compares their use of memory with it to find over-use.

use super::state::NodeAllocator;
use model::claim::DeviceShare;
use model::id::GpuUuid;
use model::limits::{MAX_MEMORY_CLAIMS, PodMemoryClaim};
use model::unit::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

impl NodeAllocator {
    /// The memory that each started pod that has not finished may use of each device on which its memory is limited. At
    /// most [`MAX_MEMORY_CLAIMS`] entries.
    #[must_use]
    pub fn memory_claims(&self) -> Arc<[PodMemoryClaim]> {
        let unlimited = |share: &DeviceShare| share.memory.is_none_or(|memory| memory == Bytes(0));
        let of_pods = self.ledger.started().flat_map(|(uid, held)| {
            let free: BTreeSet<&GpuUuid> =
                held.claim.shares().filter(|share| unlimited(share)).map(|share| &share.device).collect();
            let devices: BTreeSet<&GpuUuid> = held.claim.shares().map(|share| &share.device).collect();
            devices.into_iter().filter(move |device| !free.contains(device)).map(move |device| PodMemoryClaim {
                pod: uid.clone(),
                device: device.clone(),
                memory: Bytes(held.demand(device).memory),
            })
        });
        of_pods.take(MAX_MEMORY_CLAIMS).collect()
    }
}
