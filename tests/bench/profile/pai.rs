//! Real iterations: the mini-batch times of four training jobs (Alibaba PAI 2020), shown as the utilisation of their GPU with one
//! value a second.

use crate::cycles::{Cyclic, iterations};
use crate::data::{Table, recording};
use crate::detectors::{Answers, Tally, ask, median};
use crate::options::{Draw, Options, Size};
use crate::random::Random;
use crate::table::Row;
use crate::workers;
use std::time::Duration;
use timeseries::{Counter, Verdict};

/// Series of each cell in a report.
const SERIES: usize = 400;
/// Seconds of an iteration.
const ITERATIONS: [f64; 4] = [4.0, 8.0, 20.0, 60.0];
/// Fewest and most values, and cycles between these bounds.
const LENGTHS: (f64, f64) = (240.0, 2400.0);
const CYCLES: f64 = 40.0;
/// The iterations of the fourth job vary three times as much as those of the others.
const MARKS: [f64; 4] = [0.95, 0.95, 0.95, 0.85];

/// The times of each worker of a job.
type Workers = Vec<Vec<f64>>;

/// A row for each job.
pub(crate) fn rows(options: &Options) -> Result<Vec<Row>, String> {
    (0..4)
        .map(|job| {
            let workers = times(options, job + 1)?;
            let cells: Vec<[Tally; 3]> =
                ITERATIONS.iter().map(|seconds| cell(options, (job, &workers), *seconds)).collect();
            Ok(row(options, job, &cells))
        })
        .collect()
}

fn row(options: &Options, job: usize, cells: &[[Tally; 3]]) -> Row {
    let shares = |detector: usize| -> String {
        let texts: Vec<String> = cells.iter().map(|cell| cell[detector].right.percent()).collect();
        format!("{} %", texts.join(" / "))
    };
    let mark = MARKS[job];
    Row::new(
        format!("iterations of PAI job {} at 4 / 8 / 20 / 60 s, within 5 %", job + 1),
        format!("≥ {:.0} %, `unobservable` is right at 4 s", mark * 100.0),
    )
    .result(shares(0))
    .beside(shares(1), shares(2))
    .met(cells.iter().all(|cell| cell[0].right.is_measured_at_least(mark, options.is_strict())))
}

fn times(options: &Options, job: usize) -> Result<Workers, String> {
    let (table, number) = if options.size == Size::Full {
        let path = recording(&options.data()?.join("alibaba"), &format!("pai2020_minibatch_job{job}"));
        (Table::read(&path)?, None)
    } else {
        let table = Table::cut("pai2020-iterations.csv")?;
        let number = table.numbers("job")?;
        (table, Some(number))
    };
    let mut workers: std::collections::BTreeMap<&str, Vec<f64>> = std::collections::BTreeMap::new();
    for (row, (worker, time)) in table.column("worker")?.into_iter().zip(table.numbers("batch_time_norm")?).enumerate()
    {
        let is_of_job = number.as_ref().is_none_or(|numbers| numbers[row] == Some(job as f64));
        if let (Some(time), true) = (time, is_of_job) {
            workers.entry(worker).or_default().push(time);
        }
    }
    Ok(workers.into_values().collect())
}

/// The utilisation of one worker from a random iteration on, with a median of `seconds` an iteration.
fn series((job, workers): (usize, &Workers), seconds: f64, draw: Draw) -> Cyclic {
    let random = &mut Random::of("iterations", &[job as u64, seconds as u64, draw.seed, draw.number]);
    let times = &workers[random.below(workers.len())];
    let wanted = (CYCLES * seconds).clamp(LENGTHS.0, LENGTHS.1);
    let count = (wanted / seconds) as usize;
    let start = random.below(times.len().saturating_sub(count).max(1));
    let scale = seconds / median(times[start..(start + count).min(times.len())].to_vec());
    let lengths: Vec<f64> = times[start..].iter().map(|time| time * scale).collect();
    let n = wanted.min(lengths.iter().sum()) as usize;
    iterations(&lengths, n, random)
}

fn cell(options: &Options, job: (usize, &Workers), seconds: f64) -> [Tally; 3] {
    let second = Some(Duration::from_secs(1));
    let counter = Counter { window: second, refresh: second };
    let answers: Vec<(Draw, Cyclic, Answers)> = workers::map(&options.draws(SERIES), |draw| {
        let series = series(job, seconds, *draw);
        let answers = ask(&series.values, counter, *draw);
        (*draw, series, answers)
    });
    let mut tallies: [Tally; 3] = Default::default();
    for (draw, series, answers) in answers {
        let is_excused = seconds <= 4.0 && matches!(answers.verdict, Verdict::Unobservable(_));
        let before = tallies[0].right.hits;
        tallies[0].add(if is_excused { Some(series.period) } else { answers.ours }, series.period);
        if let Some(others) = answers.others {
            tallies[1].add(others[0], series.period);
            tallies[2].add(others[1], series.period);
        }
        if options.show && tallies[0].right.hits == before {
            let Draw { seed, number, .. } = draw;
            let truth = format!("period {:.2}, {} cycles", series.period, series.complete);
            println!(
                "job {} at {seconds} s seed {seed} number {number}: {truth}: {}",
                job.0 + 1,
                answers.verdict.reason()
            );
        }
    }
    tallies
}
