//! The versions of the nodes. A filter call compares them with the versions of the kept verdicts without locking the
//! state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which node, and how often it has changed.
#[derive(Debug)]
pub(super) struct NodeVersion {
    /// Never used for another node, not even for a later node of the same name or place.
    number: u64,
    place: usize,
    changes: AtomicU64,
}

/// The version of one node. The node's state increments it, and filter calls read it. A copy of the node has its own
/// count.
#[derive(Debug)]
pub(super) struct CountedVersion {
    own: Arc<NodeVersion>,
    /// The count of the changes of all nodes; `None` in a copy.
    all: Option<Arc<AtomicU64>>,
}

/// A version that a verdict is valid for: the number of the node, and of its changes.
pub(super) type VersionNumbers = (u64, u64);

impl NodeVersion {
    /// The current version. A node changes only under the lock under which verdicts are made, so a verdict with this
    /// version is about the node in exactly that state.
    pub(super) fn numbers(&self) -> VersionNumbers {
        (self.number, self.changes.load(Ordering::Acquire))
    }

    /// The place of the node in lists with an entry for each node that is known.
    pub(super) fn place(&self) -> usize {
        self.place
    }
}

impl CountedVersion {
    /// The version of a new node. Its changes also count in `all`.
    pub(super) fn new(number: u64, place: usize, all: &Arc<AtomicU64>) -> CountedVersion {
        let own = Arc::new(NodeVersion { number, place, changes: AtomicU64::new(0) });
        CountedVersion { own, all: Some(Arc::clone(all)) }
    }

    /// A handle that can only read the version.
    pub(super) fn shared(&self) -> Arc<NodeVersion> {
        Arc::clone(&self.own)
    }

    /// Counts a change on which verdicts depend.
    pub(super) fn changes(&mut self) {
        self.own.changes.fetch_add(1, Ordering::AcqRel);
        if let Some(all) = &self.all {
            all.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// See [`NodeVersion::place`].
    pub(super) fn place(&self) -> usize {
        self.own.place()
    }

    /// See [`NodeVersion::numbers`].
    pub(super) fn numbers(&self) -> VersionNumbers {
        self.own.numbers()
    }
}

impl Clone for CountedVersion {
    fn clone(&self) -> CountedVersion {
        let (number, changes) = self.own.numbers();
        let own = NodeVersion { number, place: self.own.place, changes: AtomicU64::new(changes) };
        CountedVersion { own: Arc::new(own), all: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_copy_are_not_changes_of_the_node() {
        let all = Arc::new(AtomicU64::new(0));
        let mut own = CountedVersion::new(7, 3, &all);
        let (read, mut copy) = (own.shared(), own.clone());
        copy.changes();
        assert_eq!((read.numbers(), copy.shared().numbers(), all.load(Ordering::Acquire)), ((7, 0), (7, 1), 0));
        own.changes();
        assert_eq!((read.numbers(), read.place(), copy.place()), ((7, 1), 3, 3));
        assert_eq!(all.load(Ordering::Acquire), 1);
    }
}
