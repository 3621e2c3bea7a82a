//! How many bytes the pods between their filter call and their bind take, by namespace.
//!
//! What must never happen here: the pods of one namespace push out the pods of a namespace that takes less.

use super::state::PendingPod;
use model::id::PodUid;
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The shares of all namespaces.
#[derive(Debug, Default)]
pub(super) struct PendingShares {
    namespaces: BTreeMap<Arc<str>, Share>,
    /// The namespaces by their bytes.
    sizes: BTreeSet<(usize, Arc<str>)>,
}

/// The share of one namespace.
#[derive(Debug, Default)]
struct Share {
    bytes: usize,
    /// The filter calls, oldest first.
    calls: BTreeSet<(Monotonic, PodUid)>,
}

impl PendingShares {
    /// A filter call of a pod is remembered.
    pub(super) fn add(&mut self, uid: &PodUid, pod: &PendingPod) {
        self.resize(&pod.request.pod.namespace, |share| {
            share.bytes += pod.bytes;
            share.calls.insert((pod.filtered, uid.clone()));
        });
    }

    /// A filter call that was added is forgotten.
    pub(super) fn remove(&mut self, uid: &PodUid, pod: &PendingPod) {
        self.resize(&pod.request.pod.namespace, |share| {
            share.bytes -= pod.bytes;
            share.calls.remove(&(pod.filtered, uid.clone()));
        });
    }

    /// The pod with the oldest filter call, in the namespace that takes most bytes.
    pub(super) fn first_to_forget(&self) -> Option<&PodUid> {
        let (_, namespace) = self.sizes.last()?;
        self.namespaces.get(namespace)?.calls.first().map(|(_, uid)| uid)
    }

    fn resize(&mut self, namespace: &Arc<str>, change: impl FnOnce(&mut Share)) {
        let share = self.namespaces.entry(Arc::clone(namespace)).or_default();
        self.sizes.remove(&(share.bytes, Arc::clone(namespace)));
        change(share);
        if share.calls.is_empty() {
            self.namespaces.remove(namespace);
        } else {
            self.sizes.insert((share.bytes, Arc::clone(namespace)));
        }
    }
}
