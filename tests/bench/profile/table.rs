//! The table of marks: rates with Wilson's bounds, one row for each measure, as Markdown.

use std::fmt::Write as _;

/// The two-sided 95 % quantile of the normal distribution.
const Z_95: f64 = 1.959_964;
/// The two-sided 99.9 % quantile: a small run compares some hundred rates, and none may miss its mark by chance.
const Z_999: f64 = 3.290_527;

/// How often something happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) hits: usize,
    pub(crate) of: usize,
}

impl Rate {
    /// Counts one more case.
    pub(crate) fn add(&mut self, hit: bool) {
        self.hits += usize::from(hit);
        self.of += 1;
    }

    /// The share of hits; NaN without cases.
    pub(crate) fn share(self) -> f64 {
        self.hits as f64 / self.of as f64
    }

    /// The share in percent, with one decimal; `–` without cases.
    pub(crate) fn percent(self) -> String {
        if self.of == 0 { "–".to_owned() } else { format!("{:.1}", self.share() * 100.0) }
    }

    /// Wilson's 95 % interval of the share.
    pub(crate) fn bounds(self) -> (f64, f64) {
        self.interval(Z_95)
    }

    fn interval(self, z: f64) -> (f64, f64) {
        if self.of == 0 {
            return (0.0, 1.0);
        }
        let (share, of) = (self.share(), self.of as f64);
        let scale = 1.0 + z * z / of;
        let middle = (share + z * z / (2.0 * of)) / scale;
        let half = z / scale * (share * (1.0 - share) / of + z * z / (4.0 * of * of)).sqrt();
        ((middle - half).max(0.0), (middle + half).min(1.0))
    }

    /// Whether the share is at most `limit`: its upper bound, or without `strict` only not for certain more.
    pub(crate) fn is_at_most(self, limit: f64, strict: bool) -> bool {
        if strict { self.bounds().1 <= limit } else { self.interval(Z_999).0 <= limit }
    }

    /// Whether the share is at least `limit`: its lower bound, or without `strict` only not for certain less.
    pub(crate) fn is_at_least(self, limit: f64, strict: bool) -> bool {
        if strict { self.bounds().0 >= limit } else { self.interval(Z_999).1 >= limit }
    }

    /// Whether the measured share is at most `limit`, or without `strict` not for certain more.
    pub(crate) fn is_measured_at_most(self, limit: f64, strict: bool) -> bool {
        if strict { self.share() <= limit } else { self.is_at_most(limit, false) }
    }

    /// Whether the measured share is at least `limit`, or without `strict` not for certain less.
    pub(crate) fn is_measured_at_least(self, limit: f64, strict: bool) -> bool {
        if strict { self.share() >= limit } else { self.is_at_least(limit, false) }
    }
}

/// One row: a measure, its mark, and what was measured here and with the two detectors that it is compared with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    measure: String,
    mark: String,
    result: String,
    alnair: String,
    autoperiod: String,
    met: Option<bool>,
}

impl Row {
    /// A row of this measure and mark. It has no verdict until [`Row::met`] is called.
    pub(crate) fn new(measure: impl Into<String>, mark: impl Into<String>) -> Row {
        Row { measure: measure.into(), mark: mark.into(), ..Row::default() }
    }

    /// What was measured.
    pub(crate) fn result(mut self, result: impl Into<String>) -> Row {
        self.result = result.into();
        self
    }

    /// What Alnair's rule and AUTOPERIOD reach.
    pub(crate) fn beside(mut self, alnair: impl Into<String>, autoperiod: impl Into<String>) -> Row {
        self.alnair = alnair.into();
        self.autoperiod = autoperiod.into();
        self
    }

    /// Whether the mark is met.
    pub(crate) fn met(mut self, met: bool) -> Row {
        self.met = Some(met);
        self
    }

    /// Whether the mark is missed.
    pub(crate) fn is_missed(&self) -> bool {
        self.met == Some(false)
    }
}

/// The rows as a Markdown table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text =
        "| measure | mark | measured | Alnair's rule | AUTOPERIOD | met |\n|---|---|---|---|---|---|\n".to_owned();
    for row in rows {
        let met = match row.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        let Row { measure, mark, result, alnair, autoperiod, .. } = row;
        let _ = writeln!(text, "| {measure} | {mark} | {result} | {alnair} | {autoperiod} | {met} |");
    }
    text
}

#[test]
fn wilsons_bounds_are_those_of_the_formula() {
    let (lower, upper) = Rate { hits: 485, of: 500 }.bounds();
    assert!((lower - 0.951_1).abs() < 1e-3 && (upper - 0.981_7).abs() < 1e-3, "{lower} {upper}");
    assert!(Rate { hits: 0, of: 2000 }.is_at_most(0.002, true) && !Rate { hits: 0, of: 100 }.is_at_most(0.02, true));
    assert!(Rate { hits: 0, of: 100 }.is_at_most(0.02, false) && !Rate { hits: 20, of: 100 }.is_at_most(0.02, false));
}
