//! Which events were written on which pods: the kubelet retries a refused start again and again, and each reason gets
//! one event.

use model::id::PodUid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most reasons that are written on one pod: each of twenty containers may fail for three.
const MAX_REASONS: usize = 64;

/// The events that were written: containers and reasons by pod.
#[derive(Debug, Default)]
pub(super) struct SentEvents(BTreeMap<PodUid, BTreeSet<(Arc<str>, &'static str)>>);

impl SentEvents {
    /// Notes this reason for this container; returns whether it is new. Beyond the bound nothing is new.
    pub(super) fn is_new(&mut self, uid: &PodUid, container: &Arc<str>, reason: &'static str) -> bool {
        let reasons = self.0.entry(uid.clone()).or_default();
        reasons.len() < MAX_REASONS && reasons.insert((Arc::clone(container), reason))
    }

    /// Forgets this reason for all containers of the pod. Returns whether one had it.
    pub(super) fn take_back(&mut self, uid: &PodUid, reason: &'static str) -> bool {
        let Some(reasons) = self.0.get_mut(uid) else { return false };
        let before = reasons.len();
        reasons.retain(|(_, told)| *told != reason);
        reasons.len() < before
    }

    /// Forgets pods that are gone.
    pub(super) fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.0.retain(|uid, _| here.contains(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_containers_that_fail_in_turn_get_one_event_each() {
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        let mut told = SentEvents::default();
        let (one, two) = (Arc::from("one"), Arc::from("two"));
        let mut events = 0;
        for _ in 0..100 {
            events += u32::from(told.is_new(&uid, &one, "DoesNotFit"));
            events += u32::from(told.is_new(&uid, &two, "CountDiffers"));
        }
        assert_eq!(events, 2);
        assert!(told.is_new(&uid, &one, "CountDiffers"), "another reason is news");
        for n in 0..1000 {
            events += u32::from(told.is_new(&uid, &format!("c{n}").into(), "DoesNotFit"));
        }
        assert_eq!(events, 2 + 61, "there is an end to it");
        assert!(told.take_back(&uid, "CountDiffers") && !told.take_back(&uid, "CountDiffers"));
        assert!(told.is_new(&uid, &one, "CountDiffers") && !told.is_new(&uid, &one, "DoesNotFit"));
        told.forget(&BTreeSet::new());
        assert!(told.is_new(&uid, &one, "DoesNotFit"));
    }
}
