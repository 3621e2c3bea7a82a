//! Plans the checks of objects that the store holds but a list did not show. The follower reads such an object by name
//! before the store drops it.
//!
//! ```text
//!   missing ──▶ due after 0.5 to 1.5 s, by UID ──▶ checked, at most 8 at once ──▶ gone, or present after all
//!                          ▲                                   │
//!                          └──────────── backoff ◀── no answer ┘
//! ```
//!
//! What must never happen here: an object is forgotten because its check gets no answer.

use model::backoff::Backoff;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;
use tokio::time::Instant;

/// A check starts between this time and three times this time after the list. Without the pause, an empty list from an
/// API server that is starting would at once cause one request for each pod of each node. Most deletions arrive by the
/// watch, so the pause delays few deletions.
const EARLIEST: Duration = Duration::from_millis(500);
/// Maximum number of checks at the same time. With this limit all 110 pods of a node are checked within a second, and
/// the API server handles about a hundred requests of one client at a time.
const AT_ONCE: usize = 8;
/// Shortest and longest pause before a check without an answer is repeated. Until then the store keeps the object,
/// which only takes up memory.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The objects whose absence is not proved yet.
#[derive(Debug)]
pub(crate) struct Absences<U> {
    missing: BTreeMap<U, Missing>,
    /// Objects that wait for their check, by its time.
    due: BTreeSet<(Instant, U)>,
    running: usize,
}

#[derive(Debug)]
struct Missing {
    /// The time of the object's check; `None` while the check runs.
    at: Option<Instant>,
    backoff: Backoff,
}

impl<U> Default for Absences<U> {
    fn default() -> Self {
        Absences { missing: BTreeMap::new(), due: BTreeSet::new(), running: 0 }
    }
}

impl<U: Clone + Ord + Hash> Absences<U> {
    /// A list did not show the object at `now`.
    pub(crate) fn missing(&mut self, uid: &U, now: Instant) {
        if self.missing.contains_key(uid) {
            return;
        }
        let at = now + spread(uid);
        self.due.insert((at, uid.clone()));
        let backoff = Backoff::new(PAUSES.0, PAUSES.1);
        self.missing.insert(uid.clone(), Missing { at: Some(at), backoff });
    }

    /// The object was shown, or the store no longer holds it: no check is due. A check that is running still reports
    /// its answer.
    pub(crate) fn settled(&mut self, uid: &U) {
        if let Some(Missing { at: Some(at), .. }) = self.missing.get(uid) {
            self.due.remove(&(*at, uid.clone()));
            self.missing.remove(uid);
        }
    }

    /// A list shows every object except these, so no other object needs a check.
    pub(crate) fn only(&mut self, missing: &[U]) {
        let missing: BTreeSet<&U> = missing.iter().collect();
        let shown: Vec<U> = self.missing.keys().filter(|uid| !missing.contains(uid)).cloned().collect();
        shown.iter().for_each(|uid| self.settled(uid));
    }

    /// The time of the next check; `None` while [`AT_ONCE`] checks run, or no check is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().filter(|_| self.running < AT_ONCE).map(|(at, _)| *at)
    }

    /// Starts the checks that are due at `now`, and returns their objects.
    pub(crate) fn begin(&mut self, now: Instant) -> Vec<U> {
        let mut begun = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            let Some((_, uid)) = self.due.pop_first() else { break };
            if let Some(missing) = self.missing.get_mut(&uid) {
                missing.at = None;
                self.running += 1;
                begun.push(uid);
            }
        }
        begun
    }

    /// A check got an answer.
    pub(crate) fn answered(&mut self, uid: &U) {
        self.running = self.running.saturating_sub(1);
        self.missing.remove(uid);
    }

    /// A check got no answer; it is repeated after a pause.
    pub(crate) fn unanswered(&mut self, uid: &U, now: Instant) {
        self.running = self.running.saturating_sub(1);
        if let Some(missing) = self.missing.get_mut(uid) {
            let at = now + missing.backoff.pause() + spread(uid);
            missing.at = Some(at);
            self.due.insert((at, uid.clone()));
        }
    }
}

/// A time between [`EARLIEST`] and three times [`EARLIEST`] that depends only on the UID.
fn spread<U: Hash>(uid: &U) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1024).unwrap_or(0);
    EARLIEST + 2 * EARLIEST * part / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_spread_bounded_and_repeated_until_they_have_an_answer() {
        let (mut absences, begin) = (Absences::default(), Instant::now());
        for uid in 0..100u32 {
            absences.missing(&uid, begin);
            absences.missing(&uid, begin + Duration::from_secs(9));
        }
        let first = absences.next().expect("a check is due");
        assert!((EARLIEST..EARLIEST * 2).contains(&(first - begin)), "{:?}", first - begin);
        assert!(absences.begin(begin + EARLIEST / 2).is_empty());
        let late = begin + EARLIEST * 3;
        let running = absences.begin(late);
        assert_eq!((running.len(), absences.next()), (AT_ONCE, None), "no more checks at once");
        for uid in &running[1..] {
            absences.answered(uid);
        }
        absences.unanswered(&running[0], late);
        let mut checked = 0;
        loop {
            let begun = absences.begin(late);
            checked += begun.len();
            if begun.is_empty() {
                break;
            }
            begun.iter().for_each(|uid| absences.answered(uid));
        }
        assert_eq!(checked, 100 - AT_ONCE, "each object once");
        let again = absences.next().expect("the check without an answer");
        assert!((late + PAUSES.0..=late + PAUSES.0 + EARLIEST * 3).contains(&again));
        absences.settled(&running[0]);
        assert_eq!((absences.next(), absences.missing.len()), (None, 0), "a list shows it again");
    }
}
