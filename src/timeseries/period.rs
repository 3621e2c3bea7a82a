//! Whether a series repeats: the verdict, its reason, and [`find_period`].
//!
//! ```text
//!   Series ─prepare─▶ levels ─spectrum─▶ autocorrelation ─candidates─▶ lengths ─track, score─▶ choose ─▶ Verdict
//! ```
//!
//! What must never happen here: a period that was seen in fewer than four cycles, or that is shorter than four refreshes of
//! the counter.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "places in a series are small and not negative; values have variance 1, for which f32 is exact enough"
)]

mod candidates;
mod correlation;
mod counter;
mod interval;
mod score;
mod search;
mod signal;
mod track;
mod typical;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use crate::series::Series;
use crate::span_text::span_text;
use candidates::{Candidate, candidates};
use correlation::autocorrelation;
use counter::Resolution;
use interval::half_interval;
use search::{FEWEST_CYCLES, Fold, Search, needed_score};
use signal::Signal;

pub use typical::fold;

/// What is known about whether a series repeats.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It repeats.
    Periodic(Period),
    /// There were enough values, and they do not repeat.
    Aperiodic(Reason),
    /// The values do not suffice to say.
    Unknown(Reason),
    /// Whatever repeats there is too fast for the counter.
    Unobservable(Reason),
}

/// A series that repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    /// Mean length of the tracked cycles.
    pub length: Duration,
    /// 90 % interval of the load's mean length. The cycles in the series are a part of the load.
    pub interval: (Duration, Duration),
    /// How alike the cycles are: intraclass correlation, 0 to 1.
    pub score: f64,
    /// Cycles that were seen.
    pub cycles: u32,
    /// Starts of the tracked cycles in steps of the series, increasing; the first 4,096.
    pub starts: Vec<f64>,
    /// Other lengths with high scores, at most four.
    pub alternatives: Vec<Alternative>,
}

/// Another length that the series may repeat with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alternative {
    /// Mean length of its cycles.
    pub length: Duration,
    /// As [`Period::score`].
    pub score: f64,
    /// Cycles that were seen.
    pub cycles: u32,
}

/// Why a verdict is not `Periodic`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// The series is too short.
    TooFewValues {
        /// Values that are not gaps.
        measured: usize,
        /// Values that are needed.
        needed: usize,
    },
    /// Too many points are gaps.
    TooManyGaps {
        /// Share of the points that are gaps, 0 to 1.
        share: f64,
        /// Share that is allowed.
        allowed: f64,
    },
    /// All values are equal.
    Constant,
    /// No length has cycles that look alike.
    NoCandidate,
    /// The best length has cycles that differ too much.
    BestScoreTooLow {
        /// Its score.
        score: f64,
        /// The score that so many cycles need.
        needed: f64,
        /// The length.
        period: Duration,
    },
    /// It repeated, and does so no longer.
    Ended {
        /// The length of its cycles.
        period: Duration,
        /// How long ago the last cycle ended.
        before: Duration,
    },
    /// The best length was seen too few times.
    TooFewCycles {
        /// Cycles that were seen.
        cycles: f64,
        /// Their length.
        period: Duration,
    },
    /// The values change as fast as the counter can show it.
    FasterThanCounter {
        /// What of the counter is too slow.
        limit: CounterLimit,
        /// The shortest period that this counter can show.
        shortest: Duration,
    },
}

/// The larger of the window and the refresh of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterLimit {
    /// It averages over this time.
    Window(Duration),
    /// It changes its value at most once in this time.
    Refresh(Duration),
}

/// Lower quartile, median and upper quartile of the values at one phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quartiles {
    /// A quarter of the values are smaller.
    pub lower: f64,
    /// Half of the values are smaller.
    pub median: f64,
    /// A quarter of the values are larger.
    pub upper: f64,
}

impl Verdict {
    /// `periodic`, `aperiodic`, `unknown` or `unobservable`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Periodic(_) => "periodic",
            Self::Aperiodic(_) => "aperiodic",
            Self::Unknown(_) => "unknown",
            Self::Unobservable(_) => "unobservable",
        }
    }

    /// The period, if the series has one.
    #[must_use]
    pub fn period(&self) -> Option<&Period> {
        match self {
            Self::Periodic(period) => Some(period),
            Self::Aperiodic(_) | Self::Unknown(_) | Self::Unobservable(_) => None,
        }
    }

    /// One sentence that gives the cause of the verdict.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Periodic(period) => {
                let length = span_text(period.length);
                format!("{} cycles of {length} look alike (score {:.2})", period.cycles, period.score)
            }
            Self::Aperiodic(reason) | Self::Unknown(reason) | Self::Unobservable(reason) => reason.to_string(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewValues { measured, needed } => {
                write!(to, "{measured} values are too few, at least {needed} are needed")
            }
            Self::TooManyGaps { share, allowed } => {
                write!(to, "{:.0} % of the points are gaps, at most {:.0} % may be", share * 100.0, allowed * 100.0)
            }
            Self::Constant => write!(to, "all values are equal"),
            Self::NoCandidate => write!(to, "no length has cycles that look alike"),
            Self::BestScoreTooLow { score, needed, period } => {
                write!(
                    to,
                    "cycles of {} are the best, but differ too much (score {score:.2}, needed {needed:.2})",
                    span_text(*period)
                )
            }
            Self::Ended { period, before } => {
                write!(to, "cycles of {} ended {} before the last value", span_text(*period), span_text(*before))
            }
            Self::TooFewCycles { cycles, period } => {
                write!(to, "only {cycles:.1} cycles of {} were seen, at least 4 are needed", span_text(*period))
            }
            Self::FasterThanCounter { limit, shortest } => {
                match limit {
                    CounterLimit::Window(window) => write!(to, "the counter averages over {}", span_text(*window))?,
                    CounterLimit::Refresh(refresh) => {
                        write!(to, "the counter is refreshed every {}", span_text(*refresh))?
                    }
                }
                write!(to, ", so it cannot show a period below {}", span_text(*shortest))
            }
        }
    }
}

/// Values that are needed: four cycles of four samples.
const FEWEST_VALUES: usize = 16;

/// A series with more gaps is not judged: the shortest cycle has four samples, and so many gaps take less than one of them on average.
const MOST_GAPS: f64 = 0.2;

/// Longest candidate, as a share of the series: a quarter, and a little more because cycles vary.
const LONGEST: f64 = 0.27;

/// A longer candidate is only reported as seen too few times, and only up to this share of the series.
const LONGEST_REPORTED: f64 = 0.4;

/// The minima beside a maximum are looked for up to this many times its lag.
const BESIDE: f64 = 1.6;

/// A maximum of the autocorrelation that stands out so much is a reason for a report of its own, although it cannot be folded.
const PROMINENT: f32 = 0.5;

/// Below this share of the needed score the cycles are not alike at all; above it, nobody can say. Ten cycles need 0.53, so they are
/// not alike if their common shape explains less than 26 % of the variance.
const CLEARLY_LOW: f64 = 0.5;

/// A period may be so much shorter than the counter shows: the rounding of its length.
const ROUNDING: f64 = 0.97;

/// A multiple of a fast cycle may be off by this share of the fast cycle: the error of its length in samples.
const NEARLY_MULTIPLE: f64 = 0.1;

/// Values that differ by at most this share of the whole range are one level: a counter in whole percent that changes by one, beside a
/// load of 50 %.
const STILL: f64 = 0.02;

/// A rest at an end of a series that is so many times as long as the longest one within it is no part of a cycle: among cycles that
/// vary by 15 %, hardly one is twice as long as the second longest.
const LONGER_REST: f64 = 2.0;

/// Tracked starts that a [`Period`] keeps at most: 32 KiB. A picture cannot show more.
const MOST_STARTS: usize = 4096;

/// Alternatives at most: day, week, and two by chance.
const MOST_ALTERNATIVES: usize = 4;

/// Looks for the period of a series. Takes O(n log n) time. The time before a load begins and after it has ended does not count:
/// whether cycles reach the end of the series follows from their starts.
#[must_use]
pub fn find_period(series: &Series) -> Verdict {
    let loaded = loaded(series.values());
    if loaded.len() == series.len() {
        return judge(series);
    }
    let mut verdict = judge(&series.slice(loaded.clone()));
    if let Verdict::Periodic(period) = &mut verdict {
        period.starts.iter_mut().for_each(|start| *start += loaded.start as f64);
    }
    verdict
}

/// The points without those before a load begins and after it has ended.
fn loaded(values: &[f64]) -> Range<usize> {
    let (low, high) = values
        .iter()
        .filter(|value| !value.is_nan())
        .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    let still = STILL * (high - low);
    let is_at = |level: f64, value: f64| (value - level).abs() <= still;
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return 0..0 };
    let head = values.iter().take_while(|value| is_at(*first, **value)).count();
    let tail = values[head..].iter().rev().take_while(|value| is_at(*last, **value)).count();
    let load = &values[head..values.len() - tail];
    // A rest at an end is no part of a cycle if it is a large part of the series, or many more than stay at its level elsewhere.
    let is_no_part = |rest: usize, level: f64| {
        let runs = load.chunk_by(|one, other| is_at(level, *one) == is_at(level, *other));
        let rests = runs.filter(|run| run.first().is_some_and(|value| is_at(level, *value)));
        let longest = rests.map(<[f64]>::len).max().unwrap_or(0);
        let is_odd = rest >= FEWEST_VALUES && rest as f64 > LONGER_REST * longest as f64;
        load.len() >= FEWEST_VALUES && (is_odd || rest as f64 > LONGEST * values.len() as f64)
    };
    let begin = if is_no_part(head, *first) { head } else { 0 };
    let end = if is_no_part(tail, *last) { values.len() - tail } else { values.len() };
    begin..end
}

fn judge(series: &Series) -> Verdict {
    let resolution = Resolution::of(series);
    if let Some(reason) = unfit(series, resolution) {
        return Verdict::Unknown(reason);
    }
    let Some(signal) = Signal::of(series.values()) else {
        return Verdict::Aperiodic(Reason::Constant);
    };
    let points = series.len() as f64;
    let longest = points * LONGEST_REPORTED;
    let correlation = autocorrelation(signal.finest(), (longest * BESIDE) as usize);
    let found = candidates(&correlation, longest as usize);
    let mut search = Search::new(&signal);
    let folds = search.choose(&found, &foldable(series, resolution));
    match folds.split_first() {
        Some((best, others)) if best.score >= needed_score(best.cycles) && !is_hidden(&found, best, resolution) => {
            Verdict::Periodic(period(series.step(), &mut search, best, others))
        }
        _ => refused(series, resolution, &found, folds.first()),
    }
}

/// Whether the fold is only the multiple of a cycle that is too fast for the counter.
fn is_hidden(found: &[Candidate], best: &Fold, resolution: Resolution) -> bool {
    let shortest = ROUNDING * resolution.shortest_period();
    found.iter().filter(|one| one.length < shortest && one.prominence >= PROMINENT).any(|fast| {
        let ratio = best.length / fast.length;
        (ratio - ratio.round()).abs() <= NEARLY_MULTIPLE
    })
}

/// Why the series cannot be judged, if that is so.
fn unfit(series: &Series, resolution: Resolution) -> Option<Reason> {
    let (points, measured) = (series.len() as f64, series.measured());
    let share = 1.0 - measured as f64 / points;
    let needed = (FEWEST_CYCLES as f64 * resolution.shortest_period()).max(FEWEST_VALUES as f64);
    if measured < FEWEST_VALUES || points < needed {
        return Some(Reason::TooFewValues { measured, needed: needed.ceil() as usize });
    }
    (share > MOST_GAPS).then_some(Reason::TooManyGaps { share, allowed: MOST_GAPS })
}

/// Lengths in samples that the counter can show and that the series contains often enough.
fn foldable(series: &Series, resolution: Resolution) -> RangeInclusive<f64> {
    ROUNDING * resolution.shortest_period()..=LONGEST * series.len() as f64
}

/// The verdict when the best fold, if there is one, is not good enough.
fn refused(series: &Series, resolution: Resolution, found: &[Candidate], best: Option<&Fold>) -> Verdict {
    let time = |samples: f64| in_steps(series.step(), samples);
    let lengths = foldable(series, resolution);
    let mut prominent = found.iter().filter(|candidate| candidate.prominence >= PROMINENT);
    if resolution.repeats || prominent.clone().any(|candidate| candidate.length < *lengths.start()) {
        let (limit, shortest) = (resolution.limit(time), time(resolution.shortest_period()));
        return Verdict::Unobservable(Reason::FasterThanCounter { limit, shortest });
    }
    if let Some(long) = prominent.find(|candidate| candidate.length > *lengths.end()) {
        let cycles = series.len() as f64 / long.length;
        return Verdict::Unknown(Reason::TooFewCycles { cycles, period: time(long.length) });
    }
    let Some(Fold { length, score, cycles, .. }) = best else {
        return Verdict::Aperiodic(Reason::NoCandidate);
    };
    let needed = needed_score(*cycles);
    let reason = Reason::BestScoreTooLow { score: *score, needed, period: time(*length) };
    if *score < CLEARLY_LOW * needed { Verdict::Aperiodic(reason) } else { Verdict::Unknown(reason) }
}

fn period(step: Duration, search: &mut Search<'_>, best: &Fold, others: &[Fold]) -> Period {
    let starts = search.starts(best);
    let half = half_interval(&starts, best.length);
    let cycles = |fold: &Fold| u32::try_from(fold.cycles).unwrap_or(u32::MAX);
    let alternatives = others.iter().filter(|other| other.score >= needed_score(other.cycles)).take(MOST_ALTERNATIVES);
    Period {
        length: in_steps(step, best.length),
        interval: (in_steps(step, best.length - half), in_steps(step, best.length + half)),
        score: best.score,
        cycles: cycles(best),
        starts: starts.iter().take(MOST_STARTS).map(|start| start.at).collect(),
        alternatives: alternatives
            .map(|other| Alternative {
                length: in_steps(step, other.length),
                score: other.score,
                cycles: cycles(other),
            })
            .collect(),
    }
}

/// A number of steps as a time, without overflow.
fn in_steps(step: Duration, steps: f64) -> Duration {
    Duration::try_from_secs_f64((step.as_secs_f64() * steps).max(0.0)).unwrap_or(Duration::MAX)
}
