//! Feeds the cluster's state from the followers of all pods and all Nodes.

use super::closings;
use super::events::PodEvents;
use super::eviction::Evictor;
use super::leadership::Leadership;
use super::live_callers::LiveCallers;
use super::locked_cluster::LockedCluster;
use super::own_mark::OwnMark;
use super::planted::{PlantedMistake, planted};
use super::watch_health::WatchHealth;
use apiserver::ApiError;
use apiserver::follow::FollowListener;
use apiserver::kind::{AllNodes, AllPods, Importance};
use apiserver::store::{Delta, Store};
use model::followed_node::FollowedNode;
use model::id::{NodeName, ObjectUid, PodRef, PodUid};
use model::pod::Pod;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use wire::claim_origin;
use wire::watch::UnreadableObject;

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
    fn is(&self, pod: &Arc<Pod>) {
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
    fn is(&self, node: &FollowedNode) {
        self.cluster.node_is(node);
        self.live.node_is(node);
    }

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
        // While pods are left out, the end of a pod may not be seen. Then each pod is read before it is bound.
        if self.health.left_out() == 0 {
            self.cluster.pod_is_watched(pod);
        }
    }

    fn changed(&mut self, deltas: Vec<Delta<Pod>>, held: Option<&Store<AllPods>>) {
        if let Some(held) = held {
            self.health.leaves_out(held.left_out(), held.left_out_of(Importance::MayHold));
            // Before the pods that have just been left out are released.
            self.cluster.leaves_out_unproven_pods(held.left_out_of(Importance::Unproven) > 0);
        }
        for delta in &deltas {
            match delta {
                Delta::Added(pod) => self.is(pod),
                // It still exists.
                Delta::LeftOut(pod) => {
                    self.cluster.pod_is_left_out(&pod.uid);
                    self.evictor.pod_gone(&pod.uid);
                    // Its end will not be seen.
                    self.live.pod_gone(&pod.uid);
                }
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
        self.health.found_unreadable();
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

    fn stopped(&mut self) {
        self.health.stopped();
    }

    fn failed(&mut self, why: &ApiError) -> Duration {
        self.health.failed(why)
    }

    fn works(&mut self) {
        self.health.works();
    }

    fn listed(&mut self, begun: Instant, version: Option<u64>, held: &Store<AllPods>) {
        self.cluster.pods_are_listed(version, held.objects());
        self.cluster.pods_known(begun);
    }
}

impl FollowListener<AllNodes> for NodeFeed {
    fn received(&mut self) {
        self.health.heard();
    }

    fn changed(&mut self, deltas: Vec<Delta<FollowedNode>>, held: Option<&Store<AllNodes>>) {
        if let Some(held) = held {
            // A Node that is not followed gets no pods.
            self.health.leaves_out(held.left_out(), 0);
        }
        for delta in &deltas {
            match delta {
                Delta::Added(node) | Delta::Changed { after: node, .. } => self.is(node),
                Delta::Gone { before, .. } | Delta::LeftOut(before) => {
                    self.cluster.node_gone(before);
                    self.live.node_gone(before);
                    // A restore of etcd brings back an earlier Node of this name. If that Node was not proven gone meanwhile, it
                    // is held unchanged, so no other delta shows it.
                    let earlier = held.and_then(|held| held.objects().find(|node| node.name == before.name));
                    if let Some(node) = earlier {
                        self.is(node);
                    }
                }
            }
        }
        self.tell_closings();
    }

    fn unreadable(&mut self, bad: &UnreadableObject<ObjectUid>) {
        let name = bad.name.as_deref().unwrap_or_default();
        self.health.found_unreadable();
        tracing::warn!(node = name, error = %bad.why, "a Node cannot be read; it takes no new claims");
        if let Ok(name) = NodeName::parse(name) {
            self.cluster.node_is_unreadable(&name, &bad.why.as_str().into());
            self.tell_closings();
        }
    }

    fn stopped(&mut self) {
        self.health.stopped();
        self.cluster.nodes_are_watched(false);
    }

    fn failed(&mut self, why: &ApiError) -> Duration {
        self.health.failed(why)
    }

    fn works(&mut self) {
        self.health.works();
        self.cluster.nodes_are_watched(true);
    }

    fn listed(&mut self, begun: Instant, _: Option<u64>, _: &Store<AllNodes>) {
        self.cluster.nodes_known(begun);
    }
}
