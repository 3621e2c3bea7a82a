//! How long the handshake of a node has been the same. If an agent has no stream, only the handshake shows that it is alive.
//!
//! The age is measured by the leader's own monotonic clock, from the first look after the handshake has changed: the time in the
//! handshake is from the clock of the node, which may be hours off. Time during which Nodes are not watched does not count, because
//! the leader would not see a new handshake.
//!
//! What must never happen here: a handshake that is not a heartbeat, such as a request of HAMi's scheduler, closes a node.

use model::time::{Monotonic, WallTime};
use std::time::Duration;

/// A handshake that has been the same for this long is stale. Agents write a handshake every 240 s.
pub(super) const STALE_AFTER: Duration = Duration::from_secs(300);

/// The handshake of one node, and how old it is.
#[derive(Clone, Debug, Default)]
pub(super) struct HandshakeAge {
    /// The time in the handshake; `None` if there is no handshake, or it is not a heartbeat.
    stated: Option<WallTime>,
    /// When the handshake was first looked at.
    since: Option<Monotonic>,
    is_stale: bool,
}

impl HandshakeAge {
    /// Sets the handshake of the newest version of the Node. Returns whether it was stale and is not any more.
    pub(super) fn is(&mut self, stated: Option<WallTime>) -> bool {
        if self.stated == stated {
            return false;
        }
        let was_stale = self.is_stale;
        *self = HandshakeAge { stated, since: None, is_stale: false };
        was_stale
    }

    /// Returns whether the handshake has become stale since the last look.
    pub(super) fn look(&mut self, now: Monotonic) -> bool {
        if self.stated.is_none() || self.is_stale {
            return false;
        }
        self.is_stale = now.since(*self.since.get_or_insert(now)) >= STALE_AFTER;
        self.is_stale
    }

    /// Time that does not count has passed.
    pub(super) fn skips(&mut self, unwatched: Duration) {
        self.since = self.since.map(|since| since.after(unwatched));
    }

    /// Whether the handshake has been the same for too long.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    fn stated(seconds: u64) -> Option<WallTime> {
        Some(WallTime(seconds * 1_000_000))
    }

    #[test]
    fn a_handshake_is_stale_once_it_has_been_the_same_for_300_seconds_whatever_time_it_states() {
        // The clock of the node is an hour behind, right, or an hour ahead.
        for hour in [3600, 7200, 10_800] {
            let mut age = HandshakeAge::default();
            assert!(!age.is(stated(hour)) && !age.look(at(10)) && !age.look(at(309)));
            assert!(!age.is(stated(hour)) && !age.is_stale(), "a newer version of the Node has the same handshake");
            assert!(age.look(at(310)) && age.is_stale() && !age.look(at(311)), "reported once");
            assert!(age.is(stated(hour + 1)) && !age.is_stale(), "a new one");
            assert!(!age.look(at(400)) && !age.look(at(699)) && age.look(at(700)));
            assert!(age.is(None) && !age.is_stale(), "removed");
            assert!(!age.look(at(5000)), "there is nothing to judge by");
        }
    }

    #[test]
    fn time_without_a_watch_of_nodes_does_not_count() {
        let mut age = HandshakeAge::default();
        age.is(stated(1));
        assert!(!age.look(at(0)) && !age.look(at(200)));
        age.skips(Duration::from_secs(1000));
        assert!(!age.look(at(1299)) && age.look(at(1300)));
        let mut unseen = HandshakeAge::default();
        unseen.is(stated(1));
        unseen.skips(Duration::from_secs(1000));
        assert!(!unseen.look(at(1000)) && !unseen.look(at(1299)) && unseen.look(at(1300)));
    }
}
