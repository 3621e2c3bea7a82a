//! Wakes pods for which there is room now: writes an annotation to each, so that kube-scheduler tries it again.
//!
//! kube-scheduler keeps a pod that it could not place until it sees an event that may help. A change of the pod itself is
//! such an event, for this pod alone. An annotation on a Node would bring back every pod.
//!
//! What must never happen here: a write by a process that does not lead at that moment.

use super::leadership::Leadership;
use super::locked_cluster::LockedCluster;
use super::planted::{PlantedMistake, planted};
use apiserver::client::ApiClient;
use decide::cluster::Wake;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::annotation_keys::WAKE;

/// Time between two looks for changed nodes. A look without changes takes a microsecond, and a pod waits this much longer.
const LOOK: Duration = Duration::from_millis(100);
/// Pause between two steps. Each step does a bounded amount of work, so wakes take at most about a tenth of a core, whatever pods
/// wait.
const STEP: Duration = Duration::from_millis(5);
/// Time limit for a write. The room is not kept any longer.
const WITHIN: Duration = Duration::from_secs(5);

/// Writes to the pods.
#[derive(Debug)]
pub(super) struct Waker {
    client: ApiClient,
    cluster: Arc<LockedCluster>,
    leadership: Arc<Leadership>,
    /// The last write has failed, and the log has said so.
    is_failing: AtomicBool,
}

impl Waker {
    pub(super) fn new(client: ApiClient, cluster: Arc<LockedCluster>, leadership: Arc<Leadership>) -> Waker {
        Waker { client, cluster, leadership, is_failing: AtomicBool::new(false) }
    }

    /// Wakes pods while this process leads, until `stop` is cancelled. At most 20 pods are woken in a second and a write takes at
    /// most five, so at most a hundred writes are under way.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let writes = TaskTracker::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(LOOK) => {}
            }
            while self.may_write() && !stop.is_cancelled() {
                let step = self.cluster.wakes();
                for wake in step.wakes {
                    let (waker, stop) = (Arc::clone(&self), stop.clone());
                    writes.spawn(async move {
                        tokio::select! {
                            biased;
                            () = stop.cancelled() => {}
                            () = waker.wake(&wake) => {}
                        }
                    });
                }
                if !step.more {
                    break;
                }
                sleep(STEP).await;
            }
        }
    }

    fn may_write(&self) -> bool {
        self.leadership.decides() || planted(PlantedMistake::OldLeaderWakes)
    }

    /// Writes to one pod. kube-scheduler may have asked about the pod since it was chosen; a write would then make its binding void.
    async fn wake(&self, wake: &Wake) {
        let Wake { uid, pod, node, epoch, number } = wake;
        let left = match self.leadership.term_left().filter(|_| self.may_write()) {
            Some(left) => left.min(WITHIN),
            None if planted(PlantedMistake::OldLeaderWakes) => WITHIN,
            None => return self.cluster.wake_has_failed(uid),
        };
        if !self.cluster.may_wake(uid) {
            return;
        }
        let mark = format!("{epoch}/{number}");
        let written = tokio::select! {
            biased;
            () = sleep(left) => Err("no answer in time".to_owned()),
            written = self.client.mark_pod(uid, pod, (WAKE, &mark)) => written.map_err(|error| error.to_string()),
        };
        match written {
            Ok(()) => {
                self.is_failing.store(false, Ordering::Relaxed);
                tracing::info!(%pod, %node, mark, "woke {pod}: {node} has room for it now");
            }
            Err(why) => {
                self.cluster.wake_has_failed(uid);
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%pod, why, "cannot wake {pod}, for which {node} has room: {why}; later failures are only counted");
                }
            }
        }
    }
}
