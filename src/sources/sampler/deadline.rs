//! Periodic deadlines that do not drift, and a sleep that ends early on cancellation.

use model::time::Monotonic;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Points in time, one period apart, whatever happens between them.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    period: Duration,
    last: Monotonic,
}

/// The next point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextDeadline {
    /// The point in time.
    pub at: Monotonic,
    /// Number of points of the grid that were skipped since the last deadline.
    pub missed: u32,
}

impl Deadlines {
    /// A grid that begins at `start`. A zero period counts as a nanosecond.
    #[must_use]
    pub fn new(period: Duration, start: Monotonic) -> Self {
        Deadlines { period: period.max(Duration::from_nanos(1)), last: start }
    }

    /// The first point of the grid that lies in the future.
    pub fn next(&mut self, now: Monotonic) -> NextDeadline {
        let period = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        let missed = now.0.saturating_sub(self.last.0) / period;
        let steps = missed.saturating_add(1);
        self.last = Monotonic(self.last.0.saturating_add(period.saturating_mul(steps)));
        NextDeadline { at: self.last, missed: u32::try_from(missed).unwrap_or(u32::MAX) }
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Cancellation for a thread without a runtime: the thread is woken, so it does not poll.
#[derive(Debug)]
pub struct ThreadStop {
    token: CancellationToken,
    /// Kept, because dropping it would remove the waker.
    _cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl ThreadStop {
    /// For the thread that calls this.
    #[must_use]
    pub fn new(token: CancellationToken) -> Self {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cancelled = Box::pin(token.clone().cancelled_owned());
        let _: Poll<()> = cancelled.as_mut().poll(&mut Context::from_waker(&waker));
        ThreadStop { token, _cancelled: cancelled }
    }

    /// Whether the token is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Sleeps until `at` or until the token is cancelled. Returns whether the token is cancelled.
    #[must_use]
    pub fn wait_until(&self, at: Monotonic) -> bool {
        loop {
            let rest = at.since(clock::monotonic());
            if self.is_cancelled() || rest.is_zero() {
                return self.is_cancelled();
            }
            std::thread::park_timeout(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn deadlines_stay_on_the_grid_and_missed_ones_are_skipped() {
        let second = 1_000_000_000;
        let mut deadlines = Deadlines::new(Duration::from_secs(1), Monotonic(0));
        for (now, at, missed) in [
            (second / 2, second, 0),
            (second + 300, 2 * second, 0),
            (2 * second + 999_999_999, 3 * second, 0),
            (5 * second + 1, 6 * second, 2),
            (6 * second, 7 * second, 0),
            (100 * second, 101 * second, 93),
            (50 * second, 102 * second, 0),
        ] {
            assert_eq!(deadlines.next(Monotonic(now)), NextDeadline { at: Monotonic(at), missed }, "at {now}");
        }
    }

    #[test]
    fn a_sleep_ends_when_it_is_cancelled() {
        let token = CancellationToken::new();
        let ours = token.clone();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let stop = ThreadStop::new(ours);
            ready.send(()).unwrap();
            stop.wait_until(clock::monotonic().after(Duration::from_secs(600)))
        });
        started.recv().unwrap();
        let began = Instant::now();
        token.cancel();
        assert!(thread.join().unwrap());
        assert!(began.elapsed() < Duration::from_secs(60), "not at its time, ten minutes later");
    }

    #[test]
    fn a_sleep_ends_at_its_time() {
        let stop = ThreadStop::new(CancellationToken::new());
        assert!(!stop.wait_until(clock::monotonic().after(Duration::from_millis(5))));
        assert!(!stop.wait_until(Monotonic(0)));
    }
}
