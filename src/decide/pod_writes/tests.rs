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

fn changes(pairs: &[(&'static str, &str)]) -> AnnotationChanges {
    pairs.iter().map(|(key, value)| (*key, Some(Arc::from(*value)))).collect()
}

fn add(unwritten: &mut PendingPodWrites, n: u32, kind: PodWriteKind, pairs: &[(&'static str, &str)], now: Monotonic) {
    assert!(unwritten.add((&uid(n), kind), (&uid(n), &pod(n)), changes(pairs), now));
}

#[test]
fn a_failed_write_is_repeated_with_growing_pauses_until_it_succeeds() {
    let mut unwritten = PendingPodWrites::default();
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a")], at(100));
    let mut now = at(100);
    let mut waited = Vec::new();
    for failed in 0..9 {
        let due = unwritten.due(now);
        assert_eq!(due.len(), 1, "at {now:?}");
        assert_eq!((due[0].failed, &due[0].annotations), (failed, &changes(&[("claim", "a")])));
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
fn writes_of_one_kind_are_merged_and_the_newest_values_are_written() {
    let mut unwritten = PendingPodWrites::default();
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a"), ("by", "us")], at(0));
    let first = unwritten.due(at(0)).remove(0);
    // While the first write is in flight, the newer one waits, so that the older cannot arrive last.
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "b")], at(1));
    add(&mut unwritten, 1, PodWriteKind::Evict, &[("evict", "x")], at(1));
    let beside = unwritten.due(at(1));
    assert_eq!(beside.iter().map(|write| write.kind).collect::<Vec<_>>(), [PodWriteKind::Evict]);
    unwritten.ended(&first, PodWriteOutcome::Written, at(2));
    let second = unwritten.due(at(2)).remove(0);
    assert_eq!(second.annotations, changes(&[("claim", "b"), ("by", "us")]));
    // A late outcome of the first try changes nothing.
    unwritten.ended(&first, PodWriteOutcome::Written, at(2));
    assert_eq!(unwritten.len(), 2);
    unwritten.ended(&second, PodWriteOutcome::Written, at(3));
    unwritten.ended(&beside[0], PodWriteOutcome::Written, at(3));
    assert!(unwritten.is_empty());
}

#[test]
fn equal_values_do_not_shorten_the_backoff_and_new_values_do() {
    let mut unwritten = PendingPodWrites::default();
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a")], at(0));
    for now in [at(0), at(1), at(3)] {
        let due = unwritten.due(now).remove(0);
        unwritten.ended(&due, PodWriteOutcome::Failed, now);
    }
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "a")], at(4));
    assert_eq!((unwritten.due(at(4)), unwritten.next()), (vec![], Some(at(7))));
    add(&mut unwritten, 1, PodWriteKind::Claim, &[("claim", "b")], at(5));
    assert_eq!(unwritten.due(at(5))[0].annotations, changes(&[("claim", "b")]));
}

#[test]
fn pending_writes_are_removed_with_their_pod() {
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
fn a_write_beyond_the_bound_is_refused() {
    let mut unwritten = PendingPodWrites::default();
    for n in 0..MAX_UNWRITTEN {
        add(&mut unwritten, u32::try_from(n).unwrap(), PodWriteKind::Claim, &[], at(0));
    }
    assert!(!unwritten.add((&uid(9_999), PodWriteKind::Claim), (&uid(9_999), &pod(9_999)), changes(&[]), at(0)));
    assert!(unwritten.add((&uid(0), PodWriteKind::Claim), (&uid(0), &pod(0)), changes(&[("claim", "b")]), at(0)));
}

proptest! {
    /// An API server that goes away and comes back: in the end each pod has the newest value of everything, whatever
    /// failed in between.
    #[test]
    fn every_pod_ends_with_the_newest_value_of_each_key(
        writes in prop::collection::vec((0_u32..6, 0_u8..2, 0_u32..4), 1..40),
        fails in prop::collection::vec(any::<bool>(), 0..60),
    ) {
        let mut unwritten = PendingPodWrites::default();
        let (mut written, mut expected) = (BTreeMap::new(), BTreeMap::new());
        let (mut now, mut fails, mut tries) = (at(0), fails.into_iter(), 0);
        let mut writes = writes.into_iter();
        loop {
            if let Some((n, kind, value)) = writes.next() {
                let kind = if kind == 0 { PodWriteKind::Claim } else { PodWriteKind::Evict };
                let annotations = changes(&[("key", &value.to_string())]);
                expected.insert((uid(n), kind), annotations.clone());
                prop_assert!(unwritten.add((&uid(n), kind), (&uid(n), &pod(n)), annotations, now));
            } else if unwritten.is_empty() {
                break;
            }
            let due = unwritten.due(now);
            prop_assert!(due.len() <= MAX_IN_FLIGHT);
            for write in due {
                tries += 1;
                prop_assert!(tries < 1000);
                let fails = fails.next().unwrap_or(false);
                if !fails {
                    written.insert((write.of.clone(), write.kind), write.annotations.clone());
                }
                unwritten.ended(&write, if fails { PodWriteOutcome::Failed } else { PodWriteOutcome::Written }, now);
            }
            now = unwritten.next().unwrap_or(now).max(now);
        }
        prop_assert_eq!(written, expected);
    }
}
