//! Pods that request no GPU but name a GPU resource, for example GPU memory without a number of GPUs. kube-scheduler
//! lets the extender bind every pod for which it called the filter, so the extender remembers these pods between the
//! two calls. Nothing is reserved for them, and the API server refuses the binding of a pod that has changed, so it
//! does no harm to remember a pod too long.

use model::id::PodUid;
use model::time::Monotonic;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of pods that are remembered, about 200 bytes each. Such a pod is a mistake of its owner, but a
/// controller may create many. Beyond this number the oldest pod is forgotten: kube-scheduler places one pod after the
/// other, and is done with it.
const MOST: usize = 10_000;

/// One such pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainPod {
    /// The pod's version in its last filter call, if the API server's versions are numbers.
    pub(super) version: Option<u64>,
    filtered: Monotonic,
}

/// All such pods.
#[derive(Debug, Default)]
pub(super) struct PlainPods {
    pods: HashMap<PodUid, PlainPod>,
    /// The order of the pods' last filter calls, oldest first.
    order: BTreeSet<(Monotonic, PodUid)>,
}

impl PlainPods {
    /// The filter was called for a pod. If there are too many pods, the oldest is forgotten.
    pub(super) fn filtered(&mut self, uid: &PodUid, version: Option<u64>, now: Monotonic) {
        self.forget(uid);
        if self.pods.len() >= MOST {
            self.forget_oldest();
        }
        self.pods.insert(uid.clone(), PlainPod { version, filtered: now });
        self.order.insert((now, uid.clone()));
    }

    /// The pod of this UID, if it is remembered.
    pub(super) fn get(&self, uid: &PodUid) -> Option<PlainPod> {
        self.pods.get(uid).copied()
    }

    /// A pod is bound or gone, or now requests GPUs.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.remove(uid) {
            self.order.remove(&(pod.filtered, uid.clone()));
        }
    }

    /// Forgets the pods whose last filter call is older than `before`.
    pub(super) fn forget_before(&mut self, before: Monotonic) {
        while self.order.first().is_some_and(|(filtered, _)| *filtered < before) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, uid)) = self.order.pop_first() {
            self.pods.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: usize) -> PodUid {
        PodUid::parse(&format!("{number:032x}")).unwrap()
    }

    #[test]
    fn a_pod_is_remembered_with_its_last_version_until_it_is_forgotten() {
        let mut pods = PlainPods::default();
        assert_eq!(pods.get(&uid(1)), None);
        pods.filtered(&uid(1), Some(7), Monotonic(10));
        pods.filtered(&uid(2), None, Monotonic(20));
        pods.filtered(&uid(1), Some(8), Monotonic(30));
        assert_eq!(pods.get(&uid(1)).map(|pod| pod.version), Some(Some(8)));
        pods.forget_before(Monotonic(30));
        assert_eq!((pods.get(&uid(1)).is_some(), pods.get(&uid(2))), (true, None), "the later call counts");
        pods.forget(&uid(1));
        pods.forget(&uid(1));
        assert!(pods.pods.is_empty() && pods.order.is_empty());
    }

    #[test]
    fn beyond_the_bound_the_oldest_pod_is_forgotten() {
        let mut pods = PlainPods::default();
        (0..=MOST).for_each(|number| pods.filtered(&uid(number), None, Monotonic(number as u64)));
        assert_eq!((pods.pods.len(), pods.order.len()), (MOST, MOST));
        assert_eq!((pods.get(&uid(0)), pods.get(&uid(1)).is_some()), (None, true));
        // A pod that is filtered again displaces no other.
        pods.filtered(&uid(MOST), None, Monotonic(u64::MAX));
        assert!(pods.get(&uid(1)).is_some());
    }
}
