//! What Alnair's annotations say of a GPU: whether the load of the last two minutes is cyclic, and the kind of job.
//!
//! The kind follows the use of the memory (memory-copy), as in Alnair's profiler; where that shows no cycle, the use of the GPU
//! decides about cycles.
//!
//! What must never happen here: a job from a window without a reading.

use crate::tier::Tier;
use model::id::GpuUuid;
use model::time::Monotonic;
use model::workload_profile::{GpuJob, JobKind};
use std::time::Duration;
use timeseries::{Series, find_period};

/// The window: Alnair's profiler reads two minutes.
const WINDOW: Duration = Duration::from_secs(120);
/// Looks in a row that must find a cycle before a job is cyclic, and that must find none before it is not: looks come every 30 s
/// and their windows overlap, so a single one proves little. Both together fit into the three minutes after the start of a load.
const FOUND: u32 = 2;
const NOT_FOUND: u32 = 3;
/// Two lengths that differ by less than this share are one period.
const SAME: f64 = 0.1;

/// The state of one GPU.
#[derive(Clone, Debug, Default)]
pub struct JobTracker {
    period: Option<Duration>,
    found: u32,
    not_found: u32,
    job: Option<GpuJob>,
}

impl JobTracker {
    /// Looks at the last two minutes of both quantities.
    pub fn look(&mut self, gpu: &GpuUuid, (copy, utilization): (Option<&Tier>, Option<&Tier>), now: Monotonic) {
        let windows = [copy, utilization].map(|tier| tier.and_then(|tier| window(tier, now)));
        let maxima = windows.each_ref().map(|window| window.as_ref().map(|(_, maximum)| *maximum));
        let [memory_copy_maximum, utilization_maximum] = maxima;
        let Some(highest) = memory_copy_maximum.or(utilization_maximum) else {
            *self = JobTracker::default();
            return;
        };
        if highest <= 0.0 {
            *self = JobTracker::default();
        } else {
            let loaded = windows.iter().flatten().filter_map(|(series, _)| series.as_ref());
            self.judge(loaded.filter_map(|series| Some(find_period(series).period()?.length)).next());
        }
        let period = self.period.filter(|_| self.found >= FOUND);
        let kind = match period {
            _ if highest <= 0.0 => JobKind::Empty,
            Some(_) => JobKind::Dlt,
            None => JobKind::Others,
        };
        self.job = Some(GpuJob { gpu: gpu.clone(), period, memory_copy_maximum, utilization_maximum, kind });
    }

    /// The job, once there was a look at a reading.
    #[must_use]
    pub fn job(&self) -> Option<&GpuJob> {
        self.job.as_ref()
    }

    fn judge(&mut self, period: Option<Duration>) {
        let same = |one: Duration, other: Duration| one.abs_diff(other) <= one.max(other).mul_f64(SAME);
        match (self.period, period) {
            (Some(before), Some(period)) if same(before, period) => {
                (self.period, self.found, self.not_found) = (Some(period), self.found + 1, 0);
            }
            (None, Some(period)) => (self.period, self.found, self.not_found) = (Some(period), 1, 0),
            (Some(_), other) => {
                self.not_found += 1;
                // A period that was found once gives way at once.
                if self.found < FOUND || self.not_found >= NOT_FOUND {
                    (self.period, self.found, self.not_found) = (other, u32::from(other.is_some()), 0);
                }
            }
            (None, None) => {}
        }
    }
}

/// The window of one quantity from the begin of its load, and its maximum. The series is `None` if nothing is above 0. `None`
/// without a reading.
fn window(tier: &Tier, now: Monotonic) -> Option<(Option<Series>, f64)> {
    let steps = WINDOW.as_nanos().div_ceil(tier.step().as_nanos().max(1));
    let window = tier.window(now, usize::try_from(steps).unwrap_or(usize::MAX), 2)?;
    let since = Monotonic(now.0.saturating_sub(crate::tier::nanos(WINDOW)));
    let maximum = tier.over(since, now)?.maximum;
    // The time before a load begins would hide its first cycles.
    let loaded = window.means.iter().position(|mean| mean.is_some_and(|mean| mean > 0.0));
    let series = loaded.and_then(|begin| Series::regular(window.step, window.means[begin..].iter().copied()).ok());
    Some((series, maximum))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Monotonic {
        Monotonic(7_000_000_000_000).after(Duration::from_secs(seconds))
    }

    /// A GPU that is idle, trains with cycles of 6 s from second 200 to 500, and is idle again.
    struct Played {
        copy: Tier,
        utilization: Tier,
        tracker: JobTracker,
        /// What was said at which second.
        said: Vec<(u64, JobKind, Option<Duration>)>,
    }

    fn played(copies: bool) -> Played {
        let tier = || Tier::new(SECOND, SECOND * 960);
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        let mut played = Played { copy: tier(), utilization: tier(), tracker: JobTracker::default(), said: Vec::new() };
        for second in 0..800 {
            let trains = (200..500).contains(&second);
            let (busy, copy) = match second % 6 {
                0..4 if trains => (90.0, 40.0),
                _ if trains => (10.0, 0.0),
                _ => (0.0, 0.0),
            };
            if copies {
                played.copy.add(at(second), copy);
            }
            played.utilization.add(at(second), busy);
            if second % 30 == 17 {
                let copy = copies.then_some(&played.copy);
                played.tracker.look(&gpu, (copy, Some(&played.utilization)), at(second));
                let job = played.tracker.job().unwrap();
                played.said.push((second, job.kind, job.period));
            }
        }
        played
    }

    #[test]
    fn a_cyclic_load_is_seen_within_two_and_a_half_minutes_and_an_empty_gpu_as_soon_after_it() {
        for copies in [true, false] {
            let said = played(copies).said;
            let first = said.iter().find(|(_, kind, _)| *kind == JobKind::Dlt).unwrap();
            assert!(first.0 <= 200 + 150, "{said:?}");
            let period = first.2.unwrap().as_secs_f64();
            assert!((period - 6.0).abs() < 0.3, "{period}");
            let empty = said.iter().find(|(second, kind, _)| *second > 500 && *kind == JobKind::Empty).unwrap();
            assert!(empty.0 <= 500 + 150, "{said:?}");
            assert!(said.iter().filter(|(second, ..)| *second < 200).all(|(_, kind, _)| *kind == JobKind::Empty));
            let steady = said.iter().filter(|(second, ..)| (first.0..500).contains(second));
            assert!(steady.clone().all(|(_, kind, _)| *kind == JobKind::Dlt), "{said:?}");
        }
    }

    #[test]
    fn without_a_reading_there_is_no_job() {
        let mut tracker = JobTracker::default();
        tracker.look(&GpuUuid::parse("GPU-1").unwrap(), (None, None), at(0));
        assert_eq!(tracker.job(), None);
    }

    #[test]
    fn one_look_without_a_cycle_changes_nothing() {
        let mut tracker = JobTracker::default();
        for found in [Some(6), Some(6), None, None, Some(6), None, None] {
            tracker.judge(found.map(Duration::from_secs));
        }
        assert_eq!((tracker.period, tracker.found >= FOUND), (Some(SECOND * 6), true));
        tracker.judge(None);
        assert_eq!(tracker.period, None);
        tracker.judge(Some(SECOND * 6));
        tracker.judge(Some(SECOND * 9));
        assert_eq!((tracker.period, tracker.found), (Some(SECOND * 9), 1), "one look proves nothing");
    }
}
