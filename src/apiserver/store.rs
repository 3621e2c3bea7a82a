//! Holds the pods of this node, at most [`MAX_POD_OBJECTS`], and the order in which they came. They come from a list
//! and from the watch events after it.
//!
//! The order is as close as possible to the order in which the kubelet admits the pods. The kubelet watches the same
//! pods. It admits the pods of a watch as they come. It sorts the pods of a list by creation time in whole seconds
//! (`sliceutils.PodsByCreationTime`); pods of the same second have no fixed order there. The store sorts the pods of
//! one second by resource version, because the last write to a pod that the kubelet has not handled yet is usually its
//! binding. A pod that the store knows already keeps its place.

use model::id::PodUid;
use model::pod::{MAX_POD_OBJECTS, Pod, PodList};
use model::time::{Arrival, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::watch::{UnreadablePod, WatchEvent};

/// The pods that are known.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Pods whose newest version could not be read; bounded like `pods`.
    unreadable: BTreeSet<PodUid>,
    left_out: u32,
    /// The number of the pod that came last.
    last: u64,
}

impl Store {
    /// Replaces all pods by those of a list. Returns the pods that could not be read.
    pub(crate) fn listed(&mut self, mut pods: Vec<Result<Pod, UnreadablePod>>) -> Vec<UnreadablePod> {
        let before = std::mem::take(self);
        self.last = before.last;
        let mut bad = Vec::new();
        pods.sort_by(|one, other| by_age(one).cmp(&by_age(other)));
        for pod in pods {
            match pod {
                Ok(pod) => {
                    let known = before.pods.get(&pod.uid).and_then(|known| known.arrival);
                    self.keep(pod, known);
                }
                Err(why) => {
                    // The last readable version of the pod is the best one known.
                    if let Some(old) = why.uid.as_ref().and_then(|uid| before.pods.get(uid)) {
                        self.pods.insert(old.uid.clone(), Arc::clone(old));
                    }
                    self.mark(&why);
                    bad.push(why);
                }
            }
        }
        bad
    }

    /// Takes in one event. Returns the pod if it could not be read.
    pub(crate) fn happened(&mut self, event: WatchEvent) -> Option<UnreadablePod> {
        match event {
            WatchEvent::Applied(pod) => match *pod {
                Ok(pod) => {
                    let known = self.pods.get(&pod.uid).and_then(|known| known.arrival);
                    self.keep(pod, known);
                }
                Err(why) => {
                    self.mark(&why);
                    return Some(why);
                }
            },
            WatchEvent::Deleted(Some(uid)) => {
                self.unreadable.remove(&uid);
                if self.pods.remove(&uid).is_none() {
                    self.left_out = self.left_out.saturating_sub(1);
                }
            }
            WatchEvent::Deleted(None) | WatchEvent::Bookmark | WatchEvent::Error(_) => {}
        }
        None
    }

    /// All pods that are known.
    pub(crate) fn list(&self) -> PodList {
        PodList {
            pods: self.pods.values().cloned().collect(),
            left_out: self.left_out,
            unreadable: u32::try_from(self.unreadable.len()).unwrap_or(u32::MAX),
        }
    }

    /// `known` is the pod's place in the order, if it is known already.
    fn keep(&mut self, mut pod: Pod, known: Option<Arrival>) {
        self.unreadable.remove(&pod.uid);
        if self.pods.len() >= MAX_POD_OBJECTS && !self.pods.contains_key(&pod.uid) {
            self.left_out = self.left_out.saturating_add(1);
            let ended = self.pods.values().find(|known| known.ended()).map(|known| known.uid.clone());
            match ended.filter(|_| !pod.ended()) {
                Some(ended) => self.pods.remove(&ended),
                None => return,
            };
        }
        pod.arrival = known.or_else(|| {
            self.last += 1;
            Some(Arrival(self.last))
        });
        self.pods.insert(pod.uid.clone(), Arc::new(pod));
    }

    fn mark(&mut self, why: &UnreadablePod) {
        if let Some(uid) = why.uid.clone().filter(|_| self.unreadable.len() < MAX_POD_OBJECTS) {
            self.unreadable.insert(uid);
        }
    }
}

/// The sort key of a pod in a list.
fn by_age(pod: &Result<Pod, UnreadablePod>) -> Option<(Option<WallTime>, Option<u64>, &PodUid)> {
    pod.as_ref().ok().map(|pod| (pod.created_at, pod.version, &pod.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: usize, phase: &str) -> Result<Pod, UnreadablePod> {
        let json = format!(
            r#"{{"metadata":{{"name":"p{number}","namespace":"ml","uid":"{number:032x}"}},"status":{{"phase":"{phase}"}}}}"#
        );
        Ok(wire::pod::decode(json.as_bytes()).unwrap())
    }

    fn unreadable(number: usize) -> Result<Pod, UnreadablePod> {
        let why = wire::pod::decode(b"{}").unwrap_err();
        Err(UnreadablePod { uid: PodUid::parse(&format!("{number:032x}")).ok(), name: None, why })
    }

    fn names(store: &Store) -> Vec<String> {
        store.list().pods.iter().map(|pod| pod.name.name.to_string()).collect()
    }

    #[test]
    fn a_list_replaces_and_events_change() {
        let mut store = Store::default();
        store.listed(vec![pod(1, "Running"), pod(2, "Running")]);
        assert_eq!(names(&store), ["p1", "p2"]);
        store.happened(WatchEvent::Applied(Box::new(pod(3, "Pending"))));
        store.happened(WatchEvent::Deleted(PodUid::parse(&format!("{:032x}", 1)).ok()));
        assert_eq!(names(&store), ["p2", "p3"]);
        store.listed(vec![pod(4, "Running")]);
        assert_eq!((names(&store), store.list().left_out), (vec!["p4".to_owned()], 0));
    }

    /// Names in the order in which they came.
    fn order(store: &Store) -> Vec<String> {
        let mut pods = store.list().pods;
        pods.sort_by_key(|pod| pod.arrival.expect("a place"));
        pods.iter().map(|pod| pod.name.name.to_string()).collect()
    }

    fn made(number: usize, second: u32, version: &str) -> Result<Pod, UnreadablePod> {
        let json = format!(
            r#"{{"metadata":{{"name":"p{number}","namespace":"ml","uid":"{number:032x}","resourceVersion":"{version}",
            "creationTimestamp":"2026-11-21T10:00:{second:02}Z"}}}}"#
        );
        Ok(wire::pod::decode(json.as_bytes()).unwrap())
    }

    #[test]
    fn pods_of_a_watch_come_in_its_order_and_those_of_a_list_by_age() {
        let mut store = Store::default();
        // Names, UIDs and the order of the list do not count; versions compare as numbers.
        store.listed(vec![made(1, 9, "100"), made(2, 8, "300"), made(3, 8, "99"), made(4, 9, "20")]);
        assert_eq!(order(&store), ["p3", "p2", "p4", "p1"]);
        for (number, second) in [(7, 9), (5, 9), (6, 1)] {
            store.happened(WatchEvent::Applied(Box::new(made(number, second, "400"))));
        }
        // A newer version of a known pod does not change its place, from a list or a watch.
        store.happened(WatchEvent::Applied(Box::new(made(3, 8, "401"))));
        assert_eq!(order(&store), ["p3", "p2", "p4", "p1", "p7", "p5", "p6"]);
        store.listed(vec![made(8, 1, "9"), made(6, 1, "1"), made(5, 9, "500"), made(7, 9, "501"), unreadable(1)]);
        assert_eq!(order(&store), ["p1", "p7", "p5", "p6", "p8"], "who is new comes last");
        // A pod that is deleted and comes again gets a new place.
        store.happened(WatchEvent::Deleted(PodUid::parse(&format!("{:032x}", 7)).ok()));
        store.happened(WatchEvent::Applied(Box::new(made(7, 9, "502"))));
        assert_eq!(order(&store), ["p1", "p5", "p6", "p8", "p7"]);
    }

    #[test]
    fn an_unreadable_version_leaves_the_older_one_and_is_counted_until_it_can_be_read() {
        let mut store = Store::default();
        store.listed(vec![pod(1, "Running")]);
        assert!(store.happened(WatchEvent::Applied(Box::new(unreadable(1)))).is_some());
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 1));
        assert_eq!(store.listed(vec![unreadable(1), unreadable(2)]).len(), 2);
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 2));
        store.happened(WatchEvent::Applied(Box::new(pod(1, "Running"))));
        store.happened(WatchEvent::Deleted(PodUid::parse(&format!("{:032x}", 2)).ok()));
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 0));
    }

    #[test]
    fn beyond_the_bound_living_pods_come_before_those_that_ended() {
        let mut store = Store::default();
        let phase = |number| if number == 7 { "Succeeded" } else { "Running" };
        store.listed((0..MAX_POD_OBJECTS + 3).map(|number| pod(number, phase(number))).collect());
        let list = store.list();
        assert_eq!((list.pods.len(), list.left_out), (MAX_POD_OBJECTS, 3));
        assert!(list.pods.iter().all(|pod| !pod.ended()));
        for number in 0..MAX_POD_OBJECTS + 3 {
            store.happened(WatchEvent::Deleted(PodUid::parse(&format!("{number:032x}")).ok()));
        }
        assert_eq!((store.list().pods.len(), store.list().left_out), (0, 0));
    }
}
