//! Which verdict on a series that grows may be published.
//!
//! One window of random load in some hundred looks periodic, and windows that overlap make the same error together. So a
//! verdict is published when a second one agrees that saw none of the first one's data, and it is withdrawn after three in a
//! row that disagree.
//!
//! What must never happen here: a publication that rests on one window.

use std::ops::Range;
use std::time::Duration;

use crate::period::{Period, Verdict};

/// Verdicts in a row that must disagree before a verdict is given up. One or two are no reason: a checkpoint or a pause
/// disturbs a window or two of a steady load.
const MOST_DISAGREEING: u32 = 3;

/// Two lengths that differ by less than this share are one period, even if their intervals are narrower.
const SAME_LENGTH: f64 = 0.05;

/// Two lengths that differ by more than this share are two periods, even if their intervals are wider: each cycle is looked for
/// only so far from where it is expected.
const OTHER_LENGTH: f64 = 0.2;

/// A verdict waits for a second one from each quarter of a window on.
const ANCHORS_PER_WINDOW: u32 = 4;

/// Candidates at a time: five of a verdict that lasts, and a few that others have interrupted.
const MOST_CANDIDATES: usize = 8;

/// Follows the verdicts on one series.
#[derive(Debug, Clone, Default)]
pub struct PeriodWatch {
    published: Option<Published>,
    /// Verdicts in a row that do not agree with the published one.
    against: u32,
    candidates: Vec<Candidate>,
}

/// A verdict that two windows without common data agree on.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The newest verdict that agrees. [`Period::starts`] is empty, because it belongs to one window.
    pub verdict: Verdict,
    /// Time of the last value when the verdict was published.
    pub since: Duration,
}

/// A verdict that waits for a second one.
#[derive(Debug, Clone)]
struct Candidate {
    /// What the first window said, and the time of the last value in it.
    first: Claim,
    end: Duration,
    /// What the newest window said that agrees.
    newest: Claim,
    /// Verdicts in a row that do not agree with it.
    against: u32,
    /// Whether a window without common data has said the same.
    confirmed: bool,
}

/// What a verdict says, without its figures.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Claim {
    /// Length and its 90 % interval in seconds.
    Periodic {
        length: f64,
        low: f64,
        high: f64,
    },
    Other(&'static str),
}

impl PeriodWatch {
    /// Nothing is published yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next verdict, and the times of the first and the last value that it is based on.
    pub fn apply(&mut self, verdict: &Verdict, window: Range<Duration>) {
        let claim = Claim::of(verdict);
        self.apply_to_published(verdict, claim);
        if self.is_confirmed(claim, &window) && self.published.is_none() {
            self.published = Some(Published { verdict: without_starts(verdict), since: window.end });
            self.against = 0;
        }
    }

    /// What may be published now.
    #[must_use]
    pub fn published(&self) -> Option<&Published> {
        self.published.as_ref()
    }

    /// Whether an earlier verdict says the same of other data. Keeps this one for later verdicts.
    fn is_confirmed(&mut self, claim: Claim, window: &Range<Duration>) -> bool {
        let (mut is_known, mut is_confirmed) = (false, false);
        let soon = window.end.saturating_sub(window.start) / ANCHORS_PER_WINDOW;
        for candidate in &mut self.candidates {
            if !candidate.newest.agrees(claim) {
                candidate.against += 1;
                continue;
            }
            candidate.against = 0;
            candidate.newest = claim;
            let is_same = candidate.first.agrees(claim);
            if window.start > candidate.end {
                candidate.confirmed = is_same;
                candidate.first = claim;
                candidate.end = window.end;
            }
            is_known |= is_same && window.end.saturating_sub(candidate.end) < soon;
            is_confirmed |= candidate.confirmed;
        }
        self.candidates.retain(|candidate| candidate.against < MOST_DISAGREEING);
        // The length of cycles drifts, so a verdict may agree with its predecessor and not with one from long ago.
        if !is_known && self.candidates.len() < MOST_CANDIDATES {
            self.candidates.push(Candidate {
                first: claim,
                end: window.end,
                newest: claim,
                against: 0,
                confirmed: false,
            });
        }
        is_confirmed
    }

    fn apply_to_published(&mut self, verdict: &Verdict, claim: Claim) {
        let Some(published) = &mut self.published else { return };
        if Claim::of(&published.verdict).agrees(claim) {
            published.verdict = without_starts(verdict);
            self.against = 0;
            return;
        }
        self.against += 1;
        if self.against >= MOST_DISAGREEING {
            self.published = None;
            self.against = 0;
        }
    }
}

impl Claim {
    fn of(verdict: &Verdict) -> Self {
        match verdict.period() {
            Some(period) => Self::Periodic {
                length: period.length.as_secs_f64(),
                low: period.interval.0.as_secs_f64(),
                high: period.interval.1.as_secs_f64(),
            },
            None => Self::Other(verdict.name()),
        }
    }

    /// Whether both say the same: lengths that differ by 5 % at most, or whose intervals overlap.
    fn agrees(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::Periodic { length, low, high },
                Self::Periodic { length: other_length, low: other_low, high: other_high },
            ) => {
                let difference = (length - other_length).abs() / length.max(other_length);
                let overlap = low <= other_high && other_low <= high;
                difference <= SAME_LENGTH || (difference <= OTHER_LENGTH && overlap)
            }
            (one, other) => one == other,
        }
    }
}

/// A copy of a verdict that needs little memory.
fn without_starts(verdict: &Verdict) -> Verdict {
    match verdict {
        Verdict::Periodic(period) => {
            let Period { length, interval, score, cycles, .. } = *period;
            let alternatives = period.alternatives.clone();
            Verdict::Periodic(Period { length, interval, score, cycles, starts: Vec::new(), alternatives })
        }
        Verdict::Aperiodic(_) | Verdict::Unknown(_) | Verdict::Unobservable(_) => verdict.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::period::Reason;

    fn periodic(seconds: f64) -> Verdict {
        let length = Duration::from_secs_f64(seconds);
        let interval = (length.mul_f64(0.99), length.mul_f64(1.01));
        Verdict::Periodic(Period {
            length,
            interval,
            score: 0.9,
            cycles: 10,
            starts: Vec::new(),
            alternatives: Vec::new(),
        })
    }

    fn window(start: u64) -> Range<Duration> {
        Duration::from_secs(start)..Duration::from_secs(start + 100)
    }

    fn published(watch: &PeriodWatch) -> Option<&'static str> {
        watch.published().map(|published| published.verdict.name())
    }

    #[test]
    fn overlapping_windows_do_not_confirm_each_other() {
        let mut watch = PeriodWatch::new();
        for start in [0, 30, 60, 90] {
            watch.apply(&periodic(10.0), window(start));
            assert_eq!(published(&watch), None, "{start}");
        }
        watch.apply(&periodic(10.2), window(101));
        assert_eq!(published(&watch), Some("periodic"));
        assert_eq!(watch.published().unwrap().since, Duration::from_secs(201));
    }

    #[test]
    fn a_length_that_drifts_is_published() {
        let mut watch = PeriodWatch::new();
        for minute in 0_u32..8 {
            watch.apply(&periodic(10.0 + 0.1 * f64::from(minute)), window(u64::from(minute) * 30));
        }
        assert_eq!(published(&watch), Some("periodic"));
    }

    #[test]
    fn other_lengths_do_not_confirm_each_other() {
        let mut watch = PeriodWatch::new();
        watch.apply(&periodic(10.0), window(0));
        watch.apply(&periodic(11.0), window(101));
        watch.apply(&periodic(20.0), window(202));
        assert_eq!(published(&watch), None);
    }

    #[test]
    fn two_disagreeing_verdicts_withdraw_nothing_and_three_do() {
        let mut watch = PeriodWatch::new();
        let unknown = Verdict::Unknown(Reason::NoCandidate);
        watch.apply(&periodic(10.0), window(0));
        watch.apply(&periodic(10.0), window(101));
        watch.apply(&unknown, window(130));
        watch.apply(&unknown, window(160));
        watch.apply(&periodic(10.0), window(190));
        watch.apply(&unknown, window(220));
        watch.apply(&unknown, window(250));
        assert_eq!(published(&watch), Some("periodic"));
        watch.apply(&unknown, window(280));
        assert_eq!(published(&watch), Some("unknown"));
    }

    #[test]
    fn a_lasting_change_is_published_like_the_first_verdict() {
        let mut watch = PeriodWatch::new();
        for start in (0..400).step_by(30) {
            watch.apply(&periodic(10.0), window(start));
        }
        for start in (430..1000).step_by(30) {
            watch.apply(&Verdict::Aperiodic(Reason::Constant), window(start));
        }
        assert_eq!(published(&watch), Some("aperiodic"));
    }

    proptest::proptest! {
        /// All of these windows hold the same moment.
        #[test]
        fn verdicts_on_common_data_are_never_published(
            verdicts in proptest::collection::vec((0_u64..100, 0_usize..4), 0..60),
        ) {
            let mut watch = PeriodWatch::new();
            for (start, verdict) in verdicts {
                let verdict = match verdict {
                    0 => periodic(10.0),
                    1 => periodic(10.3),
                    2 => Verdict::Aperiodic(Reason::Constant),
                    _ => Verdict::Unknown(Reason::NoCandidate),
                };
                watch.apply(&verdict, window(start));
                proptest::prop_assert_eq!(published(&watch), None);
            }
        }
    }
}
