//! Pods that use more GPU memory than their claims have: told once each, and evicted where that is wanted.

use decide::overuse;
use effects::apiserver::{ApiServer, EventType, NotWritten, ObjectEvent};
use model::id::{GpuUuid, PodUid};
use model::pod::{Pod, PodList};
use model::time::Monotonic;
use model::view::{NodeView, OverUse};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Between two tries to evict a pod that is still there: a budget may forbid it for now, and a pod may take its time to end.
const AGAIN: Duration = Duration::from_secs(60);

/// What was told and tried.
#[derive(Debug, Default)]
pub(super) struct Accused {
    told: BTreeSet<(PodUid, GpuUuid)>,
    tried: BTreeMap<PodUid, Monotonic>,
}

impl Accused {
    /// Tells of those that are new, evicts those that have had their time; `at` is now, as events have it.
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
            // A static pod is kubelet's own: deleting its mirror ends nothing.
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

/// For the pod's owner: what is too much, and what to change.
pub(super) fn sentence(over: &OverUse) -> String {
    let used = over.used.value().map_or_else(|| "more memory".to_owned(), |used| format!("{} MiB", used.0 >> 20));
    format!(
        "the pod's processes hold {used} of {}, and its claim has {} MiB; keep within nvidia.com/gpumem, or ask for more of it",
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
    // Of a static pod the hash of its manifest: there `kubectl describe` looks for events.
    let (api, uid, name) = (api.clone(), pod.cgroup_uid().clone(), pod.name.clone());
    tokio::spawn(async move {
        let event = ObjectEvent { weight: EventType::Warning, reason, action: "Account", note, at };
        if let Err(error) = api.pod_event(&uid, &name, &event).await {
            tracing::warn!(pod = %name, %error, "cannot write the event of a pod that uses too much");
        }
    });
}

/// Tries once, with an event of this reason.
pub(super) fn evict(api: &ApiServer, pod: &Pod, (reason, note, at): (&'static str, String, String)) {
    let (own, pod) = (api.clone(), pod.clone());
    tokio::spawn(async move {
        match own.evict_pod(&pod.uid, &pod.name).await {
            Ok(()) => {
                tracing::warn!(pod = %pod.name, "a pod is evicted: {note}");
                write_event(&own, &pod, (reason, note, at));
            }
            Err(NotWritten::Refused { code: 404, .. }) => {}
            Err(error) => {
                tracing::warn!(pod = %pod.name, %error, "a pod is not evicted, though {note}")
            }
        }
    });
}
