//! Pods that hold more memory of a GPU than they were promised: begun and ended by measurements that last, so that neither
//! one odd reading nor a short peak makes or ends one.
//!
//! ```text
//!   used > promised + margin   for BEGINS_AFTER ──▶ over   ──▶ an event, a metric
//!   used <= promised + margin  for ENDS_AFTER   ──▶ not over
//!   over for EVICTED_AFTER                      ──▶ may be evicted, where that is wanted
//! ```
//!
//! Time is that of the measurements: a list of processes that could not be read proves nothing, neither that an over-use
//! has begun nor that it has ended, and time without one does not count.

use model::id::{GpuUuid, PodUid};
use model::limits::PodMemoryClaim;
use model::reading::{Absence, Reading};
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
    /// While it counts as over-use: how long it has, in time that was measured.
    over: Option<Duration>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct OverUses {
    promises: Arc<[PodMemoryClaim]>,
    spells: BTreeMap<(PodUid, GpuUuid), Spell>,
}

impl OverUses {
    /// Takes over what pods were promised, all of it.
    pub fn promised(&mut self, promises: Arc<[PodMemoryClaim]>) {
        self.spells
            .retain(|(pod, device), _| promises.iter().any(|promise| &promise.pod == pod && &promise.device == device));
        self.promises = promises;
    }

    /// What was promised.
    #[must_use]
    pub fn promises(&self) -> Arc<[PodMemoryClaim]> {
        Arc::clone(&self.promises)
    }

    /// Judges what is measured now; the pods that are over, by UID and device.
    pub fn judge(&mut self, pods: &[PodView], gpus: &[GpuView]) -> Vec<OverUse> {
        let mut over = Vec::new();
        for promise in self.promises.iter() {
            let key = (promise.pod.clone(), promise.device.clone());
            let used = measured(promise, pods, gpus);
            if let Reading::Measured(used, at) = used {
                let above = used.0 > promise.memory.0.saturating_add(MARGIN.0);
                let begins = Spell { last: (at, above), same_since: at, over: None };
                self.spells.entry(key.clone()).or_insert(begins).take(at, above);
            }
            if let Some(lasted) = self.spells.get(&key).and_then(|spell| spell.over) {
                let (pod, device) = key;
                over.push(OverUse { pod, device, promised: promise.memory, used, lasted });
            }
        }
        over.sort_by(|one, other| (&one.pod, &one.device).cmp(&(&other.pod, &other.device)));
        over
    }
}

/// Whether an over-use has lasted long enough that the pod may be evicted for it. What is not measured now is no reason.
#[must_use]
pub fn to_evict(over: &OverUse) -> bool {
    over.used.value().is_some() && over.lasted >= EVICTED_AFTER
}

impl Spell {
    fn take(&mut self, at: Monotonic, above: bool) {
        if at <= self.last.0 {
            return;
        }
        let step = at.since(self.last.0);
        if above != self.last.1 || step > LONGEST_GAP {
            self.same_since = at;
        }
        self.last = (at, above);
        let same = at.since(self.same_since);
        self.over = match self.over {
            None if above && same >= BEGINS_AFTER => Some(Duration::ZERO),
            Some(_) if !above && same >= ENDS_AFTER => None,
            Some(lasted) if step <= LONGEST_GAP => Some(lasted.saturating_add(step)),
            unchanged => unchanged,
        };
    }
}

/// What the pod's processes hold of the device. A pod without processes on a card whose list is known holds nothing.
fn measured(promise: &PodMemoryClaim, pods: &[PodView], gpus: &[GpuView]) -> Reading<Bytes> {
    let of_device = |gpu: &&GpuView| {
        gpu.gpu.uuid == promise.device || gpu.gpu.instances().iter().any(|mig| mig.uuid == promise.device)
    };
    let Some(gpu) = gpus.iter().find(of_device) else { return Reading::Absent(Absence::GpuLost) };
    let listed = match &gpu.processes {
        Reading::Measured(_, at) => *at,
        Reading::Absent(why) => return Reading::Absent(*why),
    };
    let pod = pods.iter().find(|pod| pod.uid == promise.pod);
    let share =
        pod.and_then(|pod| pod.gpus.iter().find(|share| share.mig.as_ref().unwrap_or(&share.gpu) == &promise.device));
    share.map_or(Reading::Measured(Bytes(0), listed), |share| share.memory_used)
}

#[cfg(test)]
mod tests;
