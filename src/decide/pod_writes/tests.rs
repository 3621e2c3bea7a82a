//! Tests of pending pod writes: when each write is due, what replaces it, and when it is dropped.

use super::*;
use proptest::prelude::*;

fn uid(n: u32) -> PodUid {
    PodUid::parse(&format!("{n:032x}")).unwrap()
}

fn pod(n: u32) -> PodRef {
    PodRef { namespace: "team".into(), name: format!("pod-{n}").into() }
}

fn at(seconds: u64) -> Monotonic {
    Monotonic(seconds * 1_000_000_000)
}

fn says(pairs: &[(&'static str, &str)]) -> AnnotationChanges {
    pairs.iter().map(|(key, value)| (*key, Some(Arc::from(*value)))).collect()
}

fn add(unwritten: &mut PendingPodWrites, n: u32, kind: PodWriteKind, pairs: &[(&'static str, &str)], now: Monotonic) {
    assert!(unwritten.add((&uid(n), kind), (&uid(n), &pod(n)), says(pairs), now));
}

#[test]
fn what_fails_is_tried_again_more_and_more_rarely_until_it_is_written() {
    let mut unwritten = PendingPodWrites::default();
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a")], at(100));
    let mut now = at(100);
    let mut waited = Vec::new();
    for failed in 0..9 {
        let due = unwritten.due(now);
        assert_eq!(due.len(), 1, "at {now:?}");
        assert_eq!((due[0].failed, &due[0].annotations), (failed, &says(&[("claim", "a")])));
        assert_eq!((unwritten.due(now), unwritten.next()), (vec![], None), "one try at a time");
        // The try itself takes time.
        now = now.after(Duration::from_secs(10));
        unwritten.ended(&due[0], PodWriteOutcome::Failed, now);
        let next = unwritten.next().unwrap();
        assert_eq!(unwritten.due(Monotonic(next.0 - 1)), []);
        waited.push(next.since(now).as_secs());
        now = next;
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    let due = unwritten.due(now);
    unwritten.ended(&due[0], PodWriteOutcome::Written, now);
    assert!(unwritten.is_empty());
    assert_eq!((unwritten.due(now), unwritten.next()), (vec![], None));
}

#[test]
fn the_newest_of_a_kind_is_written_and_nothing_of_it_is_lost() {
    let mut unwritten = PendingPodWrites::default();
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a"), ("by", "us")], at(0));
    let first = unwritten.due(at(0)).remove(0);
    // While the first is in flight, the newer waits, so that the older cannot arrive last.
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "b")], at(1));
    add(&mut unwritten, 1, PodWriteKind::Evict, &[("evict", "x")], at(1));
    let beside = unwritten.due(at(1));
    assert_eq!(beside.iter().map(|write| write.kind).collect::<Vec<_>>(), [PodWriteKind::Evict]);
    unwritten.ended(&first, PodWriteOutcome::Written, at(2));
    let second = unwritten.due(at(2)).remove(0);
    assert_eq!(second.annotations, says(&[("claim", "b"), ("by", "us")]));
    // A late outcome of the first try changes nothing.
    unwritten.ended(&first, PodWriteOutcome::Written, at(2));
    assert_eq!(unwritten.len(), 2);
    unwritten.ended(&second, PodWriteOutcome::Written, at(3));
    unwritten.ended(&beside[0], PodWriteOutcome::Written, at(3));
    assert!(unwritten.is_empty());
}

#[test]
fn the_same_again_is_no_reason_to_try_sooner_and_something_new_is() {
    let mut unwritten = PendingPodWrites::default();
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a")], at(0));
    for now in [at(0), at(1), at(3)] {
        let due = unwritten.due(now).remove(0);
        unwritten.ended(&due, PodWriteOutcome::Failed, now);
    }
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a")], at(4));
    assert_eq!((unwritten.due(at(4)), unwritten.next()), (vec![], Some(at(7))));
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "b")], at(5));
    assert_eq!(unwritten.due(at(5))[0].annotations, says(&[("claim", "b")]));
}

#[test]
fn what_was_to_be_written_on_a_pod_goes_with_it() {
    let mut unwritten = PendingPodWrites::default();
    for n in [1, 2, 3] {
        add(&mut unwritten, n, PodWriteKind::Served, &[("phase", "success")], at(0));
    }
    let due = unwritten.due(at(0));
    unwritten.ended(&due[0], PodWriteOutcome::Gone, at(1));
    unwritten.forget(&BTreeSet::from([&uid(3)]));
    assert_eq!(unwritten.len(), 1);
    // The second pod's try ends after its pod was forgotten.
    unwritten.ended(&due[1], PodWriteOutcome::Failed, at(2));
    unwritten.ended(&due[2], PodWriteOutcome::Written, at(2));
    assert!(unwritten.is_empty());
}

#[test]
fn what_finds_no_room_is_said() {
    let mut unwritten = PendingPodWrites::default();
    for n in 0..MAX_UNWRITTEN {
        add(&mut unwritten, u32::try_from(n).unwrap(), PodWriteKind::Claim, &[], at(0));
    }
    assert!(!unwritten.add((&uid(9_999), PodWriteKind::Claim), (&uid(9_999), &pod(9_999)), says(&[]), at(0)));
    assert!(unwritten.add((&uid(0), PodWriteKind::Claim), (&uid(0), &pod(0)), says(&[("claim", "b")]), at(0)));
}

proptest! {
    /// An API server that goes away and comes back: in the end each pod has the newest value of everything, whatever
    /// failed in between.
    #[test]
    fn in_the_end_the_newest_stands_on_every_pod(
        asked in prop::collection::vec((0_u32..6, 0_u8..2, 0_u32..4), 1..40),
        fails in prop::collection::vec(any::<bool>(), 0..60),
    ) {
        let mut unwritten = PendingPodWrites::default();
        let (mut stands, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        let (mut now, mut fails, mut tries) = (at(0), fails.into_iter(), 0);
        let mut asked = asked.into_iter();
        loop {
            if let Some((n, kind, value)) = asked.next() {
                let kind = if kind == 0 { PodWriteKind::Claim } else { PodWriteKind::Evict };
                let annotations = says(&[("key", &value.to_string())]);
                wanted.insert((uid(n), kind), annotations.clone());
                prop_assert!(unwritten.add((&uid(n), kind), (&uid(n), &pod(n)), annotations, now));
            } else if unwritten.is_empty() {
                break;
            }
            let due = unwritten.due(now);
            prop_assert!(due.len() <= MAX_UNDER_WAY);
            for write in due {
                tries += 1;
                prop_assert!(tries < 1000);
                let fails = fails.next().unwrap_or(false);
                if !fails {
                    stands.insert((write.of.clone(), write.kind), write.annotations.clone());
                }
                unwritten.ended(&write, if fails { PodWriteOutcome::Failed } else { PodWriteOutcome::Written }, now);
            }
            now = unwritten.next().unwrap_or(now).max(now);
        }
        prop_assert_eq!(stands, wanted);
    }
}
