//! The answer to a question about a history: which tier has it, and its points.
//!
//! What must never happen here: more than [`MAX_HISTORY_POINTS`] points; a point for a time without a measurement.

use crate::anchor::Anchor;
use crate::history::{FINE_SPAN, before, over};
use crate::recorder::{Recorder, StoredRange};
use crate::source_rate::SOURCE_SPAN;
use crate::subject::SubjectSeries;
use crate::tier::nanos;
use model::stored_history::{HistoryKey, HistoryStep, StepValue, StoredTier};
use model::time::{Now, WallTime};
use model::workload_profile::{HistoryAnswer, HistoryPoint, HistoryQuery, MAX_HISTORY_POINTS};
use std::time::Duration;

/// Where the points of an answer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnsweringTier {
    /// NVML's own samples.
    Source,
    /// The steps in memory.
    Fine,
    /// The steps on disk.
    Stored(StoredTier),
}

/// How a question will be answered.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryPlan {
    /// The steps on disk that the answer needs.
    pub stored: Option<StoredRange>,
    key: HistoryKey,
    tier: AnsweringTier,
    /// The step of the tier.
    step: Duration,
    /// Number of steps of the tier that make one point.
    factor: u64,
    from: WallTime,
}

impl Recorder {
    /// Chooses the tier for a question. Of the tiers that reach back to the begin, it is the coarsest one whose step is not longer
    /// than the wanted one. Where all are coarser than that, and where no step is wanted, it is the finest of them. If no tier
    /// reaches back so far, it is the longest one. Without a begin and a step, these are the steps in memory.
    #[must_use]
    pub fn plan(&self, query: &HistoryQuery, now: Now) -> HistoryPlan {
        let key = HistoryKey { subject: query.subject.clone(), quantity: query.quantity };
        let series = self.series_of(&key);
        let wall = self.anchor.map_or(now.wall, |anchor| anchor.wall(now.monotonic));
        let tiers = tiers(series);
        // The wall clock of the question may have been set since the clocks were tied.
        let age = query.from.map(|from| now.wall.since(from));
        let reaches = |span: Duration| age.is_none_or(|age| age <= span);
        // The driver's own samples are an answer only to a question about them.
        let samples = query.step.is_some_and(|wanted| wanted < self.shortest_step());
        let asked = |tier: AnsweringTier| samples || tier != AnsweringTier::Source;
        let reaching = || tiers.iter().filter(move |(tier, _, span)| asked(*tier) && reaches(*span));
        // With a step, the coarsest tier that is fine enough has the longest history and needs the least work.
        let coarsest = query.step.and_then(|wanted| reaching().rev().find(|(_, step, _)| *step <= wanted));
        let fallback = (AnsweringTier::Stored(StoredTier::Quarter), StoredTier::Quarter.step(), Duration::MAX);
        // A begin that is missing in the answer would look like a time without a measurement.
        let (tier, step, _) = *coarsest.or_else(|| reaching().next()).or(tiers.last()).unwrap_or(&fallback);
        let factor = query.step.map_or(1, |wanted| nanos(wanted) / nanos(step).max(1)).max(1);
        let from = age.map(|age| before(wall, age)).unwrap_or_default();
        let stored = match (tier, self.anchor) {
            (AnsweringTier::Stored(tier), Some(anchor)) => Some(stored_range(&key, tier, (from, &anchor), now)),
            _ => None,
        };
        HistoryPlan { stored, key, tier, step, factor, from }
    }

    /// The answer, with the steps of [`HistoryPlan::stored`]. `None` if no history of the series is kept.
    #[must_use]
    pub fn answer(&self, plan: &HistoryPlan, stored: &[HistoryStep], now: Now) -> Option<HistoryAnswer> {
        let series = self.series_of(&plan.key);
        if series.is_none() && stored.is_empty() {
            return None;
        }
        let anchor = self.anchor.or_else(|| Anchor::new(now));
        let wall = |at| anchor.map_or_else(|| now.wall_of(at), |anchor| anchor.wall(at));
        let points: Vec<(WallTime, StepValue)> = match plan.tier {
            AnsweringTier::Source => {
                let source = series.and_then(|series| series.history.source());
                let of = |percent| StepValue { mean: percent, maximum: percent };
                source
                    .into_iter()
                    .flat_map(|source| source.samples())
                    .map(|(at, percent)| (wall(at), of(percent)))
                    .collect()
            }
            AnsweringTier::Fine => series
                .into_iter()
                .flat_map(|series| series.history.fine().steps())
                .map(|(at, value)| (wall(at), value))
                .collect(),
            AnsweringTier::Stored(tier) => {
                let range = plan.stored.as_ref().map_or(0..0, |range| range.steps.clone());
                let steps = match series {
                    Some(series) => series.history.steps(tier, stored, range.clone()),
                    None => crate::history::SeriesHistory::new(tier.step()).steps(tier, stored, range.clone()),
                };
                let steps = range.zip(steps).filter_map(|(index, value)| Some((tier.begin_of(index), value?)));
                steps.collect()
            }
        };
        let points = points.into_iter().filter(|(at, _)| *at >= plan.from);
        let step = plan.step.saturating_mul(u32::try_from(plan.factor).unwrap_or(u32::MAX));
        let mut points = grouped(points, plan.factor, step);
        let beyond = points.len().saturating_sub(MAX_HISTORY_POINTS);
        points.drain(..beyond);
        Some(HistoryAnswer { step, points })
    }

    fn series_of(&self, key: &HistoryKey) -> Option<&SubjectSeries> {
        self.subjects.get(&key.subject)?.of(key.quantity)
    }

    fn shortest_step(&self) -> Duration {
        self.subjects
            .values()
            .flat_map(|state| &state.series)
            .map(|series| series.history.fine().step())
            .min()
            .unwrap_or(Duration::MAX)
    }
}

/// The tiers of a series, finest first: each with its step and the time that it holds.
fn tiers(series: Option<&SubjectSeries>) -> Vec<(AnsweringTier, Duration, Duration)> {
    let mut tiers = Vec::new();
    if let Some(series) = series {
        if let Some(usual) = series.history.source().and_then(|source| source.newest().1) {
            tiers.push((AnsweringTier::Source, usual, SOURCE_SPAN));
        }
        tiers.push((AnsweringTier::Fine, series.history.fine().step(), FINE_SPAN));
    }
    for tier in StoredTier::ALL {
        let span = tier.step().saturating_mul(u32::try_from(tier.kept_steps()).unwrap_or(u32::MAX));
        tiers.push((AnsweringTier::Stored(tier), tier.step(), span));
    }
    tiers
}

fn stored_range(key: &HistoryKey, tier: StoredTier, (from, anchor): (WallTime, &Anchor), now: Now) -> StoredRange {
    let end = over(tier, anchor, now.monotonic);
    let begin = tier.index_of(from).max(end.saturating_sub(tier.kept_steps())).min(end);
    StoredRange { key: key.clone(), tier, steps: begin..end }
}

/// Points of `factor` steps each: the mean of the means and the maximum of the maxima.
fn grouped(points: impl Iterator<Item = (WallTime, StepValue)>, factor: u64, step: Duration) -> Vec<HistoryPoint> {
    let micros = u64::try_from(step.as_micros()).unwrap_or(u64::MAX).max(1);
    let mut grouped: Vec<(HistoryPoint, u32)> = Vec::new();
    for (at, StepValue { mean, maximum }) in points {
        let at = if factor == 1 { at } else { WallTime(at.0 / micros * micros) };
        match grouped.last_mut() {
            Some((point, count)) if point.at == at => {
                // The sum, until all steps are in.
                point.mean += mean;
                point.maximum = point.maximum.max(maximum);
                *count += 1;
            }
            _ => grouped.push((HistoryPoint { at, mean, maximum }, 1)),
        }
    }
    grouped.into_iter().map(|(point, count)| HistoryPoint { mean: point.mean / f64::from(count), ..point }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Periods, RecorderEvent};
    use model::Reading;
    use model::gpu::GpuSample;
    use model::id::GpuUuid;
    use model::time::Monotonic;
    use model::unit::Percent;
    use model::workload_profile::{ProfiledQuantity, ProfiledSubject};
    use proptest::prelude::Strategy;

    const SECOND: Duration = Duration::from_secs(1);

    fn now(second: u64) -> Now {
        Now {
            monotonic: Monotonic(5_000_000_000_000 + second * 1_000_000_000),
            wall: WallTime(1_800_000_000_000_000 + second * 1_000_000),
        }
    }

    fn query(from: Option<WallTime>, step: Option<Duration>) -> HistoryQuery {
        let subject = ProfiledSubject::Gpu(GpuUuid::parse("GPU-1").unwrap());
        HistoryQuery { subject, quantity: ProfiledQuantity::Utilization, from, step }
    }

    /// A GPU with the value of each second of 20 minutes.
    fn recorder() -> Recorder {
        let periods = Periods { period: SECOND, slow: SECOND * 5, lists: SECOND * 5 };
        let mut recorder = Recorder::new(periods, Anchor::new(now(0)));
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        for second in 0..1200_u32 {
            let now = now(second.into()).monotonic;
            let utilization = Reading::Measured(Percent(f64::from(second)), now);
            let sample = GpuSample { utilization, ..GpuSample::default() };
            recorder.apply(RecorderEvent::Gpu(&gpu, &sample), now);
            recorder.close_steps(now);
        }
        recorder
    }

    fn asked(recorder: &Recorder, query: &HistoryQuery) -> HistoryAnswer {
        recorder.answer(&recorder.plan(query, now(1200)), &[], now(1200)).unwrap()
    }

    #[test]
    fn the_tier_follows_from_the_begin_and_the_step() {
        let recorder = recorder();
        let ago = |seconds: u64| {
            Some(WallTime(now(1200 - seconds.min(1200)).wall.0 - seconds.saturating_sub(1200) * 1_000_000))
        };
        for (from, step, expected) in [
            (None, None, 1),
            (ago(60), None, 1),
            (ago(1100), None, 60),
            (ago(100_000), None, 900),
            (Some(WallTime(0)), None, 900),
            (None, Some(SECOND), 1),
            (None, Some(SECOND * 10), 10),
            (None, Some(SECOND * 60), 60),
            (None, Some(SECOND * 90), 60),
            (None, Some(SECOND * 3600), 3600),
            (Some(WallTime(u64::MAX)), Some(SECOND * 7), 7),
            (None, Some(Duration::from_millis(1)), 1),
            (None, Some(Duration::MAX), u64::MAX),
            // No tier is so fine so far back: the answer is coarser, and does not begin later.
            (ago(3_600), Some(SECOND), 60),
            (ago(7 * 86_400), Some(SECOND * 600), 900),
            (ago(34 * 86_400), Some(SECOND * 840), 900),
            (Some(WallTime(0)), Some(SECOND), 900),
        ] {
            let step_of_answer = asked(&recorder, &query(from, step)).step;
            let expected = if expected == u64::MAX { step_of_answer } else { Duration::from_secs(expected) };
            assert_eq!(step_of_answer, expected, "{from:?} {step:?}");
        }
    }

    #[test]
    fn points_are_means_and_maxima_in_order_and_bounded() {
        let recorder = recorder();
        let fine = asked(&recorder, &query(Some(now(1100).wall), None));
        assert_eq!(fine.points.len(), 99, "from the first whole step");
        assert!(fine.points.windows(2).all(|pair| pair[0].at < pair[1].at));
        let tens = asked(&recorder, &query(None, Some(SECOND * 10)));
        let inner = &tens.points[5..20];
        assert!(inner.iter().all(|point| (point.maximum - point.mean - 4.5).abs() < 0.01), "{inner:?}");
        let minutes = asked(&recorder, &query(None, Some(SECOND * 60)));
        assert_eq!(
            minutes.points.len(),
            20,
            "the first reading is in the minute before, and the last minute is not over for 15 s"
        );
        for query in [query(None, None), query(Some(WallTime(0)), Some(SECOND))] {
            assert!(asked(&recorder, &query).points.len() <= MAX_HISTORY_POINTS);
        }
        let nothing = asked(&recorder, &query(Some(WallTime(u64::MAX)), None));
        assert!(nothing.points.is_empty());
    }

    /// Promise 24 in docs/specification.md.
    #[test]
    fn a_question_after_a_jump_of_the_clock_has_the_same_answer_as_without_it() {
        let recorder = recorder();
        let asked_after = |jump: i64, step: Option<Duration>| {
            let set = |at: WallTime| WallTime(at.0.saturating_add_signed(jump));
            let now = Now { wall: set(now(1200).wall), ..now(1200) };
            let query = query(Some(set(self::now(1200 - 300).wall)), step);
            recorder.answer(&recorder.plan(&query, now), &[], now).unwrap()
        };
        for step in [SECOND, SECOND * 10, SECOND * 60].map(Some).into_iter().chain([None]) {
            let usual = asked_after(0, step);
            assert!(usual.points.len() >= 4, "{usual:?}");
            for jump in [3_600_000_000, -3_600_000_000] {
                assert_eq!(asked_after(jump, step), usual, "{jump} {step:?}");
            }
        }
    }

    #[test]
    fn a_series_that_is_gone_is_answered_from_disk_and_an_unknown_one_is_not() {
        let periods = Periods { period: SECOND, slow: SECOND, lists: SECOND };
        let recorder = Recorder::new(periods, Anchor::new(now(0)));
        let plan = recorder.plan(&query(None, Some(SECOND * 60)), now(1200));
        let range = plan.stored.clone().unwrap();
        assert_eq!((range.tier, range.steps.end - range.steps.start), (StoredTier::Minute, 1440));
        assert_eq!(recorder.answer(&plan, &[], now(1200)), None);
        let value = StepValue { mean: 3.0, maximum: 4.0 };
        let stored = [HistoryStep { index: range.steps.start + 7, value }];
        let answer = recorder.answer(&plan, &stored, now(1200)).unwrap();
        let at = StoredTier::Minute.begin_of(range.steps.start + 7);
        assert_eq!(answer.points, [HistoryPoint { at, mean: 3.0, maximum: 4.0 }]);
    }

    proptest::proptest! {
        #[test]
        fn no_question_has_more_points_than_the_bound_or_points_out_of_order(
            from in proptest::option::of(proptest::prop_oneof![
                proptest::prelude::any::<u64>(),
                (0_u64..4_000_000).prop_map(|ago| 1_800_001_200_000_000 - ago * 1_000_000),
            ]),
            step in proptest::option::of(proptest::prop_oneof![0..u64::MAX, 0_u64..10_000_000_000_000]),
        ) {
            let recorder = recorder();
            let query = query(from.map(WallTime), step.map(Duration::from_nanos));
            let plan = recorder.plan(&query, now(1200));
            let value = StepValue { mean: 3.0, maximum: 4.0 };
            let stored: Vec<HistoryStep> = plan.stored.iter().flat_map(|range| range.steps.clone())
                .map(|index| HistoryStep { index, value }).collect();
            proptest::prop_assert!(stored.len() <= MAX_HISTORY_POINTS);
            let answer = recorder.answer(&plan, &stored, now(1200)).unwrap();
            proptest::prop_assert!(answer.points.len() <= MAX_HISTORY_POINTS && !answer.step.is_zero());
            proptest::prop_assert!(answer.points.windows(2).all(|pair| pair[0].at < pair[1].at));
        }
    }
}
