//! Measures how good the answers of the crate `timeseries` are, and what the crate `profiles` publishes of them: false alarms, found
//! periods, forecasts, steps, leaks, speed.
//! docs/workload-profiles.md has the last report.
//!
//! ```text
//!   generators, cycles ──▶ nulls, positives, intervals, two_jobs, live, … ──┐
//!   recordings (data, gentd26) ──▶ nab, pai, a100, forecasts, steps ────────┴─▶ rows of one table, each with its mark
//! ```
//!
//! | variable | meaning |
//! |---|---|
//! | `PROFILE` | `check`: a minute, with cuts of the recordings; `report`: the sizes of the marks and whole recordings; else seconds |
//! | `PROFILE_SEEDS` | such as `0..100`. Seeds 0 to 99 are for tuning; a report uses 100 to 199, which nothing was tuned on |
//! | `PROFILE_PARTS` | such as `nulls,live`; all without it |
//! | `PROFILE_DAYS` | stream-days of each family in `live`, of windows up to 15 minutes; ten times as many of minutes, a hundred times of quarters |
//! | `PROFILE_DATA` | folder of the recordings, for `report` |
//! | `PROFILE_SHOW` | prints each wrong answer |
//! | `PROFILE_EXPORT` | writes series for `public_detectors.py` to this file |
//!
//! What must never happen here: a series that depends on the number of threads or on the time.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure; its bench reads files and clocks"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths and counts of generated series are small and positive"
)]

mod options;
mod table;
mod random;
mod workers;
mod generators;
mod cycles;
mod data;
mod gentd26;
mod competitors;
mod detectors;
mod nulls;
mod positives;
mod intervals;
mod two_jobs;
mod nab;
mod pai;
mod a100;
mod live;
mod forecasts;
mod steps;
mod trends;
mod speed;
mod export;

use options::Options;
use rustix::time::ClockId;
use std::path::Path;
use std::time::Instant;
use table::Row;

/// The name of a part of the table, and what makes its rows.
type Part = (&'static str, fn(&Options) -> Result<Vec<Row>, String>);

/// The parts of the table, in order.
const PARTS: &[Part] = &[
    ("nulls", nulls::rows),
    ("two-jobs", |options| Ok(two_jobs::rows(options))),
    ("positives", |options| Ok(positives::rows(options))),
    ("intervals", |options| Ok(intervals::rows(options))),
    ("nab", nab::rows),
    ("pai", pai::rows),
    ("a100", a100::rows),
    ("live", |options| Ok(live::rows(options))),
    ("forecasts", forecasts::rows),
    ("steps", steps::rows),
    ("leak", steps::leak_rows),
    ("trends", |options| Ok(trends::rows(options))),
    ("speed", |options| Ok(speed::rows(options))),
];

#[test]
fn every_answer_meets_its_mark() {
    let options = Options::read(|name| std::env::var(name).ok()).expect("valid variables");
    let mut rows = Vec::new();
    for (name, part) in PARTS {
        if options.wants(name) {
            let (start, before) = (Instant::now(), speed::clock(ClockId::ProcessCPUTime));
            rows.extend(part(&options).expect("readable recordings"));
            let (elapsed, processor) = (start.elapsed().as_secs_f64(), speed::clock(ClockId::ProcessCPUTime) - before);
            println!("{name}: {elapsed:.1} s, {processor:.1} s of processor time");
        }
    }
    if let Ok(path) = std::env::var("PROFILE_EXPORT") {
        export::write(&options, Path::new(&path)).expect("a file that can be written");
    }
    println!("\n{}", table::markdown(&rows));
    rows.retain(Row::is_missed);
    println!("marks missed: {}", rows.len());
    assert!(rows.is_empty(), "marks missed:\n{}", table::markdown(&rows));
}
