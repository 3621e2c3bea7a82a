//! The pods of this node as a list and the events after it make them. Bounded, and the same whatever the order of a list.

use model::id::PodUid;
use model::pod::{MAX_POD_OBJECTS, Pod, PodList};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::watch::{Event, Unreadable};

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Store {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Pods whose newest version could not be read; as many as are kept at most.
    unreadable: BTreeSet<PodUid>,
    left_out: u32,
}

impl Store {
    /// A whole list takes the place of all that was. Gives what could not be read.
    pub(super) fn listed(&mut self, pods: Vec<Result<Pod, Unreadable>>) -> Vec<Unreadable> {
        let before = std::mem::take(self);
        let mut bad = Vec::new();
        for pod in pods {
            match pod {
                Ok(pod) => self.keep(pod),
                Err(why) => {
                    // What was known of it is still the best that is known.
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

    /// One event. Gives what could not be read, if it was that.
    pub(super) fn happened(&mut self, event: Event) -> Option<Unreadable> {
        match event {
            Event::Applied(pod) => match *pod {
                Ok(pod) => self.keep(pod),
                Err(why) => {
                    self.mark(&why);
                    return Some(why);
                }
            },
            Event::Deleted(Some(uid)) => {
                self.unreadable.remove(&uid);
                if self.pods.remove(&uid).is_none() {
                    self.left_out = self.left_out.saturating_sub(1);
                }
            }
            Event::Deleted(None) | Event::Bookmark | Event::Error(_) => {}
        }
        None
    }

    /// All that is known.
    pub(super) fn list(&self) -> PodList {
        PodList {
            pods: self.pods.values().cloned().collect(),
            left_out: self.left_out,
            unreadable: u32::try_from(self.unreadable.len()).unwrap_or(u32::MAX),
        }
    }

    fn keep(&mut self, pod: Pod) {
        self.unreadable.remove(&pod.uid);
        if self.pods.len() >= MAX_POD_OBJECTS && !self.pods.contains_key(&pod.uid) {
            self.left_out = self.left_out.saturating_add(1);
            let ended = self.pods.values().find(|known| known.ended()).map(|known| known.uid.clone());
            match ended.filter(|_| !pod.ended()) {
                Some(ended) => self.pods.remove(&ended),
                None => return,
            };
        }
        self.pods.insert(pod.uid.clone(), Arc::new(pod));
    }

    fn mark(&mut self, why: &Unreadable) {
        if let Some(uid) = why.uid.clone().filter(|_| self.unreadable.len() < MAX_POD_OBJECTS) {
            self.unreadable.insert(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: usize, phase: &str) -> Result<Pod, Unreadable> {
        let json = format!(
            r#"{{"metadata":{{"name":"p{number}","namespace":"ml","uid":"{number:032x}"}},"status":{{"phase":"{phase}"}}}}"#
        );
        Ok(wire::pod::decode(json.as_bytes()).unwrap())
    }

    fn unreadable(number: usize) -> Result<Pod, Unreadable> {
        let why = wire::pod::decode(b"{}").unwrap_err();
        Err(Unreadable { uid: PodUid::parse(&format!("{number:032x}")).ok(), name: None, why })
    }

    fn names(store: &Store) -> Vec<String> {
        store.list().pods.iter().map(|pod| pod.name.name.to_string()).collect()
    }

    #[test]
    fn a_list_replaces_and_events_change() {
        let mut store = Store::default();
        store.listed(vec![pod(1, "Running"), pod(2, "Running")]);
        assert_eq!(names(&store), ["p1", "p2"]);
        store.happened(Event::Applied(Box::new(pod(3, "Pending"))));
        store.happened(Event::Deleted(PodUid::parse(&format!("{:032x}", 1)).ok()));
        assert_eq!(names(&store), ["p2", "p3"]);
        store.listed(vec![pod(4, "Running")]);
        assert_eq!((names(&store), store.list().left_out), (vec!["p4".to_owned()], 0));
    }

    #[test]
    fn an_unreadable_version_leaves_the_older_one_and_is_counted_until_it_can_be_read() {
        let mut store = Store::default();
        store.listed(vec![pod(1, "Running")]);
        assert!(store.happened(Event::Applied(Box::new(unreadable(1)))).is_some());
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 1));
        assert_eq!(store.listed(vec![unreadable(1), unreadable(2)]).len(), 2);
        assert_eq!((names(&store).len(), store.list().unreadable), (1, 2));
        store.happened(Event::Applied(Box::new(pod(1, "Running"))));
        store.happened(Event::Deleted(PodUid::parse(&format!("{:032x}", 2)).ok()));
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
            store.happened(Event::Deleted(PodUid::parse(&format!("{number:032x}")).ok()));
        }
        assert_eq!((store.list().pods.len(), store.list().left_out), (0, 0));
    }
}
