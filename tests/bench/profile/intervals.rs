//! How often the 90 % interval of a period holds the mean length of the load's cycles, of which a window has a part.

use crate::cycles::{Shape, Variation, job};
use crate::detectors::{median, seconds};
use crate::options::{Draw, Options};
use crate::random::Random;
use crate::table::{Rate, Row};
use crate::workers;
use timeseries::{Counter, find_period};

/// Series of each cell in a report.
const SERIES: usize = 500;
/// Standard deviations of the length of a cycle, as shares of the mean.
const JITTERS: [f64; 3] = [0.02, 0.05, 0.1];
/// Values of a series.
const LENGTHS: [usize; 2] = [600, 2400];
/// Cycles of a series, and the shortest in samples.
const CYCLES: (f64, f64) = (8.0, 60.0);
const SHORTEST: f64 = 12.0;
/// Up to so many cycles are few, and up to so many are some.
const FEW: f64 = 15.0;
const SOME: f64 = 30.0;
/// The shares that the interval may hold.
const MARK: (f64, f64) = (0.87, 0.95);

/// What is known of one answer.
#[derive(Debug, Clone, Copy)]
struct Answer {
    jitter: f64,
    cycles: f64,
    holds: bool,
    /// Half of the interval over the length.
    half: f64,
}

/// The row with the mark, and one by number of cycles.
pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut answers = Vec::new();
    for jitter in JITTERS {
        for n in LENGTHS {
            answers.extend(workers::map(&options.draws(SERIES), |draw| answer(jitter, n, *draw)).into_iter().flatten());
        }
    }
    let all = held(&answers, |_| true);
    let by_jitter = JITTERS.map(|jitter| held(&answers, |one| one.jitter == jitter).percent());
    let by_cycles = [CYCLES.0..=FEW, FEW..=SOME, SOME..=CYCLES.1]
        .map(|range| held(&answers, |one| range.contains(&one.cycles)).percent());
    let half = 100.0 * median(answers.iter().map(|one| one.half).collect());
    let strict = options.is_strict();
    vec![
        Row::new(
            "90 % interval of a period holds the load's mean length, jitter 2 / 5 / 10 %, 8 to 60 cycles",
            "87–95 % of all",
        )
        .result(format!(
            "{} %; {} % of all; half of it is {half:.1} % of the length in the median",
            by_jitter.join(" / "),
            all.percent()
        ))
        .met(all.is_measured_at_least(MARK.0, strict) && all.is_at_most(MARK.1, strict)),
        Row::new("the same by cycles: 8 to 15 / 15 to 30 / 30 to 60", "")
            .result(format!("{} %", by_cycles.join(" / "))),
    ]
}

fn held(answers: &[Answer], wanted: impl Fn(&Answer) -> bool) -> Rate {
    let mut rate = Rate::default();
    answers.iter().filter(|one| wanted(one)).for_each(|one| rate.add(one.holds));
    rate
}

/// The answer to one job.
fn answer(jitter: f64, n: usize, draw: Draw) -> Option<Answer> {
    let random = &mut Random::of("interval", &[(jitter * 100.0).round() as u64, n as u64, draw.seed, draw.number]);
    let shape = Shape::ALL[random.below(Shape::ALL.len())];
    let cycles = random.log_uniform(CYCLES.0, CYCLES.1.min(n as f64 / SHORTEST));
    let mean = n as f64 / cycles;
    let job = job(shape, mean, Variation { jitter, pauses: 0.0 }, n, random);
    let verdict = find_period(&seconds(&job.values, Counter::default()));
    let period = verdict.period()?;
    let (length, low, high) =
        (period.length.as_secs_f64(), period.interval.0.as_secs_f64(), period.interval.1.as_secs_f64());
    Some(Answer { jitter, cycles, holds: (low..=high).contains(&mean), half: (high - low) / 2.0 / length })
}
