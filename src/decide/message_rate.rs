//! How many messages one stream may send: a token bucket.

use model::time::Monotonic;
use std::time::Duration;

/// Messages that may come at once. An agent sends one a second, and a network that stalls for half a minute delivers those
/// of that time together.
const BURST: u32 = 32;
/// Time after which one more message is allowed: twice as many as an agent sends, which also counts a change of the phase.
const EVERY: Duration = Duration::from_millis(500);

/// The messages that one stream may still send.
#[derive(Clone, Copy, Debug)]
pub struct MessageRate {
    left: u32,
    /// Up to when the messages that time allows are counted in `left`.
    counted: Monotonic,
}

impl MessageRate {
    /// A stream that begins now.
    #[must_use]
    pub fn new(now: Monotonic) -> MessageRate {
        MessageRate { left: BURST, counted: now }
    }

    /// Whether one more message is allowed now. It counts if it is.
    pub fn allows(&mut self, now: Monotonic) -> bool {
        let passed = now.since(self.counted).as_nanos() / EVERY.as_nanos();
        let earned = u32::try_from(passed).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(earned).min(BURST);
        self.counted = if self.left == BURST { now } else { self.counted.after(EVERY.saturating_mul(earned)) };
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
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
}
