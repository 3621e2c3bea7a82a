//! Ties the monotonic clock to the wall clock, once for each boot of the machine.
//!
//! The steps on disk have times of the wall clock, so that they outlive a boot. If each step took its time from the wall clock, a
//! clock that is set would tear a day into 23 hours. So one pair of times is kept with the histories, and every time of this boot
//! follows from it.

use model::time::{Monotonic, Now, WallTime};
use std::time::Duration;

/// 2025-01-01: a wall clock that shows less has not been set since the machine started.
const NOT_SET: WallTime = WallTime(1_735_689_600_000_000);

/// Two anchors that give a moment times with a smaller difference give the same steps: the shortest one has 60 s.
const SAME: Duration = Duration::from_secs(1);

/// The pair of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor(Now);

impl Anchor {
    /// The anchor of this moment; `None` while the wall clock is not set.
    #[must_use]
    pub fn new(now: Now) -> Option<Anchor> {
        (now.wall >= NOT_SET).then_some(Anchor(now))
    }

    /// The pair, to be kept.
    #[must_use]
    pub fn pair(&self) -> Now {
        self.0
    }

    /// The wall time of a moment.
    #[must_use]
    pub fn wall(&self, at: Monotonic) -> WallTime {
        let Anchor(Now { monotonic, wall }) = self;
        let micros =
            |earlier: Monotonic, later: Monotonic| u64::try_from(later.since(earlier).as_micros()).unwrap_or(u64::MAX);
        if at >= *monotonic {
            WallTime(wall.0.saturating_add(micros(*monotonic, at)))
        } else {
            WallTime(wall.0.saturating_sub(micros(at, *monotonic)))
        }
    }

    /// Whether the wall clock was not set between the two anchors, both of this boot.
    #[must_use]
    pub fn agrees(&self, other: &Anchor, now: Monotonic) -> bool {
        let (own, other) = (self.wall(now), other.wall(now));
        own.since(other).max(other.since(own)) < SAME
    }

    /// The moment of a wall time; the start of the machine for an earlier time.
    #[must_use]
    pub fn monotonic(&self, at: WallTime) -> Monotonic {
        let Anchor(Now { monotonic, wall }) = self;
        if at >= *wall {
            monotonic.after(at.since(*wall))
        } else {
            Monotonic(monotonic.0.saturating_sub(crate::tier::nanos(wall.since(at))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_agree_before_and_after_the_anchor() {
        let now = Now { monotonic: Monotonic(9_000_000_000), wall: WallTime(1_800_000_000_000_000) };
        let anchor = Anchor::new(now).unwrap();
        for nanos in [0, 8_000_000_000, 9_000_000_000, 9_500_000_000, 1_000_000_000_000] {
            assert_eq!(anchor.monotonic(anchor.wall(Monotonic(nanos))), Monotonic(nanos));
        }
        assert_eq!(anchor.monotonic(WallTime(0)), Monotonic(0), "before the start of the machine");
        assert_eq!(anchor.wall(Monotonic(u64::MAX)).0, 1_800_000_000_000_000 + (u64::MAX - 9_000_000_000) / 1000);
    }

    #[test]
    fn a_clock_that_is_not_set_is_no_anchor() {
        assert_eq!(Anchor::new(Now { monotonic: Monotonic(5), wall: WallTime(86_400_000_000) }), None);
    }
}
