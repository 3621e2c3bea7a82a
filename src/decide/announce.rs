//! When this node writes on its own Node object: what it has, when that changes; that it lives, every few minutes.
//!
//! Every annotation on a Node is copied to every watcher of nodes and wakes every pod that waits for a place, so an idle
//! node writes its handshake and nothing else: 15 times an hour.
//!
//! What must never happen here: nothing is written that the Node already says, and nothing because of a clock that jumped.

use model::time::{Monotonic, Now, WallTime};
use std::sync::Arc;
use std::time::Duration;

/// Between two handshakes. Readers take one of 300 s as stale; a write that fails is tried again well within that.
pub const HANDSHAKE_EVERY: Duration = Duration::from_secs(240);
/// Up to so much earlier, so that the nodes of a cluster do not write in step.
pub const JITTER: Duration = Duration::from_secs(8);
/// HAMi's scheduler writes `Requesting_…` and calls a node that does not answer within 60 s unhealthy.
pub const ANSWER_AFTER: Duration = Duration::from_secs(45);
/// Between two looks at our Node, at most: a scheduler that asks for a sign of life waits 60 s, and a look costs the API server one
/// answer from its cache.
const LOOK: Duration = Duration::from_secs(10);
/// So much of it is left to chance: what is due at a look goes by when that is.
const LOOK_JITTER: f64 = 0.25;
/// A question is seen at most this much later than it was asked; a stamp that says more is of another zone.
const PLAUSIBLE: Duration = Duration::from_secs(30);
/// After a write that failed.
const AGAIN: Duration = Duration::from_secs(5);

/// What the Node says now, as the API server told it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedState {
    /// The register annotation.
    pub register: Option<Arc<str>>,
    /// The handshake, as far as it is a question.
    pub question: HandshakeQuestion,
}

/// Whether a scheduler asks whether we live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandshakeQuestion {
    /// Nobody asks.
    #[default]
    None,
    /// Asked at this time by the asker's clock, or at an unknown one.
    Asked(Option<WallTime>),
}

/// What to write in one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementWrite {
    /// The register annotation.
    pub register: Option<Arc<str>>,
    /// The handshake.
    pub handshake: Option<WallTime>,
}

/// The state: what was written, and when.
#[derive(Debug)]
pub struct Announcer {
    handshakes: bool,
    register: Option<Arc<str>>,
    shaken: Option<Monotonic>,
    /// When a question was first seen: its age is ours to measure, the asker's clock may be anywhere.
    asked: Option<Monotonic>,
    not_before: Monotonic,
}

/// Whether a node has lost its last GPU for good: then what was written about its GPUs is taken away. A driver that is being
/// updated and a node that starts have none for a while as well.
#[derive(Debug)]
pub struct GpusGone {
    quiet: Duration,
    since: Option<Monotonic>,
}

impl GpusGone {
    /// Only after it was so for this long.
    #[must_use]
    pub fn after(quiet: Duration) -> GpusGone {
        GpusGone { quiet, since: None }
    }

    /// Whether it is so, where now it has none (or has).
    pub fn is(&mut self, none: bool, now: Monotonic) -> bool {
        if !none {
            self.since = None;
            return false;
        }
        now.since(*self.since.get_or_insert(now)) >= self.quiet
    }
}

/// The time to the next look at our Node. `jitter` is between 0 and 1, drawn anew for each call.
#[must_use]
pub fn next_look(jitter: f64) -> Duration {
    LOOK.mul_f64(1.0 - LOOK_JITTER * jitter.clamp(0.0, 1.0))
}

impl Announcer {
    /// A node that has written nothing in this life.
    #[must_use]
    pub fn new(handshakes: bool) -> Self {
        Announcer { handshakes, register: None, shaken: None, asked: None, not_before: Monotonic(0) }
    }

    /// What this node has, in the form it is written in. `None` while it is not known.
    pub fn register_is(&mut self, text: Option<Arc<str>>) {
        self.register = text;
    }

    /// What to write now, if anything. `jitter` is between 0 and 1, drawn anew for each call.
    pub fn due(&mut self, said: &AnnouncedState, now: Now, jitter: f64) -> Option<AnnouncementWrite> {
        match said.question {
            HandshakeQuestion::None => self.asked = None,
            HandshakeQuestion::Asked(_) => {
                self.asked.get_or_insert(now.monotonic);
            }
        }
        if now.monotonic < self.not_before {
            return None;
        }
        let mut write = AnnouncementWrite::default();
        if self.register.is_some() && self.register != said.register {
            write.register.clone_from(&self.register);
        }
        let early = JITTER.mul_f64(jitter.clamp(0.0, 1.0));
        let tired = self.shaken.is_none_or(|at| now.monotonic.since(at) + early >= HANDSHAKE_EVERY);
        let unanswered = self.asked.is_some_and(|seen| {
            // The stamp has no zone and its clock is not ours: it counts only where it agrees with what we saw.
            let by_stamp = match said.question {
                HandshakeQuestion::Asked(Some(at)) if at <= now.wall => now.wall.since(at),
                _ => Duration::ZERO,
            };
            let by_us = now.monotonic.since(seen);
            let age = if by_stamp < by_us + PLAUSIBLE { by_us.max(by_stamp) } else { by_us };
            age >= ANSWER_AFTER
        });
        // A node that offers nothing yet has nothing to be alive for.
        if self.handshakes && self.register.is_some() && (tired || unanswered) {
            write.handshake = Some(now.wall);
        }
        (write != AnnouncementWrite::default()).then_some(write)
    }

    /// The write reached the API server.
    pub fn written(&mut self, write: &AnnouncementWrite, now: Now) {
        if write.handshake.is_some() {
            self.shaken = Some(now.monotonic);
            self.asked = None;
        }
    }

    /// It did not; it is due again a little later.
    pub fn failed(&mut self, now: Now) {
        self.not_before = now.monotonic.after(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn at(seconds: u64) -> Now {
        Now { monotonic: Monotonic(seconds * 1_000_000_000), wall: WallTime((1_000_000 + seconds) * 1_000_000) }
    }

    fn said(register: &str) -> AnnouncedState {
        AnnouncedState { register: Some(register.into()), question: HandshakeQuestion::None }
    }

    #[test]
    fn a_node_is_bare_only_once_it_has_had_no_gpu_for_the_whole_time() {
        let mut bare = GpusGone::after(Duration::from_secs(300));
        let seen = [(0, true, false), (299, true, false), (299, false, false), (300, true, false), (599, true, false)];
        for (second, none, expected) in
            seen.into_iter().chain([(600, true, true), (900, true, true), (901, false, false)])
        {
            assert_eq!(bare.is(none, at(second).monotonic), expected, "at {second} s");
        }
        assert!(GpusGone::after(Duration::ZERO).is(true, at(0).monotonic));
    }

    /// Promise 31 in docs/specification.md, as far as it is decided here; the audit log of a real API server has the rest.
    #[test]
    fn an_idle_node_writes_at_most_sixteen_times_an_hour() {
        let mut announce = Announcer::new(true);
        announce.register_is(Some("gpus".into()));
        let mut writes = 0;
        for second in 0..3600 {
            if let Some(write) = announce.due(&said("gpus"), at(second), 1.0) {
                assert_eq!(write.register, None);
                announce.written(&write, at(second));
                writes += 1;
            }
        }
        assert_eq!(writes, 16);
    }

    /// As the agent looks: the jitter of a handshake alone would be lost between two looks.
    #[test]
    fn nodes_that_began_in_step_do_not_write_in_step() {
        let spread = |seed: u64| {
            let (mut announce, mut now, mut state) = (Announcer::new(true), Monotonic(0), seed);
            announce.register_is(Some("gpus".into()));
            let mut chance = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX)
            };
            let mut writes = Vec::new();
            while now < Monotonic(3_600_000_000_000) {
                let at = Now { monotonic: now, wall: WallTime(1_000_000_000_000) };
                if let Some(write) = announce.due(&said("gpus"), at, chance()) {
                    announce.written(&write, at);
                    writes.push(now.since(Monotonic(0)).as_secs());
                }
                now = Monotonic(now.0 + u64::try_from(next_look(chance()).as_nanos()).unwrap());
            }
            writes
        };
        let last: BTreeSet<u64> = (1..=20).map(|seed| *spread(seed).last().unwrap()).collect();
        assert!(last.len() > 10, "{last:?}");
        assert!((1..=20).all(|seed| spread(seed).len() <= 16));
    }

    #[test]
    fn what_the_node_has_is_written_when_it_changes_and_when_somebody_else_changed_it() {
        let mut announce = Announcer::new(false);
        assert_eq!(announce.due(&AnnouncedState::default(), at(0), 0.0), None, "not known is not nothing");
        announce.register_is(Some("a".into()));
        assert_eq!(announce.due(&AnnouncedState::default(), at(1), 0.0).unwrap().register.as_deref(), Some("a"));
        assert_eq!(announce.due(&said("a"), at(2), 0.0), None);
        assert_eq!(announce.due(&said("forged"), at(3), 0.0).unwrap().register.as_deref(), Some("a"));
    }

    #[test]
    fn a_question_is_answered_once_it_is_old_by_either_clock() {
        let mut announce = Announcer::new(true);
        announce.register_is(Some("a".into()));
        let first = announce.due(&said("a"), at(0), 0.0).unwrap();
        announce.written(&first, at(0));
        let asked = |stamp| AnnouncedState { question: HandshakeQuestion::Asked(stamp), ..said("a") };
        assert_eq!(announce.due(&asked(None), at(10), 0.0), None);
        assert_eq!(announce.due(&asked(None), at(54), 0.0), None);
        assert!(announce.due(&asked(None), at(55), 0.0).unwrap().handshake.is_some());
        // A stamp makes the answer come in time where it agrees with us, and counts for nothing where it does not.
        let mut again = Announcer::new(true);
        again.register_is(Some("a".into()));
        again.written(&first, at(0));
        for strange in [4000, 1] {
            assert_eq!(again.due(&asked(Some(at(strange).wall)), at(110), 0.0), None);
        }
        assert!(again.due(&asked(Some(at(4000).wall)), at(155), 0.0).is_some());
        again.written(&first, at(160));
        assert_eq!(again.due(&asked(Some(at(160).wall)), at(170), 0.0), None);
        assert_eq!(again.due(&asked(Some(at(160).wall)), at(204), 0.0), None);
        assert!(again.due(&asked(Some(at(160).wall)), at(205), 0.0).is_some());
    }

    #[test]
    fn a_failed_write_is_tried_again_and_not_at_once() {
        let mut announce = Announcer::new(true);
        announce.register_is(Some("a".into()));
        assert!(announce.due(&AnnouncedState::default(), at(0), 0.0).is_some());
        announce.failed(at(0));
        assert_eq!(announce.due(&AnnouncedState::default(), at(4), 0.0), None);
        assert!(announce.due(&AnnouncedState::default(), at(5), 0.0).is_some());
    }
}
