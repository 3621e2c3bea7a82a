//! Writes series for detectors in other languages (`public_detectors.py`): one line for each series with its family, its period or 0,
//! our answer or 0, the milliseconds of our analysis, and the values.

use crate::detectors::seconds;
use crate::generators::Null;
use crate::options::Options;
use crate::positives;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;
use timeseries::{Counter, find_period};

/// Length of the series, and how many there are of each family without a cycle and with one: the slowest of the other detectors
/// takes a tenth of a second for each.
const LENGTH: usize = 600;
const NULLS: usize = 40;
const JOBS: usize = 120;

/// Writes the file.
pub(crate) fn write(options: &Options, path: &Path) -> Result<(), String> {
    let mut text = String::new();
    for family in Null::ALL {
        for draw in options.spread(NULLS, 0) {
            line(&mut text, (family.name(), 0.0), &crate::nulls::series(family, LENGTH, draw));
        }
    }
    for draw in options.spread(JOBS, 0) {
        let job = positives::steady_job(LENGTH, draw);
        line(&mut text, ("job", job.period), &job.values);
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn line(text: &mut String, (family, period): (&str, f64), values: &[f64]) {
    let series = seconds(values, Counter::default());
    let start = Instant::now();
    let answer = find_period(&series).period().map_or(0.0, |period| period.length.as_secs_f64());
    let _ = write!(text, "{family},{period},{answer},{}", start.elapsed().as_secs_f64() * 1e3);
    for value in values {
        let _ = write!(text, ",{value}");
    }
    text.push('\n');
}
