//! A reading in an agent's report. It has an age instead of a time, because the leader has its own clock.

use crate::reading::{Absence, Reading};
use crate::time::Monotonic;

/// How old a value was when the report was made, in milliseconds; the longest age is 49 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadingAge(
    /// Milliseconds.
    pub u32,
);

/// A value with its age, or the reason why it is absent. An agent of an earlier release reports neither the age nor the
/// reason, and an agent of a later release may report a reason that this release does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedReading<T> {
    /// The value, and its age when the report was made; `None` if the age is not known.
    Measured(T, Option<ReadingAge>),
    /// There is no value; `None` if the reason is not known.
    Absent(Option<Absence>),
}

impl<T> Default for ReportedReading<T> {
    fn default() -> Self {
        ReportedReading::UNKNOWN
    }
}

impl<T> ReportedReading<T> {
    /// No value, for a reason that is not known.
    pub const UNKNOWN: ReportedReading<T> = ReportedReading::Absent(None);

    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            ReportedReading::Measured(value, _) => Some(value),
            ReportedReading::Absent(_) => None,
        }
    }

    /// Why there is no value, if there is none; `Some(None)` if the reason is not known.
    pub fn absence(&self) -> Option<Option<Absence>> {
        match self {
            ReportedReading::Measured(..) => None,
            ReportedReading::Absent(why) => Some(*why),
        }
    }

    /// The reading with its value changed; the age and the reason stay.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> ReportedReading<U> {
        match self {
            ReportedReading::Measured(value, age) => ReportedReading::Measured(change(value), age),
            ReportedReading::Absent(why) => ReportedReading::Absent(why),
        }
    }

    /// Combines two readings. The result is as old as the older reading, and absent if one of them is.
    #[must_use]
    pub fn sum(self, other: Self, add: impl FnOnce(T, T) -> T) -> Self {
        match (self, other) {
            (ReportedReading::Measured(a, age), ReportedReading::Measured(b, other_age)) => {
                ReportedReading::Measured(add(a, b), age.zip(other_age).map(|(a, b)| a.max(b)))
            }
            (absent @ ReportedReading::Absent(_), _) | (_, absent @ ReportedReading::Absent(_)) => absent,
        }
    }
}

impl<T: Copy> ReportedReading<T> {
    /// The reading in a report that is made at `now`.
    #[must_use]
    pub fn of(reading: &Reading<T>, now: Monotonic) -> Self {
        match reading {
            Reading::Measured(value, at) => {
                let age = u32::try_from(now.since(*at).as_millis()).unwrap_or(u32::MAX);
                ReportedReading::Measured(*value, Some(ReadingAge(age)))
            }
            Reading::Absent(why) => ReportedReading::Absent(Some(*why)),
        }
    }

    /// Whether the agent must send this reading to a leader that has `sent`: the value has appeared or disappeared, has
    /// another reason for being absent, or has changed according to `differ`. A different age alone is not a change.
    #[must_use]
    pub fn differs(&self, sent: &Self, differ: impl FnOnce(T, T) -> bool) -> bool {
        match (self, sent) {
            (ReportedReading::Measured(now, _), ReportedReading::Measured(sent, _)) => differ(*now, *sent),
            (ReportedReading::Absent(now), ReportedReading::Absent(sent)) => now != sent,
            _ => true,
        }
    }

    /// The value by copy, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<T> {
        self.value().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    #[test]
    fn a_reading_has_its_age_or_its_reason_in_a_report() {
        for (reading, expected) in [
            (Reading::Measured(7, at(1000)), ReportedReading::Measured(7, Some(ReadingAge(1500)))),
            (Reading::Measured(0, at(2500)), ReportedReading::Measured(0, Some(ReadingAge(0)))),
            (Reading::Absent(Absence::CallHangs), ReportedReading::Absent(Some(Absence::CallHangs))),
        ] {
            assert_eq!(ReportedReading::of(&reading, at(2500)), expected);
        }
        let old = ReportedReading::of(&Reading::Measured(1, at(0)), Monotonic(u64::MAX));
        assert_eq!(old, ReportedReading::Measured(1, Some(ReadingAge(u32::MAX))));
    }

    #[test]
    fn an_age_alone_is_no_change_and_another_reason_is_one() {
        use ReportedReading::{Absent, Measured};
        let (young, old) = (Some(ReadingAge(1)), Some(ReadingAge(60_000)));
        for (now, sent, changed) in [
            (Measured(7, young), Measured(7, old), false),
            (Measured(7, young), Measured(7, None), false),
            (Measured(7, young), Measured(8, young), true),
            (Measured(0, young), Absent(None), true),
            (Absent(None), Measured(0, young), true),
            (Absent(Some(Absence::CallHangs)), Absent(Some(Absence::CallHangs)), false),
            (Absent(Some(Absence::CallHangs)), Absent(Some(Absence::CallStalls)), true),
        ] {
            assert_eq!(now.differs(&sent, |now, sent| now != sent), changed, "{now:?} after {sent:?}");
        }
    }

    #[test]
    fn a_sum_is_as_old_as_its_older_part_and_absent_if_one_part_is() {
        use ReportedReading::{Absent, Measured};
        let part = |value, ms| Measured(value, Some(ReadingAge(ms)));
        let add = |a: u64, b: u64| a + b;
        assert_eq!(part(1, 5).sum(part(2, 9), add), part(3, 9));
        assert_eq!(part(1, 5).sum(Measured(2, None), add), Measured(3, None), "one age is not known");
        let absent = Absent(Some(Absence::NotYet));
        assert_eq!((part(1, 5).sum(absent, add), absent.sum(part(1, 5), add)), (absent, absent));
    }
}
