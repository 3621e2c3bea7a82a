//! False alarms: series without a cycle that are called periodic, in each family of generated load, and in windows of real load.

use crate::detectors::{Answers, ask, seconds};
use crate::generators::Null;
use crate::gentd26::{self, Kind};
use crate::options::{Draw, Options};
use crate::random::Random;
use crate::table::{Rate, Row};
use crate::workers;
use timeseries::{Counter, Series, find_period};

/// Lengths of the series: two minutes, ten minutes and forty minutes of one value a second.
pub(crate) const LENGTHS: [usize; 3] = [120, 600, 2400];
/// Series of each cell in a report.
const SERIES: usize = 2000;
/// Largest share of false alarms.
const MARK: f64 = 0.02;
/// Smallest share of values of a window of real load; with more gaps there is no answer anyway.
const MEASURED: f64 = 0.8;

/// A row for each family, and two for real load.
pub(crate) fn rows(options: &Options) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Null::ALL.into_iter().map(|family| family_row(options, family)).collect();
    rows.push(real_load(options, Kind::Duty)?);
    rows.push(real_load(options, Kind::Memory)?);
    Ok(rows)
}

/// The series of one draw.
pub(crate) fn series(family: Null, n: usize, draw: Draw) -> Vec<f64> {
    family.series(n, &mut Random::of(family.name(), &[n as u64, draw.seed, draw.number]))
}

fn family_row(options: &Options, family: Null) -> Row {
    let cells: Vec<[Rate; 3]> = LENGTHS.iter().map(|n| cell(options, family, *n)).collect();
    let all = |detector: usize| cells.iter().map(|cell| cell[detector].percent()).collect::<Vec<_>>().join(" / ");
    let bound = cells.iter().map(|cell| cell[0].bounds().1).fold(0.0, f64::max) * 100.0;
    Row::new(format!("false alarms, {}, n = 120 / 600 / 2,400", family.name()), "95 % upper bound ≤ 2 %")
        .result(format!("{} % (≤ {bound:.1} %)", all(0)))
        .beside(format!("{} %", all(1)), format!("{} %", all(2)))
        .met(cells.iter().all(|cell| cell[0].is_at_most(MARK, options.is_strict())))
}

/// The false alarms of ours, Alnair's rule and AUTOPERIOD.
fn cell(options: &Options, family: Null, n: usize) -> [Rate; 3] {
    let answers: Vec<(Draw, Answers)> =
        workers::map(&options.draws(SERIES), |draw| (*draw, ask(&series(family, n, *draw), Counter::default(), *draw)));
    let mut rates = [Rate::default(); 3];
    for (draw, answers) in answers {
        rates[0].add(answers.ours.is_some());
        if let Some(others) = answers.others {
            rates[1].add(others[0].is_some());
            rates[2].add(others[1].is_some());
        }
        if options.show && answers.ours.is_some() {
            println!("{} n {n} seed {} number {}: {}", family.name(), draw.seed, draw.number, answers.verdict.reason());
        }
    }
    rates
}

/// Windows of real load, one after the other.
fn real_load(options: &Options, kind: Kind) -> Result<Row, String> {
    let pods = gentd26::pods(options, kind)?;
    let mut texts = Vec::new();
    let mut is_met = true;
    for n in [120, 600] {
        let mut windows: Vec<&[Option<f64>]> = pods.iter().flat_map(|pod| pod.chunks_exact(n)).collect();
        windows.retain(|window| window.iter().flatten().count() as f64 >= MEASURED * n as f64);
        let verdicts = workers::map(&windows, |window| find_period(&real_window(window)));
        let mut rate = Rate::default();
        for verdict in verdicts {
            rate.add(verdict.period().is_some());
            if options.show && verdict.period().is_some() {
                println!("gentd26 {} n {n}: {}", kind.name(), verdict.reason());
            }
        }
        is_met &= rate.is_measured_at_most(MARK, options.is_strict());
        texts.push(format!("{} of {}", rate.hits, rate.of));
    }
    let row = Row::new(format!("periodic, real {} of GPUs, windows of 120 / 600", kind.name()), "≤ 2 %");
    Ok(row.result(texts.join(" / ")).met(is_met))
}

fn real_window(values: &[Option<f64>]) -> Series {
    Series::regular(gentd26::STEP, values.iter().copied()).unwrap_or_else(|_| seconds(&[], Counter::default()))
}
