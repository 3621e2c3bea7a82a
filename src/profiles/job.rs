//! What Alnair's annotations say of a GPU: whether the load of the last two minutes is cyclic, and the kind of job.
//!
//! Both follow the use of the memory (memory-copy), as in Alnair's profiler. Where it is not read, they follow the use of the GPU.
//!
//! Windows of two minutes that come every 30 s overlap, and make the same error together: two in a row called 1/f noise cyclic twice
//! in five days of the bench. So a cycle is published as every other one is ([`CycleTracker`]): two windows without common data must
//! show it, or the two halves of one window that holds nine cycles.
//!
//! What must never happen here: a job from a window without a reading.

use crate::cycles::{CycleTracker, CycleWindow};
use crate::tier::{Tier, nanos};
use model::id::GpuUuid;
use model::time::{Monotonic, WallTime};
use model::workload_profile::{GpuJob, JobKind};
use std::time::Duration;
use timeseries::Series;

/// The window: Alnair's profiler reads two minutes.
pub const WINDOW: Duration = Duration::from_secs(120);

/// The state of one GPU.
#[derive(Clone, Debug, Default)]
pub struct JobTracker {
    cycles: CycleTracker,
    job: Option<GpuJob>,
}

/// The last two minutes of one quantity.
struct Window {
    /// When the load in it begins, and the values from there on; `None` if nothing is above 0.
    loaded: Option<(Monotonic, Series)>,
    maximum: f64,
}

impl JobTracker {
    /// Looks at the last two minutes of both quantities.
    pub fn look(&mut self, gpu: &GpuUuid, (copy, utilization): (Option<&Tier>, Option<&Tier>), now: Monotonic) {
        let [copy, utilization] = [copy, utilization].map(|tier| tier.and_then(|tier| Window::of(tier, now)));
        let maximum = |window: &Option<Window>| window.as_ref().map(|window| window.maximum);
        let (memory_copy_maximum, utilization_maximum) = (maximum(&copy), maximum(&utilization));
        let Some(followed) = copy.or(utilization) else {
            *self = JobTracker::default();
            return;
        };
        let is_empty = followed.maximum <= 0.0;
        match followed.loaded {
            Some((begin, series)) if !is_empty => {
                // Nobody asks since when.
                self.cycles.judge(OF, &series, Duration::from_nanos(begin.0), WallTime::default());
            }
            _ => self.cycles = CycleTracker::default(),
        }
        let period = self.cycles.period_of(OF).map(|period| period.length);
        let kind = match period {
            _ if is_empty => JobKind::Empty,
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
}

/// The windows are cut from the fine tier.
const OF: CycleWindow = CycleWindow::Fine;

impl Window {
    /// `None` without a reading.
    fn of(tier: &Tier, now: Monotonic) -> Option<Window> {
        let steps = WINDOW.as_nanos().div_ceil(tier.step().as_nanos().max(1));
        let window = tier.window(now, usize::try_from(steps).unwrap_or(usize::MAX), 2)?;
        let since = Monotonic(now.0.saturating_sub(nanos(WINDOW)));
        let maximum = tier.over(since, now)?.maximum;
        // The time before a load begins would hide its first cycles.
        let loaded = window.means.iter().position(|mean| mean.is_some_and(|mean| mean > 0.0)).and_then(|idle| {
            let before = window.step.saturating_mul(u32::try_from(idle).unwrap_or(u32::MAX));
            let series = Series::regular(window.step, window.means[idle..].iter().copied()).ok()?;
            Some((window.begin.after(before), series))
        });
        Some(Window { loaded, maximum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Monotonic {
        Monotonic(7_000_000_000_000).after(Duration::from_secs(seconds))
    }

    /// Independent numbers from 0 to 60 (a step of SplitMix64).
    fn noise(number: u64) -> f64 {
        let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        f64::from(u8::try_from((mixed ^ (mixed >> 27)) >> 56).unwrap_or(0)) * 60.0 / 255.0
    }

    /// A GPU that is idle, trains with cycles of 6 s from second 200 to 500, and is idle again.
    struct Played {
        copy: Tier,
        utilization: Tier,
        tracker: JobTracker,
        /// What was said at which second.
        said: Vec<(u64, JobKind, Option<Duration>)>,
    }

    /// `copies` gives the memory-copy utilisation of a second of training; `None` if it is not read.
    fn played(copies: Option<fn(u64) -> f64>) -> Played {
        let tier = || Tier::new(SECOND, SECOND * 960);
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        let mut played = Played { copy: tier(), utilization: tier(), tracker: JobTracker::default(), said: Vec::new() };
        for second in 0..800 {
            let trains = (200..500).contains(&second);
            let busy = if second % 6 < 4 { 90.0 } else { 10.0 };
            if let Some(copies) = copies {
                played.copy.add(at(second), if trains { copies(second) } else { 0.0 });
            }
            played.utilization.add(at(second), if trains { busy } else { 0.0 });
            if second % 30 == 17 {
                let copy = copies.map(|_| &played.copy);
                played.tracker.look(&gpu, (copy, Some(&played.utilization)), at(second));
                let job = played.tracker.job().unwrap();
                played.said.push((second, job.kind, job.period));
            }
        }
        played
    }

    #[test]
    fn a_cyclic_load_is_seen_within_two_and_a_half_minutes_and_an_empty_gpu_as_soon_after_it() {
        let cyclic: fn(u64) -> f64 = |second| if second % 6 < 4 { 40.0 } else { 0.0 };
        for copies in [Some(cyclic), None] {
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
    fn utilization_says_nothing_where_memory_copy_is_read() {
        let said = played(Some(|second| 10.0 + noise(second))).said;
        assert!(said.iter().any(|(_, kind, _)| *kind == JobKind::Others), "{said:?}");
        assert!(said.iter().all(|(_, kind, period)| *kind != JobKind::Dlt && period.is_none()), "{said:?}");
    }

    #[test]
    fn a_cycle_that_is_seen_once_is_not_published() {
        let (mut tier, mut tracker) = (Tier::new(SECOND, SECOND * 960), JobTracker::default());
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        // Two looks in a row see the same five cycles of 20 s, which are too few for two halves.
        for second in 0..400_u32 {
            let value = if second < 110 && second % 20 < 8 { 90.0 } else { noise(second.into()) / 4.0 };
            tier.add(at(second.into()), value);
            if second % 30 == 17 {
                tracker.look(&gpu, (Some(&tier), None), at(second.into()));
                assert_eq!(tracker.job().unwrap().kind, JobKind::Others, "{second}");
            }
        }
    }
}
