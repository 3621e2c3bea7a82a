//! How long calls took, and how large amounts of memory were: counts by upper bounds.

use crate::unit::Bytes;
use std::time::Duration;

/// Upper bounds of the buckets of [`Histogram`], in microseconds. `Allocate` takes tens of microseconds; a start takes
/// a few milliseconds when everything is known, and up to 25 s when it waits for the API server. The bounds separate
/// these cases.
pub const BOUNDS_US: [u64; 21] = [
    25, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000, 20_000_000, 30_000_000,
];

/// Durations of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The number of calls in each bucket. A call is in the bucket of the smallest bound in [`BOUNDS_US`] that it did
    /// not exceed; the last bucket has the calls beyond all bounds.
    pub counts: [u64; Histogram::BUCKETS],
    /// Sum of all durations.
    pub sum: Duration,
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = BOUNDS_US.len() + 1;

    /// The index in [`Histogram::counts`] for a call of this duration.
    #[must_use]
    pub fn bucket(took: Duration) -> usize {
        BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < took)
    }

    /// Number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Upper bounds of the buckets of [`ByteHistogram`]. The first bound is the dead band of the agents' reports, the last bound exceeds
/// the memory of a GPU.
pub const BOUNDS_BYTES: [u64; 7] = [64 << 20, 256 << 20, 1 << 30, 4 << 30, 16 << 30, 64 << 30, 256 << 30];

/// Amounts of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteHistogram {
    /// The number of amounts in each bucket, as in [`Histogram::counts`] with [`BOUNDS_BYTES`].
    pub counts: [u64; BOUNDS_BYTES.len() + 1],
    /// Sum of all amounts.
    pub sum: u64,
}

impl ByteHistogram {
    /// Counts an amount.
    pub fn add(&mut self, bytes: Bytes) {
        let bucket = BOUNDS_BYTES.partition_point(|bound| *bound < bytes.0);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(bytes.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_in_the_first_bucket_with_a_sufficient_bound() {
        for (micros, bucket) in [(0, 0), (25, 0), (26, 1), (1_000, 5), (30_000_000, 20), (30_000_001, 21)] {
            assert_eq!(Histogram::bucket(Duration::from_micros(micros)), bucket, "{micros}");
        }
        assert_eq!(Histogram::bucket(Duration::from_nanos(25_001)), 1);
        assert!(BOUNDS_US.is_sorted());
    }

    #[test]
    fn an_amount_is_counted_in_the_first_bucket_with_a_sufficient_bound() {
        let mut amounts = ByteHistogram::default();
        [0, 64 << 20, (64 << 20) + 1, u64::MAX].into_iter().for_each(|bytes| amounts.add(Bytes(bytes)));
        assert_eq!((amounts.counts, amounts.sum), ([2, 1, 0, 0, 0, 0, 0, 1], u64::MAX));
        assert!(BOUNDS_BYTES.is_sorted());
    }
}
