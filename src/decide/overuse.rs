//! Pods that hold more memory of a GPU than they were promised: begun and ended by measurements that last, so that neither
//! one odd reading nor a short peak makes or ends one.
//!
//! ```text
//!   used > promised + margin   for BEGINS_AFTER ──▶ over   ──▶ an event, a metric
//!   used <= promised + margin  for ENDS_AFTER   ──▶ not over
//!   over for EVICTED_AFTER                      ──▶ may be evicted, where that is wanted
//! ```
//!
//! Time is that of the measurements: a list of processes that could not be read proves nothing, and time without one does
//! not count.

use model::id::{GpuUuid, PodUid};
use model::promise::PodPromise;
use model::reading::Reading;
use model::time::Monotonic;
use model::unit::Bytes;
use model::view::{GpuView, OverUse, PodView};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// So much above the promise is none of the pod's doing: a CUDA context takes 300 to 500 MiB, and programs that keep to a
/// limit of their own do not count it.
pub const MARGIN: Bytes = Bytes(512 << 20);
/// Above for so long: six lists of processes at the usual pace.
pub const BEGINS_AFTER: Duration = Duration::from_secs(30);
/// Below for so long.
pub const ENDS_AFTER: Duration = Duration::from_secs(30);
/// Whoever is told of it has this long before a pod is evicted.
pub const EVICTED_AFTER: Duration = Duration::from_secs(60);
/// Between two measurements of one spell; beyond it nobody knows what was between.
const LONGEST_GAP: Duration = Duration::from_secs(60);

/// What is remembered of the use of one device by one pod.
#[derive(Clone, Copy, Debug)]
struct Spell {
    /// The measurement that was taken in last, and whether it was above.
    last: (Monotonic, bool),
    /// The first of an unbroken row that says the same as the last.
    same_since: Monotonic,
    /// Since when it counts as over-use.
    over_since: Option<Monotonic>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct OverUses {
    promises: Arc<[PodPromise]>,
    spells: BTreeMap<(PodUid, GpuUuid), Spell>,
}

impl OverUses {
    /// Takes over what pods were promised, all of it.
    pub fn promised(&mut self, promises: Arc<[PodPromise]>) {
        self.spells
            .retain(|(pod, device), _| promises.iter().any(|promise| &promise.pod == pod && &promise.device == device));
        self.promises = promises;
    }

    /// What was promised.
    #[must_use]
    pub fn promises(&self) -> Arc<[PodPromise]> {
        Arc::clone(&self.promises)
    }

    /// Judges what is measured now; the pods that are over, by UID and device.
    pub fn judge(&mut self, pods: &[PodView], gpus: &[GpuView]) -> Vec<OverUse> {
        let mut over = Vec::new();
        for promise in self.promises.iter() {
            let key = (promise.pod.clone(), promise.device.clone());
            let Some((used, at)) = measured(promise, pods, gpus) else { continue };
            let above = used.0 > promise.memory.0.saturating_add(MARGIN.0);
            let spell = self.spells.entry(key).or_insert(Spell { last: (at, above), same_since: at, over_since: None });
            spell.take(at, above);
            if let Some(since) = spell.over_since {
                let (pod, device) = (promise.pod.clone(), promise.device.clone());
                over.push(OverUse { pod, device, promised: promise.memory, used, since });
            }
        }
        over.sort_by(|one, other| (&one.pod, &one.device).cmp(&(&other.pod, &other.device)));
        over
    }
}

/// Whether an over-use has lasted long enough that the pod may be evicted for it.
#[must_use]
pub fn to_evict(over: &OverUse, now: Monotonic) -> bool {
    now.since(over.since) >= EVICTED_AFTER
}

impl Spell {
    fn take(&mut self, at: Monotonic, above: bool) {
        if at <= self.last.0 {
            return;
        }
        if above != self.last.1 || at.since(self.last.0) > LONGEST_GAP {
            self.same_since = at;
        }
        self.last = (at, above);
        let lasted = at.since(self.same_since);
        if above && self.over_since.is_none() && lasted >= BEGINS_AFTER {
            self.over_since = Some(at);
        }
        if !above && lasted >= ENDS_AFTER {
            self.over_since = None;
        }
    }
}

/// What the pod's processes hold of the device. A pod without processes on a card whose list is known holds nothing.
fn measured(promise: &PodPromise, pods: &[PodView], gpus: &[GpuView]) -> Option<(Bytes, Monotonic)> {
    let of_device = |gpu: &&GpuView| {
        gpu.gpu.uuid == promise.device || gpu.gpu.instances().iter().any(|mig| mig.uuid == promise.device)
    };
    let listed = gpus.iter().find(of_device)?.processes.at()?;
    let pod = pods.iter().find(|pod| pod.uid == promise.pod);
    let share =
        pod.and_then(|pod| pod.gpus.iter().find(|share| share.mig.as_ref().unwrap_or(&share.gpu) == &promise.device));
    match share.map(|share| &share.memory_used) {
        Some(Reading::Measured(used, at)) => Some((*used, *at)),
        Some(Reading::Absent(_)) => None,
        None => Some((Bytes(0), listed)),
    }
}

#[cfg(test)]
mod tests;
