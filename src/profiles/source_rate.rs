//! NVML's own samples of a GPU's utilisation, at the rate of the driver, for ten minutes.
//!
//! NVML's stamps are times of the wall clock. Only their differences are used: each batch is placed on the monotonic clock by the
//! offset of its segment. A segment ends where the stamps jump or go back, and the samples on both sides of that place are never
//! analysed together.
//!
//! What must never happen here: a jump of the wall clock that moves a sample in relation to its neighbours.

use model::time::Monotonic;
use model::utilization::{UtilizationSample, UtilizationSamples};
use std::collections::VecDeque;
use std::time::Duration;
use timeseries::Sample;

/// How long a sample is kept.
pub const SOURCE_SPAN: Duration = Duration::from_secs(600);
/// Upper bound on the samples: ten minutes of a driver that takes six a second have 3,600.
const MAX_SAMPLES: usize = 4096;
/// Upper bound on the samples of one analysis: three minutes at six a second. Slower cycles show in the tier of seconds.
pub const ANALYZED: usize = 1024;
/// A stamp later than its reading by more than this is of a wall clock that was set forward.
const EARLY: u64 = 1_000_000_000;
/// A newest stamp older than its reading by more than this is of a wall clock that was set back: drivers take a sample at
/// least once a second, and an idle GPU, whose buffer runs dry, has no new sample at all.
const LATE: u64 = 5_000_000_000;

/// A sample with its time in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Placed {
    at: u64,
    percent: f32,
}

/// The samples of one GPU.
#[derive(Clone, Debug, Default)]
pub struct SourceRate {
    samples: VecDeque<Placed>,
    /// NVML's clock minus the monotonic clock, in nanoseconds, for the newest segment.
    offset: Option<i128>,
    /// Number of samples of the newest segment.
    segment: usize,
}

impl SourceRate {
    /// Adds a batch, and returns where its samples are on the monotonic clock.
    pub fn add(&mut self, batch: &UtilizationSamples) -> Vec<(Monotonic, f64)> {
        let Some(newest) = batch.samples.last() else { return Vec::new() };
        let read = batch.read_at.0;
        let continues = |offset: i128| {
            let (first, last) = (place(batch.samples.first(), offset), place(Some(newest), offset));
            let in_order = self.samples.back().is_none_or(|kept| first.is_some_and(|first| first > kept.at));
            in_order && last.is_some_and(|last| last <= read.saturating_add(EARLY) && last.saturating_add(LATE) >= read)
        };
        if !self.offset.is_some_and(continues) {
            self.offset = Some(stamp(*newest) - i128::from(read));
            self.segment = 0;
        }
        let mut placed = Vec::with_capacity(batch.samples.len());
        for sample in &batch.samples {
            // The samples before a jump inside the batch have no place in the new segment.
            let at = self.offset.and_then(|offset| place(Some(sample), offset));
            let after = self.samples.back().map_or(0, |kept| kept.at);
            let Some(at) = at.filter(|at| *at > after && at.saturating_add(nanos(SOURCE_SPAN)) > read) else {
                continue;
            };
            self.push(at, sample.percent.0);
            placed.push((Monotonic(at), sample.percent.0));
        }
        self.expire(read);
        placed
    }

    /// The newest samples of the newest segment, for an analysis, and their usual distance.
    #[must_use]
    pub fn newest(&self) -> (Vec<Sample>, Option<Duration>) {
        let count = self.segment.min(self.samples.len()).min(ANALYZED);
        let kept = self.samples.iter().skip(self.samples.len() - count);
        let samples: Vec<Sample> = kept
            .map(|sample| Sample { at: Duration::from_nanos(sample.at), value: f64::from(sample.percent) })
            .collect();
        let mut distances: Vec<Duration> =
            samples.windows(2).map(|pair| pair[1].at.saturating_sub(pair[0].at)).collect();
        let middle = distances.len() / 2;
        let usual = (!distances.is_empty()).then(|| *distances.select_nth_unstable(middle).1);
        (samples, usual)
    }

    /// All samples, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = (Monotonic, f64)> + '_ {
        self.samples.iter().map(|sample| (Monotonic(sample.at), f64::from(sample.percent)))
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.samples.capacity() * size_of::<Placed>()
    }

    #[expect(clippy::cast_possible_truncation, reason = "a percentage of the driver is a whole number")]
    fn push(&mut self, at: u64, percent: f64) {
        if self.samples.len() >= MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Placed { at, percent: percent as f32 });
        self.segment = (self.segment + 1).min(MAX_SAMPLES);
    }

    fn expire(&mut self, now: u64) {
        while self.samples.front().is_some_and(|oldest| oldest.at.saturating_add(nanos(SOURCE_SPAN)) <= now) {
            self.samples.pop_front();
        }
    }
}

fn nanos(span: Duration) -> u64 {
    crate::tier::nanos(span)
}

/// NVML's stamp in nanoseconds.
fn stamp(sample: UtilizationSample) -> i128 {
    i128::from(sample.stamp.0) * 1000
}

/// The place of a sample on the monotonic clock, in nanoseconds.
fn place(sample: Option<&UtilizationSample>, offset: i128) -> Option<u64> {
    u64::try_from(stamp(*sample?) - offset).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::GpuUuid;
    use model::time::WallTime;
    use model::unit::Percent;

    /// Six samples a second.
    const STEP: u64 = 166_667;

    /// The driver, whose clock a test may set.
    struct Driver {
        wall: u64,
        monotonic: u64,
        kept: SourceRate,
    }

    impl Driver {
        fn new() -> Driver {
            Driver { wall: 1_800_000_000_000_000, monotonic: 5_000_000_000_000, kept: SourceRate::default() }
        }

        /// Takes this many samples, sets the wall clock by `jump` microseconds before the last five, and reads them.
        fn batch(&mut self, count: u64, jump: i64) -> usize {
            let mut samples = Vec::new();
            for sample in 0..count {
                if sample + 5 == count {
                    self.wall = self.wall.saturating_add_signed(jump);
                }
                (self.wall, self.monotonic) = (self.wall + STEP, self.monotonic + STEP * 1000);
                samples.push(UtilizationSample { stamp: WallTime(self.wall), percent: Percent(50.0) });
            }
            samples.sort_by_key(|sample| sample.stamp);
            let gpu = GpuUuid::parse("GPU-1").unwrap();
            let read_at = Monotonic(self.monotonic + 100_000_000);
            self.kept.add(&UtilizationSamples { gpu, read_at, samples }).len()
        }

        /// The distances between the samples that are analysed, in microseconds.
        fn distances(&self) -> Vec<u128> {
            let (samples, _) = self.kept.newest();
            samples.windows(2).map(|pair| (pair[1].at - pair[0].at).as_micros()).collect()
        }
    }

    #[test]
    fn batches_continue_each_other_with_the_distances_of_the_driver() {
        let mut driver = Driver::new();
        assert_eq!((0..10).map(|_| driver.batch(30, 0)).sum::<usize>(), 300);
        assert!(driver.distances().iter().all(|distance| *distance == u128::from(STEP)));
        assert_eq!(driver.kept.newest().1, Some(Duration::from_micros(STEP)));
    }

    /// Promise 24 in docs/specification.md.
    #[test]
    fn a_jump_of_the_clock_begins_a_new_segment_and_bends_no_distance() {
        for jump in [3_600_000_000, -3_600_000_000, 30_000_000, -30_000_000, -2_000_000] {
            let mut driver = Driver::new();
            for _ in 0..10 {
                driver.batch(30, 0);
            }
            driver.batch(30, jump);
            for _ in 0..10 {
                driver.batch(30, 0);
            }
            let distances = driver.distances();
            assert!(distances.iter().all(|distance| *distance == u128::from(STEP)), "{jump}: {distances:?}");
            assert!(distances.len() >= 299, "{jump}: {} samples since the jump", distances.len());
            let times: Vec<_> = driver.kept.samples().map(|(at, _)| at).collect();
            assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{jump}: no two samples are at one time");
        }
    }

    #[test]
    fn samples_older_than_ten_minutes_and_beyond_the_bound_leave() {
        let mut driver = Driver::new();
        for _ in 0..200 {
            driver.batch(30, 0);
        }
        let count = driver.kept.samples().count();
        assert!((3590..=3600).contains(&count), "{count}");
        assert!(driver.kept.bytes() <= 4096 * size_of::<Placed>());
        assert_eq!(driver.kept.newest().0.len(), ANALYZED);
    }

    #[test]
    fn stamps_near_the_ends_of_their_type_are_harmless() {
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        let mut kept = SourceRate::default();
        for (stamp, read_at) in [(0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX), (0, 0), (1, 5)] {
            let samples = vec![UtilizationSample { stamp: WallTime(stamp), percent: Percent(1.0) }];
            kept.add(&UtilizationSamples { gpu: gpu.clone(), read_at: Monotonic(read_at), samples });
        }
        assert!(kept.samples().count() <= 5);
    }

    proptest::proptest! {
        #[test]
        fn no_stamps_of_a_driver_put_samples_out_of_order_or_beyond_the_bounds(
            batches in proptest::collection::vec(
                // How far the machine's clock goes on, where the driver's clock is set to, and the distances of the stamps.
                (0_u64..1 << 40, proptest::option::of(proptest::prelude::any::<u64>()), proptest::collection::vec(0_u64..1 << 24, 0..40)),
                0..20,
            ),
        ) {
            let (mut kept, mut read, mut stamp) = (SourceRate::default(), 1_u64, 1_800_000_000_000_000_u64);
            for (pause, set, distances) in batches {
                read += pause;
                stamp = set.unwrap_or(stamp);
                let samples = distances.into_iter().map(|distance| {
                    stamp = stamp.saturating_add(distance);
                    UtilizationSample { stamp: WallTime(stamp), percent: Percent(50.0) }
                });
                let batch = UtilizationSamples {
                    gpu: GpuUuid::parse("GPU-1").unwrap(),
                    read_at: Monotonic(read),
                    samples: samples.collect(),
                };
                let placed = kept.add(&batch);
                let is_empty = batch.samples.is_empty();
                proptest::prop_assert!(placed.windows(2).all(|pair| pair[0].0 < pair[1].0));
                let times: Vec<Monotonic> = kept.samples().map(|(at, _)| at).collect();
                proptest::prop_assert!(times.len() <= MAX_SAMPLES && times.windows(2).all(|pair| pair[0] < pair[1]));
                proptest::prop_assert!(is_empty || times.iter().all(|at| at.0.saturating_add(nanos(SOURCE_SPAN)) > read));
                let (newest, _) = kept.newest();
                proptest::prop_assert!(newest.len() <= ANALYZED && newest.windows(2).all(|pair| pair[0].at < pair[1].at));
            }
        }
    }
}
