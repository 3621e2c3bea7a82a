//! When the agent writes on its Node what it knows about the load of its GPUs: when its meaning has changed, rarely enough for
//! everyone who watches Nodes, and together with each write that is due anyway.
//!
//! ```text
//!   ProfileDifference ──▶ Detail    waits for another write, such as the handshake
//!                         Moved     at most every 10 minutes
//!                         Changed   at most every 30 s and 30 times an hour
//! ```
//!
//! So a node with steady loads writes at most 6 times an hour for them, and mostly never, because the handshake of every 4 minutes
//! carries all that differs.
//!
//! What must never happen here: a write that only repeats what the Node shows, or more writes because a load changes all the time.

use crate::node_profile::ProfileDifference;
use model::time::Monotonic;
use std::collections::VecDeque;
use std::time::Duration;

/// Shortest time between two writes. Alnair's profiler wrote as often, and people who look at a Node wait no longer for a change.
const EVERY: Duration = Duration::from_secs(30);
/// Shortest time before a write for a period or a maximum that has moved: at most 6 in an hour. The maxima of a steady load with noise
/// move in most pairs of windows.
const MOVED_EVERY: Duration = Duration::from_secs(600);
/// Maximum number of writes in an hour, without those that were due anyway: twice the number of handshakes. Each write is sent to
/// every watcher of Nodes and makes the scheduler retry pending pods.
const IN_AN_HOUR: usize = 30;
const HOUR: Duration = Duration::from_secs(3600);
/// Pause after the API server has refused a write that passes without the profiles, as policies of an earlier release do.
const REFUSED_FOR: Duration = Duration::from_secs(300);
/// An agent that has just started has seen no window of two minutes and no analysis of it. For this long it leaves what the agent
/// before it has written.
const JOBS_KNOWN_AFTER: Duration = Duration::from_secs(150);
/// A verdict on a longer history is published after two windows of ten minutes, and the time between analyses. For this long the
/// verdicts of the agent before it count as known.
const VERDICTS_KNOWN_AFTER: Duration = Duration::from_secs(1800);

/// Decides when what is known about the load of GPUs is written.
#[derive(Debug, Default)]
pub struct ProfileWrites {
    /// The last write, also of those that were due anyway.
    last: Option<Monotonic>,
    /// The writes of the last hour that were not due anyway; at most [`IN_AN_HOUR`].
    hour: VecDeque<Monotonic>,
    not_before: Monotonic,
    /// Whether a change waits for its write.
    waits: bool,
    /// The number of changes that had to wait.
    delayed: u64,
}

impl ProfileWrites {
    /// Whether to write now. `rides` says that another write is due anyway.
    pub fn due(&mut self, difference: ProfileDifference, now: Monotonic, rides: bool) -> bool {
        if difference == ProfileDifference::None || now < self.not_before {
            return false;
        }
        if rides {
            return true;
        }
        let pause = match difference {
            ProfileDifference::None | ProfileDifference::Detail => return false,
            ProfileDifference::Moved => MOVED_EVERY,
            ProfileDifference::Changed => EVERY,
        };
        while self.hour.front().is_some_and(|at| now.since(*at) >= HOUR) {
            self.hour.pop_front();
        }
        let due = self.hour.len() < IN_AN_HOUR && self.last.is_none_or(|at| now.since(at) >= pause);
        // A period or a maximum always waits, so that says nothing.
        if !due && difference == ProfileDifference::Changed && !self.waits {
            (self.waits, self.delayed) = (true, self.delayed.saturating_add(1));
        }
        due
    }

    /// The write has reached the API server. `rode` says that another write was due anyway.
    pub fn written(&mut self, now: Monotonic, rode: bool) {
        (self.last, self.waits) = (Some(now), false);
        if !rode {
            self.hour.push_back(now);
        }
    }

    /// The API server has refused the write because of the profiles.
    pub fn refused(&mut self, now: Monotonic) {
        self.not_before = now.after(REFUSED_FOR);
    }

    /// The number of changes that had to wait because of the limits.
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.delayed
    }
}

/// How long an agent has run, and so what it must know by now.
#[derive(Clone, Copy, Debug)]
pub struct ProfileAge(Duration);

impl ProfileAge {
    /// The age at `now` of an agent that started at `started`.
    #[must_use]
    pub fn at(started: Monotonic, now: Monotonic) -> ProfileAge {
        ProfileAge(now.since(started))
    }

    /// Whether it knows the kind of job of each GPU. What is not known then is not known at all.
    #[must_use]
    pub fn knows_jobs(self) -> bool {
        self.0 >= JOBS_KNOWN_AFTER
    }

    /// Whether it has a verdict for each quantity that can have one.
    #[must_use]
    pub fn knows_verdicts(self) -> bool {
        self.0 >= VERDICTS_KNOWN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::ProfileDifference::{Changed, Detail, Moved};
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    /// The times of the writes of one hour, if the Node is looked at every 9 s and differs as `differs` says, with the number of
    /// seconds since the last write.
    fn writes(differs: impl Fn(u64) -> ProfileDifference, handshakes: bool) -> (Vec<u64>, u64) {
        let (mut pace, mut own, mut last, mut handshake) = (ProfileWrites::default(), Vec::new(), 0, 0);
        for second in (0..3600).step_by(9) {
            let rides = handshakes && second >= handshake + 240;
            if rides {
                handshake = second;
            }
            if pace.due(differs(second - last), at(second), rides) {
                pace.written(at(second), rides);
                last = second;
                if !rides {
                    own.push(second);
                }
            }
        }
        (own, pace.delayed())
    }

    #[test]
    fn a_steady_hour_has_at_most_six_writes_beyond_the_handshakes() {
        for handshakes in [true, false] {
            assert_eq!(writes(|_| Detail, handshakes), (Vec::new(), 0), "memory and forecasts never cause a write");
        }
        // The maximum of a load with noise differs again after each window of two minutes.
        let noisy = |since: u64| if since >= 120 { Moved } else { Detail };
        assert_eq!(writes(noisy, true).0, [126], "after the first write the handshakes carry it");
        let (own, delayed) = writes(noisy, false);
        assert!(own.len() <= 6 && own.len() >= 5, "{own:?}");
        assert_eq!(delayed, 0);
    }

    #[test]
    fn a_hostile_hour_has_at_most_thirty() {
        for handshakes in [true, false] {
            let (own, delayed) = writes(|_| Changed, handshakes);
            assert_eq!(own.len(), IN_AN_HOUR, "{own:?}");
            assert!(own.windows(2).all(|pair| pair[1] - pair[0] >= 30), "{own:?}");
            assert!(delayed >= 30, "what waits is counted: {delayed}");
        }
    }

    #[test]
    fn in_any_hour_there_are_at_most_thirty() {
        let (mut pace, mut own) = (ProfileWrites::default(), Vec::new());
        for second in (0..4 * 3600).step_by(7) {
            if pace.due(Changed, at(second), false) {
                pace.written(at(second), false);
                own.push(second);
            }
        }
        let in_hour_before = |end: &u64| own.iter().filter(|at| **at <= *end && **at + 3600 > *end).count();
        assert!(own.iter().map(in_hour_before).max().is_some_and(|most| most == IN_AN_HOUR), "{own:?}");
        assert!(own.len() > 3 * IN_AN_HOUR, "the limit ends with its hour");
    }

    #[test]
    fn nothing_is_written_that_the_node_shows_already() {
        let mut restarted = ProfileWrites::default();
        for rides in [true, false] {
            assert!(!restarted.due(ProfileDifference::None, at(0), rides));
        }
        assert!(restarted.due(Detail, at(0), true) && !restarted.due(Detail, at(0), false));
        assert!(restarted.due(Changed, at(0), false), "the first change is written at once");
    }

    #[test]
    fn a_change_that_waits_is_counted_once_and_written_when_its_time_has_come() {
        let mut pace = ProfileWrites::default();
        pace.written(at(100), true);
        for second in [100, 110, 129] {
            assert!(!pace.due(Changed, at(second), false) && pace.delayed() == 1, "{second}");
        }
        assert!(pace.due(Changed, at(130), false));
        pace.written(at(130), false);
        assert!(!pace.due(Changed, at(131), false) && pace.delayed() == 2);
        assert!(pace.due(Changed, at(132), true), "another write is due anyway");
    }

    #[test]
    fn after_a_refusal_other_writes_go_without_the_profiles() {
        let mut pace = ProfileWrites::default();
        pace.refused(at(100));
        assert!(!pace.due(Changed, at(399), true) && !pace.due(Changed, at(399), false));
        assert!(pace.due(Changed, at(400), false));
    }

    #[test]
    fn an_agent_that_has_just_started_leaves_what_it_cannot_know() {
        let known = |second| {
            let age = ProfileAge::at(at(1000), at(second));
            (age.knows_jobs(), age.knows_verdicts())
        };
        assert_eq!(
            [1000, 1149, 1150, 2799, 2800].map(known),
            [(false, false), (false, false), (true, false), (true, false), (true, true)]
        );
    }
}
