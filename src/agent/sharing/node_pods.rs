//! Holds the pods of this node, as the API server shows them, and the GPU pods among them.

use super::gpu_pods::GpuPodReader;
use model::gpu_pod::GpuPod;
use model::id::{NodeName, PodUid};
use model::pod::{Pod, PodList};
use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use wire::resource::RequestRules;

/// Pause between two passes over the pod list, unless a call waits for a pass. While a node fills up, the list changes
/// a hundred times a second.
const REST: Duration = Duration::from_millis(50);

/// The pod list.
#[derive(Debug)]
pub(super) struct NodePods {
    /// `None` before the first list.
    pods: watch::Receiver<Option<Arc<PodList>>>,
    reader: GpuPodReader,
    rules: RequestRules,
    node: NodeName,
    /// The file that exists once a scheduler has placed pods here.
    served: PathBuf,
    /// `changed` does not report a new list before this time. A call that waits uses `has_new`, which ignores the
    /// pause.
    rests_until: Instant,
}

impl NodePods {
    /// Holds the pods of this node. Their requests are decoded by these rules.
    pub(super) fn new(
        pods: watch::Receiver<Option<Arc<PodList>>>,
        (rules, node): (RequestRules, NodeName),
        served: PathBuf,
    ) -> NodePods {
        NodePods { pods, reader: GpuPodReader::default(), rules, node, served, rests_until: Instant::now() }
    }

    /// Waits until there is a list.
    pub(super) async fn is_known(&self) {
        // The channel does not close before the sharing task ends.
        let mut pods = self.pods.clone();
        let _ = pods.wait_for(Option::is_some).await.is_ok();
    }

    /// Waits until there is a new list, and the pause after the last pass is over.
    pub(super) async fn changed(&mut self) {
        if Instant::now() < self.rests_until {
            sleep_until(self.rests_until).await;
        }
        if self.pods.changed().await.is_err() {
            pending().await
        }
    }

    /// Begins the pause.
    pub(super) fn rest(&mut self) {
        self.rests_until = Instant::now() + REST;
    }

    /// Whether there is a new list, even during the pause.
    pub(super) fn has_new(&self) -> bool {
        self.pods.has_changed().unwrap_or(false)
    }

    /// The newest list, which then no longer counts as new.
    pub(super) fn take(&mut self) -> Option<Arc<PodList>> {
        self.pods.borrow_and_update().clone()
    }

    /// The newest list. A new list still counts as new afterwards.
    pub(super) fn latest(&self) -> Option<Arc<PodList>> {
        self.pods.borrow().clone()
    }

    /// A pod of this node as the API server last showed it.
    pub(super) fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let pods = self.pods.borrow();
        pods.iter().flat_map(|pods| &pods.pods).find(|pod| pod.cgroup_uid() == uid).cloned()
    }

    /// The GPU pods of a list.
    pub(super) fn gpu_pods(&mut self, pods: &PodList) -> Vec<GpuPod> {
        self.reader.of(pods, &self.rules, &self.node)
    }

    /// Saves for the agent's next start that a GPU scheduler has placed a pod here.
    pub(super) fn are_served(&self) {
        tracing::info!(
            "a GPU scheduler places pods here: pods without its claim are refused, unless --without-claim=share"
        );
        if let Err(error) = std::fs::write(&self.served, b"") {
            tracing::warn!(file = %self.served.display(), %error, "cannot save for the agent's next start that a GPU scheduler places pods here");
        }
    }
}
