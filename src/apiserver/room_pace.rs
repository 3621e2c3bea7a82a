//! How often a follower reads a list because there is room again for objects that are left out. Anyone who may create and delete
//! pods can cause such lists, and an API server may read all pods of the cluster from etcd for each list.

use model::backoff::Backoff;
use std::time::Duration;
use tokio::time::Instant;

/// Shortest and longest pause between a list and another list that is read because there is room again. The pause doubles with
/// each such list. Minutes do no harm: a pod that a kubelet begins with comes by an event.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// The pause is at least this many times as long as the last list took, up to the longest pause: a follower takes in no events
/// while it reads a list.
const TIMES: u32 = 20;

/// The pace of these lists.
#[derive(Debug)]
pub(crate) struct RoomPace {
    backoff: Backoff,
    pause: Duration,
    /// The end of the pause; `None` before the first list.
    end: Option<Instant>,
}

impl Default for RoomPace {
    fn default() -> Self {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        RoomPace { pause: backoff.pause(), backoff, end: None }
    }
}

impl RoomPace {
    /// A list was read, for any reason, and took this long.
    pub(crate) fn listed(&mut self, took: Duration, now: Instant) {
        let pause = self.pause.max(took.saturating_mul(TIMES)).min(PAUSES.1);
        self.end = Some(now + pause);
    }

    /// Whether there may be a list now because there is room again. If so, the pause after it is longer, unless there was no such
    /// list for a long time.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        let Some(end) = self.end.filter(|end| now >= *end) else { return false };
        if now >= end + PAUSES.1 {
            self.backoff.reset();
        }
        self.pause = self.backoff.pause();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_follow_each_other_get_rarer_and_a_costly_one_has_a_long_pause_after_it() {
        let begin = Instant::now();
        let at = |second: u64| begin + Duration::from_secs(second);
        let mut pace = RoomPace::default();
        assert!(!pace.allows(at(0)), "there was no list yet");
        pace.listed(Duration::ZERO, at(0));
        let mut now = 0;
        for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert!(!pace.allows(at(now + pause - 1)) && pace.allows(at(now + pause)), "{pause}");
            now += pause;
            pace.listed(Duration::ZERO, at(now));
        }
        now += 600;
        assert!(pace.allows(at(now)), "after a long time without such a list the pauses are short again");
        pace.listed(Duration::from_secs(1), at(now));
        assert!(!pace.allows(at(now + 19)) && pace.allows(at(now + 20)), "the list took a second");
        pace.listed(Duration::from_secs(3600), at(now + 20));
        assert!(!pace.allows(at(now + 319)) && pace.allows(at(now + 320)), "no pause is longer");
    }
}
