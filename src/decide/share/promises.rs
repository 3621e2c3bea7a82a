//! What the pods that have started were promised of memory: what their use is held against.

use super::ledger::of_pod;
use super::state::Share;
use model::id::GpuUuid;
use model::promise::{MAX_PROMISES, PodPromise};
use model::share::Portion;
use model::unit::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Share {
    /// For each pod that has started and not ended, and each device of which its memory is limited, how much that is.
    #[must_use]
    pub fn promises(&self) -> Arc<[PodPromise]> {
        let mut promises = Vec::new();
        for tenant in self.started.iter().filter_map(|uid| self.tenants.get(uid)).filter(|tenant| !tenant.finished) {
            let Some(portions) = self.promised_to(tenant) else { continue };
            let all = || portions.iter().flatten();
            let devices: BTreeSet<&GpuUuid> = all().map(|portion| &portion.device).collect();
            for device in devices {
                let unlimited = |portion: &Portion| portion.memory.is_none_or(|memory| memory == Bytes(0));
                if promises.len() < MAX_PROMISES && !all().any(|own| &own.device == device && unlimited(own)) {
                    let memory = Bytes(of_pod(tenant, &portions, device).memory);
                    promises.push(PodPromise { pod: tenant.uid.clone(), device: device.clone(), memory });
                }
            }
        }
        promises.into()
    }
}
