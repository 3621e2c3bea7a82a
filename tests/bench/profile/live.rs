//! Streams as an agent sees them: a window that moves on, a verdict every 30 seconds, and what is published after a second verdict.

use crate::cycles::{Cyclic, Shape, Variation, job};
use crate::detectors::{is_near, median};
use crate::generators::{Null, regimes};
use crate::options::{Draw, Options};
use crate::random::Random;
use crate::table::{Rate, Row};
use crate::workers;
use std::time::Duration;
use timeseries::{PeriodWatch, Series, Verdict, find_period};

/// Streams with a period in a report.
const STREAMS: usize = 200;
/// Seconds of a stream with a period, after one window without load.
const PERIODIC_SECONDS: f64 = 7200.0;
/// Shortest period in samples.
const SHORTEST: f64 = 12.0;
/// Fewest cycles in a window. With fewer, the mean lengths of two windows differ too much: at six, even a detector that knows the
/// truth of each window is right in time in only 82 % of the jobs, at ten in 98 %.
const FEWEST_CYCLES: f64 = 10.0;
/// Cycles after which a period must be right, if two windows are less.
const CYCLES: f64 = 10.0;
/// Smallest share of streams whose period is right in time.
const IN_TIME: f64 = 0.9;

/// A window of an agent.
#[derive(Debug, Clone, Copy)]
struct Window {
    name: &'static str,
    step: Duration,
    /// Values in the window.
    values: usize,
    /// Values between two verdicts: 30 seconds.
    pace: usize,
}

/// The last 15 minutes at one value a second, and the last two minutes at the rate of NVML's own samples.
const WINDOWS: [Window; 2] = [
    Window { name: "1 s", step: Duration::from_secs(1), values: 900, pace: 30 },
    Window { name: "0.2 s", step: Duration::from_millis(200), values: 600, pace: 150 },
];

/// The families of streams without a period.
const FAMILIES: [(&str, Option<Null>); 4] = [
    ("Poisson bursts", Some(Null::Poisson)),
    ("Hawkes bursts", Some(Null::Hawkes)),
    ("1/f noise", Some(Null::Pink)),
    ("changing regimes", None),
];

/// A row for each family, and two for streams with a period.
pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut rows: Vec<Row> = FAMILIES.into_iter().map(|family| silent_row(options, family)).collect();
    rows.extend(periodic_rows(options));
    rows
}

/// Calls `seen` after each verdict, with the samples of the window and what is published.
fn watch(values: &[f64], window: Window, mut seen: impl FnMut(std::ops::Range<usize>, Option<&Verdict>)) {
    let series =
        Series::regular(window.step, values.iter().map(|value| Some(*value))).expect("a day of values is short enough");
    let mut watch = PeriodWatch::new();
    let time = |index: usize| window.step * index as u32;
    for end in (window.pace..=values.len()).step_by(window.pace) {
        let start = end.saturating_sub(window.values);
        let verdict = find_period(&series.slice(start..end));
        watch.apply(&verdict, time(start)..time(end - 1));
        seen(start..end, watch.published().map(|published| &published.verdict));
    }
}

fn silent_row(options: &Options, family: (&'static str, Option<Null>)) -> Row {
    let days = options.days(0.04, 1.0, 30.0);
    let counts: Vec<usize> = WINDOWS.iter().map(|window| publications(options, family, *window, days)).collect();
    let texts: Vec<String> =
        WINDOWS.iter().zip(&counts).map(|(window, count)| format!("{count} at {}", window.name)).collect();
    let all_days = days * WINDOWS.len() as f64;
    Row::new(format!("live, {}: false publications in {all_days:.1} stream-days", family.0), "≤ 1 in 30")
        .result(texts.join(", "))
        .met(counts.iter().sum::<usize>() as f64 <= (all_days / 30.0).max(1.0))
}

/// How often a period is published in streams of a day each that have none.
fn publications(options: &Options, (name, family): (&str, Option<Null>), window: Window, days: f64) -> usize {
    let streams = days.ceil() as usize;
    let length = (days / streams as f64 * 86_400.0 / window.step.as_secs_f64()) as usize;
    let seeds: Vec<(usize, u64)> = options.seeds.clone().cycle().take(streams).enumerate().collect();
    let counts = workers::map(&seeds, |(number, seed)| {
        let random = &mut Random::of(name, &[length as u64, *seed, *number as u64]);
        let values = match family {
            Some(family) => family.series(length, random),
            None => regimes(length, random),
        };
        let (mut count, mut was_periodic) = (0, false);
        watch(&values, window, |seen, published| {
            let is_periodic = published.is_some_and(|verdict| verdict.period().is_some());
            if options.show && is_periodic && !was_periodic {
                let reason = published.map(Verdict::reason).unwrap_or_default();
                println!("live {name} {} seed {seed} number {number} {seen:?}: {reason}", window.name);
            }
            count += usize::from(is_periodic && !was_periodic);
            was_periodic = is_periodic;
        });
        count
    });
    counts.into_iter().sum()
}

/// What became of a stream with a period.
struct Watched {
    right_in_time: bool,
    withdrawn: usize,
    /// Seconds from the start of the load until a right period was published.
    delay: Option<f64>,
}

fn periodic_rows(options: &Options) -> Vec<Row> {
    let (mut rates, mut withdrawals, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for window in WINDOWS {
        let watched = workers::map(&options.draws(STREAMS), |draw| watch_job(options, window, *draw));
        let mut in_time = Rate::default();
        watched.iter().for_each(|stream| in_time.add(stream.right_in_time));
        let delay = median(watched.iter().filter_map(|stream| stream.delay).collect());
        texts.push(format!("{} % after {delay:.0} s in the median at {}", in_time.percent(), window.name));
        rates.push(in_time);
        withdrawals.push(watched.iter().map(|stream| stream.withdrawn).sum::<usize>());
    }
    let each: Vec<String> =
        WINDOWS.iter().zip(&withdrawals).map(|(window, count)| format!("{count} at {}", window.name)).collect();
    vec![
        Row::new(
            format!(
                "live, {} jobs: right within two windows or ten cycles",
                rates.iter().map(|rate| rate.of).sum::<usize>()
            ),
            "≥ 90 %",
        )
        .result(texts.join(", "))
        .met(rates.iter().all(|rate| rate.is_measured_at_least(IN_TIME, options.is_strict()))),
        Row::new("live, these jobs: withdrawals", "none")
            .result(each.join(", "))
            .met(withdrawals.iter().all(|count| *count == 0)),
    ]
}

fn watch_job(options: &Options, window: Window, draw: Draw) -> Watched {
    let random = &mut Random::of("live job", &[window.values as u64, draw.seed, draw.number]);
    let period = random.log_uniform(SHORTEST, window.values as f64 / FEWEST_CYCLES);
    let shape = Shape::ALL[random.below(Shape::ALL.len())];
    let length = (PERIODIC_SECONDS / window.step.as_secs_f64()) as usize;
    let job: Cyclic = job(shape, period, Variation { jitter: 0.05, pauses: 0.0 }, length, random);
    let before = window.values;
    let values: Vec<f64> = std::iter::repeat_n(0.0, before).chain(job.values.iter().copied()).collect();
    let deadline = before as f64 + (2.0 * window.values as f64).max(CYCLES * period);
    let step = window.step.as_secs_f64();
    let mut watched = Watched { right_in_time: false, withdrawn: 0, delay: None };
    let mut was_periodic = false;
    watch(&values, window, |seen, published| {
        let published = published.and_then(Verdict::period);
        let answer = published.map(|period| period.length.as_secs_f64() / step);
        let part = seen.start as f64 - before as f64..seen.end as f64 - before as f64;
        let is_right = answer.is_some_and(|answer| is_near(answer, job.period_within(part)));
        if is_right && watched.delay.is_none() {
            watched.delay = Some((seen.end - before) as f64 * step);
            watched.right_in_time = seen.end as f64 <= deadline;
        }
        if was_periodic && answer.is_none() {
            watched.withdrawn += 1;
            if options.show {
                println!(
                    "live job {} seed {} number {} {shape:?} {period:.1}: withdrawn at {seen:?}",
                    window.name, draw.seed, draw.number
                );
            }
        }
        was_periodic = answer.is_some();
    });
    if options.show && !watched.right_in_time {
        let Draw { seed, number, .. } = draw;
        println!(
            "live job {} seed {seed} number {number} {shape:?} {period:.1}: right after {:?} s",
            window.name, watched.delay
        );
    }
    watched
}
