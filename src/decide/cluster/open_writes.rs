//! The writes of one order that the API server may still carry out.
//!
//! A Binding names the version of the pod (`metadata.resourceVersion`). The API server binds the pod only if it still has this
//! version, and checks that in the same transaction. So a write whose answer was lost can be carried out only while the pod has
//! that version, and a pod never gets the same version twice. Once the extender has read the pod with another version and without
//! a node, the API server can never carry out the write.
//!
//! ```text
//!   write for version 7, no answer ──▶ open {7}
//!   read: version 7, no node       ──▶ open {7}    it may still be carried out
//!   read: version 9, no node       ──▶ open {}     it never will be
//! ```
//!
//! What must never happen here: a write that no longer counts as open is carried out.

use std::collections::BTreeSet;

/// The versions of one pod for which writes of an order got no answer; `None` stands for a write without a version,
/// which may be carried out in any version. An order writes for a new version only when no earlier write is open, so
/// the set stays small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenWrites(BTreeSet<Option<u64>>);

impl OpenWrites {
    /// Adds a write for this version of the pod, which got no answer.
    pub(super) fn unanswered(&mut self, version: Option<u64>) {
        self.0.insert(version);
    }

    /// Records that the pod was read from etcd after the writes, with this version and without a node.
    pub(super) fn read_unbound(&mut self, version: Option<u64>) {
        // Versions that cannot be compared prove nothing.
        self.0.retain(|open| open.is_none() || version.is_none() || *open == version);
    }

    /// Whether no write is left that may be carried out.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The newest version of an open write: no write is open once the pod has another version. `None` if no write is
    /// open, or if a write names no version, so that another version does not help.
    #[must_use]
    pub(super) fn version(&self) -> Option<u64> {
        match self.0.first() {
            Some(None) => None,
            _ => self.0.last().copied().flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_write_is_open_until_the_pod_is_read_in_another_version() {
        let mut open = OpenWrites::default();
        assert_eq!((open.is_empty(), open.version()), (true, None));
        open.unanswered(Some(7));
        open.unanswered(Some(7));
        open.read_unbound(Some(7));
        open.read_unbound(None);
        assert_eq!((open.is_empty(), open.version()), (false, Some(7)));
        open.read_unbound(Some(9));
        assert_eq!((open.is_empty(), open.version()), (true, None));
        // etcd was restored to an older state: the pod now has another version, which also proves that the write is
        // lost.
        open.unanswered(Some(9));
        open.read_unbound(Some(4));
        assert!(open.is_empty());
    }

    #[test]
    fn a_write_that_names_no_version_is_never_void() {
        let mut open = OpenWrites::default();
        open.unanswered(None);
        open.unanswered(Some(7));
        assert_eq!(open.version(), None, "another version would not help");
        open.read_unbound(Some(9));
        assert!(!open.is_empty());
    }

    /// An event in the life of an order's pod: a write that is lost or carried out late, a change of the pod, a read.
    #[derive(Clone, Debug)]
    enum Happens {
        Write,
        Change,
        Read,
    }

    proptest! {
        /// The API server may carry out a late write at any time while the pod has the version that the write names. Once the
        /// writes no longer count as open, no write can be carried out.
        #[test]
        fn no_void_write_can_be_carried_out(
            history in proptest::collection::vec(prop_oneof![Just(Happens::Write), Just(Happens::Change), Just(Happens::Read)], 0..40),
        ) {
            let (mut open, mut version, mut read, mut late) = (OpenWrites::default(), 1_u64, 1, Vec::new());
            for one in history {
                match one {
                    Happens::Write => {
                        open.unanswered(Some(read));
                        late.push(read);
                    }
                    Happens::Change => version += 1,
                    Happens::Read => {
                        open.read_unbound(Some(version));
                        read = version;
                    }
                }
                let possible = late.contains(&version);
                prop_assert!(!(open.is_empty() && possible), "{late:?} at {version}");
            }
        }
    }
}
