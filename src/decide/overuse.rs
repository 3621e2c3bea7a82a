//! Over-use: pods that hold more memory of a GPU than they claim. All measurements over a whole span must agree before
//! an over-use begins or ends, so that one odd reading or a short peak changes nothing.
//!
//! ```text
//!   used > claimed + margin   for BEGINS_AFTER ──▶ over   ──▶ an event, a metric
//!   used <= claimed + margin  for ENDS_AFTER   ──▶ not over
//!   over for EVICTED_AFTER                     ──▶ may be evicted, if the operator has switched that on
//! ```
//!
//! Only measured time counts. A process list that could not be read is no evidence that an over-use has begun or ended.

use model::id::{GpuUuid, PodUid};
use model::limits::PodMemoryClaim;
use model::reading::{Absence, Reading};
use model::time::Monotonic;
use model::unit::Bytes;
use model::view::{GpuView, OverUse, PodView};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Use above the claim that does not count as over-use: a CUDA context takes 300 to 500 MiB, and programs that limit
/// their own memory do not count it.
pub const MARGIN: Bytes = Bytes(512 << 20);
/// An over-use begins when the use has been above claim plus margin for this long: six process lists at the usual rate.
pub const BEGINS_AFTER: Duration = Duration::from_secs(30);
/// An over-use ends when the use has not been above claim plus margin for this long.
pub const ENDS_AFTER: Duration = Duration::from_secs(30);
/// Time from the beginning of an over-use to the eviction, for the owner of the pod to react.
pub const EVICTED_AFTER: Duration = Duration::from_secs(60);
/// Longest time between two measurements that belong to one span. The use in a longer gap is not known.
const LONGEST_GAP: Duration = Duration::from_secs(60);

/// The measurements of the memory that one pod uses of one device.
#[derive(Clone, Copy, Debug)]
struct MeasuredUse {
    /// The time of the last measurement, and whether the use was above claim plus margin.
    last: (Monotonic, bool),
    /// Since when all measurements, without a longer gap, have had the same result as the last measurement.
    same_since: Monotonic,
    /// How long the over-use has lasted, in measured time; `None` while there is no over-use.
    over: Option<Duration>,
}

/// The over-uses of the node.
#[derive(Debug, Default)]
pub struct OverUses {
    memory_claims: Arc<[PodMemoryClaim]>,
    uses: BTreeMap<(PodUid, GpuUuid), MeasuredUse>,
}

impl OverUses {
    /// Replaces the memory that pods claim.
    pub fn set_memory_claims(&mut self, memory_claims: Arc<[PodMemoryClaim]>) {
        self.uses
            .retain(|(pod, device), _| memory_claims.iter().any(|claim| &claim.pod == pod && &claim.device == device));
        self.memory_claims = memory_claims;
    }

    /// The memory that pods claim.
    #[must_use]
    pub fn memory_claims(&self) -> Arc<[PodMemoryClaim]> {
        Arc::clone(&self.memory_claims)
    }

    /// Takes in the current measurements; returns the over-uses, ordered by UID and device.
    pub fn judge(&mut self, pods: &[PodView], gpus: &[GpuView]) -> Vec<OverUse> {
        let mut over = Vec::new();
        for claim in self.memory_claims.iter() {
            let key = (claim.pod.clone(), claim.device.clone());
            let used = measured(claim, pods, gpus);
            if let Reading::Measured(used, at) = used {
                let above = used.0 > claim.memory.0.saturating_add(MARGIN.0);
                let begins = MeasuredUse { last: (at, above), same_since: at, over: None };
                self.uses.entry(key.clone()).or_insert(begins).take(at, above);
            }
            if let Some(lasted) = self.uses.get(&key).and_then(|use_of_device| use_of_device.over) {
                let (pod, device) = key;
                over.push(OverUse { pod, device, claimed: claim.memory, used, lasted });
            }
        }
        over.sort_by(|one, other| (&one.pod, &one.device).cmp(&(&other.pod, &other.device)));
        over
    }
}

/// Whether an over-use has lasted long enough for an eviction of the pod. Without a current measurement the answer is
/// no.
#[must_use]
pub fn to_evict(over: &OverUse) -> bool {
    over.used.value().is_some() && over.lasted >= EVICTED_AFTER
}

impl MeasuredUse {
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

/// The memory that the pod's processes hold of the device; 0 if the GPU's list is known and has no process of the pod.
fn measured(claim: &PodMemoryClaim, pods: &[PodView], gpus: &[GpuView]) -> Reading<Bytes> {
    let of_device =
        |gpu: &&GpuView| gpu.gpu.uuid == claim.device || gpu.gpu.instances().iter().any(|mig| mig.uuid == claim.device);
    let Some(gpu) = gpus.iter().find(of_device) else { return Reading::Absent(Absence::GpuLost) };
    let listed = match &gpu.processes {
        Reading::Measured(_, at) => *at,
        Reading::Absent(why) => return Reading::Absent(*why),
    };
    let pod = pods.iter().find(|pod| pod.uid == claim.pod);
    let share =
        pod.and_then(|pod| pod.gpus.iter().find(|share| share.mig.as_ref().unwrap_or(&share.gpu) == &claim.device));
    share.map_or(Reading::Measured(Bytes(0), listed), |share| share.memory_used)
}

#[cfg(test)]
mod tests;
