//! When a pod is marked for eviction, and when the agent tries to evict it.
//!
//! ```text
//!   can never start here, runs without its limits, has written too much ──▶ mark, once for each reason
//!       └─ WithoutCdi, and it starts after all ──▶ the mark is removed
//!   over-use has begun ──▶ an event for each device ──after EVICTED_AFTER, if evictions are on──▶ evict ─┐
//!                                                                         ▲──while it lasts, after AGAIN─┘
//! ```
//!
//! What must never happen here: an eviction that the operator has not switched on; an eviction of a static pod, or of a
//! pod that is being deleted; a second try before the pause is over.

use crate::overuse;
use model::id::{GpuUuid, PodUid};
use model::pod::{Pod, PodList};
use model::time::Monotonic;
use model::view::OverUse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Pause between two tries to evict a pod: a disruption budget may forbid it for now, or the pod may need time to end.
const AGAIN: Duration = Duration::from_secs(60);

/// The over-uses that already have an event, and the evictions that were tried.
#[derive(Debug, Default)]
pub struct Evictions {
    on: bool,
    reported: BTreeSet<(PodUid, GpuUuid)>,
    tried: BTreeMap<PodUid, Monotonic>,
}

/// What the agent does about an over-use.
#[derive(Clone, Debug, PartialEq)]
pub enum EvictionStep<'a> {
    /// Write an event.
    Report(&'a Arc<Pod>, &'a OverUse),
    /// Try to evict the pod.
    Evict(&'a Arc<Pod>, &'a OverUse),
}

impl Evictions {
    /// Sets whether the operator has switched evictions on.
    pub fn switch(&mut self, on: bool) {
        self.on = on;
    }

    /// Takes in the current over-uses. Returns an event for each new over-use, and the evictions to try now.
    pub fn over_uses<'a>(
        &mut self,
        over_uses: &'a [OverUse],
        pods: Option<&'a PodList>,
        now: Monotonic,
    ) -> Vec<EvictionStep<'a>> {
        let held: BTreeSet<(PodUid, GpuUuid)> =
            over_uses.iter().map(|over| (over.pod.clone(), over.device.clone())).collect();
        self.reported.retain(|reported| held.contains(reported));
        self.tried.retain(|pod, _| held.iter().any(|(uid, _)| uid == pod));
        let mut steps = Vec::new();
        for over in over_uses {
            let pod = pods.and_then(|pods| pods.pods.iter().find(|pod| pod.cgroup_uid() == &over.pod));
            let Some(pod) = pod.filter(|pod| pod.deleted_at.is_none()) else { continue };
            if self.reported.insert((over.pod.clone(), over.device.clone())) {
                steps.push(EvictionStep::Report(pod, over));
            }
            let due = self.tried.get(&over.pod).is_none_or(|at| now.since(*at) >= AGAIN);
            if due && self.may_evict(pod) && overuse::to_evict(over) {
                self.tried.insert(over.pod.clone(), now);
                steps.push(EvictionStep::Evict(pod, over));
            }
        }
        steps
    }

    /// Whether to evict a pod that has written too much. The agent measures that once a minute, so no other pause
    /// between two tries is needed.
    #[must_use]
    pub fn for_files(&self, pod: &Pod) -> bool {
        self.may_evict(pod)
    }

    /// A static pod belongs to the kubelet: deleting its mirror pod does not end it.
    fn may_evict(&self, pod: &Pod) -> bool {
        self.on && pod.mirror_of.is_none() && pod.deleted_at.is_none()
    }
}

#[cfg(test)]
mod tests;
