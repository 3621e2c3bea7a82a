//! Pods that use more GPU memory than they claim: writes their events, and evicts pods. `decide::eviction` decides
//! when.

use super::event_notes;
use crate::event_log::{PodEvent, log_pod_event};
use apiserver::writes::{ApiServer, EventType, ObjectEvent};
use model::pod::Pod;
use model::view::OverUse;

/// Writes the event about a new over-use; `at` is now, in the format of events.
pub(super) fn report(api: &ApiServer, pod: &Pod, over: &OverUse, at: &str) {
    let note = event_notes::over_use(over);
    log_pod_event(&pod.name, &PodEvent::OverUse(over, &note));
    write_event(api, pod, ("OverUse", note, at.to_owned()));
}

fn write_event(api: &ApiServer, pod: &Pod, (reason, note, at): (&'static str, String, String)) {
    // For a static pod this UID is the hash of its manifest, by which `kubectl describe` finds events.
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
                log_pod_event(&pod.name, &PodEvent::Evicted(&note));
                write_event(&own, &pod, (reason, note, at));
            }
            Err(error) if error.code() == Some(404) => {}
            Err(error) => log_pod_event(&pod.name, &PodEvent::NotEvicted(&note, &error)),
        }
    });
}
