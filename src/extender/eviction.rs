//! Evicts the pods that an agent has marked (`gpu-steward.io/evict`), so that their controllers create them again. Only
//! the leader does so, through the Eviction API, which respects disruption budgets.

use super::leadership::Leadership;
use apiserver::client::ApiClient;
use model::backoff::Backoff;
use model::id::{PodRef, PodUid};
use model::pod::Pod;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wire::annotation_keys::EVICT;

/// Pause after the first attempt at a pod; later pauses are longer.
const FIRST: Duration = Duration::from_secs(5);
/// Longest pause between two attempts.
const LONGEST: Duration = Duration::from_secs(120);
/// How often a process that does not lead checks whether it leads.
const FOLLOWS: Duration = Duration::from_secs(2);
/// Maximum number of marked pods that are kept; marks are rare. A marked pod beyond this number is ignored until the
/// pod changes again and there is room.
const MOST: usize = 10_000;

/// The marked pods.
#[derive(Debug, Default)]
pub(super) struct Evictor {
    marked: Mutex<BTreeMap<PodUid, MarkedPod>>,
    changed: Notify,
}

#[derive(Debug)]
struct MarkedPod {
    pod: PodRef,
    why: Arc<str>,
    due: Instant,
    backoff: Backoff,
}

impl Evictor {
    /// Takes over a pod. A pod that is being deleted or has ended is not evicted. Nor is the mirror of a static pod,
    /// because deleting the mirror does not end the pod.
    pub(super) fn pod_is(&self, pod: &Pod) {
        let mark = pod.annotations.iter().find(|(key, _)| &**key == EVICT).map(|(_, why)| why);
        let Some(why) = mark.filter(|_| pod.deleted_at.is_none() && !pod.ended() && pod.mirror_of.is_none()) else {
            return self.pod_gone(&pod.uid);
        };
        let mut marked = self.marked.lock();
        if marked.contains_key(&pod.uid) || marked.len() >= MOST {
            return;
        }
        let backoff = Backoff::new(FIRST, LONGEST);
        let one = MarkedPod { pod: pod.name.clone(), why: Arc::clone(why), due: Instant::now(), backoff };
        marked.insert(pod.uid.clone(), one);
        self.changed.notify_one();
    }

    /// A pod is gone.
    pub(super) fn pod_gone(&self, uid: &PodUid) {
        self.marked.lock().remove(uid);
    }

    /// Evicts marked pods while this process leads, until `stop` is cancelled.
    pub(super) async fn run(self: Arc<Self>, client: ApiClient, leadership: Arc<Leadership>, stop: CancellationToken) {
        loop {
            let now = Instant::now();
            let wait = match self.marked.lock().values().map(|marked| marked.due).min() {
                _ if !leadership.decides() => now + FOLLOWS,
                Some(due) => due,
                None => now + LONGEST,
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.changed.notified() => {}
                () = sleep_until(wait) => {}
            }
            for (uid, pod, why) in self.due() {
                if !leadership.decides() {
                    break;
                }
                match client.evict_pod(&uid, &pod).await {
                    Ok(()) => tracing::info!(%pod, why = &*why, "evicted a marked pod: {why}"),
                    // The pod is gone, or another pod has its name.
                    Err(error) if matches!(error.code(), Some(404 | 409)) => {}
                    Err(error) => tracing::warn!(%pod, %error, "cannot evict a marked pod now; tried again"),
                }
                self.later(&uid);
            }
        }
    }

    fn due(&self) -> Vec<(PodUid, PodRef, Arc<str>)> {
        let now = Instant::now();
        let marked = self.marked.lock();
        let due = marked.iter().filter(|(_, marked)| marked.due <= now);
        due.map(|(uid, marked)| (uid.clone(), marked.pod.clone(), Arc::clone(&marked.why))).collect()
    }

    /// Schedules the next attempt at this pod, unless the pod is gone by then.
    fn later(&self, uid: &PodUid) {
        if let Some(marked) = self.marked.lock().get_mut(uid) {
            marked.due = Instant::now() + marked.backoff.pause();
        }
    }
}
