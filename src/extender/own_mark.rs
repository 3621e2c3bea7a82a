//! Finds out whether this process has seen everything that was written to pods before a moment, without reading all
//! pods again.
//!
//! ```text
//!   won ──▶ writes a mark on its own pod ──▶ the pod watch shows it ──▶ all earlier changes are in LockedCluster
//!     └──── outside a pod, before the first list, or if the mark is not seen in time ──▶ all pods are read again
//! ```
//!
//! A watch shows the writes to all pods in the order in which they were made. So a process that has seen its own mark
//! in the watch has seen every write before the mark.
//!
//! What must never happen here: a mark counts that only another request than the watch has shown, or before the changes
//! ahead of the mark are taken over.

use super::locked_cluster::LockedCluster;
use super::planted::{PlantedMistake, planted};
use apiserver::client::ApiClient;
use model::id::{PodRef, PodUid};
use model::pod::Pod;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wire::annotation_keys::LEADS;

/// How long this process waits for its mark. A working watch shows it within milliseconds; reading 50,000 pods takes
/// seconds.
const WITHIN: Duration = Duration::from_secs(2);

/// The mark of this process on its own pod.
#[derive(Debug)]
pub(super) struct OwnMark {
    client: ApiClient,
    /// This process's pod; `None` outside a pod.
    pod: Option<(PodUid, PodRef)>,
    identity: Arc<str>,
    state: Mutex<MarkState>,
}

#[derive(Debug, Default)]
struct MarkState {
    /// Number of marks that were written. It is part of each mark's value, so every value is unique.
    written: u64,
    awaited: Option<AwaitedMark>,
}

/// A mark that the watch has not shown yet, or that it has shown while the changes ahead of the mark are not taken over
/// yet.
#[derive(Debug)]
struct AwaitedMark {
    value: Arc<str>,
    /// The moment just before the mark was written.
    begun: Instant,
    shown: bool,
    known: oneshot::Sender<()>,
}

impl OwnMark {
    /// The mark of the process with this identity in this pod.
    pub(super) fn new(client: ApiClient, identity: Arc<str>, pod: Option<(PodUid, PodRef)>) -> OwnMark {
        OwnMark { client, pod, identity, state: Mutex::default() }
    }

    /// The pod watch has shown this version of a pod. Only the watch may call this.
    pub(super) fn watched(&self, pod: &Pod) {
        if self.pod.as_ref().is_none_or(|(own, _)| *own != pod.uid) {
            return;
        }
        if let Some(awaited) = &mut self.state.lock().awaited {
            awaited.shown |= pod.annotation(LEADS).is_some_and(|value| *value == *awaited.value);
        }
    }

    /// The cluster's state has taken over everything that the watch has shown up to now.
    pub(super) fn taken_over(&self, cluster: &LockedCluster) {
        if let Some(mark) = self.state.lock().awaited.take_if(|awaited| awaited.shown) {
            cluster.pods_known(mark.begun);
            // The receiver is gone if the mark is too late.
            let _ = mark.known.send(());
        }
    }

    /// Each time `wanted` is notified, makes sure that the cluster's state has taken over all pods as of now, by a mark
    /// or by `relist`.
    pub(super) async fn run(
        self: Arc<Self>,
        cluster: Arc<LockedCluster>,
        (wanted, relist): (Arc<Notify>, Arc<Notify>),
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = wanted.notified() => {}
            }
            // Before the first list is complete, a mark proves nothing: the list may have begun before the win, and its
            // watch may begin after the mark.
            let Some((uid, pod)) = self.pod.as_ref().filter(|_| cluster.pods_were_listed()) else {
                relist.notify_one();
                continue;
            };
            let seen = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                seen = timeout(WITHIN, self.is_seen(&cluster, uid, pod)) => seen.is_ok_and(|seen| seen),
            };
            self.state.lock().awaited = None;
            if !seen {
                tracing::info!(%pod, "the pod watch did not show the mark of this process in time: all pods are read again");
                relist.notify_one();
            }
        }
    }

    /// Writes a mark, and waits until everything before it is taken over. Returns false if the mark was refused.
    async fn is_seen(&self, cluster: &LockedCluster, uid: &PodUid, pod: &PodRef) -> bool {
        let (sender, known) = oneshot::channel();
        let begun = Instant::now();
        let value: Arc<str> = {
            let mut state = self.state.lock();
            state.written += 1;
            let value = Arc::<str>::from(format!("{}/{}", self.identity, state.written));
            state.awaited = Some(AwaitedMark { value: Arc::clone(&value), begun, shown: false, known: sender });
            value
        };
        if let Err(error) = self.client.mark_pod(uid, pod, (LEADS, &value)).await {
            tracing::debug!(%pod, %error, "this process cannot mark its own pod: {error}");
            // If only the answer was lost, the mark may still have been written, so wait for it. A refused mark is
            // never written.
            if error.refusal().is_some() {
                return false;
            }
        }
        if planted(PlantedMistake::WrittenMarkIsSeen) {
            cluster.pods_known(begun);
            return true;
        }
        known.await.is_ok()
    }
}
