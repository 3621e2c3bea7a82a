//! How many messages an agent may send, or how many streams it may open: a token bucket.

use model::time::Monotonic;
use std::time::Duration;

/// Maximum number of messages that may come, or of streams that may be opened, at once. An agent sends one message a
/// second, and a network that stalls for half a minute then delivers 30 together. An agent whose streams break right
/// after they open opens 32 in about ten seconds.
const BURST: u32 = 32;
/// Time after which one more message or opening is allowed. Two messages a second are twice as many as an agent sends,
/// so changes of the phase can be sent as well. An opening costs the leader some 0.3 ms, most of it for the handshake
/// (`tests/run --long extender`), so two openings a second take less than a thousandth of a core.
const EVERY: Duration = Duration::from_millis(500);

/// The number of messages or openings that may still come. An agent has separate buckets for messages and openings.
#[derive(Clone, Copy, Debug)]
pub struct MessageRate {
    left: u32,
    /// The time up to which earned messages are already in `left`.
    counted: Monotonic,
}

impl MessageRate {
    /// A full bucket.
    #[must_use]
    pub fn new(now: Monotonic) -> MessageRate {
        MessageRate { left: BURST, counted: now }
    }

    /// Whether one more message is allowed now. An allowed message is counted.
    pub fn allows(&mut self, now: Monotonic) -> bool {
        let earned = self.earned(now);
        self.left = self.left.saturating_add(earned).min(BURST);
        self.counted = if self.left == BURST { now } else { self.counted.after(EVERY.saturating_mul(earned)) };
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }

    /// Whether the bucket is full again. Then it need not be kept.
    #[must_use]
    pub fn is_full(&self, now: Monotonic) -> bool {
        self.left.saturating_add(self.earned(now)) >= BURST
    }

    /// The messages that were earned since the last count.
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
        assert!(
            (0..30).all(|_| rate.allows(Monotonic(10_000 * second))),
            "the messages that a stalled network has held back"
        );
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
