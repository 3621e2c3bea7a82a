//! A set of nodes by their places, small enough to keep one for each pod that waits: 625 bytes for 5,000 nodes.

/// The set. Each node has one bit, at its place. The last word is never zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeSet(Vec<u64>);

impl NodeSet {
    /// Adds the node at this place. Returns whether it was not in the set.
    pub(super) fn insert(&mut self, place: usize) -> bool {
        if self.0.len() <= place / 64 {
            self.0.resize(place / 64 + 1, 0);
        }
        let Some(word) = self.0.get_mut(place / 64) else { return false };
        let is_new = *word & bit(place) == 0;
        *word |= bit(place);
        is_new
    }

    /// Removes the node at this place.
    pub(super) fn remove(&mut self, place: usize) {
        if let Some(word) = self.0.get_mut(place / 64) {
            *word &= !bit(place);
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// Whether the set has the node at this place.
    #[cfg(test)]
    pub(super) fn has(&self, place: usize) -> bool {
        self.0.get(place / 64).is_some_and(|word| word & bit(place) != 0)
    }

    /// Whether the set has no node.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds all nodes of another set, which is empty then.
    pub(super) fn take_all(&mut self, other: &mut NodeSet) {
        let other = std::mem::take(other);
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
    }

    /// The places of the nodes that are in this set and, if `other` is given, in both sets; in order.
    pub(super) fn both<'a>(&'a self, other: Option<&'a NodeSet>) -> impl Iterator<Item = usize> + 'a {
        let word = move |(at, word): (usize, &u64)| {
            let other = other.map_or(u64::MAX, |other| other.0.get(at).copied().unwrap_or(0));
            (at, word & other)
        };
        self.0.iter().enumerate().map(word).flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let bits = usize::try_from(word.trailing_zeros()).ok().filter(|_| word != 0)?;
                word &= word - 1;
                Some(at * 64 + bits)
            })
        })
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> NodeSet {
        let mut set = NodeSet::default();
        places.into_iter().for_each(|place| {
            set.insert(place);
        });
        set
    }
}

fn bit(place: usize) -> u64 {
    1 << (place % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(places: &BTreeSet<usize>) -> NodeSet {
        let mut set = NodeSet::default();
        places.iter().for_each(|place| assert!(set.insert(*place) && !set.insert(*place)));
        set
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            one in prop::collection::btree_set(0..300_usize, 0..20), other in prop::collection::btree_set(0..300_usize, 0..20),
            removed in 0..300_usize,
        ) {
            let (mut bits, others) = (set(&one), set(&other));
            prop_assert_eq!(bits.both(None).collect::<Vec<_>>(), one.iter().copied().collect::<Vec<_>>());
            let both: Vec<usize> = one.intersection(&other).copied().collect();
            prop_assert_eq!(bits.both(Some(&others)).collect::<Vec<_>>(), both);
            prop_assert_eq!(bits == others, one == other);
            bits.remove(removed);
            let mut left = one.clone();
            left.remove(&removed);
            prop_assert!(!bits.has(removed) && bits == set(&left) && bits.is_empty() == left.is_empty());
            let mut emptied = others;
            bits.take_all(&mut emptied);
            left.extend(&other);
            prop_assert!(emptied.is_empty() && bits == set(&left));
        }
    }
}
