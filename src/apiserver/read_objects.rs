//! The objects of the pages of a list that were read so far, within the bounds of the store.

use crate::kind::Followed;
use crate::store::{Store, has_room};
use std::collections::BTreeSet;
use wire::watch::ReadObject;

/// These objects.
#[derive(Debug)]
pub(crate) struct ReadObjects<K: Followed> {
    /// The objects, with an error for each one that cannot be read.
    pub(crate) objects: Vec<ReadObject<K>>,
    /// Bytes of memory that they take.
    bytes: usize,
    /// The objects that are not among them, because there are too many; at most as many as can be held.
    pub(crate) left_out: BTreeSet<K::Uid>,
}

impl<K: Followed> Default for ReadObjects<K> {
    fn default() -> Self {
        ReadObjects { objects: Vec::new(), bytes: 0, left_out: BTreeSet::new() }
    }
}

impl<K: Followed> ReadObjects<K> {
    /// Adds the objects of a page. If there are more objects than the store may hold, those that hold no devices are left out, and
    /// then the last ones. An object that the store holds stays: if the list did not show it, it would be read by its name.
    pub(crate) fn add(&mut self, page: impl Iterator<Item = ReadObject<K>>, store: &Store<K>) {
        let before = self.objects.len();
        self.objects.extend(page);
        self.bytes += self.objects.iter().skip(before).map(memory::<K>).sum::<usize>();
        let is_held = |object: &ReadObject<K>| object.as_ref().is_ok_and(|one| store.get(K::uid_of(one)).is_some());
        if self.fit() {
            return;
        }
        self.retain(|object| !object.as_ref().is_ok_and(K::holds_nothing) || is_held(object));
        if self.fit() {
            return;
        }
        let held = self.objects.iter().filter(|object| is_held(object));
        let (mut number, mut bytes) = held.fold((0, 0), |(number, bytes), one| (number + 1, bytes + memory::<K>(one)));
        self.retain(|object| {
            let stays = is_held(object);
            if !stays {
                (number, bytes) = (number + 1, bytes + memory::<K>(object));
            }
            stays || has_room::<K>(number, bytes)
        });
    }

    fn fit(&self) -> bool {
        has_room::<K>(self.objects.len(), self.bytes)
    }

    fn retain(&mut self, mut stays: impl FnMut(&ReadObject<K>) -> bool) {
        self.objects.retain(|object| {
            let stays = stays(object);
            if !stays {
                self.bytes -= memory::<K>(object);
                if let Ok(object) = object
                    && self.left_out.len() < K::MOST
                {
                    self.left_out.insert(K::uid_of(object).clone());
                }
            }
            stays
        });
    }
}

fn memory<K: Followed>(object: &ReadObject<K>) -> usize {
    object.as_ref().map_or(0, K::memory)
}
