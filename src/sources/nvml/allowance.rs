//! Limits how often an expensive call may be made before its period has passed.
//!
//! What must never happen here: a condition that never ends leads to calls without a limit.

use model::time::Monotonic;
use std::time::Duration;

/// A token bucket: a burst of `most` calls, and one more call after each `every`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    most: u32,
    every: Duration,
    left: u32,
    /// Time up to which allowance has been added.
    grown: Monotonic,
}

impl Allowance {
    /// Starts with the full burst.
    pub(super) fn new(most: u32, every: Duration, now: Monotonic) -> Self {
        Allowance { most, every, left: most, grown: now }
    }

    /// Whether a call may be made now.
    pub(super) fn has(&mut self, now: Monotonic) -> bool {
        let every = u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX).max(1);
        let spans = now.0.saturating_sub(self.grown.0) / every;
        self.grown = Monotonic(self.grown.0.saturating_add(spans.saturating_mul(every)));
        self.left = self.left.saturating_add(u32::try_from(spans).unwrap_or(u32::MAX)).min(self.most);
        self.left > 0
    }

    /// Uses one call of the allowance.
    pub(super) fn spend(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_burst_is_allowed_and_then_one_call_per_interval() {
        let mut allowance = Allowance::new(2, Duration::from_secs(5), Monotonic(100 * SECOND));
        let done: Vec<u64> = (100..120)
            .filter(|second| {
                let may = allowance.has(Monotonic(second * SECOND));
                if may {
                    allowance.spend();
                }
                may
            })
            .collect();
        assert_eq!(done, [100, 101, 105, 110, 115]);
    }

    #[test]
    fn idle_time_adds_no_more_than_the_burst() {
        let mut allowance = Allowance::new(3, Duration::from_millis(1), Monotonic(0));
        assert!(allowance.has(Monotonic(1_000_000 * SECOND)));
        for _ in 0..3 {
            assert!(allowance.has(Monotonic(1_000_000 * SECOND)));
            allowance.spend();
        }
        assert!(!allowance.has(Monotonic(1_000_000 * SECOND)));
    }
}
