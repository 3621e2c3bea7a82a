//! How often the period of a job is found: jitter of the cycles, few cycles, pauses.

use crate::cycles::{Cyclic, Shape, Variation, job};
use crate::detectors::{Answers, Tally, ask, median};
use crate::options::{Draw, Options};
use crate::random::Random;
use crate::table::{Rate, Row};
use crate::workers;
use timeseries::Counter;

/// Series of each cell in a report.
const SERIES: usize = 500;
/// Shortest period, and most cycles in a series.
const SHORTEST: f64 = 12.0;
const MOST_CYCLES: usize = 40;

/// Cells with the same mark.
struct Group {
    name: &'static str,
    variation: Variation,
    /// Fewest and most complete cycles in a series.
    cycles: (usize, usize),
    lengths: &'static [usize],
    /// Smallest share of right answers.
    mark: f64,
}

/// A series of 120 values has at most ten cycles of twelve values, so two groups have none.
const GROUPS: [Group; 4] = [
    Group {
        name: "jitter 5 %, ≥ 6 cycles",
        variation: Variation { jitter: 0.05, pauses: 0.0 },
        cycles: (6, MOST_CYCLES),
        lengths: &[120, 600, 2400],
        mark: 0.95,
    },
    Group {
        name: "jitter 5 %, 4 or 5 cycles",
        variation: Variation { jitter: 0.05, pauses: 0.0 },
        cycles: (4, 5),
        lengths: &[120, 600, 2400],
        mark: 0.88,
    },
    Group {
        name: "jitter 10 %, ≥ 10 cycles",
        variation: Variation { jitter: 0.1, pauses: 0.0 },
        cycles: (10, MOST_CYCLES),
        lengths: &[600, 2400],
        mark: 0.93,
    },
    Group {
        name: "jitter 5 %, pauses after 10 % of the cycles, ≥ 10 cycles",
        variation: Variation { jitter: 0.05, pauses: 0.1 },
        cycles: (10, MOST_CYCLES),
        lengths: &[600, 2400],
        mark: 0.78,
    },
];

/// The rows of all groups, and those of the errors.
pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut all: [Tally; 3] = Default::default();
    for group in &GROUPS {
        let cells: Vec<[Tally; 3]> = group.lengths.iter().map(|n| cell(options, group, *n)).collect();
        rows.push(group_row(options, group, &cells));
        for tallies in cells {
            for (sum, tally) in all.iter_mut().zip(tallies) {
                sum.errors.extend(tally.errors);
                for (into, from) in [(&mut sum.harmonic, tally.harmonic), (&mut sum.silent, tally.silent)] {
                    *into = Rate { hits: into.hits + from.hits, of: into.of + from.of };
                }
            }
        }
    }
    rows.extend(error_rows(&all));
    rows
}

fn group_row(options: &Options, group: &Group, cells: &[[Tally; 3]]) -> Row {
    let lengths: Vec<String> =
        group.lengths.iter().map(|n| if *n == 2400 { "2,400".to_owned() } else { n.to_string() }).collect();
    let shares = |detector: usize| -> String {
        let texts: Vec<String> = cells.iter().map(|cell| cell[detector].right.percent()).collect();
        format!("{} %", texts.join(" / "))
    };
    let bound = cells.iter().map(|cell| cell[0].right.bounds().0).fold(1.0, f64::min) * 100.0;
    Row::new(
        format!("within 5 %, {}, n = {}", group.name, lengths.join(" / ")),
        format!("95 % lower bound ≥ {:.0} %", group.mark * 100.0),
    )
    .result(format!("{} (≥ {bound:.1} %)", shares(0)))
    .beside(shares(1), shares(2))
    .met(cells.iter().all(|cell| cell[0].right.is_at_least(group.mark, options.is_strict())))
}

fn error_rows(all: &[Tally; 3]) -> Vec<Row> {
    let [ours, alnair, autoperiod] = all;
    let each = |text: &dyn Fn(&Tally) -> String| (text(ours), text(alnair), text(autoperiod));
    let row = |measure: &str, mark: &str, (result, first, second): (String, String, String)| {
        Row::new(measure, mark).result(result).beside(first, second)
    };
    let harmonics = |tally: &Tally| format!("{} %", tally.harmonic.percent());
    vec![
        row("median error of right answers", "≤ 1 %", each(&Tally::median_error))
            .met(median(ours.errors.clone()) <= 0.01),
        row("harmonics among answers", "≤ 2 %", each(&harmonics)).met(ours.harmonic.share() <= 0.02),
        row("no answer", "", each(&|tally| format!("{} %", tally.silent.percent()))),
    ]
}

/// A job of a group: periods are drawn until the number of complete cycles fits.
fn series(group: &Group, n: usize, draw: Draw) -> (Shape, Cyclic) {
    let place = GROUPS.iter().position(|one| one.name == group.name).unwrap_or(0) as u64;
    let random = &mut Random::of("job", &[place, n as u64, draw.seed, draw.number]);
    let shape = Shape::ALL[random.below(Shape::ALL.len())];
    let shortest = SHORTEST.max(n as f64 / (group.cycles.1 + 1) as f64);
    let longest = n as f64 / group.cycles.0 as f64;
    loop {
        let job = job(shape, random.log_uniform(shortest.min(longest), longest), group.variation, n, random);
        if (group.cycles.0..=group.cycles.1).contains(&job.complete) {
            return (shape, job);
        }
    }
}

/// A job of the first group, for other benches.
pub(crate) fn steady_job(n: usize, draw: Draw) -> Cyclic {
    series(&GROUPS[0], n, draw).1
}

/// What ours, Alnair's rule and AUTOPERIOD answer to the series of a cell.
fn cell(options: &Options, group: &Group, n: usize) -> [Tally; 3] {
    let answers: Vec<(Draw, Shape, Cyclic, Answers)> = workers::map(&options.draws(SERIES), |draw| {
        let (shape, job) = series(group, n, *draw);
        let answers = ask(&job.values, Counter::default(), *draw);
        (*draw, shape, job, answers)
    });
    let mut tallies: [Tally; 3] = Default::default();
    for (draw, shape, job, answers) in answers {
        let before = tallies[0].right.hits;
        tallies[0].add(answers.ours, job.period);
        if let Some(others) = answers.others {
            tallies[1].add(others[0], job.period);
            tallies[2].add(others[1], job.period);
        }
        if options.show && tallies[0].right.hits == before {
            let Draw { seed, number, .. } = draw;
            let truth = format!("{shape:?}, period {:.2}, {} cycles", job.period, job.complete);
            println!("{} n {n} seed {seed} number {number}: {truth}: {}", group.name, answers.verdict.reason());
        }
    }
    tallies
}
