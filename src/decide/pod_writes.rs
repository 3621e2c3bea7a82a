//! What is to be written on pods and does not stand there yet: the API server may be away for longer than one try.
//!
//! ```text
//!   add ──▶ due ──▶ under way ──written, or the pod is gone──▶ forgotten
//!            ▲          └──failed──▶ waits: 1 s, 2 s, 4 s … 60 s ─┐
//!            └────────────────────────────────────────────────────┘
//! ```
//!
//! What must never happen here: two writes of one kind on one pod at a time, since the older could land last; a write that
//! was once decided on and is dropped while its pod is there.

use model::id::{PodRef, PodUid};
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Writes that wait: four kinds for each pod of the largest node (500), twice.
pub const MAX_UNWRITTEN: usize = 4096;
/// Writes under way at a time, so that an API server that comes back is not met by all of a node's pods at once.
pub const MAX_UNDER_WAY: usize = 4;
/// After the first try that failed; twice as long after each further one.
const FIRST: Duration = Duration::from_secs(1);
/// At most so long: an operator who has just mended something is still there to see that it works.
const LONGEST: Duration = Duration::from_secs(60);

/// What is written, each on its own: one that is refused holds up none of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodWriteKind {
    /// Which devices the pod has.
    Claim,
    /// That it was served, for HAMi's scheduler.
    Served,
    /// The lock of the node that was taken for it goes.
    Lock,
    /// That it has to be evicted.
    Evict,
}

/// Annotations by their keys; without a value it is taken away.
pub type AnnotationChanges = BTreeMap<&'static str, Option<Arc<str>>>;

/// One try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWrite {
    /// By which identity the pod is known here.
    pub of: PodUid,
    /// Of which kind.
    pub kind: PodWriteKind,
    /// The identity at the API server.
    pub uid: PodUid,
    /// Names of the pod.
    pub pod: PodRef,
    /// What is to stand there.
    pub annotations: AnnotationChanges,
    /// Which version of it this is.
    pub number: u64,
    /// Tries before this one.
    pub failed: u32,
}

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodWriteOutcome {
    /// It stands there.
    Written,
    /// There is no such pod any more.
    Gone,
    /// Another try is due later.
    Failed,
}

/// The state.
#[derive(Debug, Default)]
pub struct PendingPodWrites {
    writes: BTreeMap<(PodUid, PodWriteKind), Waits>,
    numbers: u64,
}

#[derive(Debug)]
struct Waits {
    write: PodWrite,
    not_before: Monotonic,
    under_way: Option<u64>,
}

impl PendingPodWrites {
    /// Something is to be written on a pod, known here as `of` and at the API server as `uid`. Where more of this kind waits
    /// for this pod, the newest value of each key is written. False when there is no room.
    pub fn add(
        &mut self,
        (of, kind): (&PodUid, PodWriteKind),
        (uid, pod): (&PodUid, &PodRef),
        annotations: AnnotationChanges,
        now: Monotonic,
    ) -> bool {
        let key = (of.clone(), kind);
        let room = self.writes.len() < MAX_UNWRITTEN;
        self.numbers += 1;
        match self.writes.get_mut(&key) {
            Some(waits) => {
                let mut merged = waits.write.annotations.clone();
                merged.extend(annotations);
                // The same again is no reason to try sooner.
                if merged != waits.write.annotations {
                    waits.write.annotations = merged;
                    (waits.write.number, waits.not_before) = (self.numbers, now);
                }
                true
            }
            None if room => {
                let (uid, pod) = (uid.clone(), pod.clone());
                let number = self.numbers;
                let write = PodWrite { of: of.clone(), kind, uid, pod, annotations, number, failed: 0 };
                self.writes.insert(key, Waits { write, not_before: now, under_way: None });
                true
            }
            None => false,
        }
    }

    /// What to try now; it is under way from here on, until [`PendingPodWrites::ended`].
    pub fn due(&mut self, now: Monotonic) -> Vec<PodWrite> {
        let under_way = self.writes.values().filter(|waits| waits.under_way.is_some()).count();
        let mut due: Vec<&mut Waits> =
            self.writes.values_mut().filter(|waits| waits.under_way.is_none() && waits.not_before <= now).collect();
        // Who has waited longest comes first: a pod that is refused again and again holds up no other.
        due.sort_by_key(|waits| waits.not_before);
        due.truncate(MAX_UNDER_WAY.saturating_sub(under_way));
        due.into_iter()
            .map(|waits| {
                waits.under_way = Some(waits.write.number);
                waits.write.clone()
            })
            .collect()
    }

    /// When something is due next. None while nothing waits, or so much is under way that one of it has to end first.
    #[must_use]
    pub fn next(&self) -> Option<Monotonic> {
        let under_way = self.writes.values().filter(|waits| waits.under_way.is_some()).count();
        let waiting = self.writes.values().filter(|waits| waits.under_way.is_none());
        waiting.map(|waits| waits.not_before).min().filter(|_| under_way < MAX_UNDER_WAY)
    }

    /// A try has ended.
    pub fn ended(&mut self, write: &PodWrite, outcome: PodWriteOutcome, now: Monotonic) {
        let key = (write.of.clone(), write.kind);
        let Some(waits) = self.writes.get_mut(&key).filter(|waits| waits.under_way == Some(write.number)) else {
            return;
        };
        waits.under_way = None;
        match outcome {
            PodWriteOutcome::Gone => drop(self.writes.remove(&key)),
            PodWriteOutcome::Written if waits.write.number == write.number => drop(self.writes.remove(&key)),
            PodWriteOutcome::Written => waits.not_before = now,
            PodWriteOutcome::Failed => {
                waits.write.failed = waits.write.failed.saturating_add(1);
                let doubled = FIRST.saturating_mul(1 << (waits.write.failed - 1).min(16));
                waits.not_before = now.after(doubled.min(LONGEST));
            }
        }
    }

    /// Forgets what waits for pods that are gone.
    pub fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.writes.retain(|(of, _), _| here.contains(of));
    }

    /// How many writes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests;
