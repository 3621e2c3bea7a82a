//! The versions of the nodes: a call compares them with those of the verdicts that are kept, without the state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which node, and how often it has changed.
#[derive(Debug)]
pub(super) struct NodeVersion {
    /// Never used for another node, also not for a later one of the same name or place.
    number: u64,
    place: usize,
    changes: AtomicU64,
}

/// The version of one node, which its owner counts up and others read. A copy of the node counts for itself.
#[derive(Debug)]
pub(super) struct CountedVersion(Arc<NodeVersion>);

/// A version that a verdict is valid for: the number of the node, and of its changes.
pub(super) type VersionNumbers = (u64, u64);

impl NodeVersion {
    /// The version as it is now. Whoever changes a node does so behind the lock under which verdicts are made, so a verdict
    /// of this version was made of the node as it was then.
    pub(super) fn numbers(&self) -> VersionNumbers {
        (self.number, self.changes.load(Ordering::Acquire))
    }

    /// The place of the node in lists with an entry for each node that is known.
    pub(super) fn place(&self) -> usize {
        self.place
    }
}

impl CountedVersion {
    pub(super) fn new(number: u64, place: usize) -> CountedVersion {
        CountedVersion(Arc::new(NodeVersion { number, place, changes: AtomicU64::new(0) }))
    }

    /// For those who only read it.
    pub(super) fn shared(&self) -> Arc<NodeVersion> {
        Arc::clone(&self.0)
    }

    /// Something has changed on which verdicts depend.
    pub(super) fn changes(&mut self) {
        self.0.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// See [`NodeVersion::place`].
    pub(super) fn place(&self) -> usize {
        self.0.place()
    }

    /// See [`NodeVersion::numbers`].
    pub(super) fn numbers(&self) -> VersionNumbers {
        self.0.numbers()
    }
}

impl Clone for CountedVersion {
    fn clone(&self) -> CountedVersion {
        let (number, changes) = self.0.numbers();
        CountedVersion(Arc::new(NodeVersion { number, place: self.0.place, changes: AtomicU64::new(changes) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_copy_are_not_changes_of_the_node() {
        let mut own = CountedVersion::new(7, 3);
        let (read, mut copy) = (own.shared(), own.clone());
        copy.changes();
        assert_eq!((read.numbers(), copy.shared().numbers()), ((7, 0), (7, 1)));
        own.changes();
        assert_eq!((read.numbers(), read.place(), copy.place()), ((7, 1), 3, 3));
    }
}
