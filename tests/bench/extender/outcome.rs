//! The results that the parts of the bench return and print.

use std::error::Error;
use std::time::Duration;

/// A value, or a message why there is none.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The figures that have a limit.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<(String, bool)>);

impl Figures {
    /// Keeps one figure, and whether it is within its limit.
    pub(crate) fn check(&mut self, what: String, holds: bool) {
        self.0.push((what, holds));
    }

    /// Keeps a number that must be at most its limit.
    pub(crate) fn at_most(&mut self, what: &str, value: f64, most: f64) {
        self.check(format!("{what}: {value:.2}, at most {most:.2}"), value <= most);
    }

    /// Prints all figures, and returns whether all are within their limits.
    #[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
    pub(crate) fn hold(&self) -> bool {
        for (what, holds) in &self.0 {
            println!("{}  {what}", if *holds { "ok  " } else { "FAIL" });
        }
        self.0.iter().all(|(_, holds)| *holds)
    }
}

/// A count as a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "numbers of calls, nodes and bytes")]
pub(crate) fn many(number: usize) -> f64 {
    number as f64
}

/// The time of one call, in microseconds.
pub(crate) fn micros(time: Duration, calls: usize) -> f64 {
    time.as_secs_f64() * 1e6 / many(calls)
}

/// The median of these values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
