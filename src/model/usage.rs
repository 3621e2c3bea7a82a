//! Rates, derived from two raw samples. This is the only place that computes a rate.

use crate::reading::{Absence, Reading};
use crate::time::Monotonic;
use crate::unit::{Bytes, BytesPerSecond, Cores, Nanos};

/// Rate of a counter between two readings, in units per second, with the time of the newer reading. Absent when either
/// reading is absent, when no time has passed, or when the counter went backwards.
#[expect(clippy::cast_precision_loss, reason = "a difference of counters is far below 2^53")]
pub fn rate<T>(older: &Reading<T>, newer: &Reading<T>, number: impl Fn(&T) -> u64) -> Reading<f64> {
    let (newer_value, newer_at) = match newer {
        Reading::Measured(value, at) => (number(value), *at),
        Reading::Absent(why) => return Reading::Absent(*why),
    };
    let (older_value, older_at) = match older {
        Reading::Measured(value, at) => (number(value), *at),
        Reading::Absent(_) => return Reading::Absent(Absence::NotYet),
    };
    let elapsed: f64 = newer_at.since(older_at).as_secs_f64();
    if elapsed <= 0.0 {
        return Reading::Absent(Absence::NotYet);
    }
    match newer_value.checked_sub(older_value) {
        Some(difference) => Reading::Measured(difference as f64 / elapsed, newer_at),
        None => Reading::Absent(Absence::CounterReset),
    }
}

/// Cores in use, from two readings of CPU time.
#[must_use]
pub fn cores(older: &Reading<Nanos>, newer: &Reading<Nanos>) -> Reading<Cores> {
    rate(older, newer, |time| time.0).map(|nanos_a_second| Cores(nanos_a_second / 1e9))
}

/// Bytes per second, from two readings of a byte counter.
#[must_use]
pub fn throughput(older: &Reading<Bytes>, newer: &Reading<Bytes>) -> Reading<BytesPerSecond> {
    rate(older, newer, |bytes| bytes.0).map(BytesPerSecond)
}

/// Keeps the last *distinct* reading of a counter and the rate between the newest pair. A source that repeats an old
/// reading (same time) neither changes the rate nor makes it absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rated<T> {
    last: Reading<T>,
    rate: Reading<f64>,
}

impl<T> Default for Rated<T> {
    fn default() -> Self {
        Rated { last: Reading::NOT_YET, rate: Reading::NOT_YET }
    }
}

impl<T: Copy> Rated<T> {
    /// Takes in the newest reading.
    pub fn update(&mut self, newer: Reading<T>, number: impl Fn(&T) -> u64) {
        if newer.at().is_some() && newer.at() == self.last.at() {
            return;
        }
        self.rate = rate(&self.last, &newer, number);
        self.last = newer;
    }

    /// Units per second between the last two distinct readings.
    pub fn rate(&self) -> Reading<f64> {
        self.rate
    }

    /// When the newest reading was taken.
    pub fn at(&self) -> Option<Monotonic> {
        self.last.at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, value: u64) -> Reading<Nanos> {
        Reading::Measured(Nanos(value), Monotonic(seconds * 1_000_000_000))
    }

    #[test]
    fn cores_are_cpu_time_divided_by_elapsed_time() {
        assert_eq!(cores(&at(1, 0), &at(3, 3_000_000_000)).get(), Some(Cores(1.5)));
    }

    #[test]
    fn a_counter_that_goes_backwards_gives_no_rate() {
        assert_eq!(cores(&at(1, 9), &at(2, 3)), Reading::Absent(Absence::CounterReset));
    }

    #[test]
    fn a_repeated_reading_does_not_change_the_rate() {
        let mut rated = Rated::default();
        rated.update(at(1, 0), |n| n.0);
        rated.update(at(2, 10), |n| n.0);
        rated.update(at(2, 10), |n| n.0);
        assert_eq!(rated.rate().get(), Some(10.0));
        rated.update(Reading::Absent(Absence::Vanished), |n| n.0);
        assert_eq!(rated.rate().absence(), Some(Absence::Vanished));
        rated.update(at(4, 50), |n| n.0);
        assert_eq!(rated.rate().absence(), Some(Absence::NotYet), "a gap is not bridged");
    }
}
