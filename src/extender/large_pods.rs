//! Pods without a node whose objects have no room for later writes. kube-scheduler leaves `managedFields` out of its calls, so only
//! the pod watch, or a read, shows how large a pod is.
//!
//! What must never happen here: the size of a pod counts as known before the version that kube-scheduler asks about has been shown.

use model::id::PodUid;
use model::pod::Pod;
use std::collections::HashMap;
use wire::placement::{self, BadPlacementRequest};

/// Maximum number of pods that are remembered as too large, which takes 10 MiB. Only a pod with more than 128 KiB of `managedFields`
/// can be dangerous and look small in kube-scheduler's call, and etcd, which holds 8 GiB at most, has room for fewer such pods.
const MOST: usize = 65_536;

/// The pods that are too large, as far as the API server has shown them.
#[derive(Debug, Default)]
pub(super) struct LargePods {
    /// Each with the version that is too large, and why.
    pods: HashMap<PodUid, (Option<u64>, BadPlacementRequest)>,
    /// All versions of all pods up to this version have been shown.
    shown: Option<u64>,
}

impl LargePods {
    /// A version of a pod is shown, by the watch, a list or a read. It has no effect if a newer version was too large.
    pub(super) fn pod_is(&mut self, pod: &Pod) {
        if self.pods.get(&pod.uid).is_some_and(|(version, _)| *version > pod.version) {
            return;
        }
        let Some(why) = placement::too_large(pod).filter(|_| pod.node.is_none()) else {
            self.pods.remove(&pod.uid);
            return;
        };
        if self.pods.len() < MOST || self.pods.contains_key(&pod.uid) {
            self.pods.insert(pod.uid.clone(), (pod.version, why));
        }
    }

    /// The watch shows this version of a pod, and has shown all versions before it. After a restore of etcd, versions begin lower.
    pub(super) fn watched(&mut self, pod: &Pod) {
        self.pod_is(pod);
        self.shown = pod.version;
    }

    /// A list of this version shows all pods; `large` are too large. After a restore of etcd all versions may be lower than before.
    pub(super) fn listed<'a>(&mut self, version: Option<u64>, large: impl Iterator<Item = &'a Pod>) {
        self.pods.clear();
        large.for_each(|pod| self.pod_is(pod));
        self.shown = version;
    }

    /// A pod is gone, or is not followed any more.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Why a pod cannot be bound, if it is known to be too large.
    pub(super) fn why(&self, uid: &PodUid) -> Option<BadPlacementRequest> {
        self.pods.get(uid).map(|(_, why)| why.clone())
    }

    /// Whether a pod that is not remembered is certainly not too large in this version. A version that is not a number cannot be
    /// compared; the API server has no such versions.
    pub(super) fn know(&self, version: Option<u64>) -> bool {
        self.pods.len() < MOST && version <= self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod without a node.
    fn pod(number: usize, version: u64, bytes: u32) -> Pod {
        let text = format!(r#"{{"metadata":{{"name":"train","namespace":"ml","uid":"{number:032x}"}}}}"#);
        Pod { version: Some(version), bytes, ..wire::pod::decode(text.as_bytes()).unwrap() }
    }

    /// Then each pod is read before it is bound.
    #[test]
    fn the_size_of_every_pod_is_known_until_too_many_pods_are_too_large() {
        let mut large = LargePods::default();
        (0..MOST - 1).for_each(|number| large.pod_is(&pod(number, 1, u32::MAX)));
        assert!(large.know(None));
        large.pod_is(&pod(MOST, 1, u32::MAX));
        assert!(!large.know(None) && large.why(&pod(0, 1, 1).uid).is_some());
        large.pod_is(&pod(0, 1, 1));
        assert!(large.know(None) && large.why(&pod(0, 1, 1).uid).is_none());
        large.pod_is(&pod(0, 1, u32::MAX));
        large.forget(&pod(0, 1, 1).uid);
        assert!(large.know(None));
    }

    #[test]
    fn the_size_of_a_version_is_known_once_the_watch_has_come_to_it() {
        let mut large = LargePods::default();
        assert!(!large.know(Some(7)));
        large.watched(&pod(2, 6, 1));
        assert!(large.know(Some(6)) && !large.know(Some(7)));
        // The watch is ahead of the changes that are taken over.
        large.watched(&pod(1, 7, u32::MAX));
        large.pod_is(&pod(1, 6, 1));
        assert!(large.know(Some(7)) && large.why(&pod(1, 7, 1).uid).is_some());
        large.pod_is(&pod(1, 8, 1));
        assert_eq!(large.why(&pod(1, 7, 1).uid), None);
    }
}
