//! The time of an analysis, beside that of AUTOPERIOD on the same series: processor time of this thread, so that other programs
//! on the machine count little.

use crate::competitors::Autoperiod;
use crate::cycles::{Shape, Variation, job, two_jobs};
use crate::detectors::{quantile, seconds};
use crate::generators::Null;
use crate::options::{Draw, Options};
use crate::random::Random;
use crate::table::Row;
use rustix::time::ClockId;
use std::hint::black_box;
use timeseries::{Counter, find_period};

/// Series of each family in a report: of the usual length, and of the long one.
const SERIES: (usize, usize) = (200, 20);
const LENGTHS: (usize, usize) = (1024, 16_384);
/// Limits: the slowest analyses beside the median of AUTOPERIOD, and 16 times as many points.
const SLOWEST: f64 = 5.0;
const LONGEST: f64 = 30.0;

/// Two rows.
pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let (ours, autoperiod) = times(options, LENGTHS.0, SERIES.0);
    let (long, autoperiod_long) = times(options, LENGTHS.1, SERIES.1);
    let half = |times: &[f64]| quantile(times.to_vec(), 0.5);
    let slow = |times: &[f64]| quantile(times.to_vec(), 0.99);
    let both = |times: &[f64]| format!("{:.2} / {:.2} ms", half(times) * 1e3, slow(times) * 1e3);
    let (ratio, autoperiod_ratio) = (half(&long) / half(&ours), half(&autoperiod_long) / half(&autoperiod));
    vec![
        Row::new("processor time for 1,024 points, all families, p50 / p99", "p50 ≤ AUTOPERIOD's p50, p99 ≤ 5 × that")
            .result(both(&ours))
            .beside("", both(&autoperiod))
            .met(half(&ours) <= half(&autoperiod) && slow(&ours) <= SLOWEST * half(&autoperiod)),
        Row::new("p50 for 16,384 points over that for 1,024", "≤ 30")
            .result(format!("{ratio:.1}"))
            .beside("", format!("{autoperiod_ratio:.1}"))
            .met(ratio <= LONGEST),
    ]
}

/// Seconds of ours and of AUTOPERIOD for each series.
fn times(options: &Options, n: usize, full: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    let autoperiod = Autoperiod::new(n);
    for family in 0..Null::ALL.len() + Shape::ALL.len() + 1 {
        for draw in options.draws(full) {
            let random = &mut Random::of("speed", &[n as u64, family as u64, draw.seed, draw.number]);
            let values = values(family, n, random);
            let series = seconds(&values, Counter::default());
            ours.push(processor_seconds(|| drop(black_box(find_period(black_box(&series))))));
            others.push(processor_seconds(|| {
                black_box(autoperiod.period(black_box(&values), random));
            }));
            show(options, (family, n, draw), ours.last().copied().unwrap_or(0.0));
        }
    }
    (ours, others)
}

fn show(options: &Options, (family, n, Draw { seed, number, .. }): (usize, usize, Draw), seconds: f64) {
    if options.show {
        println!("speed family {family} n {n} seed {seed} number {number}: {:.2} ms", seconds * 1e3);
    }
}

/// A series of one of all families: without a cycle, with one, with two.
fn values(family: usize, n: usize, random: &mut Random) -> Vec<f64> {
    let jobs = family.checked_sub(Null::ALL.len());
    match (jobs, jobs.and_then(|place| Shape::ALL.get(place))) {
        (None, _) => Null::ALL[family].series(n, random),
        (Some(_), None) => two_jobs(n, random).0,
        (Some(_), Some(shape)) => {
            let period = random.log_uniform(12.0, n as f64 / 4.0);
            job(*shape, period, Variation { jitter: 0.05, pauses: 0.1 }, n, random).values
        }
    }
}

/// The processor time of this thread in a piece of work.
fn processor_seconds(work: impl FnOnce()) -> f64 {
    let start = clock(ClockId::ThreadCPUTime);
    work();
    clock(ClockId::ThreadCPUTime) - start
}

/// The seconds that a clock shows.
pub(crate) fn clock(id: ClockId) -> f64 {
    let time = rustix::time::clock_gettime(id);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
