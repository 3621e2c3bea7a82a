//! The events and marks for eviction that the agent has written on each pod. The kubelet retries a refused start again
//! and again, and each reason gets one event. If no later try can succeed, the agent also marks the pod for eviction.

use crate::allocator::Refusal;
use model::id::PodUid;
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound on the reasons that are written on one pod: twenty containers with three reasons each fit.
const MAX_REASONS: usize = 64;

/// How long a pod that an extender has placed may wait for room for its claim. A leader claims only free devices, so
/// room is missing only if leaders of two terms have claimed the same device. Without this limit, the pod would wait
/// until another pod ends.
pub const ROOM_WITHIN: Duration = Duration::from_secs(30);

/// The events that were written: containers and reasons by pod.
#[derive(Debug, Default)]
pub struct SentEvents {
    reasons: BTreeMap<PodUid, BTreeSet<(Arc<str>, &'static str)>>,
    /// Placed pods that find no room.
    waits: BTreeMap<PodUid, RoomWait>,
}

/// The wait of a pod for room.
#[derive(Clone, Copy, Debug)]
struct RoomWait {
    since: Monotonic,
    /// Whether the pod has the mark for eviction.
    marked: bool,
}

/// A refusal that a pod has no event about yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalNews {
    /// The reason code of the mark for eviction, if the pod can never start.
    pub mark: Option<&'static str>,
}

impl SentEvents {
    /// Records that a container may not start because of `why`. Returns `None` if the pod already has an event about
    /// it.
    pub fn refused(&mut self, uid: &PodUid, container: &Arc<str>, why: &Refusal) -> Option<RefusalNews> {
        self.is_new(uid, container, why.code()).then(|| RefusalNews { mark: why.for_good().then(|| why.code()) })
    }

    /// Records that a pod starts, although the refusal `why` may have been written on it. Returns whether its mark for
    /// eviction must be removed.
    pub fn starts_after_all(&mut self, uid: &PodUid, why: &Refusal) -> bool {
        self.take_back(uid, why.code())
    }

    /// Records that a pod that an extender has placed finds no room for its claim. Returns whether it must get the mark
    /// for eviction now. Once it is evicted, its controller makes a new pod, which is placed again.
    pub fn finds_no_room(&mut self, uid: &PodUid, now: Monotonic) -> bool {
        let wait = self.waits.entry(uid.clone()).or_insert(RoomWait { since: now, marked: false });
        let due = !wait.marked && now.since(wait.since) >= ROOM_WITHIN;
        wait.marked |= due;
        due
    }

    /// Records that the pod starts. Returns whether it got a mark for eviction because room was missing; the mark must
    /// then be removed.
    pub fn finds_room(&mut self, uid: &PodUid) -> bool {
        self.waits.remove(uid).is_some_and(|wait| wait.marked)
    }

    /// Records that the pod must be deleted for a reason that concerns all its containers. Returns whether the reason
    /// is new; the pod then gets an event and the mark for eviction.
    pub fn must_be_deleted(&mut self, uid: &PodUid, reason: &'static str) -> bool {
        self.is_new(uid, &Arc::from(""), reason)
    }

    /// Records this reason for this container; returns whether it is new. Beyond the bound, no reason is new.
    pub fn is_new(&mut self, uid: &PodUid, container: &Arc<str>, reason: &'static str) -> bool {
        let reasons = self.reasons.entry(uid.clone()).or_default();
        reasons.len() < MAX_REASONS && reasons.insert((Arc::clone(container), reason))
    }

    /// Forgets this reason for all containers of the pod. Returns whether a container had it.
    fn take_back(&mut self, uid: &PodUid, reason: &'static str) -> bool {
        let Some(reasons) = self.reasons.get_mut(uid) else { return false };
        let before = reasons.len();
        reasons.retain(|(_, sent)| *sent != reason);
        reasons.len() < before
    }

    /// Forgets pods that are gone.
    pub fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.reasons.retain(|uid, _| here.contains(uid));
        self.waits.retain(|uid, _| here.contains(uid));
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
    fn a_placed_pod_without_room_is_marked_once_after_a_while_and_not_any_more_when_it_starts() {
        let [one, other] = ["1", "2"].map(|digit| PodUid::parse(&digit.repeat(32)).unwrap());
        let mut sent = SentEvents::default();
        let at = |seconds: u64| Monotonic(seconds * 1_000_000_000);
        assert!(!sent.finds_no_room(&one, at(100)) && !sent.finds_no_room(&one, at(129)));
        assert!(!sent.finds_room(&one), "it starts in time, and has no mark");
        assert!(!sent.finds_no_room(&one, at(140)), "a new wait begins");
        assert!(sent.finds_no_room(&one, at(170)) && !sent.finds_no_room(&one, at(180)));
        assert!(!sent.finds_no_room(&other, at(180)));
        assert!(sent.finds_room(&one) && !sent.finds_room(&one));
        sent.forget(&BTreeSet::new());
        assert!(!sent.finds_no_room(&other, at(400)), "the wait before the pod was gone does not count");
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
