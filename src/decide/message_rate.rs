//! How many messages an agent may send, or how many streams it may open: a token bucket.

use model::time::Monotonic;
use std::time::Duration;

/// Messages that may come at once. An agent sends one a second, and a network that stalls for half a minute delivers those
/// of that time together. Streams that may be opened at once: an agent whose streams break right after their begin opens 32 in
/// about ten seconds.
const BURST: u32 = 32;
/// Time after which one more message is allowed: twice as many as an agent sends, which also counts a change of the phase. An
/// opening costs the leader some 0.3 ms, most of it for the handshake (`tests/run --long extender`), so two a second are less
/// than a thousandth of a core.
const EVERY: Duration = Duration::from_millis(500);

/// What may still come. Messages and openings are counted apart, each by one of these.
#[derive(Clone, Copy, Debug)]
pub struct MessageRate {
    left: u32,
    /// Up to when the messages that time allows are counted in `left`.
    counted: Monotonic,
}

impl MessageRate {
    /// Nothing has come before this moment.
    #[must_use]
    pub fn new(now: Monotonic) -> MessageRate {
        MessageRate { left: BURST, counted: now }
    }

    /// Whether one more message is allowed now. It counts if it is.
    pub fn allows(&mut self, now: Monotonic) -> bool {
        let earned = self.earned(now);
        self.left = self.left.saturating_add(earned).min(BURST);
        self.counted = if self.left == BURST { now } else { self.counted.after(EVERY.saturating_mul(earned)) };
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }

    /// Whether as many may come now as if nothing had come before. Then nothing need be remembered.
    #[must_use]
    pub fn is_full(&self, now: Monotonic) -> bool {
        self.left.saturating_add(self.earned(now)) >= BURST
    }

    /// The messages that the time since the last count allows.
    fn earned(&self, now: Monotonic) -> u32 {
        let passed = now.since(self.counted).as_nanos() / EVERY.as_nanos();
        u32::try_from(passed).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_never_too_fast_and_a_message_a_microsecond_soon_is() {
        let second = 1_000_000_000;
        let mut rate = MessageRate::new(Monotonic(0));
        assert!((0..10_000).all(|n| rate.allows(Monotonic(n * second))));
        assert!((0..30).all(|_| rate.allows(Monotonic(10_000 * second))), "those of a stalled network");
        let mut rate = MessageRate::new(Monotonic(0));
        let allowed = (0..1_000_000).filter(|n| rate.allows(Monotonic(n * 1_000))).count();
        assert_eq!(allowed, 32 + 1, "in a second");
    }

    #[test]
    fn what_has_come_is_remembered_until_the_time_since_then_allows_all_again() {
        let ms = |ms: u64| Monotonic(ms * 1_000_000);
        let mut rate = MessageRate::new(ms(0));
        assert!(rate.is_full(ms(0)));
        assert!(rate.allows(ms(100)) && !rate.is_full(ms(599)) && rate.is_full(ms(600)));
        assert!((0..31).all(|_| rate.allows(ms(101))));
        assert!(!rate.is_full(ms(100 + 500 * 31)) && rate.is_full(ms(100 + 500 * 32)));
    }
}
