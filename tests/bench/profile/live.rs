//! Streams as an agent sees them: windows that move on, analysed at the agent's pace by the agent's own code, and what is published.
//!
//! ```text
//!   stream ─▶ windows of a tier ─▶ profiles::cycles::CycleTracker ─▶ published period
//!         └─▶ profiles::tier::Tier ─▶ profiles::job::JobTracker ─▶ `cyclic_pattern`
//! ```

use crate::cycles::{Cyclic, Shape, Variation, job};
use crate::detectors::{is_near, median};
use crate::generators::{Null, regimes};
use crate::options::{Draw, Options};
use crate::random::Random;
use crate::table::{Rate, Row};
use crate::workers;
use model::id::GpuUuid;
use model::stored_history::StoredTier;
use model::time::{Monotonic, WallTime};
use profiles::cycles::{CycleTracker, CycleWindow};
use profiles::history::FINE_SPAN;
use profiles::job::JobTracker;
use profiles::schedule::{GPU_EVERY, MINUTES_EVERY, QUARTERS_EVERY};
use profiles::source_rate::ANALYZED;
use profiles::tier::Tier;
use std::ops::Range;
use std::time::Duration;
use timeseries::{Counter, Series};

/// Shortest period in samples, and that of `cyclic_pattern`, whose window holds ten cycles of twelve.
const SHORTEST: f64 = 12.0;
const SHORTEST_JOB: f64 = 6.0;
/// Fewest cycles in a window. With fewer, the mean lengths of two windows differ too much: at six, even a detector that knows the
/// truth of each window is right in time in only 82 % of the jobs, at ten in 98 %.
const FEWEST_CYCLES: f64 = 10.0;
/// Cycles after which a period must be right, if two windows are less.
const CYCLES: f64 = 10.0;
/// Smallest share of streams whose period is right in time.
const IN_TIME: f64 = 0.9;
/// Most false publications in this many stream-days: one.
const DAYS_OF_ONE: f64 = 30.0;

const SECOND: Duration = Duration::from_secs(1);
/// The distance of NVML's own samples: drivers take about six a second.
const SAMPLE: Duration = Duration::from_nanos(166_666_667);
const DAY: f64 = 86_400.0;

/// A window of an agent.
#[derive(Debug, Clone, Copy)]
struct Window {
    name: &'static str,
    /// `None`: the last two minutes, for `cyclic_pattern`.
    of: Option<CycleWindow>,
    step: Duration,
    /// Values in the window.
    values: usize,
    /// Time between two analyses.
    every: Duration,
    /// Length of a stream without a period, in days. Longer windows need longer streams.
    days: f64,
    /// Streams with a period in a report, and their length in windows.
    periodic: (usize, usize),
}

/// The windows of a GPU's series, with the numbers of the agent.
const WINDOWS: [Window; 4] = [
    Window {
        name: "seconds",
        of: Some(CycleWindow::Fine),
        step: SECOND,
        values: FINE_SPAN.as_secs() as usize,
        every: GPU_EVERY,
        days: 1.0,
        periodic: (200, 8),
    },
    Window {
        name: "NVML's samples",
        of: Some(CycleWindow::Source),
        step: SAMPLE,
        values: ANALYZED,
        every: GPU_EVERY,
        days: 1.0,
        periodic: (200, 40),
    },
    Window {
        name: "minutes",
        of: Some(CycleWindow::Minute),
        step: StoredTier::Minute.step(),
        values: StoredTier::Minute.kept_steps() as usize,
        every: MINUTES_EVERY[0],
        days: 10.0,
        periodic: (100, 4),
    },
    Window {
        name: "quarters",
        of: Some(CycleWindow::Quarter),
        step: StoredTier::Quarter.step(),
        values: StoredTier::Quarter.kept_steps() as usize,
        every: QUARTERS_EVERY,
        days: 100.0,
        periodic: (50, 4),
    },
];

/// The window behind `cyclic_pattern`.
const JOB: Window = Window {
    name: "`cyclic_pattern`",
    of: None,
    step: SECOND,
    values: profiles::job::WINDOW.as_secs() as usize,
    every: GPU_EVERY,
    days: 1.0,
    periodic: (200, 20),
};

/// The families of streams without a period.
const FAMILIES: [(&str, Option<Null>); 4] = [
    ("Poisson bursts", Some(Null::Poisson)),
    ("Hawkes bursts", Some(Null::Hawkes)),
    ("1/f noise", Some(Null::Pink)),
    ("changing regimes", None),
];

/// Two rows for each family, and two for streams with a period.
pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        rows.push(silent_row(options, family, &WINDOWS, "false publications"));
        rows.push(silent_row(options, family, &[JOB], "false publications of `cyclic_pattern`"));
    }
    rows.extend(periodic_rows(options));
    rows
}

impl Window {
    /// Values between two analyses.
    fn pace(&self) -> usize {
        (self.every.as_secs_f64() / self.step.as_secs_f64()).round() as usize
    }

    /// Calls `seen` after each analysis, with the samples of the window and the published period in samples.
    fn watch(&self, values: &[f64], mut seen: impl FnMut(Range<usize>, Option<f64>)) {
        let ends = (self.pace()..=values.len()).step_by(self.pace());
        let in_samples = |length: Duration| length.as_secs_f64() / self.step.as_secs_f64();
        let window = |end: usize| end.saturating_sub(self.values)..end;
        let time = |index: usize| self.step * index as u32;
        let Some(of) = self.of else {
            let gpu = GpuUuid::parse("GPU-1").expect("a name of a GPU");
            let at = |index: usize| Monotonic(DAY as u64 * 1_000_000_000).after(time(index));
            let (mut tier, mut job, mut next) = (Tier::new(self.step, FINE_SPAN), JobTracker::default(), 0);
            for end in ends {
                (next..end).for_each(|index| tier.add(at(index), values[index]));
                next = end;
                job.look(&gpu, (Some(&tier), None), at(end));
                seen(window(end), job.job().and_then(|job| job.period).map(in_samples));
            }
            return;
        };
        // NVML's samples are as far apart as its counter's window; what is known of the other tiers' counters is nothing.
        let own = (of == CycleWindow::Source).then_some(self.step);
        let series = Series::regular(self.step, values.iter().map(|value| Some(*value)));
        let series = series.expect("a stream is short enough").with_counter(Counter { window: own, refresh: own });
        let mut tracker = CycleTracker::default();
        for end in ends {
            let part = window(end);
            tracker.judge(of, &series.slice(part.clone()), time(part.start), WallTime(0));
            seen(part, tracker.period_of(of).map(|period| in_samples(period.length)));
        }
    }
}

fn silent_row(options: &Options, family: (&'static str, Option<Null>), windows: &[Window], what: &str) -> Row {
    let streams = options.days(0.04, 2.0, DAYS_OF_ONE);
    let counts: Vec<(usize, f64)> =
        windows.iter().map(|window| (publications(options, family, *window, streams), streams * window.days)).collect();
    let texts: Vec<String> = windows
        .iter()
        .zip(&counts)
        .map(|(window, (count, days))| format!("{count} in {} days of {}", days.round(), window.name))
        .collect();
    let rate: f64 = counts.iter().map(|(count, days)| *count as f64 / days).sum();
    let count: usize = counts.iter().map(|(count, _)| count).sum();
    Row::new(format!("live, {}: {what}", family.0), "≤ 1 in 30 stream-days")
        .result(texts.join(", "))
        // One publication in fewer days proves nothing.
        .met(count <= 1 || rate * DAYS_OF_ONE <= 1.0)
}

/// How often a period is published in so many streams that have none.
fn publications(options: &Options, (name, family): (&str, Option<Null>), window: Window, streams: f64) -> usize {
    let count = streams.ceil() as usize;
    let length = (streams / count as f64 * window.days * DAY / window.step.as_secs_f64()) as usize;
    let seeds: Vec<(usize, u64)> = options.seeds.clone().cycle().take(count).enumerate().collect();
    let counts = workers::map(&seeds, |(number, seed)| {
        let random = &mut Random::of(name, &[length as u64, *seed, *number as u64]);
        let values = match family {
            Some(family) => family.series(length, random),
            None => regimes(length, 3600.0 / window.step.as_secs_f64(), random),
        };
        let (mut count, mut was_periodic) = (0, false);
        window.watch(&values, |seen, published| {
            let is_new = published.is_some() && !was_periodic;
            if let Some(period) = published.filter(|_| options.show && is_new) {
                println!("live {name} {} seed {seed} number {number} {seen:?}: {period:.1} samples", window.name);
            }
            count += usize::from(is_new);
            was_periodic = published.is_some();
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
    for window in WINDOWS.into_iter().chain([JOB]) {
        let watched = workers::map(&options.draws(window.periodic.0), |draw| watch_job(options, window, *draw));
        let mut in_time = Rate::default();
        watched.iter().for_each(|stream| in_time.add(stream.right_in_time));
        let delay = median(watched.iter().filter_map(|stream| stream.delay).collect());
        let windows = delay / (window.step.as_secs_f64() * window.values as f64);
        texts.push(format!("{} % of {} in {}, after {windows:.2} windows", in_time.percent(), in_time.of, window.name));
        rates.push(in_time);
        let withdrawn: usize = watched.iter().map(|stream| stream.withdrawn).sum();
        withdrawals.push((withdrawn, window.name));
    }
    let each: Vec<String> = withdrawals.iter().map(|(count, name)| format!("{count} in {name}")).collect();
    let is_in_time = |rate: &Rate| rate.is_measured_at_least(IN_TIME, options.is_strict());
    vec![
        Row::new(
            "live, jobs with periods up to a tenth of the window: right within two windows or ten cycles",
            "≥ 90 %",
        )
        .result(format!("{} in the median", texts.join("; ")))
        .met(rates.iter().all(is_in_time)),
        Row::new("live, these jobs: withdrawals", "none")
            .result(each.join(", "))
            .met(withdrawals.iter().all(|(count, _)| *count == 0)),
    ]
}

fn watch_job(options: &Options, window: Window, draw: Draw) -> Watched {
    let random = &mut Random::of("live job", &[window.values as u64, draw.seed, draw.number]);
    let shortest = if window.of.is_some() { SHORTEST } else { SHORTEST_JOB };
    let period = random.log_uniform(shortest, window.values as f64 / FEWEST_CYCLES);
    let shape = Shape::ALL[random.below(Shape::ALL.len())];
    let length = window.values * window.periodic.1;
    let job: Cyclic = job(shape, period, Variation { jitter: 0.05, pauses: 0.0 }, length, random);
    let before = window.values;
    let values: Vec<f64> = std::iter::repeat_n(0.0, before).chain(job.values.iter().copied()).collect();
    let deadline = before as f64 + (2.0 * window.values as f64).max(CYCLES * period);
    let mut watched = Watched { right_in_time: false, withdrawn: 0, delay: None };
    let mut was_periodic = false;
    let Draw { seed, number, .. } = draw;
    window.watch(&values, |seen, answer| {
        let part = seen.start as f64 - before as f64..seen.end as f64 - before as f64;
        let is_right = answer.is_some_and(|answer| is_near(answer, job.period_within(part)));
        if is_right && watched.delay.is_none() {
            watched.delay = Some((seen.end - before) as f64 * window.step.as_secs_f64());
            watched.right_in_time = seen.end as f64 <= deadline;
        }
        if was_periodic && answer.is_none() {
            watched.withdrawn += 1;
            if options.show {
                println!(
                    "live job {} seed {seed} number {number} {shape:?} {period:.1}: withdrawn at {seen:?}",
                    window.name
                );
            }
        }
        was_periodic = answer.is_some();
    });
    if options.show && !watched.right_in_time {
        let delay = watched.delay;
        println!("live job {} seed {seed} number {number} {shape:?} {period:.1}: right after {delay:?} s", window.name);
    }
    watched
}
