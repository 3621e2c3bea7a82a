//! The pods that may be woken now, in the order in which they are judged.
//!
//! A search over all waiting pods puts them in line. Both the search and the judging go on over several steps, because users decide
//! how many pods, kinds of requests and namespaces there are.

use crate::cluster::verdicts::Signature;
use crate::cluster::waiting::{Member, Rank};
use model::time::Monotonic;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The place of a namespace among the namespaces: the highest priority of its pods, and the number of its last wake.
type Head = (Reverse<i32>, u64, Arc<str>);

/// The pods of each namespace that may be woken now.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The lines by namespace. No line is empty.
    lines: BTreeMap<Arc<str>, Line>,
    /// The namespaces with lines, in the order of their turns.
    heads: BTreeSet<Head>,
    /// The pod at which the search goes on, with its kind.
    pub(super) next: Option<(Arc<Signature>, Member)>,
    /// When the search ended.
    pub(super) searched: Option<Monotonic>,
    /// The earliest time at which a pod that must still wait may be woken.
    pub(super) due: Option<Monotonic>,
    /// Whether pods were left out, because too many of one kind wait in a namespace.
    pub(super) more: bool,
}

/// The pods of one namespace.
#[derive(Debug, Default)]
struct Line {
    /// The number of the last wake of a pod of the namespace; zero if there was none.
    turn: u64,
    /// The pods with their kinds, the first pod first.
    pods: BTreeSet<(Rank, Arc<Signature>)>,
}

impl Lines {
    /// Puts a pod in line. `turn`: the number of the last wake of a pod of its namespace.
    pub(super) fn add(&mut self, (namespace, rank): &Member, signature: &Arc<Signature>, turn: u64) {
        self.change(namespace, |line| {
            line.turn = turn;
            line.pods.insert((rank.clone(), Arc::clone(signature)));
        });
    }

    /// The first pod of all and its kind, once the search has ended: the highest priority, then the namespace whose turn it is.
    pub(super) fn first(&self) -> Option<(Member, Arc<Signature>)> {
        self.searched?;
        let (.., namespace) = self.heads.first()?;
        let (rank, signature) = self.lines.get(namespace)?.pods.first()?;
        Some(((Arc::clone(namespace), rank.clone()), Arc::clone(signature)))
    }

    /// Takes the first pod of a namespace out of its line. `woken`: the number of the wake, if the pod was woken.
    pub(super) fn remove_first(&mut self, namespace: &Arc<str>, woken: Option<u64>) {
        self.change(namespace, |line| {
            line.pods.pop_first();
            line.turn = woken.unwrap_or(line.turn);
        });
    }

    /// A pod may be woken at this moment.
    pub(super) fn may_be_woken_at(&mut self, at: Monotonic) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Whether all pods were looked at, and all pods in line were judged.
    pub(super) fn are_over(&self) -> bool {
        self.searched.is_some() && self.heads.is_empty()
    }

    /// Number of pods in line.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lines.values().map(|line| line.pods.len()).sum()
    }

    /// Changes the line of a namespace, and with it the place of the namespace among the namespaces.
    fn change(&mut self, namespace: &Arc<str>, change: impl FnOnce(&mut Line)) {
        let line = self.lines.entry(Arc::clone(namespace)).or_default();
        if let Some(head) = line.head(namespace) {
            self.heads.remove(&head);
        }
        change(line);
        match line.head(namespace) {
            Some(head) => {
                self.heads.insert(head);
            }
            None => {
                self.lines.remove(namespace);
            }
        }
    }
}

impl Line {
    fn head(&self, namespace: &Arc<str>) -> Option<Head> {
        let ((priority, ..), _) = self.pods.first()?;
        Some((*priority, self.turn, Arc::clone(namespace)))
    }
}
