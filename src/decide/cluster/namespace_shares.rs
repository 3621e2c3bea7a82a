//! What the pods of each namespace take of a bound that all namespaces share, and which pod gives way when the bound is reached.
//!
//! What must never happen here: the pods of one namespace push out the pods of a namespace that takes less.

use model::id::PodUid;
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The shares of all namespaces, in a unit of the caller: pods, or bytes.
#[derive(Debug, Default)]
pub(super) struct NamespaceShares {
    namespaces: BTreeMap<Arc<str>, Share>,
    /// The namespaces by the size of their shares.
    sizes: BTreeSet<(usize, Arc<str>)>,
}

/// The share of one namespace.
#[derive(Debug, Default)]
struct Share {
    size: usize,
    /// The pods by their time, oldest first.
    pods: BTreeSet<(Monotonic, PodUid)>,
}

impl NamespaceShares {
    /// Adds a pod of this time, which takes `size`.
    pub(super) fn add(&mut self, namespace: &Arc<str>, pod: (Monotonic, PodUid), size: usize) {
        self.resize(namespace, |share| {
            share.size += size;
            share.pods.insert(pod);
        });
    }

    /// Removes a pod that was added with the same time and size.
    pub(super) fn remove(&mut self, namespace: &Arc<str>, pod: &(Monotonic, PodUid), size: usize) {
        self.resize(namespace, |share| {
            share.size -= size;
            share.pods.remove(pod);
        });
    }

    /// The oldest pod of the namespace with the largest share.
    pub(super) fn first_to_forget(&self) -> Option<&PodUid> {
        let (_, namespace) = self.sizes.last()?;
        self.namespaces.get(namespace)?.pods.first().map(|(_, uid)| uid)
    }

    /// Whether a namespace has pods here.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// Whether no namespace has pods here.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.sizes.is_empty()
    }

    fn resize(&mut self, namespace: &Arc<str>, change: impl FnOnce(&mut Share)) {
        let share = self.namespaces.entry(Arc::clone(namespace)).or_default();
        self.sizes.remove(&(share.size, Arc::clone(namespace)));
        change(share);
        if share.pods.is_empty() {
            self.namespaces.remove(namespace);
        } else {
            self.sizes.insert((share.size, Arc::clone(namespace)));
        }
    }
}
