//! Holds the objects of one kind, up to its bounds, and the order in which they arrived. They come from a list, from the
//! watch events after it, and from checks of single objects.
//!
//! ```text
//!   not in a list                      ──▶ stays, and has to be checked
//!   deleted by a newer event, or       ──▶ gone, with its evidence
//!   not found by a check
//!   cannot be read, or beyond the bound ─▶ counts as present
//! ```
//!
//! The order is as close as possible to the order in which the kubelet admits the pods. The kubelet watches the same pods. It admits
//! the pods of a watch as they come. It sorts the pods of a list by creation time in whole seconds
//! (`sliceutils.PodsByCreationTime`), without a fixed order within a second. The store sorts the pods of one second by resource
//! version, because the last write to a pod that the kubelet has not handled yet is usually its binding. A pod that the store knows
//! already keeps its place.
//!
//! What must never happen here: an object that is gone because a list or a cache does not show it; an older version in the place of
//! a newer version.

use crate::by_importance::ByImportance;
use crate::kind::{Followed, Importance, PodsOfNode};
use model::pod::PodList;
use model::time::{Arrival, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::watch::{ReadObject, UnreadableObject, WatchEvent};

/// One change of the held objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta<O> {
    /// The object was not held before.
    Added(Arc<O>),
    /// The object has another version.
    Changed {
        /// The version before.
        before: Arc<O>,
        /// The version now.
        after: Arc<O>,
    },
    /// The object does not exist any more.
    Gone {
        /// The last version of the object.
        before: Arc<O>,
        /// How that is known.
        evidence: GoneEvidence,
    },
    /// An object that matters more needs its place ([`Importance`]). It still exists at the API server.
    LeftOut(Arc<O>),
}

/// How it is known that an object does not exist any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneEvidence {
    /// A watch reported the object's deletion, with a newer version.
    DeletedEvent,
    /// The API server does not find the object, by a read that a quorum of etcd agrees with.
    NotFound,
    /// By such a read, the API server finds an object with this name and another UID.
    OtherUid,
}

/// The objects that are held.
#[derive(Debug)]
pub struct Store<K: Followed> {
    held: BTreeMap<K::Uid, Arc<K::Object>>,
    /// Bytes of memory that the held objects take.
    bytes: usize,
    /// The objects in `held` that matter less than others. The objects that matter least lose their places first.
    replaceable: ByImportance<K::Uid>,
    /// Objects whose newest version could not be read; bounded like `held`.
    unreadable: BTreeSet<K::Uid>,
    /// Objects that were removed from `unreadable` since this list was last taken: they are gone, or can be read again.
    settled: Vec<K::Uid>,
    /// Objects that exist and are not held, because the store is full, up to a bound of their own.
    left_out: ByImportance<K::Uid>,
    /// The number of the object that arrived last.
    last: u64,
    /// The changes since they were last taken.
    deltas: Vec<Delta<K::Object>>,
}

/// Where the version of an object comes from, which decides whether it may replace a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The version may come from a cache that lags: a version older than the held version is ignored.
    MayLag,
    /// The object is the state in etcd. After a restore of etcd its version may be lower than the held version.
    FromEtcd,
}

/// The result of a list, compared with the held objects.
#[derive(Debug)]
pub(crate) struct Listed<K: Followed> {
    /// The objects that could not be read.
    pub(crate) bad: Vec<UnreadableObject<K::Uid>>,
    /// The held objects that the list does not show.
    pub(crate) missing: Vec<K::Uid>,
}

/// The outcome of an event for the objects that are held.
#[derive(Debug)]
pub(crate) enum EventOutcome<K: Followed> {
    /// The event is applied.
    Taken,
    /// The event's object could not be read.
    Bad(UnreadableObject<K::Uid>),
    /// The event reports a deletion, and is not newer than the held object.
    Doubtful(K::Uid),
}

impl<K: Followed> Default for Store<K> {
    fn default() -> Self {
        Store {
            held: BTreeMap::new(),
            bytes: 0,
            replaceable: ByImportance::default(),
            unreadable: BTreeSet::new(),
            settled: Vec::new(),
            left_out: ByImportance::default(),
            last: 0,
            deltas: Vec::new(),
        }
    }
}

impl<K: Followed> Store<K> {
    /// The objects that are held, in the order of their UIDs.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<K::Object>> {
        self.held.values()
    }

    /// The object of this UID.
    #[must_use]
    pub fn get(&self, uid: &K::Uid) -> Option<&Arc<K::Object>> {
        self.held.get(uid)
    }

    /// Number of objects beyond the bounds; at most [`Followed::MOST_LEFT_OUT`] are counted.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        u32::try_from(self.left_out.len()).unwrap_or(u32::MAX)
    }

    /// Number of left-out objects that matter this much.
    #[must_use]
    pub fn left_out_of(&self, importance: Importance) -> u32 {
        u32::try_from(self.left_out.count(importance)).unwrap_or(u32::MAX)
    }

    /// Whether a list would find places for objects that are left out and may hold devices: an eighth of the places is free.
    pub(crate) fn has_room_again(&self) -> bool {
        let free = |most: usize, taken: usize| taken <= most - most / 8;
        let has_room = free(K::MOST, self.held.len()) && K::MOST_BYTES.is_none_or(|most| free(most, self.bytes));
        let unproven = free(K::MOST_UNPROVEN, self.replaceable.count(Importance::Unproven));
        let waits = |importance| self.left_out.count(importance) > 0;
        has_room && (waits(Importance::MayHold) || (unproven && waits(Importance::Unproven)))
    }

    /// Number of objects whose newest version cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> u32 {
        u32::try_from(self.unreadable.len()).unwrap_or(u32::MAX)
    }

    /// Applies a whole list: `objects`, and the objects that were `left_out`.
    pub(crate) fn listed(
        &mut self,
        mut objects: Vec<ReadObject<K>>,
        left_out: ByImportance<K::Uid>,
        answer: Answer,
    ) -> Listed<K> {
        let before = std::mem::take(&mut self.unreadable);
        // A list from etcd of which no object is left out shows all that exist.
        let whole = answer == Answer::FromEtcd && left_out.is_empty();
        let mut bad = Vec::new();
        let mut shown = BTreeSet::new();
        objects.sort_by(|one, other| by_age::<K>(one).cmp(&by_age::<K>(other)));
        for object in objects {
            match object {
                Ok(object) => {
                    shown.insert(K::uid_of(&object).clone());
                    self.keep(object, answer);
                }
                Err(why) => {
                    // The last readable version of the object stays: no better version is known.
                    shown.extend(why.uid.clone());
                    self.mark_unreadable(&why);
                    bad.push(why);
                }
            }
        }
        for uid in before {
            if self.unreadable.contains(&uid) {
                continue;
            }
            let gone = whole && !self.held.contains_key(&uid);
            if shown.contains(&uid) || gone || answer == Answer::MayLag {
                self.settled.push(uid);
            } else {
                self.unreadable.insert(uid);
            }
        }
        let missing = self.held.keys().filter(|uid| !shown.contains(*uid)).cloned().collect();
        // Those that the list shows have been left out just now, because there was no place for them.
        let before = std::mem::take(&mut self.left_out).into_uids().filter(|(_, uid)| shown.contains(uid));
        for (importance, uid) in left_out.into_uids().chain(before) {
            if !self.held.contains_key(&uid) && !self.unreadable.contains(&uid) {
                self.left_out.insert_among(K::MOST_LEFT_OUT, importance, uid);
            }
        }
        Listed { bad, missing }
    }

    /// Applies one event; `version` is the resource version after it.
    pub(crate) fn apply_event(
        &mut self,
        event: WatchEvent<K::Object, K::Uid>,
        version: Option<u64>,
    ) -> EventOutcome<K> {
        match event {
            WatchEvent::Applied(object) => match *object {
                Ok(object) => self.keep(object, Answer::MayLag),
                Err(why) => {
                    self.mark_unreadable(&why);
                    return EventOutcome::Bad(why);
                }
            },
            WatchEvent::Deleted(Some(uid)) => match self.held.get(&uid) {
                None => {
                    self.settle(&uid);
                    self.left_out.remove(&uid);
                }
                Some(held) if version.zip(K::version_of(held)).is_some_and(|(event, held)| event <= held) => {
                    return EventOutcome::Doubtful(uid);
                }
                Some(_) => self.gone(&uid, GoneEvidence::DeletedEvent),
            },
            WatchEvent::Deleted(None) | WatchEvent::Bookmark | WatchEvent::Error(_) => {}
        }
        EventOutcome::Taken
    }

    /// Removes an object that does not exist any more.
    pub(crate) fn gone(&mut self, uid: &K::Uid, evidence: GoneEvidence) {
        self.settle(uid);
        self.left_out.remove(uid);
        let gone = self.remove(uid);
        self.deltas.extend(gone.map(|before| Delta::Gone { before, evidence }));
    }

    /// Number of changes since they were last taken.
    pub(crate) fn waiting(&self) -> usize {
        self.deltas.len()
    }

    /// The changes since this was last called.
    pub(crate) fn take_deltas(&mut self) -> Vec<Delta<K::Object>> {
        std::mem::take(&mut self.deltas)
    }

    /// The objects that could not be read when this was last called, and are gone or can be read now.
    pub(crate) fn take_settled(&mut self) -> Vec<K::Uid> {
        std::mem::take(&mut self.settled)
    }

    fn settle(&mut self, uid: &K::Uid) {
        self.settled.extend(self.unreadable.take(uid));
    }

    /// Stores the version of an object; an object that is held already keeps its place in the order. It is held even if it has grown
    /// beyond the bound: if it were left out, the devices that it holds would count as free.
    pub(crate) fn keep(&mut self, mut object: K::Object, answer: Answer) {
        let uid = K::uid_of(&object).clone();
        let held = self.held.get(&uid).map(Arc::clone);
        if let Some(held) = &held {
            let lower = K::version_of(&object).zip(K::version_of(held)).is_some_and(|(new, held)| new < held);
            if lower && answer == Answer::MayLag {
                return;
            }
        }
        self.settle(&uid);
        let importance = K::importance(&object);
        if held.is_none() && !self.make_place(&object, importance) {
            self.leave_out(importance, uid);
            return;
        }
        self.left_out.remove(&uid);
        let place = match &held {
            Some(held) => K::arrival(held),
            None => {
                self.last += 1;
                Some(Arrival(self.last))
            }
        };
        K::arrive(&mut object, place);
        // Keeps the old `Arc`, so that a caller that compares addresses sees no change.
        if held.as_deref() == Some(&object) {
            return;
        }
        let after = Arc::new(object);
        self.remove(&uid);
        self.bytes += K::memory(&after);
        if importance < Importance::MayHold {
            self.replaceable.insert(importance, uid.clone());
        }
        self.held.insert(uid, Arc::clone(&after));
        self.deltas.push(match held {
            Some(before) => Delta::Changed { before, after },
            None => Delta::Added(after),
        });
        while !has_room::<K>(self.held.len(), self.bytes) && self.leave_out_one(Importance::MayHold) {}
    }

    /// Whether a new object can be held. If the store is full, objects that matter less are removed for it, the least important
    /// first.
    fn make_place(&mut self, object: &K::Object, importance: Importance) -> bool {
        if importance == Importance::Unproven && self.is_full_of_unproven() {
            return false;
        }
        let memory = K::memory(object);
        while !has_room::<K>(self.held.len() + 1, self.bytes + memory) {
            if !self.leave_out_one(importance) {
                return false;
            }
        }
        true
    }

    /// Removes the object that matters least, if it matters less than `importance`; `false` if there is no such object.
    fn leave_out_one(&mut self, importance: Importance) -> bool {
        let Some((own, least)) = self.replaceable.least_below(importance) else { return false };
        let least = least.clone();
        let gone = self.remove(&least);
        self.deltas.extend(gone.map(Delta::LeftOut));
        self.leave_out(own, least);
        true
    }

    fn remove(&mut self, uid: &K::Uid) -> Option<Arc<K::Object>> {
        self.replaceable.remove(uid);
        let gone = self.held.remove(uid)?;
        self.bytes -= K::memory(&gone);
        Some(gone)
    }

    fn is_full_of_unproven(&self) -> bool {
        self.replaceable.count(Importance::Unproven) >= K::MOST_UNPROVEN
    }

    /// Counts an object that is not held, once.
    fn leave_out(&mut self, importance: Importance, uid: K::Uid) {
        self.left_out.insert_among(K::MOST_LEFT_OUT, importance, uid);
    }

    fn mark_unreadable(&mut self, why: &UnreadableObject<K::Uid>) {
        if let Some(uid) = why.uid.clone().filter(|_| self.unreadable.len() < K::MOST) {
            self.left_out.remove(&uid);
            self.unreadable.insert(uid);
        }
    }
}

impl Store<PodsOfNode> {
    /// All pods that are held.
    #[must_use]
    pub fn list(&self) -> PodList {
        PodList {
            pods: self.held.values().cloned().collect(),
            left_out: self.left_out(),
            left_out_plain: self.left_out.ordered(&[Importance::HoldsNothing, Importance::Named]).into(),
            left_out_unproven: self.left_out.ordered(&[Importance::Unproven]).into(),
            unreadable: self.unreadable(),
        }
    }
}

/// Whether this number of objects, which take so many bytes together, is within the bounds.
pub(crate) fn has_room<K: Followed>(objects: usize, bytes: usize) -> bool {
    objects <= K::MOST && K::MOST_BYTES.is_none_or(|most| bytes <= most)
}

/// The sort key of an object in a list.
type ByAge<'a, U> = Option<(Option<WallTime>, Option<u64>, &'a U)>;

fn by_age<K: Followed>(object: &ReadObject<K>) -> ByAge<'_, K::Uid> {
    object.as_ref().ok().map(|object| (K::created_of(object), K::version_of(object), K::uid_of(object)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::AllPods;
    use crate::read_objects::ReadObjects;
    use model::id::{NodeName, PodUid};
    use model::pod::{MAX_LEFT_OUT_PODS, MAX_POD_OBJECTS, MAX_UNPROVEN_PODS, Pod, PodPhase};
    use model::pod_memory::{MAX_CLUSTER_PODS_BYTES, MAX_NODE_PODS_BYTES};
    use wire::annotation_keys::ALLOCATED;

    type Pods = Store<PodsOfNode>;
    type ReadPod = ReadObject<PodsOfNode>;

    /// Applies a list; the pods that it does not show turn out to be gone.
    fn listed(store: &mut Pods, pods: Vec<ReadPod>) -> Vec<UnreadableObject<PodUid>> {
        let Listed { bad, missing } = store.listed(pods, ByImportance::default(), Answer::MayLag);
        for uid in missing {
            store.gone(&uid, GoneEvidence::NotFound);
        }
        bad
    }

    fn applied(store: &mut Pods, pod: ReadPod) -> EventOutcome<PodsOfNode> {
        store.apply_event(WatchEvent::Applied(Box::new(pod)), None)
    }

    fn deleted(store: &mut Pods, number: usize, version: Option<u64>) -> EventOutcome<PodsOfNode> {
        store.apply_event(WatchEvent::Deleted(Some(uid(number))), version)
    }

    fn uid(number: usize) -> PodUid {
        PodUid::parse(&format!("{number:032x}")).unwrap()
    }

    fn pod(number: usize, phase: &str) -> ReadPod {
        let json = format!(
            r#"{{"metadata":{{"name":"p{number}","namespace":"ml","uid":"{number:032x}"}},"status":{{"phase":"{phase}"}}}}"#
        );
        Ok(wire::pod::decode(json.as_bytes()).unwrap())
    }

    fn unreadable(number: usize) -> ReadPod {
        let why = wire::pod::decode(b"{}").unwrap_err().to_string();
        Err(UnreadableObject { kind: "pod", uid: Some(uid(number)), name: None, node: None, why })
    }

    fn names(store: &Pods) -> Vec<String> {
        store.list().pods.iter().map(|pod| pod.name.name.to_string()).collect()
    }

    #[test]
    fn a_list_replaces_the_pods_and_events_change_them() {
        let mut store = Pods::default();
        listed(&mut store, vec![pod(1, "Running"), pod(2, "Running")]);
        assert_eq!(names(&store), ["p1", "p2"]);
        applied(&mut store, pod(3, "Pending"));
        deleted(&mut store, 1, None);
        assert_eq!(names(&store), ["p2", "p3"]);
        listed(&mut store, vec![pod(4, "Running")]);
        assert_eq!((names(&store), store.list().left_out), (vec!["p4".to_owned()], 0));
    }

    /// Names in the order in which the pods arrived.
    fn order(store: &Pods) -> Vec<String> {
        let mut pods = store.list().pods;
        pods.sort_by_key(|pod| pod.arrival.expect("a place"));
        pods.iter().map(|pod| pod.name.name.to_string()).collect()
    }

    fn made(number: usize, second: u32, version: &str) -> ReadPod {
        let json = format!(
            r#"{{"metadata":{{"name":"p{number}","namespace":"ml","uid":"{number:032x}","resourceVersion":"{version}",
            "creationTimestamp":"2026-11-21T10:00:{second:02}Z"}}}}"#
        );
        Ok(wire::pod::decode(json.as_bytes()).unwrap())
    }

    #[test]
    fn pods_of_a_watch_come_in_its_order_and_those_of_a_list_by_age() {
        let mut store = Pods::default();
        // Names, UIDs and the order of the list do not count; versions compare as numbers.
        listed(&mut store, vec![made(1, 9, "100"), made(2, 8, "300"), made(3, 8, "99"), made(4, 9, "20")]);
        assert_eq!(order(&store), ["p3", "p2", "p4", "p1"]);
        for (number, second) in [(7, 9), (5, 9), (6, 1)] {
            applied(&mut store, made(number, second, "400"));
        }
        // A newer version of a known pod does not change its place, from a list or a watch.
        applied(&mut store, made(3, 8, "401"));
        assert_eq!(order(&store), ["p3", "p2", "p4", "p1", "p7", "p5", "p6"]);
        listed(&mut store, vec![made(8, 1, "9"), made(6, 1, "1"), made(5, 9, "500"), made(7, 9, "501"), unreadable(1)]);
        assert_eq!(order(&store), ["p1", "p7", "p5", "p6", "p8"], "a new pod comes last");
        // A pod that is deleted and comes again gets a new place.
        deleted(&mut store, 7, Some(502));
        applied(&mut store, made(7, 9, "502"));
        assert_eq!(order(&store), ["p1", "p5", "p6", "p8", "p7"]);
    }

    #[test]
    fn an_unreadable_version_leaves_the_older_one_and_is_counted_until_it_can_be_read() {
        let mut store = Pods::default();
        listed(&mut store, vec![pod(1, "Running")]);
        assert!(matches!(applied(&mut store, unreadable(1)), EventOutcome::Bad(_)));
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 1));
        assert_eq!(listed(&mut store, vec![unreadable(1), unreadable(2)]).len(), 2);
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 2));
        applied(&mut store, pod(1, "Running"));
        deleted(&mut store, 2, None);
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 0));
    }

    #[test]
    fn an_unreadable_object_is_settled_once_it_can_be_read_or_is_gone() {
        let mut store = Store::<AllPods>::default();
        let list =
            |store: &mut Store<AllPods>, pods| drop(store.listed(pods, ByImportance::default(), Answer::FromEtcd));
        list(&mut store, vec![pod(1, "Running"), unreadable(2), unreadable(3), unreadable(4)]);
        assert_eq!((store.unreadable(), store.take_settled()), (3, vec![]));
        // One pod can be read again, one is deleted, one no longer appears in a list.
        store.apply_event(WatchEvent::Applied(Box::new(pod(2, "Running"))), None);
        store.apply_event(WatchEvent::Deleted(Some(uid(3))), None);
        assert_eq!(store.take_settled(), [uid(2), uid(3)]);
        list(&mut store, vec![pod(1, "Running"), pod(2, "Running")]);
        assert_eq!((store.take_settled(), store.unreadable()), (vec![uid(4)], 0));
        // A held pod is gone only with evidence.
        store.apply_event(WatchEvent::Applied(Box::new(unreadable(1))), None);
        list(&mut store, vec![pod(2, "Running")]);
        assert_eq!((store.take_settled(), store.unreadable()), (vec![], 1));
        store.gone(&uid(1), GoneEvidence::NotFound);
        assert_eq!((store.take_settled(), store.unreadable()), (vec![uid(1)], 0));
        // The same version again is not a change, but shows that the pod can be read.
        store.apply_event(WatchEvent::Applied(Box::new(unreadable(2))), None);
        store.take_deltas();
        list(&mut store, vec![pod(2, "Running")]);
        assert_eq!((store.take_settled(), store.take_deltas().len()), (vec![uid(2)], 0));
    }

    #[test]
    fn beyond_the_bound_running_pods_replace_ended_pods() {
        let mut store = Pods::default();
        let phase = |number| if number == 7 { "Succeeded" } else { "Running" };
        listed(&mut store, (0..MAX_POD_OBJECTS + 3).map(|number| pod(number, phase(number))).collect());
        let list = store.list();
        assert_eq!((list.pods.len(), list.left_out), (MAX_POD_OBJECTS, 3));
        assert!(list.pods.iter().all(|pod| !pod.ended()));
        for number in 0..MAX_POD_OBJECTS + 3 {
            deleted(&mut store, number, None);
        }
        assert_eq!((store.list().pods.len(), store.list().left_out), (0, 0));
    }

    /// A pod with a claim and a text of this many MiB, which all such pods of a test share.
    fn large(number: usize, phase: &str, mib: usize, text: &Arc<str>) -> Pod {
        let texts = (0..mib).map(|at| (format!("a/{at}").into(), Arc::clone(text)));
        let annotations = texts.chain([(ALLOCATED.into(), "x".into())]).collect();
        Pod { annotations, ..pod(number, phase).unwrap() }
    }

    #[test]
    fn beyond_the_bound_of_bytes_pods_are_left_out_as_beyond_the_bound_of_their_number() {
        const MOST: usize = MAX_NODE_PODS_BYTES >> 20;
        let text: Arc<str> = "x".repeat(1 << 20).into();
        let mut store = Pods::default();
        let counted = |store: &Pods| (store.list().pods.len(), store.list().left_out);
        let of = |number: usize, mib: usize| large(number, if number < 4 { "Failed" } else { "Running" }, mib, &text);
        listed(&mut store, (0..MOST + 2).map(|number| Ok(of(number, 1))).collect());
        assert_eq!(counted(&store), (MOST - 1, 3), "each takes a little more than its text");
        assert_eq!(store.list().pods.iter().filter(|pod| pod.ended()).count(), 1);
        applied(&mut store, Ok(of(3, 2)));
        assert_eq!(counted(&store), (MOST - 2, 4), "one that has ended does not grow");
        applied(&mut store, Ok(of(5, 10)));
        assert_eq!(counted(&store), (MOST - 2, 4), "one that may hold GPUs does");
        deleted(&mut store, 5, None);
        applied(&mut store, Ok(of(100, 1)));
        applied(&mut store, Ok(of(101, 2)));
        assert_eq!(counted(&store), (MOST - 2, 5));
        for number in 0..102 {
            deleted(&mut store, number, None);
        }
        assert_eq!((counted(&store), store.bytes), ((0, 0), 0));
    }

    #[test]
    fn a_list_that_is_read_takes_no_more_memory_than_the_store_may_take() {
        const MOST: usize = MAX_NODE_PODS_BYTES >> 20;
        let text: Arc<str> = "x".repeat(1 << 20).into();
        let of = |numbers: std::ops::Range<usize>, phase: &'static str| {
            let text = Arc::clone(&text);
            numbers.map(move |number| Ok(large(number, phase, 1, &text)))
        };
        let mut store = Pods::default();
        listed(&mut store, of(100..110, "Running").chain(of(110..120, "Failed")).collect());
        let mut read = ReadObjects::<PodsOfNode>::default();
        read.add(of(0..MOST - 1, "Failed"), &store);
        assert_eq!((read.objects.len(), read.left_out.len()), (MOST - 1, 0));
        // The last of the pods that hold nothing are left out, unless the store has them.
        read.add(of(100..120, "Failed"), &store);
        read.leave_out(&store);
        assert_eq!((read.objects.len(), read.left_out.len()), (MOST - 1, 20));
        // Then all of them, and the last of the others: the store gives them the places of objects that it holds.
        read.add(of(200..200 + MOST, "Running"), &store);
        read.leave_out(&store);
        assert_eq!((read.objects.len(), read.left_out.len()), (20 + MOST - 1, MOST));
        assert!((100..120).all(|number| !read.left_out.contains(&uid(number))));
        let last = read.objects.last().unwrap().as_ref().unwrap();
        assert_eq!(last.uid, uid(200 + MOST - 2));
    }

    #[test]
    fn the_number_of_pods_that_are_left_out_is_that_of_the_pods_that_exist_and_are_not_held() {
        let mut store = Pods::default();
        let counted = |store: &Pods| (store.list().pods.len(), store.list().left_out);
        let [third, fourth] = [MAX_POD_OBJECTS + 2, MAX_POD_OBJECTS + 3];
        let phase = |number| if number < 2 { "Succeeded" } else { "Running" };
        listed(&mut store, (0..MAX_POD_OBJECTS + 4).map(|number| pod(number, phase(number))).collect());
        assert_eq!(counted(&store), (MAX_POD_OBJECTS, 4), "two that have ended, and two without a place");
        for _ in 0..3 {
            applied(&mut store, pod(0, "Succeeded"));
            applied(&mut store, pod(third, "Running"));
            deleted(&mut store, MAX_POD_OBJECTS + 50, None);
        }
        assert_eq!(counted(&store), (MAX_POD_OBJECTS, 4), "no new version and no unknown pod counts");
        deleted(&mut store, 5, None);
        applied(&mut store, pod(third, "Running"));
        assert_eq!(counted(&store), (MAX_POD_OBJECTS, 3), "one has got the place of a pod that is gone");
        applied(&mut store, pod(6, "Succeeded"));
        applied(&mut store, pod(fourth, "Running"));
        assert_eq!(counted(&store), (MAX_POD_OBJECTS, 3), "another one has replaced a pod that has ended");
        applied(&mut store, unreadable(1));
        assert_eq!((store.list().left_out, store.list().unreadable), (2, 1), "no pod counts twice");
        for number in 0..MAX_POD_OBJECTS + 4 {
            deleted(&mut store, number, None);
        }
        assert_eq!((counted(&store), store.list().unreadable), ((0, 0), 0));
    }

    /// A pod that requests a GPU, and of which the kubelet has reported this state of its container.
    fn gpu_pod(number: usize, state: &str) -> ReadPod {
        let json = format!(
            r#"{{"metadata":{{"name":"p{number}","namespace":"ml","uid":"{number:032x}"}},
            "spec":{{"containers":[{{"name":"main","resources":{{"limits":{{"nvidia.com/gpu":"1"}}}}}}]}},
            "status":{{"phase":"Pending","containerStatuses":[{{"name":"main","state":{{{state}}}}}]}}}}"#
        );
        Ok(wire::pod::decode(json.as_bytes()).unwrap())
    }

    const WAITING: &str = r#""waiting":{}"#;

    /// A user's pods that look like mirrors of static pods: the kubelet does not begin with them, and finalizers keep them.
    #[test]
    fn pods_that_the_kubelet_does_not_begin_with_keep_no_place_from_a_pod_that_it_begins_with() {
        let mut store = Pods::default();
        let holds = |store: &Pods, number: usize| store.get(&uid(number)).is_some();
        let [plain, asking, late] = [MAX_POD_OBJECTS + 10, MAX_POD_OBJECTS + 11, MAX_POD_OBJECTS + 12];
        listed(&mut store, (0..MAX_POD_OBJECTS).map(|number| pod(number, "Pending")).collect());
        applied(&mut store, pod(plain, "Pending"));
        assert!(!holds(&store, plain), "it matters as little as the others");
        applied(&mut store, pod(plain, "Running"));
        applied(&mut store, gpu_pod(asking, ""));
        assert!(holds(&store, plain) && holds(&store, asking));
        assert_eq!((store.list().pods.len(), store.list().left_out), (MAX_POD_OBJECTS, 2));
        // Now they request GPUs too.
        for number in 0..MAX_POD_OBJECTS {
            deleted(&mut store, number, None);
            applied(&mut store, gpu_pod(number, ""));
        }
        assert_eq!(store.list().pods.len(), MAX_UNPROVEN_PODS + 1, "more places are left");
        assert_eq!(store.list().left_out as usize, MAX_POD_OBJECTS + 1 - MAX_UNPROVEN_PODS);
        applied(&mut store, gpu_pod(late, ""));
        assert!(holds(&store, plain) && !holds(&store, late));
        applied(&mut store, gpu_pod(late, WAITING));
        assert!(holds(&store, plain) && holds(&store, late), "the kubelet has begun with it");
    }

    #[test]
    fn a_full_store_gives_the_places_of_the_pods_that_matter_least_first() {
        let mut store = Pods::default();
        let (unproven, named) = (MAX_UNPROVEN_PODS, MAX_POD_OBJECTS - 2);
        listed(&mut store, (0..unproven).map(|number| gpu_pod(number, "")).collect());
        (unproven..named).for_each(|number| drop(applied(&mut store, pod(number, "Running"))));
        (named..MAX_POD_OBJECTS).for_each(|number| drop(applied(&mut store, pod(number, "Succeeded"))));
        store.take_deltas();
        let mut lost = |number: usize, state: &str| {
            applied(&mut store, gpu_pod(number, state));
            let deltas = store.take_deltas();
            deltas.into_iter().find_map(|delta| match delta {
                Delta::LeftOut(pod) => Some(pod.phase),
                _ => None,
            })
        };
        let [running, ended] = [PodPhase::Running, PodPhase::Succeeded].map(Some);
        let first = MAX_POD_OBJECTS + 1;
        let order: Vec<_> = (first..first + 3).map(|number| lost(number, WAITING)).collect();
        assert_eq!(order, [ended, ended, running]);
        let last = first + MAX_POD_OBJECTS - unproven;
        (first + 3..last).for_each(|number| assert_eq!(lost(number, WAITING), running, "{number}"));
        assert_eq!(
            lost(last, WAITING),
            Some(PodPhase::Pending),
            "pods that may hold GPUs come before those that only request them"
        );
    }

    #[test]
    fn a_list_shows_a_pod_that_matters_more_than_those_of_a_full_store() {
        let mut store = Pods::default();
        let full = || (0..MAX_POD_OBJECTS).map(|number| pod(number, "Pending"));
        listed(&mut store, full().collect());
        let mut read = ReadObjects::<PodsOfNode>::default();
        read.add(full().chain([gpu_pod(MAX_POD_OBJECTS, WAITING), gpu_pod(MAX_POD_OBJECTS + 1, "")]), &store);
        read.leave_out(&store);
        assert_eq!((read.objects.len(), read.left_out.len()), (MAX_POD_OBJECTS + 2, 0));
        store.listed(read.objects, read.left_out, Answer::MayLag);
        assert_eq!((store.list().pods.len(), store.list().left_out), (MAX_POD_OBJECTS, 2));
        assert!(store.get(&uid(MAX_POD_OBJECTS)).is_some() && store.get(&uid(MAX_POD_OBJECTS + 1)).is_some());
    }

    /// A pod of the cluster that takes a little more than a MiB, which all such pods of a test share.
    fn in_cluster(number: usize, has_claim: bool, text: &Arc<str>) -> Pod {
        let key = if has_claim { ALLOCATED } else { "a/text" };
        let pod = gpu_pod(number, WAITING).unwrap();
        Pod { node: Some(NodeName::parse("n1").unwrap()), annotations: vec![(key.into(), Arc::clone(text))], ..pod }
    }

    /// A user's pods that name their node and request GPUs; finalizers keep them.
    #[test]
    fn pods_without_a_claim_of_which_no_container_runs_keep_no_claim_from_being_followed() {
        const MOST: usize = MAX_CLUSTER_PODS_BYTES >> 20;
        let text: Arc<str> = "x".repeat(1 << 20).into();
        let of = |numbers: std::ops::Range<usize>, has_claim| {
            let text = Arc::clone(&text);
            numbers.map(move |number| Ok(in_cluster(number, has_claim, &text)))
        };
        // A leader that starts reads the claims last.
        let (mut store, mut read) = (Store::<AllPods>::default(), ReadObjects::<AllPods>::default());
        read.add(of(0..MOST, false).chain(of(MOST..MOST + 2, true)), &store);
        read.leave_out(&store);
        store.listed(read.objects, read.left_out, Answer::FromEtcd);
        let left_out =
            |store: &Store<AllPods>| [Importance::Unproven, Importance::MayHold].map(|of| store.left_out_of(of));
        assert_eq!((store.objects().count(), left_out(&store)), (MOST - 1, [3, 0]));
        assert!((MOST..MOST + 2).all(|number| store.get(&uid(number)).is_some()));
        store.take_deltas();
        // One that leads sees claims that are new.
        let add = |store: &mut Store<AllPods>, pod| {
            store.apply_event(WatchEvent::Applied(Box::new(pod)), None);
            store.take_deltas().into_iter().find_map(|delta| match delta {
                Delta::LeftOut(pod) => Some(pod.uid.clone()),
                _ => None,
            })
        };
        for pod in of(MOST + 2..2 * MOST - 1, true) {
            let lost = add(&mut store, pod);
            assert!(lost.is_some_and(|lost| lost < uid(MOST)));
        }
        assert_eq!((store.objects().count(), left_out(&store)), (MOST - 1, [u32::try_from(MOST).unwrap(), 0]));
        of(2 * MOST - 1..2 * MOST + 1, true).for_each(|pod| assert_eq!(add(&mut store, pod), None));
        assert_eq!(left_out(&store)[1], 2, "whoever follows these pods knows that claims are missing");
        // A list brings back what is left out.
        let gone = |store: &mut Store<AllPods>, number| store.gone(&uid(number), GoneEvidence::NotFound);
        let eighth = MOST / 8;
        (MOST..MOST + eighth - 1).for_each(|number| gone(&mut store, number));
        assert!(!store.has_room_again());
        gone(&mut store, MOST + eighth - 1);
        assert!(store.has_room_again());
        (2 * MOST - 1..2 * MOST + 1).for_each(|number| gone(&mut store, number));
        (0..MOST).for_each(|number| gone(&mut store, number));
        assert_eq!((left_out(&store), store.has_room_again()), ([0, 0], false));
    }

    #[test]
    fn a_pod_that_loses_its_place_to_another_one_of_the_same_list_counts_once() {
        let mut store = Pods::default();
        let phase = |number| if number == MAX_POD_OBJECTS { "Succeeded" } else { "Running" };
        let some = |first, end| -> Vec<ReadPod> { (first..end).map(|number| pod(number, phase(number))).collect() };
        listed(&mut store, some(1, MAX_POD_OBJECTS + 1));
        listed(&mut store, some(0, MAX_POD_OBJECTS + 1));
        assert_eq!((store.list().pods.len(), store.list().left_out), (MAX_POD_OBJECTS, 1));
        // The next list does not show it any more.
        listed(&mut store, some(0, MAX_POD_OBJECTS));
        assert_eq!((store.list().pods.len(), store.list().left_out), (MAX_POD_OBJECTS, 0));
    }

    #[test]
    fn the_pods_that_are_left_out_are_known_by_what_they_may_hold() {
        let mut store = Pods::default();
        let begun = || (0..MAX_POD_OBJECTS - MAX_UNPROVEN_PODS).map(|number| gpu_pod(number, WAITING));
        let asking = (MAX_POD_OBJECTS..MAX_POD_OBJECTS + MAX_UNPROVEN_PODS + 2).map(|number| gpu_pod(number, ""));
        let others = [pod(5000, "Pending"), pod(5001, "Running"), pod(5002, "Failed")];
        listed(&mut store, begun().chain(asking).chain(others).collect());
        let numbers = [MAX_POD_OBJECTS + MAX_UNPROVEN_PODS, MAX_POD_OBJECTS + MAX_UNPROVEN_PODS + 1];
        let list = store.list();
        assert_eq!((list.pods.len(), list.left_out), (MAX_POD_OBJECTS, 5));
        assert_eq!(*list.left_out_plain, [5000, 5001].map(uid), "none that has ended: its containers may be stopping");
        assert_eq!(*list.left_out_unproven, numbers.map(uid));
        // They stay known however many others an attacker adds, and objects that matter least are forgotten first.
        (10_000..10_000 + MAX_LEFT_OUT_PODS).for_each(|number| drop(applied(&mut store, pod(number, "Pending"))));
        let list = store.list();
        assert_eq!((list.left_out as usize, &*list.left_out_unproven), (MAX_LEFT_OUT_PODS, &numbers.map(uid)[..]));
    }

    /// The changes, each as its kind and the name of its pod.
    fn changes(store: &mut Pods) -> Vec<String> {
        let one = |delta: Delta<Pod>| match delta {
            Delta::Added(pod) => format!("added {}", pod.name.name),
            Delta::Changed { before, after } => {
                format!("changed {} {:?} {:?}", after.name.name, before.version, after.version)
            }
            Delta::Gone { before, evidence } => format!("gone {} {evidence:?}", before.name.name),
            Delta::LeftOut(pod) => format!("left out {}", pod.name.name),
        };
        store.take_deltas().into_iter().map(one).collect()
    }

    #[test]
    fn a_pod_that_a_list_does_not_show_stays_until_there_is_evidence() {
        let mut store = Pods::default();
        store.listed(
            vec![made(1, 1, "100"), made(2, 1, "101"), made(3, 1, "102")],
            ByImportance::default(),
            Answer::MayLag,
        );
        assert_eq!(changes(&mut store), ["added p1", "added p2", "added p3"]);
        // A pod that cannot be read counts as shown.
        let Listed { missing, .. } =
            store.listed(vec![unreadable(2), made(3, 1, "102")], ByImportance::default(), Answer::MayLag);
        assert_eq!((missing, names(&store)), (vec![uid(1)], ["p1", "p2", "p3"].map(str::to_owned).to_vec()));
        assert_eq!(changes(&mut store), [""; 0], "the same version is no change");
        store.gone(&uid(1), GoneEvidence::OtherUid);
        assert_eq!(changes(&mut store), ["gone p1 OtherUid"]);
        // An event that is not newer than the pod may come from a server that lags.
        for version in [101, 102] {
            assert!(matches!(deleted(&mut store, 3, Some(version)), EventOutcome::Doubtful(of) if of == uid(3)));
        }
        assert!(matches!(deleted(&mut store, 3, Some(103)), EventOutcome::Taken));
        assert_eq!(changes(&mut store), ["gone p3 DeletedEvent"]);
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one_unless_it_comes_from_etcd() {
        let mut store = Pods::default();
        store.listed(vec![made(1, 1, "100")], ByImportance::default(), Answer::MayLag);
        applied(&mut store, made(1, 1, "105"));
        store.listed(vec![made(1, 1, "102")], ByImportance::default(), Answer::MayLag);
        applied(&mut store, made(1, 1, "104"));
        assert_eq!(changes(&mut store), ["added p1", "changed p1 Some(100) Some(105)"]);
        // After a restore of etcd the versions start lower.
        store.keep(made(1, 1, "50").unwrap(), Answer::FromEtcd);
        assert_eq!(changes(&mut store), ["changed p1 Some(105) Some(50)"]);
    }
}
