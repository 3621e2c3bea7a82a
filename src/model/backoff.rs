//! Backoff: the pauses between tries of something that fails.

use std::time::Duration;

/// Pauses that double from a first pause to a longest pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// A backoff before its first pause.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, next: first }
    }

    /// The pause before the next try. The following pause is twice as long, up to the longest.
    #[must_use]
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        pause
    }

    /// Starts again with the first pause, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let pauses: Vec<u64> = (0..9).map(|_| backoff.pause().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        backoff.reset();
        assert_eq!(backoff.pause(), Duration::from_secs(1));
        let mut longest = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!([longest.pause(), longest.pause()], [Duration::MAX; 2]);
    }
}
