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

/// Follows the verdicts on one series.
#[derive(Debug, Clone, Default)]
pub struct PeriodWatch {
    published: Option<Published>,
    candidate: Option<Candidate>,
    /// Verdicts in a row that do not agree with the published one.
    against_published: u32,
}

/// A verdict that two windows without common data agree on.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The newest verdict that agrees.
    pub verdict: Verdict,
    /// Time of the last value when the verdict was published.
    pub since: Duration,
}

/// A verdict that waits for a second one.
#[derive(Debug, Clone)]
struct Candidate {
    verdict: Verdict,
    /// Time of the last value that it saw.
    end: Duration,
    /// Verdicts in a row that do not agree with it.
    against: u32,
}

impl PeriodWatch {
    /// Nothing is published yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next verdict, and the times of the first and the last value that it is based on.
    pub fn apply(&mut self, verdict: &Verdict, window: Range<Duration>) {
        self.apply_to_published(verdict);
        let Some(candidate) = &mut self.candidate else {
            self.candidate = Some(Candidate { verdict: verdict.clone(), end: window.end, against: 0 });
            return;
        };
        if !agree(&candidate.verdict, verdict) {
            candidate.against += 1;
            if candidate.against >= MOST_DISAGREEING {
                self.candidate = Some(Candidate { verdict: verdict.clone(), end: window.end, against: 0 });
            }
            return;
        }
        candidate.against = 0;
        if window.start < candidate.end {
            return;
        }
        self.candidate = Some(Candidate { verdict: verdict.clone(), end: window.end, against: 0 });
        let same = self.published.as_ref().is_some_and(|published| agree(&published.verdict, verdict));
        if !same {
            self.published = Some(Published { verdict: verdict.clone(), since: window.end });
            self.against_published = 0;
        }
    }

    /// What may be published now.
    #[must_use]
    pub fn published(&self) -> Option<&Published> {
        self.published.as_ref()
    }

    fn apply_to_published(&mut self, verdict: &Verdict) {
        let Some(published) = &mut self.published else { return };
        if agree(&published.verdict, verdict) {
            published.verdict = verdict.clone();
            self.against_published = 0;
            return;
        }
        self.against_published += 1;
        if self.against_published >= MOST_DISAGREEING {
            self.published = None;
            self.against_published = 0;
        }
    }
}

/// Whether two verdicts say the same.
fn agree(one: &Verdict, other: &Verdict) -> bool {
    match (one, other) {
        (Verdict::Periodic(one), Verdict::Periodic(other)) => same_period(one, other),
        _ => one.name() == other.name(),
    }
}

/// The lengths differ by 5 % at most, or each lies in the interval of the other.
fn same_period(one: &Period, other: &Period) -> bool {
    let (shorter, longer) = (one.length.min(other.length).as_secs_f64(), one.length.max(other.length).as_secs_f64());
    let within = |period: &Period, length: Duration| period.interval.0 <= length && length <= period.interval.1;
    longer - shorter <= SAME_LENGTH * longer || (within(one, other.length) && within(other, one.length))
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
        watch.apply(&periodic(10.2), window(120));
        assert_eq!(published(&watch), Some("periodic"));
        assert_eq!(watch.published().unwrap().since, Duration::from_secs(220));
    }

    #[test]
    fn other_lengths_do_not_confirm_each_other() {
        let mut watch = PeriodWatch::new();
        watch.apply(&periodic(10.0), window(0));
        watch.apply(&periodic(11.0), window(100));
        watch.apply(&periodic(20.0), window(200));
        assert_eq!(published(&watch), None);
    }

    #[test]
    fn two_disagreeing_verdicts_withdraw_nothing_and_three_do() {
        let mut watch = PeriodWatch::new();
        let unknown = Verdict::Unknown(Reason::NoCandidate);
        watch.apply(&periodic(10.0), window(0));
        watch.apply(&periodic(10.0), window(100));
        watch.apply(&unknown, window(130));
        watch.apply(&unknown, window(160));
        watch.apply(&periodic(10.0), window(190));
        watch.apply(&unknown, window(220));
        watch.apply(&unknown, window(250));
        assert_eq!(published(&watch), Some("periodic"));
        watch.apply(&unknown, window(280));
        assert_eq!(published(&watch), None);
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
}
