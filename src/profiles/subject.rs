//! One GPU, MIG instance or pod with its series.

use crate::analysis::{Analyzed, Findings};
use crate::cycles::CycleTracker;
use crate::history::SeriesHistory;
use crate::job::JobTracker;
use crate::schedule::DueTimes;
use crate::tier::{Tier, nanos};
use model::id::PodRef;
use model::time::{Monotonic, Now};
use model::unit::Nanos;
use model::usage::Rated;
use model::workload_profile::{MAX_RECENT, ProfiledQuantity, ProfiledSubject, WorkloadProfile};
use std::time::Duration;
use timeseries::Counter;

/// Time that `recent` shows of a load without a period, and the number of cycles of one with a period.
const RECENT_SPAN: Duration = Duration::from_secs(900);
const RECENT_CYCLES: u32 = 4;
/// A series without a value for so many steps has ended: a reading may come late, and one or two may fail.
const STEPS_TO_END: u32 = 4;

/// How often a quantity is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cadence {
    /// Each sampling period.
    Period,
    /// Each slow period.
    Slow,
    /// With each process list. The driver averages over the time between two lists.
    Lists,
}

/// A subject.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    /// The name of a pod.
    pub(crate) pod: Option<PodRef>,
    /// Ordered by quantity; each begins with its first value.
    pub(crate) series: Vec<SubjectSeries>,
    /// Of a whole GPU.
    pub(crate) job: JobTracker,
    /// CPU time of a pod.
    pub(crate) cpu: Rated<Nanos>,
    /// Whether the newest pass over the cgroups has the pod.
    pub(crate) in_pass: bool,
    /// Whether the newest view has the subject.
    pub(crate) in_view: bool,
    /// When the newest value of any series was measured.
    pub(crate) newest: Monotonic,
}

/// One series of a subject.
#[derive(Debug)]
pub(crate) struct SubjectSeries {
    pub(crate) quantity: ProfiledQuantity,
    pub(crate) history: SeriesHistory,
    pub(crate) due: DueTimes,
    /// Whether a value has changed since the last analysis.
    pub(crate) changed: bool,
    cadence: Cadence,
    cycles: CycleTracker,
    findings: Findings,
    /// The newest value, and when it was measured.
    last: Option<(Monotonic, f64)>,
}

impl Subject {
    /// The series of a quantity.
    pub(crate) fn of(&self, quantity: ProfiledQuantity) -> Option<&SubjectSeries> {
        self.series.iter().find(|series| series.quantity == quantity)
    }

    /// The series of a quantity, to change it.
    pub(crate) fn of_mut(&mut self, quantity: ProfiledQuantity) -> Option<&mut SubjectSeries> {
        self.series.iter_mut().find(|series| series.quantity == quantity)
    }

    /// Adds a series without values.
    pub(crate) fn begin(&mut self, quantity: ProfiledQuantity, (cadence, step): (Cadence, Duration), due: DueTimes) {
        self.series.push(SubjectSeries {
            quantity,
            history: SeriesHistory::new(step),
            due,
            changed: true,
            cadence,
            cycles: CycleTracker::default(),
            findings: Findings::default(),
            last: None,
        });
        self.series.sort_by_key(|series| series.quantity);
    }

    /// The profiles of the series that were analysed.
    pub(crate) fn profiles<'a>(
        &'a self,
        subject: &'a ProfiledSubject,
        now: Now,
    ) -> impl Iterator<Item = WorkloadProfile> + 'a {
        self.series.iter().filter_map(move |series| series.profile(subject, self.pod.as_ref(), now))
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        let own = self.series.capacity() * size_of::<SubjectSeries>();
        own + self.series.iter().map(|series| series.history.bytes() + series.cycles.bytes()).sum::<usize>()
    }
}

impl SubjectSeries {
    /// Adds a reading. A reading that was added before is left out.
    pub(crate) fn add(&mut self, at: Monotonic, value: f64) {
        if self.last.is_some_and(|(last, _)| at <= last) {
            return;
        }
        self.changed |= self.last.is_none_or(|(_, last)| last.total_cmp(&value).is_ne());
        self.last = Some((at, value));
        self.history.add(at, value);
    }

    /// Whether no value has come for a while, and what is shown still follows from those before.
    pub(crate) fn outlives_its_values(&self, now: Monotonic) -> bool {
        let newest = self.last.map_or(Monotonic(0), |(at, _)| at);
        let has_ended = now.since(newest) > self.history.fine().step().saturating_mul(STEPS_TO_END);
        has_ended && (self.findings.says_near() || self.cycles.publishes_near())
    }

    /// Forgets what has times of the wall clock: the steps that wait, and the verdicts on the tiers on disk.
    pub(crate) fn forget_steps(&mut self) {
        self.history.forget_steps();
        self.cycles.forget_stored();
    }

    /// The series with what is known of its counter.
    pub(crate) fn analyzed(&mut self) -> Analyzed<'_> {
        let step = Some(self.history.fine().step());
        let counter = match self.cadence {
            // The library measures how fast the values change: what a driver does differs from GPU to GPU.
            Cadence::Period => Counter::default(),
            Cadence::Slow => Counter { window: None, refresh: step },
            Cadence::Lists => Counter { window: step, refresh: step },
        };
        Analyzed {
            quantity: self.quantity,
            counter,
            history: &self.history,
            cycles: &mut self.cycles,
            findings: &mut self.findings,
        }
    }

    fn profile(&self, subject: &ProfiledSubject, pod: Option<&PodRef>, now: Now) -> Option<WorkloadProfile> {
        let analyzed_at = self.findings.analyzed_at?;
        let cycles = self.cycles.published();
        let period = cycles.as_ref().and_then(|cycles| cycles.period.as_ref()).map(|period| period.length);
        let (recent, recent_step) = recent(self.history.fine(), period, now.monotonic);
        Some(WorkloadProfile {
            subject: subject.clone(),
            pod: pod.cloned(),
            quantity: self.quantity,
            cycles,
            analyzed_at,
            hour_analyzed_at: self.findings.hour_analyzed_at,
            trend: self.findings.trend(),
            leak_per_hour: self.findings.leak_per_hour(),
            forecasts: self.findings.forecasts(),
            next_hour_maximum: self.findings.next_hour_maximum(),
            recent,
            recent_step,
        })
    }
}

/// The last values for a sparkline: some cycles of a load with a short period, else a quarter of an hour.
#[expect(clippy::cast_possible_truncation, reason = "a picture of some characters")]
fn recent(fine: &Tier, period: Option<Duration>, now: Monotonic) -> (Vec<Option<f32>>, Duration) {
    let span = period.map_or(RECENT_SPAN, |period| period.saturating_mul(RECENT_CYCLES)).min(RECENT_SPAN);
    let steps = usize::try_from(nanos(span) / nanos(fine.step()).max(1)).unwrap_or(usize::MAX);
    let width = steps.div_ceil(MAX_RECENT).max(1);
    let step = fine.step().saturating_mul(u32::try_from(width).unwrap_or(u32::MAX));
    let Some(window) = fine.window(now, width.saturating_mul(MAX_RECENT), 2) else { return (Vec::new(), step) };
    let whole = window.means.len() - window.means.len() % width;
    let means = window.means[window.means.len() - whole..].chunks(width).map(|chunk| {
        let (sum, count) = chunk.iter().flatten().fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
        (count > 0).then(|| (sum / f64::from(count)) as f32)
    });
    (means.collect(), step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_values_show_some_cycles_of_a_short_period_and_else_a_quarter_of_an_hour() {
        let second = Duration::from_secs(1);
        let at = |second: u64| Monotonic(9_000_000_000_000 + second * 1_000_000_000);
        let mut fine = Tier::new(second, second * 960);
        for number in (0..500).chain(700..960_u32) {
            fine.add(at(number.into()), f64::from(number % 10));
        }
        let (recent_values, step) = recent(&fine, None, at(960));
        assert_eq!((recent_values.len(), step), (40, second * 23));
        assert!(recent_values.iter().filter(|value| value.is_none()).count() >= 7, "a gap stays a gap");
        let (recent_values, step) = recent(&fine, Some(second * 10), at(960));
        assert_eq!((recent_values.len(), step), (40, second));
        assert!(recent_values.windows(11).all(|values| values[0] == values[10]), "{recent_values:?}");
        let (recent_values, step) = recent(&fine, Some(second * 86_400), at(960));
        assert_eq!((recent_values.len(), step), (40, second * 23));
        assert!(recent(&Tier::new(second, second), None, at(0)).0.is_empty());
    }
}
