//! Pods that use more GPU memory than they claim: the agent writes one event for each device, and evicts the pod if
//! that is set.

use apiserver::writes::{ApiServer, EventType, ObjectEvent};
use decide::overuse;
use model::id::{GpuUuid, PodUid};
use model::pod::{Pod, PodList};
use model::time::Monotonic;
use model::view::{NodeView, OverUse};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pause between two tries to evict a pod: a disruption budget may forbid it for now, and a pod may take its time to
/// end.
const AGAIN: Duration = Duration::from_secs(60);

/// The over-use that events were written about, and the evictions that were tried.
#[derive(Debug, Default)]
pub(super) struct Accused {
    told: BTreeSet<(PodUid, GpuUuid)>,
    tried: BTreeMap<PodUid, Monotonic>,
}

impl Accused {
    /// Writes an event about each new over-use, and evicts pods whose time is over; `at` is now, in the format of
    /// events.
    pub(super) fn act(&mut self, api: &ApiServer, (view, at): (&NodeView, &str), pods: Option<&PodList>, evicts: bool) {
        let now: BTreeSet<(PodUid, GpuUuid)> =
            view.over_uses.iter().map(|over| (over.pod.clone(), over.device.clone())).collect();
        self.told.retain(|told| now.contains(told));
        self.tried.retain(|pod, _| now.iter().any(|(uid, _)| uid == pod));
        for over in &view.over_uses {
            let pod = pods.and_then(|pods| pods.pods.iter().find(|pod| pod.cgroup_uid() == &over.pod));
            let Some(pod) = pod.filter(|pod| pod.deleted_at.is_none()) else { continue };
            if self.told.insert((over.pod.clone(), over.device.clone())) {
                tell(api, pod, over, at);
            }
            // A static pod belongs to the kubelet: deleting its mirror pod does not end it.
            if !evicts || pod.mirror_of.is_some() || !overuse::to_evict(over) {
                continue;
            }
            let due = self.tried.get(&over.pod).is_none_or(|at| view.now.monotonic.since(*at) >= AGAIN);
            if due {
                self.tried.insert(over.pod.clone(), view.now.monotonic);
                evict(api, pod, ("EvictedForOverUse", sentence(over), at.to_owned()));
            }
        }
    }
}

/// The event note for the pod's owner: what is too much, and what to change.
pub(super) fn sentence(over: &OverUse) -> String {
    let used = over.used.value().map_or_else(|| "more memory".to_owned(), |used| format!("{} MiB", used.0 >> 20));
    format!(
        "the pod's processes hold {used} of {}, and its claim has {} MiB; \
         keep within nvidia.com/gpumem, or ask for more of it",
        over.device,
        over.promised.0 >> 20
    )
}

fn tell(api: &ApiServer, pod: &Pod, over: &OverUse, at: &str) {
    let note = sentence(over);
    tracing::warn!(pod = %pod.name, device = %over.device, "a pod uses too much GPU memory: {note}");
    write_event(api, pod, ("OverUse", note, at.to_owned()));
}

fn write_event(api: &ApiServer, pod: &Pod, (reason, note, at): (&'static str, String, String)) {
    // For a static pod this UID is the hash of its manifest, where `kubectl describe` looks for events.
    let (api, uid, name) = (api.clone(), pod.cgroup_uid().clone(), pod.name.clone());
    tokio::spawn(async move {
        let event = ObjectEvent { weight: EventType::Warning, reason, action: "Account", note, at };
        if let Err(error) = api.pod_event(&uid, &name, &event).await {
            tracing::warn!(pod = %name, %error, "cannot write the event of a pod that uses too much");
        }
    });
}

/// Tries once to evict the pod; after a success, writes an event with this reason.
pub(super) fn evict(api: &ApiServer, pod: &Pod, (reason, note, at): (&'static str, String, String)) {
    let (own, pod) = (api.clone(), pod.clone());
    tokio::spawn(async move {
        match own.evict_pod(&pod.uid, &pod.name).await {
            Ok(()) => {
                tracing::warn!(pod = %pod.name, "a pod is evicted: {note}");
                write_event(&own, &pod, (reason, note, at));
            }
            Err(error) if error.code() == Some(404) => {}
            Err(error) => {
                tracing::warn!(pod = %pod.name, %error, "cannot evict a pod: {note}")
            }
        }
    });
}
