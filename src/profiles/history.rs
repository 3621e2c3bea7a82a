//! The history of one series: seconds in memory, and the steps of minutes and quarters that are not written yet.
//!
//! ```text
//!   values ──▶ Tier: steps of a second, 16 minutes ──a minute or a quarter is over──▶ pending ──▶ file
//!   NVML's own samples ──▶ SourceRate, 10 minutes ──▶ better values for the steps of a second
//! ```
//!
//! A step of a longer tier is computed from the seconds once it is over, so no value is in two of them.
//!
//! What must never happen here: a value of a step that is not over; a history in memory that grows while the file cannot be written.

use crate::anchor::Anchor;
use crate::source_rate::SourceRate;
use crate::tier::Tier;
use model::stored_history::{HistoryStep, StepValue, StoredTier};
use model::time::{Monotonic, WallTime};
use model::utilization::UtilizationSamples;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// How much time the fine tier holds: a quarter of an hour, which is computed from it, and a minute for readings that come late.
pub const FINE_SPAN: Duration = Duration::from_secs(16 * 60);
/// How long a step waits for readings that come late: NVML's own samples come with the process list, every five seconds.
const LATE: Duration = Duration::from_secs(15);
/// Upper bounds on the steps that wait to be written. They are written every five minutes; only if the file cannot be written,
/// there are more: four hours of minutes, which is what a forecast of an hour needs, and a day of quarters.
pub const MAX_PENDING: [usize; 2] = [4 * 60, 24 * 4];

/// A step that waits to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingStep {
    index: u32,
    mean: f32,
    maximum: f32,
}

/// The steps of one tier that wait to be written, oldest first.
#[derive(Clone, Debug, Default)]
struct Pending {
    steps: VecDeque<PendingStep>,
    /// The next step that will be over.
    next: Option<u64>,
}

/// The history of one series.
#[derive(Clone, Debug)]
pub struct SeriesHistory {
    fine: Tier,
    source: Option<Box<SourceRate>>,
    pending: [Pending; 2],
}

impl SeriesHistory {
    /// An empty history, for readings that come once in a `step`.
    #[must_use]
    pub fn new(step: Duration) -> SeriesHistory {
        SeriesHistory { fine: Tier::new(step, FINE_SPAN), source: None, pending: Default::default() }
    }

    /// The steps in memory.
    #[must_use]
    pub fn fine(&self) -> &Tier {
        &self.fine
    }

    /// NVML's own samples, if there are any.
    #[must_use]
    pub fn source(&self) -> Option<&SourceRate> {
        self.source.as_deref()
    }

    /// Adds a value.
    pub fn add(&mut self, at: Monotonic, value: f64) {
        self.fine.add(at, value);
    }

    /// Adds NVML's own samples. They replace what the readings said about their steps.
    pub fn add_samples(&mut self, batch: &UtilizationSamples) {
        let source = self.source.get_or_insert_default();
        let placed = source.add(batch);
        let Some((first, _)) = placed.first() else { return };
        // A step may begin in the batch before this one.
        let from = self.fine.begin_of_step(*first).unwrap_or(*first);
        let mut steps: Vec<(Monotonic, f64, u32, f64)> = Vec::new();
        for (at, value) in source.samples().skip_while(|(at, _)| *at < from) {
            let begin = self.fine.begin_of_step(at).unwrap_or(from);
            match steps.last_mut() {
                Some((step, sum, count, maximum)) if *step == begin => {
                    (*sum, *count, *maximum) = (*sum + value, *count + 1, maximum.max(value));
                }
                _ => steps.push((begin, value, 1, value)),
            }
        }
        for (begin, sum, count, maximum) in steps {
            self.fine.replace(begin, StepValue { mean: sum / f64::from(count), maximum });
        }
    }

    /// Computes the steps of the longer tiers that are over.
    pub fn close_steps(&mut self, now: Monotonic, anchor: &Anchor) {
        let Some((first, _)) = self.fine.steps().next() else { return };
        let begin_of_ring = anchor.wall(first).max(before(anchor.wall(now), FINE_SPAN));
        for (tier, (pending, most)) in StoredTier::ALL.into_iter().zip(self.pending.iter_mut().zip(MAX_PENDING)) {
            // Nothing older is in memory.
            let oldest = tier.index_of(begin_of_ring);
            let mut next = pending.next.unwrap_or(oldest).max(oldest);
            while next < over(tier, anchor, now) {
                let begin = anchor.monotonic(tier.begin_of(next));
                if let Some(value) = self.fine.over(begin, anchor.monotonic(tier.begin_of(next + 1))) {
                    pending.push(next, value, most);
                }
                next += 1;
            }
            pending.next = Some(next);
        }
    }

    /// The steps of a tier that wait to be written, oldest first.
    pub fn pending(&self, tier: StoredTier) -> impl Iterator<Item = HistoryStep> + '_ {
        self.pending[tier as usize].steps.iter().map(PendingStep::step)
    }

    /// Forgets the steps that wait to be written: they have been written.
    pub fn forget_pending(&mut self) {
        for pending in &mut self.pending {
            pending.steps = VecDeque::new();
        }
    }

    /// Forgets the steps of the longer tiers. Those whose values are in memory are computed again.
    pub fn forget_steps(&mut self) {
        self.pending = Default::default();
    }

    /// A tier as equal steps, from `stored` steps and those that wait; a step without a measurement is `None`. A step that is in
    /// both has its stored value.
    #[must_use]
    pub fn steps(&self, tier: StoredTier, stored: &[HistoryStep], range: Range<u64>) -> Vec<Option<StepValue>> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
        let mut steps = vec![None; length];
        for step in stored.iter().copied().chain(self.pending(tier)).filter(|step| range.contains(&step.index)) {
            let place = usize::try_from(step.index - range.start).unwrap_or(usize::MAX);
            if let Some(slot) = steps.get_mut(place) {
                slot.get_or_insert(step.value);
            }
        }
        steps
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let source = self.source.as_ref().map_or(0, |source| size_of::<SourceRate>() + source.bytes());
        let pending: usize =
            self.pending.iter().map(|pending| pending.steps.capacity() * size_of::<PendingStep>()).sum();
        self.fine.bytes() + source + pending
    }
}

impl Pending {
    #[expect(clippy::cast_possible_truncation, reason = "24 bits of a value that had 16")]
    fn push(&mut self, index: u64, value: StepValue, most: usize) {
        let Ok(index) = u32::try_from(index) else { return };
        if self.steps.len() >= most {
            self.steps.pop_front();
        }
        self.steps.push_back(PendingStep { index, mean: value.mean as f32, maximum: value.maximum as f32 });
    }
}

impl PendingStep {
    fn step(&self) -> HistoryStep {
        let value = StepValue { mean: f64::from(self.mean), maximum: f64::from(self.maximum) };
        HistoryStep { index: u64::from(self.index), value }
    }
}

/// The number of the first step of a tier that is not over, or whose readings may still come.
pub(crate) fn over(tier: StoredTier, anchor: &Anchor, now: Monotonic) -> u64 {
    tier.index_of(before(anchor.wall(now), LATE))
}

pub(crate) fn before(at: WallTime, span: Duration) -> WallTime {
    WallTime(at.0.saturating_sub(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::GpuUuid;
    use model::time::Now;
    use model::unit::Percent;
    use model::utilization::UtilizationSample;

    const SECOND: Duration = Duration::from_secs(1);

    /// 10:00:30 of some day, an hour after the start of the machine.
    fn anchor() -> Anchor {
        let wall = WallTime(1_800_000_000_000_000 / 86_400_000_000 * 86_400_000_000 + 36_030_000_000);
        Anchor::new(Now { monotonic: Monotonic(3_600_000_000_000), wall }).unwrap()
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(3_600_000_000_000).after(Duration::from_secs(seconds))
    }

    fn pending(history: &SeriesHistory, tier: StoredTier) -> Vec<(u64, f64)> {
        history.pending(tier).map(|step| (step.index % 1440, step.value.mean)).collect()
    }

    #[test]
    fn minutes_and_quarters_are_those_of_the_wall_clock_and_close_when_they_are_over() {
        let mut history = SeriesHistory::new(SECOND);
        for second in 0..=1000_u32 {
            history.add(at(u64::from(second)), f64::from(second));
            history.close_steps(at(u64::from(second)), &anchor());
        }
        let minutes = pending(&history, StoredTier::Minute);
        // From 10:00:30 to 10:17:10: the first minute has the seconds 0 to 30, and the last one that is over for 15 s is 10:15.
        assert_eq!(minutes.len(), 16);
        assert_eq!((minutes[0], minutes[1], minutes[15].0), ((600, 15.0), (601, 60.5), 615));
        assert_eq!(history.pending(StoredTier::Quarter).count(), 1, "10:00 to 10:15");
    }

    #[test]
    fn a_minute_without_a_reading_is_no_step_and_a_pause_of_hours_is_none_either() {
        let mut history = SeriesHistory::new(SECOND);
        for second in (0..100).chain(300..400).chain(90_000..90_100) {
            history.add(at(second), 1.0);
            history.close_steps(at(second), &anchor());
        }
        let minutes = pending(&history, StoredTier::Minute);
        assert!(minutes.iter().all(|(_, mean)| (*mean - 1.0).abs() < 1e-6), "{minutes:?}");
        // The last two minutes before the pause were not over for 15 s.
        assert_eq!(minutes.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [600, 601, 602, 605, 660]);
    }

    #[test]
    fn steps_that_are_never_written_are_bounded_and_the_newest_stay() {
        let mut history = SeriesHistory::new(Duration::from_secs(60));
        for minute in 0..3000 {
            history.add(at(minute * 60), 5.0);
            history.close_steps(at(minute * 60), &anchor());
        }
        assert_eq!(StoredTier::ALL.map(|tier| history.pending(tier).count()), MAX_PENDING);
        let all = history.pending(StoredTier::Minute).map(|step| step.index).collect::<Vec<_>>();
        assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1));
        let newest = all[all.len() - 1];
        let stored = [HistoryStep { index: newest, value: StepValue { mean: 9.0, maximum: 9.0 } }];
        let steps = history.steps(StoredTier::Minute, &stored, newest - 2..newest + 2);
        let means: Vec<_> = steps.iter().map(|step| step.map(|value| value.mean)).collect();
        assert_eq!(means, [Some(5.0), Some(5.0), Some(9.0), None], "what is on disk counts");
        history.forget_pending();
        assert_eq!(history.pending(StoredTier::Minute).count(), 0);
    }

    #[test]
    fn the_drivers_own_samples_replace_the_readings_of_their_seconds() {
        let mut history = SeriesHistory::new(SECOND);
        (0..20).for_each(|second| history.add(at(second), 100.0));
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        for batch in 0..4_u64 {
            let read = at(batch * 5 + 5);
            let samples = (0..20).map(|sample| UtilizationSample {
                stamp: WallTime(read.0 / 1000 - 5_000_000 + (sample + 1) * 250_000),
                percent: Percent(if sample % 2 == 0 { 20.0 } else { 40.0 }),
            });
            history.add_samples(&UtilizationSamples { gpu: gpu.clone(), read_at: read, samples: samples.collect() });
        }
        let inner: Vec<StepValue> = history.fine().steps().map(|(_, value)| value).skip(1).take(18).collect();
        assert!(inner.iter().all(|value| (value.mean, value.maximum) == (30.0, 40.0)), "{inner:?}");
    }
}
