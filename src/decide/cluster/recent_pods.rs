//! A bounded list of recent pods. The cluster state keeps two such lists: pods that are gone, and pods whose binding
//! was refused.
//!
//! A filter call takes some milliseconds. If its pod is deleted during the call, no later event would remove the call's
//! proposal, so a pod that is gone gets no proposal. After a refused binding, the pod's next filter call names more
//! nodes.

use model::id::PodUid;
use std::collections::{HashSet, VecDeque};

/// Upper bound on the remembered pods. A filter call takes milliseconds, and an API server deletes or refuses several
/// hundred pods a second.
const MOST: usize = 1024;

/// The pods, oldest first. If a pod is removed and added again, its old place stays in `order`, so it may be forgotten
/// sooner than others.
#[derive(Debug, Default)]
pub(super) struct RecentPods {
    order: VecDeque<PodUid>,
    pods: HashSet<PodUid>,
}

impl RecentPods {
    /// Adds a pod.
    pub(super) fn add(&mut self, uid: &PodUid) {
        if !self.pods.insert(uid.clone()) {
            return;
        }
        self.order.push_back(uid.clone());
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.pods.remove(&oldest);
        }
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Whether the list has this pod.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: usize) -> PodUid {
        PodUid::parse(&format!("{number:032x}")).unwrap()
    }

    #[test]
    fn the_newest_are_remembered_unless_they_are_removed() {
        let mut pods = RecentPods::default();
        for number in 0..=MOST {
            pods.add(&uid(number));
            pods.add(&uid(number));
        }
        assert_eq!((pods.has(&uid(0)), pods.has(&uid(1)), pods.has(&uid(MOST))), (false, true, true));
        pods.remove(&uid(1));
        assert!(!pods.has(&uid(1)));
        for number in 0..10 * MOST {
            pods.add(&uid(number % 7));
            pods.remove(&uid(number % 7));
        }
        assert!(pods.order.len() <= MOST && pods.pods.len() <= MOST);
    }
}
