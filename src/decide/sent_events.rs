//! The events and marks for eviction that the agent has written on each pod. The kubelet retries a refused start again
//! and again, and each reason gets one event. If no later try can succeed, the agent also marks the pod for eviction.

use crate::allocator::Refusal;
use model::id::PodUid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most reasons that are written on one pod: each of twenty containers may fail for three.
const MAX_REASONS: usize = 64;

/// The events that were written: containers and reasons by pod.
#[derive(Debug, Default)]
pub struct SentEvents(BTreeMap<PodUid, BTreeSet<(Arc<str>, &'static str)>>);

/// A refusal that a pod has no event about yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalNews {
    /// The word of the mark for eviction, if the pod can never start.
    pub mark: Option<&'static str>,
}

impl SentEvents {
    /// A container may not start because of this. Returns what is new about it: `None` if the pod has the event already.
    pub fn refused(&mut self, uid: &PodUid, container: &Arc<str>, why: &Refusal) -> Option<RefusalNews> {
        self.is_new(uid, container, why.code()).then(|| RefusalNews { mark: why.for_good().then(|| why.code()) })
    }

    /// A pod starts for which the refusal `why` may have been written. Returns whether its mark for eviction must be
    /// removed.
    pub fn starts_after_all(&mut self, uid: &PodUid, why: &Refusal) -> bool {
        self.take_back(uid, why.code())
    }

    /// The pod must be deleted for a reason that concerns all its containers. Returns whether that is new: then it gets
    /// an event and the mark for eviction.
    pub fn must_be_deleted(&mut self, uid: &PodUid, reason: &'static str) -> bool {
        self.is_new(uid, &Arc::from(""), reason)
    }

    /// Notes this reason for this container; returns whether it is new. Beyond the bound nothing is new.
    pub fn is_new(&mut self, uid: &PodUid, container: &Arc<str>, reason: &'static str) -> bool {
        let reasons = self.0.entry(uid.clone()).or_default();
        reasons.len() < MAX_REASONS && reasons.insert((Arc::clone(container), reason))
    }

    /// Forgets this reason for all containers of the pod. Returns whether one had it.
    fn take_back(&mut self, uid: &PodUid, reason: &'static str) -> bool {
        let Some(reasons) = self.0.get_mut(uid) else { return false };
        let before = reasons.len();
        reasons.retain(|(_, sent)| *sent != reason);
        reasons.len() < before
    }

    /// Forgets pods that are gone.
    pub fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.0.retain(|uid, _| here.contains(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_containers_that_fail_in_turn_get_one_event_each() {
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        let mut sent = SentEvents::default();
        let (one, two) = (Arc::from("one"), Arc::from("two"));
        let mut events = 0;
        for _ in 0..100 {
            events += u32::from(sent.is_new(&uid, &one, "DoesNotFit"));
            events += u32::from(sent.is_new(&uid, &two, "CountDiffers"));
        }
        assert_eq!(events, 2);
        assert!(sent.is_new(&uid, &one, "CountDiffers"), "another reason gives an event");
        for n in 0..1000 {
            events += u32::from(sent.is_new(&uid, &format!("c{n}").into(), "DoesNotFit"));
        }
        assert_eq!(events, 2 + 61, "the number of reasons is bounded");
        assert!(sent.take_back(&uid, "CountDiffers") && !sent.take_back(&uid, "CountDiffers"));
        assert!(sent.is_new(&uid, &one, "CountDiffers") && !sent.is_new(&uid, &one, "DoesNotFit"));
        sent.forget(&BTreeSet::new());
        assert!(sent.is_new(&uid, &one, "DoesNotFit"));
    }

    #[test]
    fn a_permanent_refusal_marks_the_pod_once_and_a_later_start_removes_the_mark() {
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        let (mut sent, main) = (SentEvents::default(), Arc::from("main"));
        assert_eq!(sent.refused(&uid, &main, &Refusal::NotPlaced), Some(RefusalNews { mark: None }));
        assert!(!sent.starts_after_all(&uid, &Refusal::WithoutCdi), "it has no mark");
        let marked = Some(RefusalNews { mark: Some("WithoutCdi") });
        assert_eq!(sent.refused(&uid, &main, &Refusal::WithoutCdi), marked);
        assert_eq!(sent.refused(&uid, &main, &Refusal::WithoutCdi), None);
        assert!(
            sent.starts_after_all(&uid, &Refusal::WithoutCdi) && !sent.starts_after_all(&uid, &Refusal::WithoutCdi)
        );
        assert_eq!(sent.refused(&uid, &main, &Refusal::WithoutCdi), marked, "a later start is refused again");
        assert!(sent.must_be_deleted(&uid, "LimitsNotApplied") && !sent.must_be_deleted(&uid, "LimitsNotApplied"));
    }
}
