//! Takes in reasons to close a node that lie outside its pods and GPUs, and reports which nodes were closed or opened.

use super::closed::{ClosedReason, Closing, ClosingChange};
use super::state::ClusterState;
use model::claim::ClaimOrigin;
use model::id::{NodeName, PodRef, PodUid};
use std::sync::Arc;

impl ClusterState {
    /// The newest version of a pod that is bound to this node cannot be read. `uid` is the pod's UID at the API server; the pod's
    /// name may be unreadable too.
    pub fn pod_is_unreadable(&mut self, uid: &PodUid, pod: Option<PodRef>, node: &NodeName) {
        self.pod_is_settled(uid);
        self.unreadable.insert(uid.clone(), (node.clone(), pod));
        if self.has_place(node) {
            self.node_entry(node).blocking_pods_mut().unreadable.insert(uid.clone());
        }
        self.touch(node);
    }

    /// Finds the unreadable pods that are bound to this node and had no place before.
    pub(super) fn find_unreadable_pods(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let here = self.unreadable.iter().filter(|(_, (at, _))| at == name);
        let here: Vec<PodUid> = here.map(|(uid, _)| uid.clone()).collect();
        if !here.is_empty() {
            node.blocking_pods_mut().unreadable.extend(here);
        }
    }

    /// A pod that could not be read is known to be gone, or can be read again.
    pub fn pod_is_settled(&mut self, uid: &PodUid) {
        let Some((node, _)) = self.unreadable.remove(uid) else { return };
        if let Some(claims) = self.nodes.get_mut(&node) {
            claims.blocking_pods_mut().unreadable.remove(uid);
        }
        self.touch(&node);
        self.forget_empty(&node);
    }

    /// The newest version of a Node cannot be read. Its last known state stays visible.
    pub fn node_is_unreadable(&mut self, name: &NodeName, why: &Arc<str>) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.is_unreadable(why);
            self.touch(name);
        }
    }

    /// Sets which scheduler wrote the claim of a pod that [`ClusterState::pod_is`] has shown; `None` if no scheduler wrote it.
    pub fn claim_is_from(&mut self, uid: &PodUid, origin: Option<ClaimOrigin>) {
        let Some(node) = self.locations.get(uid).map(|location| location.node.clone()) else { return };
        if let Some(claims) = self.nodes.get_mut(&node) {
            claims.claim_is_from(uid, origin);
        }
        self.touch(&node);
    }

    /// The nodes that were closed or opened since the last call, for a reason that is reported.
    pub fn take_closings(&mut self) -> Vec<ClosingChange> {
        let mut changes = Vec::new();
        for name in std::mem::take(&mut self.touched) {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            let closed = node.closed().filter(ClosedReason::is_news);
            if closed == *node.last_reported_mut() {
                continue;
            }
            node.last_reported_mut().clone_from(&closed);
            let uid = node.uid().cloned();
            changes.push(ClosingChange { node: name, uid, closed: closed.map(|reason| self.named(reason)) });
        }
        changes
    }

    /// Why this node takes no new claims; `None` if it takes new claims, or is not known.
    #[must_use]
    pub fn closing(&self, name: &str) -> Option<Closing> {
        Some(self.named(self.nodes.get(name)?.closed()?))
    }

    fn named(&self, reason: ClosedReason) -> Closing {
        let pod = reason.pod().and_then(|uid| match self.locations.get(uid) {
            Some(location) => Some(location.pod.clone()),
            None => self.unreadable.get(uid)?.1.clone(),
        });
        Closing { reason, pod }
    }

    /// This node may have been closed or opened.
    pub(super) fn touch(&mut self, name: &NodeName) {
        if !self.touched.contains(name) {
            self.touched.insert(name.clone());
        }
    }
}
