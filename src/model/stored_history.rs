//! Histories as they are kept on disk: steps of a fixed length, numbered from 1970, in blocks.
//!
//! The agent's thread `profile` makes the steps (crate `profiles`), and `effects::profile_store` keeps them.

use crate::time::WallTime;
use crate::workload_profile::{ProfiledQuantity, ProfiledSubject};
use std::time::Duration;

/// A tier on disk. A longer step is kept for a longer time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoredTier {
    /// Steps of a minute, for a day.
    Minute,
    /// Steps of a quarter of an hour, for 35 days.
    Quarter,
}

impl StoredTier {
    /// Both tiers, the finer one first.
    pub const ALL: [StoredTier; 2] = [Self::Minute, Self::Quarter];

    /// The length of a step.
    #[must_use]
    pub const fn step(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(60),
            Self::Quarter => Duration::from_secs(15 * 60),
        }
    }

    /// Number of steps that are kept.
    #[must_use]
    pub const fn kept_steps(self) -> u64 {
        match self {
            Self::Minute => 24 * 60,
            Self::Quarter => 35 * 24 * 4,
        }
    }

    /// Number of steps of one block, which is one row of the file: an hour of minutes, a day of quarters. A write changes the
    /// newest block of each series, so a block is short; a read of all steps reads a few dozen blocks.
    #[must_use]
    pub const fn block_steps(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Quarter => 96,
        }
    }

    /// The number of the step in which this time is.
    #[must_use]
    pub fn index_of(self, at: WallTime) -> u64 {
        at.0 / self.step_micros()
    }

    /// The time at which this step begins.
    #[must_use]
    pub fn begin_of(self, index: u64) -> WallTime {
        WallTime(index.saturating_mul(self.step_micros()))
    }

    const fn step_micros(self) -> u64 {
        self.step().as_secs() * 1_000_000
    }
}

/// A series: one quantity of one subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryKey {
    /// The subject.
    pub subject: ProfiledSubject,
    /// The quantity.
    pub quantity: ProfiledQuantity,
}

/// Mean and maximum over a step. Both are finite and at least 0, and the maximum is not below the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepValue {
    /// The mean.
    pub mean: f64,
    /// The maximum.
    pub maximum: f64,
}

/// One step of a history. A step without a measurement is not in the history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryStep {
    /// The number of the step, counted from 1970 in steps of its tier.
    pub index: u64,
    /// Its values.
    pub value: StepValue,
}

/// Steps of one series that are to be written, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct UnwrittenSteps {
    /// The series.
    pub key: HistoryKey,
    /// The tier.
    pub tier: StoredTier,
    /// The steps.
    pub steps: Vec<HistoryStep>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_keeps_whole_blocks_and_its_steps_begin_with_1970() {
        for tier in StoredTier::ALL {
            assert_eq!(tier.kept_steps() % tier.block_steps(), 0, "{tier:?}");
            let at = WallTime(1_800_000_123_456_789);
            let index = tier.index_of(at);
            assert!(tier.begin_of(index) <= at && at < tier.begin_of(index + 1), "{tier:?}");
        }
        assert_eq!(StoredTier::Quarter.index_of(WallTime(15 * 60 * 1_000_000)), 1);
        assert_eq!(StoredTier::Minute.begin_of(u64::MAX), WallTime(u64::MAX), "a huge number does not overflow");
    }
}
