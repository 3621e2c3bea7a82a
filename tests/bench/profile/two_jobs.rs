//! Two unrelated jobs on one GPU: the answer must be one of the two periods, a common multiple of both, or none.

use crate::cycles::two_jobs;
use crate::detectors::{Answers, ask, is_near};
use crate::nulls::LENGTHS;
use crate::options::{Draw, Options};
use crate::random::Random;
use crate::table::{Rate, Row};
use crate::workers;
use timeseries::Counter;

/// Series of each cell in a report.
const SERIES: usize = 2000;
/// Largest share of wrong answers for each length.
const MARKS: [f64; 3] = [0.05, 0.05, 0.08];
/// Most cycles of one job in a common multiple: with more, nearly every period would be one.
const MOST_CYCLES: u32 = 6;

/// One row: wrong answers; and one that says what the other answers are.
pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let cells: Vec<Cell> = LENGTHS.iter().map(|n| cell(options, *n)).collect();
    let texts = |rate: &dyn Fn(&Cell) -> Rate| -> String {
        let texts: Vec<String> = cells.iter().map(|cell| rate(cell).percent()).collect();
        format!("{} %", texts.join(" / "))
    };
    let wrong = |detector: usize| texts(&|cell| cell.wrong[detector]);
    let is_met =
        cells.iter().zip(MARKS).all(|(cell, mark)| cell.wrong[0].is_measured_at_most(mark, options.is_strict()));
    vec![
        Row::new("two jobs: a period of neither, n = 120 / 600 / 2,400", "≤ 5 / 5 / 8 %")
            .result(wrong(0))
            .beside(wrong(1), wrong(2))
            .met(is_met),
        Row::new("two jobs: one of the two periods", "").result(texts(&|cell| cell.one)),
        Row::new("two jobs: no answer", "").result(texts(&|cell| cell.none)),
    ]
}

#[derive(Debug, Default)]
struct Cell {
    /// Answers of ours, Alnair's rule and AUTOPERIOD that fit neither job.
    wrong: [Rate; 3],
    one: Rate,
    none: Rate,
}

fn cell(options: &Options, n: usize) -> Cell {
    let answers: Vec<(Draw, [f64; 2], Answers)> = workers::map(&options.draws(SERIES), |draw| {
        let (values, truths) = two_jobs(n, &mut Random::of("two jobs", &[n as u64, draw.seed, draw.number]));
        (*draw, truths, ask(&values, Counter::default(), *draw))
    });
    let mut cell = Cell::default();
    for (draw, truths, answers) in answers {
        let is_wrong = |answer: Option<f64>| answer.is_some_and(|period| !fits(period, truths));
        cell.wrong[0].add(is_wrong(answers.ours));
        if let Some(others) = answers.others {
            cell.wrong[1].add(is_wrong(others[0]));
            cell.wrong[2].add(is_wrong(others[1]));
        }
        cell.one.add(answers.ours.is_some_and(|period| truths.iter().any(|truth| is_near(period, *truth))));
        cell.none.add(answers.ours.is_none());
        if options.show && is_wrong(answers.ours) {
            let Draw { seed, number, .. } = draw;
            println!("two jobs n {n} seed {seed} number {number}: {truths:.2?}: {}", answers.verdict.reason());
        }
    }
    cell
}

/// Whether an answer is one of the two periods, or a common multiple of both.
fn fits(answer: f64, truths: [f64; 2]) -> bool {
    let is_multiple = |truth: f64| (1..=MOST_CYCLES).any(|cycles| is_near(answer, truth * f64::from(cycles)));
    truths.iter().any(|truth| is_near(answer, *truth)) || truths.into_iter().all(is_multiple)
}

#[test]
fn a_period_or_a_common_multiple_fits_two_jobs() {
    let truths = [10.0, 15.0];
    assert!(fits(10.2, truths) && fits(15.5, truths) && fits(30.0, truths));
    assert!(!fits(20.0, truths) && !fits(12.0, truths));
}
