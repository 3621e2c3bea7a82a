//! Two clocks that must not be mixed: a monotonic clock for ages, and the wall clock for people.

use std::time::Duration;

/// Nanoseconds of the machine's monotonic clock (`CLOCK_BOOTTIME`: it also counts while the machine sleeps). Ages and
/// rates use only this clock, so a jump of the wall clock changes neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// Time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment plus `span`.
    #[must_use]
    pub fn after(self, span: Duration) -> Monotonic {
        Monotonic(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The place of a pod in the order in which pods came to this node: a lower number came earlier. The count starts again
/// when the agent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival(pub u64);

/// Microseconds since 1970 of the wall clock, the unit in which NVML stamps its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub u64);

impl WallTime {
    /// Seconds since 1970, the unit of exposition formats and JSON.
    #[must_use]
    pub fn as_seconds(self) -> f64 {
        Duration::from_micros(self.0).as_secs_f64()
    }

    /// Time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: WallTime) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock, for ages.
    pub monotonic: Monotonic,
    /// The wall clock, for people.
    pub wall: WallTime,
}

impl Now {
    /// The wall time of the moment `at`, computed from its age and the wall clock of *this* reading. A jump of the wall
    /// clock moves all stamps together.
    #[must_use]
    pub fn wall_of(&self, at: Monotonic) -> WallTime {
        let age = u64::try_from(self.monotonic.since(at).as_micros()).unwrap_or(u64::MAX);
        WallTime(self.wall.0.saturating_sub(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_the_future_has_age_zero() {
        assert_eq!(Monotonic(5).since(Monotonic(9)), Duration::ZERO);
        assert_eq!(WallTime(5).since(WallTime(9)), Duration::ZERO);
    }

    #[test]
    fn the_wall_stamp_of_a_reading_follows_from_its_age() {
        let now = Now { monotonic: Monotonic(10_000_000_000), wall: WallTime(2_000_000) };
        assert_eq!(now.wall_of(Monotonic(9_500_000_000)), WallTime(1_500_000));
    }
}
