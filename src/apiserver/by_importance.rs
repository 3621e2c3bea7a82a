//! UIDs of objects, by how much the objects matter.

use crate::kind::Importance;
use std::collections::{BTreeMap, BTreeSet};

/// These UIDs, each once.
#[derive(Clone, Debug)]
pub(crate) struct ByImportance<U>(BTreeMap<Importance, BTreeSet<U>>);

impl<U> Default for ByImportance<U> {
    fn default() -> Self {
        ByImportance(BTreeMap::new())
    }
}

impl<U: Ord> ByImportance<U> {
    /// Adds an object, or changes how much it matters.
    pub(crate) fn insert(&mut self, importance: Importance, uid: U) {
        self.remove(&uid);
        self.0.entry(importance).or_default().insert(uid);
    }

    /// The same. If there are more than `most` objects then, an object that matters least is removed.
    pub(crate) fn insert_among(&mut self, most: usize, importance: Importance, uid: U) {
        self.insert(importance, uid);
        if self.len() > most {
            let _ = self.0.values_mut().find_map(BTreeSet::pop_first);
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, uid: &U) {
        let _ = self.0.values_mut().any(|uids| uids.remove(uid));
    }

    /// Number of objects that matter this much.
    pub(crate) fn count(&self, importance: Importance) -> usize {
        self.0.get(&importance).map_or(0, BTreeSet::len)
    }

    /// Number of objects.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Whether there is no object.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An object that matters least, if it matters less than `importance`.
    pub(crate) fn least_below(&self, importance: Importance) -> Option<(Importance, &U)> {
        self.0.range(..importance).find_map(|(importance, uids)| Some((*importance, uids.first()?)))
    }

    /// The objects of these importances, ordered.
    pub(crate) fn ordered(&self, importances: &[Importance]) -> Vec<U>
    where
        U: Clone,
    {
        let mut uids: Vec<U> = importances.iter().filter_map(|one| self.0.get(one)).flatten().cloned().collect();
        uids.sort_unstable();
        uids
    }

    /// The objects, the least important first.
    pub(crate) fn into_uids(self) -> impl Iterator<Item = (Importance, U)> {
        self.0.into_iter().flat_map(|(importance, uids)| uids.into_iter().map(move |uid| (importance, uid)))
    }

    /// Whether this object is among them.
    #[cfg(test)]
    pub(crate) fn contains(&self, uid: &U) -> bool {
        self.0.values().any(|uids| uids.contains(uid))
    }
}
