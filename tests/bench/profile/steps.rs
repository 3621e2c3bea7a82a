//! The rows of steps and leaks: recorded load steps of three GPUs, whose edges are known, and sawtooths like the memory of a
//! process that frees it once a cycle.

use crate::data::{Table, recording};
use crate::generators::{autoregressive, to_percent};
use crate::options::{Draw, Options, Size};
use crate::random::Random;
use crate::table::{Rate, Row};
use crate::workers;
use std::time::Duration;
use timeseries::{Leak, Sample, Series, Step, find_period, leak, steps};

/// Recordings with one load step.
const RECORDINGS: [&str; 3] = ["3090", "4090", "A100"];
/// The clock of the edges is one hour behind that of the samples.
const BEHIND: f64 = 3600.0;
/// How far a step may be from its edge, in seconds.
const WITHIN: f64 = 1.0;

/// The sawtooths of the marks, in percent.
const CYCLES: usize = 20;
const BASE: f64 = 10.0;
const HEIGHT: f64 = 40.0;
const NOISE: f64 = 5.8;
const JITTER: f64 = 0.05;
const JITTER_PHI: f64 = 0.7;
const SUB_SAMPLES: usize = 5;
/// A leak raises each cycle by this share of the height.
const RISE: f64 = 0.01;

/// A recording of utilisation, and when its load started and ended, in seconds since the first sample.
struct Recording {
    name: String,
    samples: Vec<Sample>,
    edges: [f64; 2],
}

/// One row for each recorded load step.
pub(crate) fn rows(options: &Options) -> Result<Vec<Row>, String> {
    let recordings = match options.size {
        Size::Full => RECORDINGS.iter().map(|name| recorded(options, name)).collect::<Result<Vec<_>, String>>()?,
        Size::Quick | Size::Cut => vec![cut()?],
    };
    recordings.iter().map(row).collect()
}

fn recorded(options: &Options, name: &str) -> Result<Recording, String> {
    let folder = options.data()?.join("nvidia-smi");
    let read = |part: &str| Table::read(&recording(&folder, &format!("Transient_Response_{name}_TR.{part}")));
    let (samples, start) = samples(&read("gpudata")?)?;
    // Each edge has two lines. The third edge is the end of the recording.
    let edges: Vec<f64> = read("loadedges")?.numbers("timestamp")?.into_iter().flatten().step_by(2).collect();
    let [on, off, ..] = edges[..] else { return Err(format!("{name}: has no two edges")) };
    let since = |edge: f64| edge / 1e6 + BEHIND - start;
    Ok(Recording { name: name.to_owned(), samples, edges: [since(on), since(off)] })
}

fn cut() -> Result<Recording, String> {
    let (samples, _) = samples(&Table::cut("nvidia-smi-step.csv")?)?;
    Ok(Recording { name: "A100 (cut)".to_owned(), samples, edges: [1.513, 7.483] })
}

/// The samples of utilisation, and the time of the first one.
fn samples(table: &Table) -> Result<(Vec<Sample>, f64), String> {
    let (times, values) = (table.seconds("timestamp")?, table.numbers("utilization.gpu")?);
    let start = times.first().copied().flatten().ok_or("the first row has no time")?;
    let sample = |(time, value): (Option<f64>, Option<f64>)| {
        Some(Sample { at: Duration::try_from_secs_f64(time? - start).ok()?, value: value? })
    };
    Ok((times.into_iter().zip(values).filter_map(sample).collect(), start))
}

fn row(recording: &Recording) -> Result<Row, String> {
    let series = Series::resampled(&recording.samples, None).map_err(|error| error.to_string())?;
    let found = steps(&series);
    let step = series.step().as_secs_f64();
    let late: Vec<f64> = found.iter().zip(recording.edges).map(|(found, edge)| found.at * step - edge).collect();
    let is_right = |found: &[Step]| {
        matches!(found, [up, down] if up.after > up.before && down.after < down.before)
            && late.iter().all(|late| late.abs() <= WITHIN)
    };
    let text: Vec<String> = late.iter().map(|late| format!("{late:+.2} s")).collect();
    Ok(Row::new(
        format!("utilisation of a {}, one load of 6 s", recording.name),
        format!("two steps, each within {WITHIN:.0} s"),
    )
    .result(format!("{} steps: {}", found.len(), text.join(", ")))
    .met(is_right(&found)))
}

/// One row for sawtooths that keep their height, one for sawtooths that rise.
#[expect(clippy::unnecessary_wraps, reason = "a part of the table may fail")]
pub(crate) fn leak_rows(options: &Options) -> Result<Vec<Row>, String> {
    let draws = options.draws(500);
    let found = |rise: f64| {
        let leaks = workers::map(&draws, |draw| found_leak(*draw, rise));
        let mut rate = Rate::default();
        leaks.iter().for_each(|leak| rate.add(leak.is_some()));
        rate
    };
    let (flat, rising) = (found(0.0), found(RISE));
    let is_strict = options.is_strict();
    let flat_is_met = if is_strict { flat.share() <= 0.02 } else { flat.is_at_most(0.02, false) };
    let rising_is_met = if is_strict { rising.share() >= 0.85 } else { rising.is_at_least(0.85, false) };
    Ok(vec![
        Row::new(format!("leak rule, sawtooths of {CYCLES} cycles, flat"), "≤ 2 %")
            .result(format!("{} %", flat.percent()))
            .met(flat_is_met),
        Row::new(format!("leak rule, sawtooths of {CYCLES} cycles that rise by 1 % of their height a cycle"), "≥ 85 %")
            .result(format!("{} %", rising.percent()))
            .met(rising_is_met),
    ])
}

fn found_leak(draw: Draw, rise: f64) -> Option<Leak> {
    let random = &mut Random::of("leak", &[draw.seed, draw.number, u64::from(rise > 0.0)]);
    let values = sawtooth(rise, random);
    let series = Series::regular(Duration::from_secs(1), values.into_iter().map(Some)).ok()?;
    let verdict = find_period(&series);
    leak(&series, verdict.period()?)
}

/// Whole cycles that rise from the base and drop; each is `rise` of the height above the one before.
fn sawtooth(rise: f64, random: &mut Random) -> Vec<f64> {
    let period = random.uniform(15.0, 59.0);
    let lengths: Vec<f64> = autoregressive(JITTER_PHI, CYCLES, random)
        .into_iter()
        .map(|deviation| period * (1.0 + JITTER * deviation).clamp(0.4, 1.8))
        .collect();
    let count = lengths.iter().sum::<f64>() as usize;
    let (mut cycle, mut start) = (0, 0.0);
    let mut values: Vec<f64> = (0..count * SUB_SAMPLES)
        .map(|sub| {
            let time = (sub as f64 + 0.5) / SUB_SAMPLES as f64;
            while cycle + 1 < CYCLES && time >= start + lengths[cycle] {
                start += lengths[cycle];
                cycle += 1;
            }
            BASE + HEIGHT * (rise * cycle as f64 + (time - start) / lengths[cycle])
        })
        .collect::<Vec<f64>>()
        .chunks(SUB_SAMPLES)
        .map(|chunk| chunk.iter().sum::<f64>() / SUB_SAMPLES as f64 + random.normal(NOISE))
        .collect();
    to_percent(&mut values);
    values
}
