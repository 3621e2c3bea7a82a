//! Writes on Nodes how much of their GPUs the leader counts as taken (`hami.io/node-nvidia-assume`), with
//! `--assume-annotation`.
//!
//! ```text
//!   versions of the nodes ──▶ AssumePace ──candidate──▶ LockedCluster: claims, and what the Node says ──▶ one PATCH a second
//! ```
//!
//! What must never happen here: a write by a process that does not lead.

use super::leadership::Leadership;
use super::locked_cluster::{AssumedNode, LockedCluster};
use apiserver::client::ApiClient;
use apiserver::writes::ASSUMER;
use decide::assume_pace::{AssumePace, AssumedText};
use model::id::{NodeName, ObjectUid};
use model::time::Monotonic;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use wire::annotation_keys::ASSUMED;
use wire::assumed;

/// Time between two looks. The pause between two writes is at least a second.
const LOOK: Duration = Duration::from_millis(250);

/// The task that writes.
#[derive(Debug)]
pub(super) struct AssumedWriter {
    pub(super) cluster: Arc<LockedCluster>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) client: ApiClient,
}

/// One write.
struct DueWrite {
    node: NodeName,
    uid: ObjectUid,
    text: AssumedText,
}

impl AssumedWriter {
    /// Runs until `stop` is cancelled.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut pace, mut refused) = (None, false);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            if !self.leadership.decides() {
                pace = None;
                continue;
            }
            let now = clock::monotonic();
            let pace = pace.get_or_insert_with(|| AssumePace::new(now));
            if let Some(write) = self.due(pace, now) {
                self.write(write, pace, &mut refused).await;
            }
        }
    }

    /// The write that is due now, if any.
    fn due(&self, pace: &mut AssumePace, now: Monotonic) -> Option<DueWrite> {
        for candidate in pace.candidates(&self.cluster.node_names(), now) {
            let Some(AssumedNode { uid, devices, shown }) = self.cluster.assumed(&candidate.0) else { continue };
            let text: AssumedText = assumed::encode(&devices).map(Arc::from);
            if pace.looked(&candidate, (&text, &shown), now) {
                return Some(DueWrite { node: candidate.0, uid, text });
            }
        }
        None
    }

    async fn write(&self, write: DueWrite, pace: &mut AssumePace, refused: &mut bool) {
        let DueWrite { node, uid, text } = write;
        let written = self.client.mark_node(&uid, &node, (ASSUMED, text.as_deref()), ASSUMER).await;
        let now = clock::monotonic();
        match written {
            Ok(()) => {
                *refused = false;
                tracing::trace!(%node, "node {node} says what is assumed of its GPUs: {}", text.as_deref().unwrap_or("nothing"));
                pace.written(&node, text, now);
            }
            Err(error) => {
                // The Node may be gone by now, or be another Node of its name; the watch will show it.
                let gone = matches!(error.code(), Some(404 | 409));
                if !gone && !std::mem::replace(refused, true) {
                    tracing::warn!(%node, %error, "cannot write {ASSUMED}: {error}; tried again, and logged once until it works");
                }
                pace.failed(&node, now);
            }
        }
    }
}
