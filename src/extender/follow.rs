//! Feeds the cluster's state from the followers of all pods and all Nodes.

use super::closings;
use super::events::PodEvents;
use super::eviction::Evictor;
use super::leadership::Leadership;
use super::live_callers::LiveCallers;
use super::locked_cluster::LockedCluster;
use super::own_mark::OwnMark;
use super::planted::{PlantedMistake, planted};
use apiserver::ApiError;
use apiserver::follow::FollowListener;
use apiserver::kind::{AllNodes, AllPods};
use apiserver::store::{Delta, Store};
use model::backoff::Backoff;
use model::followed_node::FollowedNode;
use model::id::{NodeName, ObjectUid, PodRef, PodUid};
use model::pod::Pod;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use wire::claim_origin;
use wire::watch::UnreadableObject;

/// Pauses after failures of a list or a watch.
const FIRST: Duration = Duration::from_millis(500);
/// See [`FIRST`]. It is short, because the state of a leader without a watch gets old.
const LONGEST: Duration = Duration::from_secs(15);

/// The state of one watch, for readiness and metrics.
#[derive(Debug)]
pub(super) struct WatchHealth {
    what: &'static str,
    state: Mutex<WatchState>,
    /// Versions of objects that could not be read.
    unreadable: AtomicU64,
}

#[derive(Clone, Debug)]
struct WatchState {
    heard: Option<Instant>,
    broken: Option<Arc<str>>,
    backoff: Backoff,
}

impl WatchHealth {
    pub(super) fn new(what: &'static str) -> Arc<WatchHealth> {
        let state = WatchState { heard: None, broken: None, backoff: Backoff::new(FIRST, LONGEST) };
        Arc::new(WatchHealth { what, state: Mutex::new(state), unreadable: AtomicU64::new(0) })
    }

    /// The kind of the objects.
    pub(super) fn what(&self) -> &'static str {
        self.what
    }

    /// Time since the server sent anything; `None` before it ever has.
    pub(super) fn age(&self) -> Option<Duration> {
        self.state.lock().heard.map(|heard| heard.elapsed())
    }

    /// Why the server cannot be reached now, if it cannot.
    pub(super) fn broken(&self) -> Option<Arc<str>> {
        self.state.lock().broken.clone()
    }

    /// Number of versions of objects that could not be read.
    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    fn heard(&self) {
        self.state.lock().heard = Some(Instant::now());
    }

    fn failed(&self, why: &ApiError) -> Duration {
        let mut state = self.state.lock();
        if state.broken.replace(why.to_string().into()).is_none() {
            let what = self.what;
            tracing::warn!(error = %why, "the watch of {what} failed: {why}; decisions rest on what was seen before");
        }
        state.backoff.pause()
    }

    fn works(&self) {
        let mut state = self.state.lock();
        state.backoff.reset();
        if state.broken.take().is_some() {
            let what = self.what;
            tracing::info!("the watch of {what} works again");
        }
    }
}

/// Takes over all pods.
#[derive(Debug)]
pub(super) struct PodFeed {
    pub(super) cluster: Arc<LockedCluster>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) mark: Arc<OwnMark>,
    pub(super) evictor: Arc<Evictor>,
    pub(super) events: Arc<PodEvents>,
    pub(super) live: Arc<LiveCallers>,
    pub(super) health: Arc<WatchHealth>,
}

/// Takes over all Nodes.
#[derive(Debug)]
pub(super) struct NodeFeed {
    pub(super) cluster: Arc<LockedCluster>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) events: Arc<PodEvents>,
    pub(super) live: Arc<LiveCallers>,
    pub(super) health: Arc<WatchHealth>,
}

impl PodFeed {
    fn is(&self, pod: &Pod) {
        if let Some(epoch) = claim_origin::epoch(pod)
            && !planted(PlantedMistake::EpochRepeats)
            && let Some(own) = self.leadership.epoch_is_used(epoch)
        {
            self.cluster.lead(own);
        }
        self.cluster.pod_is(pod);
        if pod.deleted_at.is_some() && planted(PlantedMistake::DeletionMarkIsGone) {
            self.cluster.pod_gone(&pod.uid);
        }
        self.evictor.pod_is(pod);
        self.live.pod_is(pod);
    }

    fn tell_closings(&self) {
        closings::tell(&self.cluster, (&self.events, &self.live), self.leadership.decides());
    }
}

impl NodeFeed {
    fn tell_closings(&self) {
        closings::tell(&self.cluster, (&self.events, &self.live), self.leadership.decides());
    }
}

impl FollowListener<AllPods> for PodFeed {
    fn received(&mut self) {
        self.health.heard();
    }

    fn watched(&mut self, pod: &Pod) {
        self.mark.watched(pod);
    }

    fn changed(&mut self, deltas: Vec<Delta<Pod>>, _: Option<&Store<AllPods>>) {
        for delta in &deltas {
            match delta {
                // A pod that is left out has ended and holds nothing, but still exists.
                Delta::Added(pod) | Delta::LeftOut(pod) => self.is(pod),
                Delta::Changed { before, after } => {
                    // Only a restore of etcd removes the node from a pod.
                    if before.node.is_some() && after.node.is_none() {
                        self.cluster.pod_is_unbound(&after.uid);
                    }
                    self.is(after);
                }
                Delta::Gone { before, .. } => {
                    if !planted(PlantedMistake::GonePodHolds) {
                        self.cluster.pod_gone(&before.uid);
                    }
                    self.evictor.pod_gone(&before.uid);
                    self.live.pod_gone(&before.uid);
                }
            }
        }
        self.mark.taken_over(&self.cluster);
        self.tell_closings();
    }

    fn unreadable(&mut self, bad: &UnreadableObject<PodUid>) {
        self.health.unreadable.fetch_add(1, Ordering::Relaxed);
        let name = bad.name.as_deref().unwrap_or_default();
        match (&bad.uid, &bad.node) {
            (Some(uid), Some(node)) => {
                let lost = "the GPUs that it may hold are not known, so its node takes no new claims";
                tracing::warn!(pod = name, %node, error = %bad.why, "a pod on {node} cannot be read; {lost}");
                let pod = name.split_once('/');
                let pod = pod.map(|(namespace, name)| PodRef { namespace: namespace.into(), name: name.into() });
                self.cluster.pod_is_unreadable(uid, pod, node);
                self.tell_closings();
            }
            _ => {
                tracing::warn!(pod = name, error = %bad.why, "a pod cannot be read, and it is on no node or has ended")
            }
        }
    }

    fn settled(&mut self, uid: &PodUid) {
        self.cluster.pod_is_settled(uid);
        self.tell_closings();
    }

    fn failed(&mut self, why: &ApiError) -> Duration {
        self.health.failed(why)
    }

    fn works(&mut self) {
        self.health.works();
    }

    fn listed(&mut self, begun: Instant) {
        self.cluster.pods_known(begun);
    }
}

impl FollowListener<AllNodes> for NodeFeed {
    fn received(&mut self) {
        self.health.heard();
    }

    fn changed(&mut self, deltas: Vec<Delta<FollowedNode>>, _: Option<&Store<AllNodes>>) {
        for delta in &deltas {
            match delta {
                Delta::Added(node) | Delta::Changed { after: node, .. } => {
                    self.cluster.node_is(node);
                    self.live.node_is(node);
                }
                Delta::Gone { before, .. } | Delta::LeftOut(before) => {
                    self.cluster.node_gone(before);
                    self.live.node_gone(before);
                }
            }
        }
        self.tell_closings();
    }

    fn unreadable(&mut self, bad: &UnreadableObject<ObjectUid>) {
        let name = bad.name.as_deref().unwrap_or_default();
        self.health.unreadable.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(node = name, error = %bad.why, "a Node cannot be read; it takes no new claims");
        if let Ok(name) = NodeName::parse(name) {
            self.cluster.node_is_unreadable(&name, &bad.why.as_str().into());
            self.tell_closings();
        }
    }

    fn failed(&mut self, why: &ApiError) -> Duration {
        self.health.failed(why)
    }

    fn works(&mut self) {
        self.health.works();
    }

    fn listed(&mut self, begun: Instant) {
        self.cluster.nodes_known(begun);
    }
}
