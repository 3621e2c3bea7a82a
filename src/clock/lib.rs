//! The only place where the clocks are read. All other code takes the time as an argument.
//!
//! ```text
//!   kernel: CLOCK_REALTIME, CLOCK_BOOTTIME ──▶ now() ──▶ model::time::Now { monotonic, wall }
//!   a test (feature `simulation`) ───────────▶ simulate(now): both clocks of this thread
//! ```
//!
//! What must never happen here: a release build in which a caller can set the clock.

use model::time::{Monotonic, Now, WallTime};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

#[cfg(all(feature = "simulation", not(debug_assertions)))]
compile_error!("the feature `simulation` lets tests set the clock: a release build must not enable it");

#[cfg(feature = "simulation")]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<Now>> = const { std::cell::Cell::new(None) };
}

/// Sets both clocks of this thread; `None` restores the machine's clocks.
#[cfg(feature = "simulation")]
pub fn simulate(now: Option<Now>) {
    SIMULATED.set(now);
}

/// Both clocks, now.
#[must_use]
pub fn now() -> Now {
    #[cfg(feature = "simulation")]
    if let Some(now) = SIMULATED.get() {
        return now;
    }
    Now { monotonic: monotonic(), wall: WallTime(nanos(clock_gettime(ClockId::Realtime)) / 1000) }
}

/// Nanoseconds since boot, including the time when the machine was suspended.
#[must_use]
pub fn monotonic() -> Monotonic {
    #[cfg(feature = "simulation")]
    if let Some(now) = SIMULATED.get() {
        return now.monotonic;
    }
    Monotonic(nanos(clock_gettime(ClockId::Boottime)))
}

/// Time of a processor that this thread has taken since its start.
#[must_use]
pub fn thread_time() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

/// A clock before its epoch reads as 0.
fn nanos(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clocks_do_not_run_backwards() {
        let first = super::now();
        let second = super::now();
        assert!(second.monotonic >= first.monotonic);
        assert!(first.wall.0 > 1_700_000_000_000_000, "microseconds since 1970");
    }

    #[test]
    fn the_time_of_a_thread_grows_while_it_works_and_not_while_it_waits() {
        let began = super::thread_time();
        let monotonic = super::monotonic();
        while super::thread_time() == began {
            std::hint::spin_loop();
        }
        std::thread::park_timeout(std::time::Duration::from_millis(50));
        let took = super::thread_time() - began;
        assert!(took < super::monotonic().since(monotonic), "{took:?}");
    }
}
