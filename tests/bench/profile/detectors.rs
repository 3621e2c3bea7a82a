//! Asks the detectors about one series, and counts what they answer.

use crate::competitors::{Autoperiod, alnair};
use crate::options::Draw;
use crate::random::Random;
use crate::table::Rate;
use std::time::Duration;
use timeseries::{Counter, Series, Verdict, find_period};

/// Largest error of an answer that counts as right, as a share of the truth.
pub(crate) const RIGHT_WITHIN: f64 = 0.05;

/// The answers to one series. A period is in samples.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) verdict: Verdict,
    pub(crate) ours: Option<f64>,
    /// Alnair's rule and AUTOPERIOD, if they were asked.
    pub(crate) others: Option<[Option<f64>; 2]>,
}

/// A series of one value a second.
pub(crate) fn seconds(values: &[f64], counter: Counter) -> Series {
    Series::regular(Duration::from_secs(1), values.iter().map(|value| Some(*value)))
        .expect("a series of the bench is short enough")
        .with_counter(counter)
}

/// Asks all detectors; the two others only about some series.
pub(crate) fn ask(values: &[f64], counter: Counter, draw: Draw) -> Answers {
    let verdict = find_period(&seconds(values, counter));
    let ours = verdict.period().map(|period| period.length.as_secs_f64());
    let others = draw.beside.then(|| {
        let random = &mut Random::of("permutations", &[draw.seed, draw.number, values.len() as u64]);
        [alnair(values), Autoperiod::new(values.len()).period(values, random)]
    });
    Answers { verdict, ours, others }
}

/// The answers of one detector to series with a known period.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Answers within [`RIGHT_WITHIN`].
    pub(crate) right: Rate,
    /// Series without an answer.
    pub(crate) silent: Rate,
    /// Answers that are a multiple or a fraction of the truth.
    pub(crate) harmonic: Rate,
    /// Relative errors of the answers that are right.
    pub(crate) errors: Vec<f64>,
}

impl Tally {
    /// Counts one answer.
    pub(crate) fn add(&mut self, answer: Option<f64>, truth: f64) {
        let is_right = answer.is_some_and(|period| is_near(period, truth));
        self.right.add(is_right);
        self.silent.add(answer.is_none());
        if let Some(period) = answer {
            self.harmonic.add([0.5, 1.0 / 3.0, 2.0, 3.0, 4.0].iter().any(|factor| is_near(period, truth * factor)));
            if is_right {
                self.errors.push((period / truth - 1.0).abs());
            }
        }
    }

    /// The median relative error in percent.
    pub(crate) fn median_error(&self) -> String {
        if self.errors.is_empty() { "–".to_owned() } else { format!("{:.2} %", 100.0 * median(self.errors.clone())) }
    }
}

/// Whether an answer is within 5 % of a period.
pub(crate) fn is_near(answer: f64, truth: f64) -> bool {
    (answer / truth - 1.0).abs() <= RIGHT_WITHIN
}

/// The median; NaN without values.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value below which this share of the values lies; NaN without values.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(place).copied().unwrap_or(f64::NAN)
}
