//! Which verdict on the cycles of a series is published. Each tier has its own verdicts, because each sees other periods: the
//! driver's own samples and seconds see short ones, minutes hours, quarters of an hour days and weeks.
//!
//! A verdict needs a second one on data that the first did not see. While nothing is published, a window that holds enough cycles for
//! two verdicts is judged in halves, so a short period is published after some ten cycles and a long one, whose data is on disk, at
//! once after a restart. What is published stays until three verdicts in a row do not agree with it, or three windows in a row have
//! no values.
//!
//! What must never happen here: a period that is published from one look at one piece of data; a verdict that stays when there are
//! no values any more.

use model::time::WallTime;
use model::workload_profile::{CyclePeriod, CycleVerdict, VerdictKind};
use std::time::Duration;
use timeseries::{Period, PeriodWatch, Published, Reason, Series, Verdict, find_period};

/// A half of a window must hold this many cycles: a verdict needs four, and the half may begin within one.
const CYCLES_OF_A_HALF: f64 = 4.5;
/// A period is too long for halves in the longest tier from this part of it. Two windows without common data would take two
/// months to find a week.
const LONG_PART: f64 = 1.0 / (2.0 * CYCLES_OF_A_HALF);
/// Windows in a row without values after which their verdicts are forgotten: as many as withdraw a verdict.
const MOST_EMPTY: u32 = 3;
/// A load that has rested for so many cycles has ended: a verdict needs as many.
const CYCLES_OF_REST: f64 = 4.0;

/// A tier with verdicts of its own, the finest one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CycleWindow {
    /// The driver's own samples of the last minutes.
    Source,
    /// Steps of a second, or of the sampling period, over 15 minutes.
    Fine,
    /// Minutes, over a day.
    Minute,
    /// Quarters of an hour, over 35 days.
    Quarter,
}

impl CycleWindow {
    const ALL: [CycleWindow; 4] = [Self::Source, Self::Fine, Self::Minute, Self::Quarter];
}

/// The verdicts on one series.
#[derive(Clone, Debug, Default)]
pub struct CycleTracker {
    windows: [Option<Box<Tracked>>; 4],
}

/// The verdicts of one tier.
#[derive(Clone, Debug, Default)]
struct Tracked {
    watch: PeriodWatch,
    /// When the published verdict was published.
    since: WallTime,
    /// Windows in a row without values.
    empty: u32,
}

impl CycleTracker {
    /// Judges a window whose first value is at `begin`, a time of a clock of the caller that does not jump. Returns the verdict on
    /// the whole window; [`CycleTracker::published`] is what may be shown.
    pub fn judge(&mut self, of: CycleWindow, series: &Series, begin: Duration, now: WallTime) -> Verdict {
        let verdict = lasting(find_period(series), series);
        let tracked = self.windows[of as usize].get_or_insert_default();
        tracked.empty = 0;
        let before = tracked.watch.published().map(meaning);
        let time = |index: usize| begin + series.step().saturating_mul(u32::try_from(index).unwrap_or(u32::MAX));
        let last = time(series.len().saturating_sub(1));
        tracked.watch.apply(&light(&verdict), begin..last);
        let parts = match verdict.period() {
            Some(period) if tracked.watch.published().is_none() => parts(of, series, period),
            _ => None,
        };
        if let Some(Parts { at, first, second }) = parts {
            let mut watch = PeriodWatch::new();
            watch.apply(&light(&first), begin..time(at.saturating_sub(1)));
            watch.apply(&light(second.as_ref().unwrap_or(&verdict)), time(at)..last);
            if watch.published().is_some() {
                // The figures are those of the whole window.
                watch.apply(&light(&verdict), begin..last);
                // Earlier verdicts on parts of this window must not delay what its two parts show.
                tracked.watch = watch;
            }
        }
        if tracked.watch.published().map(meaning) != before {
            tracked.since = now;
        }
        verdict
    }

    /// A window has no values. That is no verdict, and the third such window in a row ends what is published.
    pub fn judge_nothing(&mut self, of: CycleWindow) {
        let window = &mut self.windows[of as usize];
        if let Some(tracked) = window {
            tracked.empty += 1;
            if tracked.empty >= MOST_EMPTY {
                *window = None;
            }
        }
    }

    /// Whether a verdict on what is in memory is published.
    #[must_use]
    pub fn publishes_near(&self) -> bool {
        [CycleWindow::Source, CycleWindow::Fine].into_iter().any(|window| self.of(window).is_some())
    }

    /// The verdict to show: the shortest published period, and the other ones in its reason; without a period the verdict of the
    /// finest tier that has one.
    #[must_use]
    pub fn published(&self) -> Option<CycleVerdict> {
        let periods = self.of_all().filter_map(|(one, since)| Some((one.verdict.period()?, since)));
        let Some((shortest, since)) = periods.clone().min_by_key(|(period, _)| period.length) else {
            return self.of_all().next().map(|(one, since)| CycleVerdict {
                kind: kind(&one.verdict),
                reason: one.verdict.reason().into(),
                period: None,
                since,
            });
        };
        let longer = periods.map(|(period, _)| period.length).filter(|length| *length > shortest.length.mul_f64(1.1));
        let mut reason = Verdict::Periodic(shortest.clone()).reason();
        for length in longer {
            reason.push_str(&format!("; it also repeats every {}", text(length)));
        }
        Some(CycleVerdict {
            kind: VerdictKind::Periodic,
            reason: reason.into(),
            period: Some(CyclePeriod {
                length: shortest.length,
                shortest: shortest.interval.0,
                longest: shortest.interval.1,
                score: shortest.score,
                cycles: shortest.cycles,
            }),
            since,
        })
    }

    /// The published period of one tier.
    #[must_use]
    pub fn period_of(&self, window: CycleWindow) -> Option<&Period> {
        self.of(window)?.0.verdict.period()
    }

    /// Forgets the verdicts on the tiers on disk.
    pub fn forget_stored(&mut self) {
        for window in [CycleWindow::Minute, CycleWindow::Quarter] {
            self.windows[window as usize] = None;
        }
    }

    /// About the bytes on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // A watch keeps two verdicts, each with at most four alternatives.
        let verdict = 4 * size_of::<timeseries::Alternative>();
        self.windows.iter().flatten().count() * (size_of::<Tracked>() + 2 * verdict)
    }

    fn of_all(&self) -> impl Iterator<Item = (&Published, WallTime)> + Clone {
        CycleWindow::ALL.into_iter().filter_map(move |window| self.of(window))
    }

    fn of(&self, window: CycleWindow) -> Option<(&Published, WallTime)> {
        let tracked = self.windows[window as usize].as_ref()?;
        Some((tracked.watch.published()?, tracked.since))
    }
}

/// A window in two parts without common data.
struct Parts {
    /// The first point of the second part.
    at: usize,
    first: Verdict,
    /// `None`: the verdict on the whole window.
    second: Option<Verdict>,
}

/// Judges the window in two parts; `None` if it is too short for that, or one part has no period.
fn parts(of: CycleWindow, series: &Series, period: &Period) -> Option<Parts> {
    let cycles = series.span().as_secs_f64() / period.length.as_secs_f64();
    let points_of_a_cycle = points(series, cycles);
    if cycles >= 2.0 * CYCLES_OF_A_HALF {
        let at = series.len() / 2;
        let first = find_period(&series.slice(0..at));
        first.period()?;
        let second = find_period(&series.slice(at..series.len()));
        second.period()?;
        return Some(Parts { at, first, second: Some(second) });
    }
    let span = CycleWindow::longest();
    if of != CycleWindow::Quarter || period.length.as_secs_f64() < LONG_PART * span.as_secs_f64() {
        return None;
    }
    // Half a cycle that the first verdict does not see must not change it.
    let at = series.len().checked_sub(points_of_a_cycle / 2)?;
    let first = find_period(&series.slice(0..at));
    first.period()?;
    Some(Parts { at, first, second: None })
}

impl CycleWindow {
    /// The time that the longest tier holds.
    fn longest() -> Duration {
        use model::stored_history::StoredTier::Quarter;
        Quarter.step().saturating_mul(u32::try_from(Quarter.kept_steps()).unwrap_or(u32::MAX))
    }
}

/// The verdict on a window, in which a load that has ended has no period.
#[expect(clippy::cast_precision_loss, reason = "a number of points of a window")]
fn lasting(verdict: Verdict, series: &Series) -> Verdict {
    let Some((last, period)) = verdict.period().and_then(|period| Some((*period.starts.last()?, period))) else {
        return verdict;
    };
    let rest = series.step().as_secs_f64() * (series.len() as f64 - last) - period.length.as_secs_f64();
    if rest <= CYCLES_OF_REST * period.length.as_secs_f64() {
        return verdict;
    }
    Verdict::Aperiodic(Reason::Ended {
        period: period.length,
        before: Duration::try_from_secs_f64(rest).unwrap_or_default(),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a number of points between 0 and that of the series"
)]
fn points(series: &Series, cycles: f64) -> usize {
    (series.len() as f64 / cycles.max(1.0)) as usize
}

/// The verdict without the starts of its cycles, which no watch needs and which are the largest part of it.
fn light(verdict: &Verdict) -> Verdict {
    match verdict {
        Verdict::Periodic(period) => Verdict::Periodic(Period {
            length: period.length,
            interval: period.interval,
            score: period.score,
            cycles: period.cycles,
            starts: Vec::new(),
            alternatives: period.alternatives.clone(),
        }),
        other => other.clone(),
    }
}

fn kind(verdict: &Verdict) -> VerdictKind {
    match verdict {
        Verdict::Periodic(_) => VerdictKind::Periodic,
        Verdict::Aperiodic(_) => VerdictKind::Aperiodic,
        Verdict::Unknown(_) => VerdictKind::Unknown,
        Verdict::Unobservable(_) => VerdictKind::Unobservable,
    }
}

/// What must change so that a verdict counts as published anew.
fn meaning(published: &Published) -> (VerdictKind, Duration) {
    (kind(&published.verdict), published.since)
}

/// A length of time with two digits in its largest unit: `6.2 s`, `24 h`.
fn text(length: Duration) -> String {
    let seconds = length.as_secs_f64();
    let (number, unit) = match seconds {
        seconds if seconds < 120.0 => (seconds, "s"),
        seconds if seconds < 7_200.0 => (seconds / 60.0, "min"),
        seconds if seconds < 172_800.0 => (seconds / 3_600.0, "h"),
        seconds => (seconds / 86_400.0, "days"),
    };
    if number < 10.0 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(1);

    /// A rectangular load of this period, with a little seeded noise.
    fn load(step: Duration, period: f64, points: usize, seed: u64) -> Series {
        let mut state = seed;
        let values = (0..points).map(|point| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            #[expect(clippy::cast_precision_loss, reason = "small numbers of a test")]
            let (noise, at) = ((state >> 40) as f64 / 16_777_216.0 * 4.0, point as f64 * step.as_secs_f64());
            Some(if (at / period).fract() < 0.5 { 80.0 + noise } else { 10.0 + noise })
        });
        Series::regular(step, values).unwrap()
    }

    fn days(number: u64) -> Duration {
        Duration::from_secs(number * 86_400)
    }

    #[test]
    fn a_short_period_is_published_by_two_halves_and_with_fewer_cycles_it_waits() {
        let mut tracker = CycleTracker::default();
        tracker.judge(CycleWindow::Fine, &load(STEP, 12.0, 80, 1), Duration::ZERO, WallTime(7));
        assert_eq!(tracker.published(), None, "80 s hold fewer than nine cycles");
        tracker.judge(CycleWindow::Fine, &load(STEP, 12.0, 140, 1), Duration::ZERO, WallTime(8));
        let verdict = tracker.published().unwrap();
        let period = verdict.period.unwrap();
        assert!((period.length.as_secs_f64() - 12.0).abs() < 0.6, "{period:?}");
        assert_eq!((verdict.kind, verdict.since), (VerdictKind::Periodic, WallTime(8)));
        assert!(verdict.reason.contains("cycles"), "{}", verdict.reason);
    }

    #[test]
    fn a_period_is_withdrawn_after_three_windows_without_it() {
        let mut tracker = CycleTracker::default();
        tracker.judge(CycleWindow::Fine, &load(STEP, 12.0, 200, 1), Duration::ZERO, WallTime(1));
        let flat = Series::regular(STEP, (0..200).map(|_| Some(50.0))).unwrap();
        for round in 1..=3_u64 {
            assert!(tracker.period_of(CycleWindow::Fine).is_some(), "round {round}");
            tracker.judge(CycleWindow::Fine, &flat, Duration::from_secs(1000 * round), WallTime(1));
        }
        assert!(tracker.period_of(CycleWindow::Fine).is_none());
    }

    #[test]
    fn what_is_no_period_is_withdrawn_after_three_windows_too() {
        let mut tracker = CycleTracker::default();
        let flat = Series::regular(STEP, (0..200).map(|_| Some(50.0))).unwrap();
        for round in 0..2 {
            tracker.judge(CycleWindow::Fine, &flat, Duration::from_secs(300 * round), WallTime(1));
        }
        for round in 0..=2 {
            assert_eq!(tracker.published().unwrap().kind, VerdictKind::Aperiodic, "round {round}");
            let begin = Duration::from_secs(600 + 30 * round);
            tracker.judge(CycleWindow::Fine, &load(STEP, 12.0, 200, 1), begin, WallTime(2));
        }
        let verdict = tracker.published().unwrap();
        assert_eq!((verdict.kind, verdict.since), (VerdictKind::Periodic, WallTime(2)));
    }

    #[test]
    fn windows_without_values_say_nothing_and_the_third_ends_what_was_said() {
        let mut tracker = CycleTracker::default();
        (0..9).for_each(|_| tracker.judge_nothing(CycleWindow::Source));
        assert_eq!(tracker.published(), None);
        tracker.judge(CycleWindow::Source, &load(STEP, 12.0, 200, 1), Duration::ZERO, WallTime(1));
        for round in 0..3 {
            assert!(tracker.published().is_some() && tracker.publishes_near(), "round {round}");
            tracker.judge_nothing(CycleWindow::Source);
        }
        assert!(tracker.published().is_none() && !tracker.publishes_near());
    }

    #[test]
    fn the_figures_of_two_halves_are_those_of_the_whole_window() {
        let mut tracker = CycleTracker::default();
        tracker.judge(CycleWindow::Fine, &load(STEP, 12.0, 240, 1), Duration::ZERO, WallTime(1));
        let cycles = tracker.published().unwrap().period.unwrap().cycles;
        assert!((19..=21).contains(&cycles), "{cycles}");
    }

    #[test]
    fn a_load_that_has_ended_has_no_period() {
        let of = |rest: usize| {
            let load = (0..240).map(|second| if second % 12 < 6 { 80.0 } else { 10.0 });
            let series = Series::regular(STEP, load.chain(std::iter::repeat_n(10.0, rest)).map(Some)).unwrap();
            CycleTracker::default().judge(CycleWindow::Fine, &series, Duration::ZERO, WallTime(1))
        };
        assert!(of(30).period().is_some(), "a short rest");
        let ended = of(100);
        assert!(ended.period().is_none() && ended.reason().contains("ended"), "{ended:?}");
    }

    #[test]
    fn a_week_needs_another_half_of_a_cycle_and_a_day_two_windows() {
        let quarter = Duration::from_secs(900);
        let week = 7.0 * 86_400.0;
        let mut tracker = CycleTracker::default();
        tracker.judge(CycleWindow::Quarter, &load(quarter, week, 29 * 96, 1), Duration::ZERO, WallTime(1));
        assert_eq!(tracker.published(), None, "the first half of the fifth week is not there yet");
        tracker.judge(CycleWindow::Quarter, &load(quarter, week, 35 * 96, 1), Duration::ZERO, WallTime(1));
        let found = tracker.published().and_then(|verdict| verdict.period).unwrap().length;
        assert!(found > days(6) && found < days(8), "{found:?}");
        let mut tracker = CycleTracker::default();
        tracker.judge(CycleWindow::Quarter, &load(quarter, 86_400.0, 10 * 96, 1), Duration::ZERO, WallTime(1));
        assert!(tracker.published().is_some_and(|verdict| verdict.period.is_some()));
    }

    #[test]
    fn the_shortest_period_is_shown_and_the_longer_ones_are_in_its_reason() {
        let mut tracker = CycleTracker::default();
        let quarter = Duration::from_secs(900);
        tracker.judge(CycleWindow::Quarter, &load(quarter, 86_400.0, 12 * 96, 1), Duration::ZERO, WallTime(1));
        tracker.judge(CycleWindow::Fine, &load(STEP, 12.0, 300, 2), Duration::ZERO, WallTime(2));
        let verdict = tracker.published().unwrap();
        assert!(verdict.period.unwrap().length < Duration::from_secs(13));
        assert!(verdict.reason.ends_with("it also repeats every 24 h"), "{}", verdict.reason);
    }

    #[test]
    fn lengths_have_two_digits() {
        for (seconds, expected) in
            [(6.16, "6.2 s"), (90.0, "90 s"), (600.0, "10 min"), (86_400.0, "24 h"), (604_800.0, "7.0 days")]
        {
            assert_eq!(text(Duration::from_secs_f64(seconds)), expected);
        }
    }

    proptest::proptest! {
        /// Windows that a caller cuts badly: of any length, in any order, of any values.
        #[test]
        fn no_windows_cause_a_panic_and_a_period_needs_four_cycles(
            windows in proptest::collection::vec((0_usize..4, 0_usize..300, 1.0..90.0_f64, 0_u64..2000), 0..30),
        ) {
            let mut tracker = CycleTracker::default();
            for (of, points, period, begin) in windows {
                let of = CycleWindow::ALL[of];
                if points == 0 {
                    tracker.judge_nothing(of);
                } else {
                    tracker.judge(of, &load(STEP, period, points, begin), Duration::from_secs(begin), WallTime(begin));
                }
                let shown = tracker.published().and_then(|verdict| verdict.period);
                proptest::prop_assert!(shown.is_none_or(|shown| shown.cycles >= 4 && shown.shortest <= shown.longest));
            }
        }
    }
}
