//! Pods that are bound to Nodes that do not exist, of which there are more than the cluster's state has places for. A Node of such a
//! name may be created later, and the pod watch may be ahead of the watch of Nodes: then the state takes these pods over.
//!
//! The pods are shared with the pod watch's store, so only their entries here take memory.

use model::id::{NodeName, PodUid};
use model::pod::Pod;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// These pods. Bounded like the pods of the cluster.
#[derive(Debug, Default)]
pub(super) struct DeferredPods {
    pods: HashMap<PodUid, Arc<Pod>>,
    by_node: HashMap<NodeName, HashSet<PodUid>>,
}

impl DeferredPods {
    /// The state has no place for the current version of a pod.
    pub(super) fn add(&mut self, pod: &Arc<Pod>) {
        self.remove(&pod.uid);
        let Some(node) = &pod.node else { return };
        self.by_node.entry(node.clone()).or_default().insert(pod.uid.clone());
        self.pods.insert(pod.uid.clone(), Arc::clone(pod));
    }

    /// The state has taken a pod over, or the pod is gone.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.remove(uid) else { return };
        let Some(node) = &pod.node else { return };
        if let Some(pods) = self.by_node.get_mut(node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.by_node.remove(node);
            }
        }
    }

    /// Removes and returns the pods that are bound to this Node, which exists now.
    pub(super) fn take(&mut self, node: &NodeName) -> Vec<Arc<Pod>> {
        let uids = self.by_node.remove(node).unwrap_or_default();
        uids.iter().filter_map(|uid| self.pods.remove(uid)).collect()
    }
}
