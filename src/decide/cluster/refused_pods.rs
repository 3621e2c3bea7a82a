//! The pods that no node fits, by their last filter call: they wait until something changes. Only their number is used.

use model::id::PodUid;
use model::time::Monotonic;
use std::collections::{BTreeSet, HashMap};

/// Upper bound on the pods: more than kube-scheduler can try again within its five minutes. Each takes about 200 bytes. Beyond it
/// the oldest is forgotten until its next filter call.
const MOST: usize = 20_000;

/// The pods, with the time of their last filter call.
#[derive(Debug, Default)]
pub(super) struct RefusedPods {
    pods: HashMap<PodUid, Monotonic>,
    /// The same, oldest first.
    order: BTreeSet<(Monotonic, PodUid)>,
}

impl RefusedPods {
    /// No node fits this pod.
    pub(super) fn add(&mut self, uid: &PodUid, now: Monotonic) {
        self.remove(uid);
        if self.pods.len() >= MOST {
            self.remove_oldest();
        }
        self.pods.insert(uid.clone(), now);
        self.order.insert((now, uid.clone()));
    }

    /// A node fits this pod, or it is bound, gone, or requests no GPU.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        if let Some(at) = self.pods.remove(uid) {
            self.order.remove(&(at, uid.clone()));
        }
    }

    /// Forgets the pods whose last filter call is older than `before`.
    pub(super) fn forget_before(&mut self, before: Monotonic) {
        while self.order.first().is_some_and(|(at, _)| *at < before) {
            self.remove_oldest();
        }
    }

    /// Number of the pods.
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    fn remove_oldest(&mut self) {
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
    fn each_pod_counts_once_until_it_is_removed_or_old() {
        let mut pods = RefusedPods::default();
        pods.add(&uid(1), Monotonic(10));
        pods.add(&uid(2), Monotonic(20));
        pods.add(&uid(1), Monotonic(30));
        assert_eq!(pods.len(), 2);
        pods.forget_before(Monotonic(30));
        assert_eq!(pods.len(), 1, "the later call counts");
        pods.remove(&uid(1));
        pods.remove(&uid(1));
        assert_eq!((pods.len(), pods.order.len()), (0, 0));
    }

    #[test]
    fn beyond_the_bound_the_oldest_is_forgotten() {
        let mut pods = RefusedPods::default();
        (0..=MOST).for_each(|number| pods.add(&uid(number), Monotonic(number as u64)));
        assert_eq!((pods.len(), pods.order.len()), (MOST, MOST));
        assert!(!pods.pods.contains_key(&uid(0)));
    }
}
