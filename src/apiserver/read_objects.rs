//! The objects of the pages of a list that were read so far, within the bounds of the store.

use crate::by_importance::ByImportance;
use crate::kind::{Followed, Importance};
use crate::store::{Store, has_room};
use wire::watch::ReadObject;

/// All importances, from the highest to the lowest.
const IMPORTANCES: [Importance; 5] =
    [Importance::MayHold, Importance::Unproven, Importance::Named, Importance::Ended, Importance::HoldsNothing];

/// These objects.
#[derive(Debug)]
pub(crate) struct ReadObjects<K: Followed> {
    /// The objects, with an error for each object that cannot be read.
    pub(crate) objects: Vec<ReadObject<K>>,
    /// How much the objects take of the bounds.
    taken: Taken,
    /// How much the objects took when objects were last left out.
    taken_before: Taken,
    /// The objects that are left out of `objects`, because there are too many; at most as many as are counted.
    pub(crate) left_out: ByImportance<K::Uid>,
}

/// What objects take of the bounds of the store.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    objects: usize,
    bytes: usize,
    unproven: usize,
}

impl Taken {
    /// What is taken with one more object.
    fn with<K: Followed>(self, object: &ReadObject<K>) -> Taken {
        Taken {
            objects: self.objects + 1,
            bytes: self.bytes + object.as_ref().map_or(0, K::memory),
            unproven: self.unproven + usize::from(importance::<K>(object) == Importance::Unproven),
        }
    }

    fn fits<K: Followed>(self) -> bool {
        has_room::<K>(self.objects, self.bytes) && self.unproven <= K::MOST_UNPROVEN
    }
}

impl<K: Followed> Default for ReadObjects<K> {
    fn default() -> Self {
        ReadObjects {
            objects: Vec::new(),
            taken: Taken::default(),
            taken_before: Taken::default(),
            left_out: ByImportance::default(),
        }
    }
}

impl<K: Followed> ReadObjects<K> {
    /// Adds the objects of a page.
    pub(crate) fn add(&mut self, page: impl Iterator<Item = ReadObject<K>>, store: &Store<K>) {
        for object in page {
            self.taken = self.taken.with::<K>(&object);
            self.objects.push(object);
        }
        // Not after each page: of 600,000 objects there are 1,200 pages.
        let (now, before) = (self.taken, self.taken_before);
        let grown = now.objects - before.objects > K::MOST / 8
            || K::MOST_BYTES.is_some_and(|most| now.bytes - before.bytes > most / 8);
        if grown {
            self.leave_out(store);
        }
    }

    /// If there are more objects than the store may hold, the objects that matter least are left out, and among equals the last. An
    /// object that the store holds stays: if the list did not show it, it would be read by its name.
    pub(crate) fn leave_out(&mut self, store: &Store<K>) {
        if self.taken.fits::<K>() {
            return;
        }
        let is_held = |object: &ReadObject<K>| object.as_ref().is_ok_and(|one| store.get(K::uid_of(one)).is_some());
        let mut stays: Vec<bool> = self.objects.iter().map(is_held).collect();
        self.taken = Taken::default();
        for level in IMPORTANCES {
            let of_level = |object: &&ReadObject<K>| importance::<K>(object) == level;
            // The store gives the place of an object that it holds to a new object that matters more.
            let held = self.objects.iter().zip(&stays).filter(|(object, held)| **held && of_level(object));
            self.taken = held.fold(self.taken, |taken, (object, _)| taken.with::<K>(object));
            let new = self.objects.iter().zip(&mut stays).filter(|(object, held)| !**held && of_level(object));
            for (object, stays) in new {
                let with = self.taken.with::<K>(object);
                if with.fits::<K>() {
                    (self.taken, *stays) = (with, true);
                }
            }
        }
        self.taken_before = self.taken;
        let mut stays = stays.into_iter();
        self.objects.retain(|object| {
            let stays = stays.next().unwrap_or_default();
            if let Ok(object) = object
                && !stays
            {
                self.left_out.insert_among(K::MOST_LEFT_OUT, K::importance(object), K::uid_of(object).clone());
            }
            stays
        });
    }
}

/// How much an object matters. An object that cannot be read may hold devices.
fn importance<K: Followed>(object: &ReadObject<K>) -> Importance {
    object.as_ref().map_or(Importance::MayHold, K::importance)
}
