//! When the agent writes to its own Node: the register when it changes, the handshake every few minutes, and the profiles of its GPUs
//! ([`crate::profile_writes`]). An agent that writes no handshakes removes the last handshake of an earlier agent.
//!
//! Every write to a Node is sent to every watcher of nodes and makes the scheduler retry every pending pod. So an idle
//! node writes only its handshake, 15 times an hour, and what is due at the same time is one write.
//!
//! What must never happen here: a write of a value that the Node already has, or a write because a clock has jumped.

use crate::node_profile::ProfileDifference;
use crate::profile_writes::ProfileWrites;
use model::time::{Monotonic, Now, WallTime};
use std::sync::Arc;
use std::time::Duration;

/// Time between two handshakes. Readers treat a handshake older than 300 s as stale; a failed write is tried again well before that.
pub const HANDSHAKE_EVERY: Duration = Duration::from_secs(240);
/// Each handshake is written up to this much earlier, at random, so that the nodes of a cluster do not write together.
pub const JITTER: Duration = Duration::from_secs(8);
/// The agent answers a request this long after it was made. HAMi's scheduler writes `Requesting_…` and treats a node
/// that does not answer within 60 s as unhealthy.
pub const ANSWER_AFTER: Duration = Duration::from_secs(45);
/// Longest time between two reads of the agent's Node. This is well below the 60 s that a scheduler waits for a
/// handshake that it requested, and a read costs the API server only one answer from its cache.
const READ_EVERY: Duration = Duration::from_secs(10);
/// This fraction of the time between two reads is random. It also spreads the writes, because a write happens at a
/// read.
const READ_JITTER: f64 = 0.25;
/// The agent sees a request at most this long after it was made. If the time in a new request is older, it is from
/// another time zone.
const PLAUSIBLE: Duration = Duration::from_secs(30);
/// Pause after a failed write.
const AGAIN: Duration = Duration::from_secs(5);

/// The annotations of the Node, by the last answer of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedState {
    /// The register annotation.
    pub register: Option<Arc<str>>,
    /// The handshake, if it is a scheduler's request.
    pub request: HandshakeRequest,
    /// Whether the handshake is a heartbeat of an agent.
    pub heartbeat: bool,
    /// How much the profiles differ from what they are to say.
    pub profiles: ProfileDifference,
}

/// Whether a scheduler has requested a handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandshakeRequest {
    /// There is no request.
    #[default]
    None,
    /// Requested at this time of the scheduler's clock, or at an unknown time.
    Requested(Option<WallTime>),
}

/// One write to the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementWrite {
    /// The register annotation.
    pub register: Option<Arc<str>>,
    /// The handshake.
    pub handshake: Option<WallTime>,
    /// Whether the handshake is removed.
    pub removes_handshake: bool,
    /// Whether all annotations of the profiles that differ are written.
    pub profiles: bool,
}

/// Decides which writes to the Node are due; keeps what was written and when.
#[derive(Debug)]
pub struct Announcer {
    handshakes: bool,
    register: Option<Arc<str>>,
    handshake_at: Option<Monotonic>,
    /// When the request was first seen. The agent measures its age with its own clock, because the scheduler's clock
    /// may differ.
    requested_since: Option<Monotonic>,
    not_before: Monotonic,
    profiles: ProfileWrites,
}

/// Whether a node has lost its last GPU for good, so that the agent removes its register. A node that starts, or whose
/// driver is being updated, has no GPUs for a while too.
#[derive(Debug)]
pub struct GpusGone {
    quiet: Duration,
    since: Option<Monotonic>,
}

impl GpusGone {
    /// The GPUs count as gone after the node has had no GPU for this long.
    #[must_use]
    pub fn after(quiet: Duration) -> GpusGone {
        GpusGone { quiet, since: None }
    }

    /// Takes in whether the node has no GPU now. Returns whether the GPUs are gone for good.
    pub fn is(&mut self, none: bool, now: Monotonic) -> bool {
        if !none {
            self.since = None;
            return false;
        }
        now.since(*self.since.get_or_insert(now)) >= self.quiet
    }
}

/// The time to the next read of the agent's Node. `jitter` is a new random number between 0 and 1 for each call.
#[must_use]
pub fn next_read(jitter: f64) -> Duration {
    READ_EVERY.mul_f64(1.0 - READ_JITTER * jitter.clamp(0.0, 1.0))
}

impl Announcer {
    /// The state of an agent that has written nothing yet.
    #[must_use]
    pub fn new(handshakes: bool) -> Self {
        Announcer {
            handshakes,
            register: None,
            handshake_at: None,
            requested_since: None,
            not_before: Monotonic(0),
            profiles: ProfileWrites::default(),
        }
    }

    /// Sets the register of this node, in its written form; `None` while it is not known.
    pub fn set_register(&mut self, text: Option<Arc<str>>) {
        self.register = text;
    }

    /// The write that is due now, if any. `jitter` is a new random number between 0 and 1 for each call.
    pub fn due(&mut self, announced: &AnnouncedState, now: Now, jitter: f64) -> Option<AnnouncementWrite> {
        match announced.request {
            HandshakeRequest::None => self.requested_since = None,
            HandshakeRequest::Requested(_) => {
                self.requested_since.get_or_insert(now.monotonic);
            }
        }
        if now.monotonic < self.not_before {
            return None;
        }
        let mut write = AnnouncementWrite::default();
        if self.register.is_some() && self.register != announced.register {
            write.register.clone_from(&self.register);
        }
        // A heartbeat of an earlier agent gets old, and a scheduler would take this agent for dead.
        write.removes_handshake = !self.handshakes && announced.heartbeat;
        let early = JITTER.mul_f64(jitter.clamp(0.0, 1.0));
        let handshake_due = self.handshake_at.is_none_or(|at| now.monotonic.since(at) + early >= HANDSHAKE_EVERY);
        let answer_due = self.requested_since.is_some_and(|seen| {
            // The stamp has no time zone and comes from another clock. It counts only if it agrees with the agent's own measurement.
            let by_stamp = match announced.request {
                HandshakeRequest::Requested(Some(at)) if at <= now.wall => now.wall.since(at),
                _ => Duration::ZERO,
            };
            let by_us = now.monotonic.since(seen);
            let age = if by_stamp < by_us + PLAUSIBLE { by_us.max(by_stamp) } else { by_us };
            age >= ANSWER_AFTER
        });
        // Without a register there is nothing that a handshake could keep alive.
        if self.handshakes && self.register.is_some() && (handshake_due || answer_due) {
            write.handshake = Some(now.wall);
        }
        let rides = write != AnnouncementWrite::default();
        write.profiles = self.profiles.due(announced.profiles, now.monotonic, rides);
        (write != AnnouncementWrite::default()).then_some(write)
    }

    /// The write has reached the API server.
    pub fn written(&mut self, write: &AnnouncementWrite, now: Now) {
        if write.profiles {
            let alone = AnnouncementWrite { profiles: true, ..AnnouncementWrite::default() };
            self.profiles.written(now.monotonic, *write != alone);
        }
        if write.handshake.is_some() {
            self.handshake_at = Some(now.monotonic);
            self.requested_since = None;
        }
    }

    /// The API server has refused the profiles. For a while, other writes go without them.
    pub fn profiles_refused(&mut self, now: Now) {
        self.profiles.refused(now.monotonic);
    }

    /// The number of changes of the profiles that had to wait because such writes are limited.
    #[must_use]
    pub fn profiles_delayed(&self) -> u64 {
        self.profiles.delayed()
    }

    /// The write has failed; it is due again a little later.
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

    fn announced(register: &str) -> AnnouncedState {
        AnnouncedState { register: Some(register.into()), ..AnnouncedState::default() }
    }

    #[test]
    fn gpus_count_as_gone_only_after_the_node_has_had_none_for_the_whole_time() {
        let mut bare = GpusGone::after(Duration::from_secs(300));
        let seen = [(0, true, false), (299, true, false), (299, false, false), (300, true, false), (599, true, false)];
        for (second, none, expected) in
            seen.into_iter().chain([(600, true, true), (900, true, true), (901, false, false)])
        {
            assert_eq!(bare.is(none, at(second).monotonic), expected, "at {second} s");
        }
        assert!(GpusGone::after(Duration::ZERO).is(true, at(0).monotonic));
    }

    /// Promise 31 in docs/specification.md, for the part that this module decides. The audit log of a real API server
    /// shows the rest.
    #[test]
    fn an_idle_node_writes_at_most_sixteen_times_an_hour() {
        let mut announce = Announcer::new(true);
        announce.set_register(Some("gpus".into()));
        let mut writes = 0;
        for second in 0..3600 {
            if let Some(write) = announce.due(&announced("gpus"), at(second), 1.0) {
                assert_eq!(write.register, None);
                announce.written(&write, at(second));
                writes += 1;
            }
        }
        assert_eq!(writes, 16);
    }

    /// The agent writes when it reads, so the reads are at random times, too: otherwise the handshake's jitter would be
    /// lost.
    #[test]
    fn nodes_that_start_together_spread_their_writes() {
        let spread = |seed: u64| {
            let (mut announce, mut now, mut state) = (Announcer::new(true), Monotonic(0), seed);
            announce.set_register(Some("gpus".into()));
            let mut chance = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX)
            };
            let mut writes = Vec::new();
            while now < Monotonic(3_600_000_000_000) {
                let at = Now { monotonic: now, wall: WallTime(1_000_000_000_000) };
                if let Some(write) = announce.due(&announced("gpus"), at, chance()) {
                    announce.written(&write, at);
                    writes.push(now.since(Monotonic(0)).as_secs());
                }
                now = Monotonic(now.0 + u64::try_from(next_read(chance()).as_nanos()).unwrap());
            }
            writes
        };
        let last: BTreeSet<u64> = (1..=20).map(|seed| *spread(seed).last().unwrap()).collect();
        assert!(last.len() > 10, "{last:?}");
        assert!((1..=20).all(|seed| spread(seed).len() <= 16));
    }

    #[test]
    fn the_register_is_written_when_it_changes_and_when_another_program_changed_it() {
        let mut announce = Announcer::new(false);
        assert_eq!(announce.due(&AnnouncedState::default(), at(0), 0.0), None, "an unknown register is not removed");
        announce.set_register(Some("a".into()));
        assert_eq!(announce.due(&AnnouncedState::default(), at(1), 0.0).unwrap().register.as_deref(), Some("a"));
        assert_eq!(announce.due(&announced("a"), at(2), 0.0), None);
        assert_eq!(announce.due(&announced("forged"), at(3), 0.0).unwrap().register.as_deref(), Some("a"));
    }

    #[test]
    fn a_handshake_request_is_answered_when_it_is_old_by_either_clock() {
        let mut announce = Announcer::new(true);
        announce.set_register(Some("a".into()));
        let first = announce.due(&announced("a"), at(0), 0.0).unwrap();
        announce.written(&first, at(0));
        let requested = |stamp| AnnouncedState { request: HandshakeRequest::Requested(stamp), ..announced("a") };
        assert_eq!(announce.due(&requested(None), at(10), 0.0), None);
        assert_eq!(announce.due(&requested(None), at(54), 0.0), None);
        assert!(announce.due(&requested(None), at(55), 0.0).unwrap().handshake.is_some());
        // A stamp speeds up the answer if it agrees with the agent's clock, and is ignored otherwise.
        let mut again = Announcer::new(true);
        again.set_register(Some("a".into()));
        again.written(&first, at(0));
        for strange in [4000, 1] {
            assert_eq!(again.due(&requested(Some(at(strange).wall)), at(110), 0.0), None);
        }
        assert!(again.due(&requested(Some(at(4000).wall)), at(155), 0.0).is_some());
        again.written(&first, at(160));
        assert_eq!(again.due(&requested(Some(at(160).wall)), at(170), 0.0), None);
        assert_eq!(again.due(&requested(Some(at(160).wall)), at(204), 0.0), None);
        assert!(again.due(&requested(Some(at(160).wall)), at(205), 0.0).is_some());
    }

    #[test]
    fn an_agent_without_handshakes_removes_a_heartbeat_and_leaves_what_schedulers_wrote() {
        let heartbeat = AnnouncedState { heartbeat: true, ..AnnouncedState::default() };
        let requested = AnnouncedState { request: HandshakeRequest::Requested(None), ..AnnouncedState::default() };
        let removal = AnnouncementWrite { removes_handshake: true, ..AnnouncementWrite::default() };
        let mut silent = Announcer::new(false);
        assert_eq!(silent.due(&heartbeat, at(0), 0.0), Some(removal.clone()), "even before the GPUs are known");
        silent.failed(at(0));
        assert_eq!(silent.due(&heartbeat, at(4), 0.0), None);
        assert_eq!(silent.due(&heartbeat, at(5), 0.0), Some(removal));
        for other in [requested, AnnouncedState::default()] {
            assert_eq!(silent.due(&other, at(100), 0.0), None, "{other:?}");
        }
        let mut beats = Announcer::new(true);
        assert_eq!(beats.due(&heartbeat, at(0), 0.0), None, "before its GPUs are known it leaves what is there");
        beats.set_register(Some("a".into()));
        assert!(beats.due(&heartbeat, at(0), 0.0).is_some_and(|write| !write.removes_handshake));
    }

    #[test]
    fn what_the_profiles_say_is_written_with_a_handshake_or_alone_if_its_meaning_has_changed() {
        let mut announce = Announcer::new(true);
        announce.set_register(Some("a".into()));
        let differs = |profiles| AnnouncedState { profiles, ..announced("a") };
        let first = announce.due(&differs(ProfileDifference::Detail), at(0), 0.0).unwrap();
        assert!(first.handshake.is_some() && first.profiles);
        announce.written(&first, at(0));
        assert_eq!(announce.due(&differs(ProfileDifference::Detail), at(100), 0.0), None);
        let alone = AnnouncementWrite { profiles: true, ..AnnouncementWrite::default() };
        assert_eq!(announce.due(&differs(ProfileDifference::Changed), at(100), 0.0), Some(alone.clone()));
        announce.written(&alone, at(100));
        assert_eq!(announce.due(&differs(ProfileDifference::Changed), at(101), 0.0), None);
        assert_eq!(announce.profiles_delayed(), 1);
        announce.profiles_refused(at(200));
        let handshake = announce.due(&differs(ProfileDifference::Changed), at(240), 0.0).unwrap();
        assert!(handshake.handshake.is_some() && !handshake.profiles, "the handshake does not wait for them");
    }

    #[test]
    fn a_failed_write_is_tried_again_after_a_pause() {
        let mut announce = Announcer::new(true);
        announce.set_register(Some("a".into()));
        assert!(announce.due(&AnnouncedState::default(), at(0), 0.0).is_some());
        announce.failed(at(0));
        assert_eq!(announce.due(&AnnouncedState::default(), at(4), 0.0), None);
        assert!(announce.due(&AnnouncedState::default(), at(5), 0.0).is_some());
    }
}
