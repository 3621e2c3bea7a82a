//! The pods that have gone lately. A filter call looks at nodes for some milliseconds; if its pod is deleted meanwhile, nothing
//! would take its proposal back.

use model::id::PodUid;
use std::collections::{HashSet, VecDeque};

/// Most pods that are remembered. A filter call takes milliseconds, and an API server deletes some hundred pods a second.
const MOST: usize = 1024;

/// The pods, oldest first. A pod that came back after a restore of etcd stays in `order`; if it goes again, it may be forgotten
/// sooner than others.
#[derive(Debug, Default)]
pub(super) struct GonePods {
    order: VecDeque<PodUid>,
    gone: HashSet<PodUid>,
}

impl GonePods {
    /// A pod is gone.
    pub(super) fn gone(&mut self, uid: &PodUid) {
        if !self.gone.insert(uid.clone()) {
            return;
        }
        self.order.push_back(uid.clone());
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    /// A pod is there.
    pub(super) fn is_there(&mut self, uid: &PodUid) {
        self.gone.remove(uid);
    }

    /// Whether a pod has gone lately.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.gone.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: usize) -> PodUid {
        PodUid::parse(&format!("{number:032x}")).unwrap()
    }

    #[test]
    fn the_newest_are_remembered_unless_they_come_back() {
        let mut pods = GonePods::default();
        for number in 0..=MOST {
            pods.gone(&uid(number));
            pods.gone(&uid(number));
        }
        assert_eq!((pods.has(&uid(0)), pods.has(&uid(1)), pods.has(&uid(MOST))), (false, true, true));
        pods.is_there(&uid(1));
        assert!(!pods.has(&uid(1)));
        for number in 0..10 * MOST {
            pods.gone(&uid(number % 7));
            pods.is_there(&uid(number % 7));
        }
        assert!(pods.order.len() <= MOST && pods.gone.len() <= MOST);
    }
}
