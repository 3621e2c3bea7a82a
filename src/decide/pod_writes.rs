//! Pod writes that have not reached the API server yet. The agent repeats each write until it succeeds or the pod is
//! gone, because the API server may be unreachable for longer than one try.
//!
//! ```text
//!   add ──▶ due ──▶ in flight ──written, or the pod is gone──▶ removed
//!            ▲          └──failed──▶ backoff: 1 s, 2 s, 4 s … 60 s ─┐
//!            └──────────────────────────────────────────────────────┘
//! ```
//!
//! What must never happen here: two writes of one kind on one pod are in flight at the same time (the older could
//! arrive last); an added write is dropped while its pod exists.

use model::backoff::Backoff;
use model::id::{PodRef, PodUid};
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound on pending writes: four kinds for each pod of the largest node (500), twice.
pub const MAX_UNWRITTEN: usize = 4096;
/// Upper bound on writes in flight, so that an API server that has come back does not get the writes for all pods of a
/// node at once.
pub const MAX_IN_FLIGHT: usize = 4;
/// Backoff after the first failed try; it doubles with each further failure.
const FIRST: Duration = Duration::from_secs(1);
/// Upper bound of the backoff. It is short, so that an operator who has repaired something soon sees that it works.
const LONGEST: Duration = Duration::from_secs(60);

/// The kinds of pod writes. Each is written separately, so that a refused write does not delay the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodWriteKind {
    /// The claim of the pod.
    Claim,
    /// For HAMi's scheduler: the pod has got its GPUs.
    Served,
    /// Removes the node lock that was taken for the pod.
    Lock,
    /// The eviction of the pod.
    Evict,
}

/// Annotations by key; an annotation without a value is removed.
pub type AnnotationChanges = BTreeMap<&'static str, Option<Arc<str>>>;

/// One try of a pod write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWrite {
    /// The UID by which the agent knows the pod.
    pub of: PodUid,
    /// The kind.
    pub kind: PodWriteKind,
    /// The UID at the API server.
    pub uid: PodUid,
    /// Namespace and name of the pod.
    pub pod: PodRef,
    /// The annotations to write.
    pub annotations: AnnotationChanges,
    /// Version of the content; it grows with each change.
    pub number: u64,
    /// Number of failed tries before this try.
    pub failed: u32,
}

/// The outcome of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodWriteOutcome {
    /// The API server has accepted the write.
    Written,
    /// The pod no longer exists.
    Gone,
    /// The try has failed; another try is due later.
    Failed,
}

/// The pending writes.
#[derive(Debug, Default)]
pub struct PendingPodWrites {
    writes: BTreeMap<(PodUid, PodWriteKind), PendingWrite>,
    numbers: u64,
}

#[derive(Debug)]
struct PendingWrite {
    write: PodWrite,
    backoff: Backoff,
    not_before: Monotonic,
    in_flight: Option<u64>,
}

impl PendingPodWrites {
    /// Adds a write for a pod that the agent knows as `of` and the API server as `uid`. If a write of this kind is
    /// already pending for the pod, the two are merged, with the newer value of each key. Returns false if there is no
    /// room.
    pub fn add(
        &mut self,
        (of, kind): (&PodUid, PodWriteKind),
        (uid, pod): (&PodUid, &PodRef),
        annotations: AnnotationChanges,
        now: Monotonic,
    ) -> bool {
        let key = (of.clone(), kind);
        let below_bound = self.writes.len() < MAX_UNWRITTEN;
        self.numbers += 1;
        match self.writes.get_mut(&key) {
            Some(waits) => {
                let mut merged = waits.write.annotations.clone();
                merged.extend(annotations);
                // Adding the same values again does not shorten the backoff.
                if merged != waits.write.annotations {
                    waits.write.annotations = merged;
                    (waits.write.number, waits.not_before) = (self.numbers, now);
                }
                true
            }
            None if below_bound => {
                let (uid, pod) = (uid.clone(), pod.clone());
                let number = self.numbers;
                let write = PodWrite { of: of.clone(), kind, uid, pod, annotations, number, failed: 0 };
                self.writes.insert(
                    key,
                    PendingWrite { write, backoff: Backoff::new(FIRST, LONGEST), not_before: now, in_flight: None },
                );
                true
            }
            None => false,
        }
    }

    /// The writes to try now. They are in flight until [`PendingPodWrites::ended`].
    pub fn due(&mut self, now: Monotonic) -> Vec<PodWrite> {
        let in_flight = self.writes.values().filter(|waits| waits.in_flight.is_some()).count();
        let mut due: Vec<&mut PendingWrite> =
            self.writes.values_mut().filter(|waits| waits.in_flight.is_none() && waits.not_before <= now).collect();
        // The longest waiting write comes first, so that a pod whose write is refused again and again does not delay
        // the others.
        due.sort_by_key(|waits| waits.not_before);
        due.truncate(MAX_IN_FLIGHT.saturating_sub(in_flight));
        due.into_iter()
            .map(|waits| {
                waits.in_flight = Some(waits.write.number);
                waits.write.clone()
            })
            .collect()
    }

    /// When the next write is due. `None` while nothing waits, or while the number in flight is at its bound.
    #[must_use]
    pub fn next(&self) -> Option<Monotonic> {
        let in_flight = self.writes.values().filter(|waits| waits.in_flight.is_some()).count();
        let waiting = self.writes.values().filter(|waits| waits.in_flight.is_none());
        waiting.map(|waits| waits.not_before).min().filter(|_| in_flight < MAX_IN_FLIGHT)
    }

    /// Takes in the outcome of a try.
    pub fn ended(&mut self, write: &PodWrite, outcome: PodWriteOutcome, now: Monotonic) {
        let key = (write.of.clone(), write.kind);
        let Some(waits) = self.writes.get_mut(&key).filter(|waits| waits.in_flight == Some(write.number)) else {
            return;
        };
        waits.in_flight = None;
        match outcome {
            PodWriteOutcome::Gone => drop(self.writes.remove(&key)),
            PodWriteOutcome::Written if waits.write.number == write.number => drop(self.writes.remove(&key)),
            PodWriteOutcome::Written => waits.not_before = now,
            PodWriteOutcome::Failed => {
                waits.write.failed = waits.write.failed.saturating_add(1);
                waits.not_before = now.after(waits.backoff.pause());
            }
        }
    }

    /// Removes the pending writes of pods that are gone.
    pub fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.writes.retain(|(of, _), _| here.contains(of));
    }

    /// Number of pending writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether no write is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests;
