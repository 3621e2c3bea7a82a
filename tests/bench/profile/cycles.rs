//! Generators of load with a cycle: one job whose iterations vary in length and sometimes pause, and two unrelated jobs.

use crate::generators::{autoregressive, to_percent};
use crate::random::Random;
use std::ops::Range;

/// Sub-samples that are averaged to one value, as a counter averages over its window.
const SUB_SAMPLES: usize = 5;
/// Value between the cycles and height of a cycle, in percent.
const BASE: f64 = 10.0;
const HEIGHT: f64 = 60.0;
/// The signal-to-noise ratio of the marks: 6 dB of the variance.
const SIGNAL_TO_NOISE: f64 = 3.981_072;
/// A cycle is at least and at most this many times as long as the period.
const LENGTHS: (f64, f64) = (0.4, 1.8);
/// Correlation of the length of a cycle with that of the cycle before it. Real iterations have 0.6 to 0.77.
const JITTER_PHI: f64 = 0.7;

/// What happens within a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// At full height for the duty.
    Square,
    /// One sine from the base and back.
    Sine,
    /// From the base to the full height, and a drop.
    Saw,
    /// At full height for 60 % of the duty, at half height for the rest of it.
    TwoLevel,
}

impl Shape {
    /// All shapes of the marks.
    pub(crate) const ALL: [Shape; 4] = [Shape::Square, Shape::Sine, Shape::Saw, Shape::TwoLevel];

    /// The height, 0 to 1, at a phase, 0 to 1.
    fn at(self, phase: f64, duty: f64) -> f64 {
        match self {
            Shape::Square => f64::from(u8::from(phase < duty)),
            Shape::Sine => (1.0 - (std::f64::consts::TAU * phase).cos()) / 2.0,
            Shape::Saw => phase,
            Shape::TwoLevel if phase < duty * 0.6 => 1.0,
            Shape::TwoLevel if phase < duty => 0.5,
            Shape::TwoLevel => 0.0,
        }
    }
}

/// How the cycles of a series vary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variation {
    /// Standard deviation of the lengths over their mean.
    pub(crate) jitter: f64,
    /// Share of the cycles after which there is a pause of 1 to 4 periods.
    pub(crate) pauses: f64,
}

/// One cycle, in samples from the start of the series.
#[derive(Debug, Clone, Copy)]
struct Cycle {
    start: f64,
    length: f64,
}

/// Cycles that cover at least `until` samples; the first one started before the series.
fn cycles(period: f64, variation: Variation, until: f64, random: &mut Random) -> Vec<Cycle> {
    let most = (until / (period * LENGTHS.0)) as usize + 3;
    let jitter = autoregressive(JITTER_PHI, most, random);
    let mut start = -period * random.unit();
    let mut cycles = Vec::new();
    for deviation in jitter {
        if start >= until {
            break;
        }
        let length = period * (1.0 + variation.jitter * deviation).clamp(LENGTHS.0, LENGTHS.1);
        cycles.push(Cycle { start, length });
        start += length;
        if random.unit() < variation.pauses {
            start += random.uniform(1.0, 4.0) * period;
        }
    }
    cycles
}

/// The heights, 0 to 1, of `n` samples; `shape` takes the time since the start of the cycle, and the length of the cycle.
fn render(cycles: &[Cycle], n: usize, shape: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut current = 0;
    (0..n * SUB_SAMPLES)
        .map(|sub| {
            let time = (sub as f64 + 0.5) / SUB_SAMPLES as f64;
            while cycles.get(current + 1).is_some_and(|next| next.start <= time) {
                current += 1;
            }
            let Cycle { start, length } = cycles[current];
            if (start..start + length).contains(&time) { shape(time - start, length) } else { 0.0 }
        })
        .collect::<Vec<f64>>()
        .chunks(SUB_SAMPLES)
        .map(|chunk| chunk.iter().sum::<f64>() / SUB_SAMPLES as f64)
        .collect()
}

/// A series with a cycle, and its truth.
#[derive(Debug, Clone)]
pub(crate) struct Cyclic {
    pub(crate) values: Vec<f64>,
    /// The mean length of the cycles that are complete within the series, in samples.
    pub(crate) period: f64,
    /// How many cycles that is.
    pub(crate) complete: usize,
    cycles: Vec<Cycle>,
}

impl Cyclic {
    fn of(values: Vec<f64>, cycles: Vec<Cycle>) -> Cyclic {
        let (period, complete) = truth(&cycles, 0.0..values.len() as f64);
        Cyclic { values, period, complete, cycles }
    }

    /// The mean length of the cycles that are complete within a part of the series.
    pub(crate) fn period_within(&self, part: Range<f64>) -> f64 {
        truth(&self.cycles, part).0
    }
}

/// A job of this shape and period, with noise.
pub(crate) fn job(shape: Shape, period: f64, variation: Variation, n: usize, random: &mut Random) -> Cyclic {
    let duty = random.uniform(0.2, 0.8);
    let cycles = cycles(period, variation, n as f64, random);
    let mut values = render(&cycles, n, |elapsed, length| shape.at(elapsed / length, duty));
    values.iter_mut().for_each(|value| *value = BASE + HEIGHT * *value);
    add_noise(&mut values, random);
    to_percent(&mut values);
    Cyclic::of(values, cycles)
}

/// Adds normal noise at the signal-to-noise ratio of the marks.
fn add_noise(values: &mut [f64], random: &mut Random) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    let noise = (variance / SIGNAL_TO_NOISE).sqrt();
    values.iter_mut().for_each(|value| *value += random.normal(noise));
}

/// Two unrelated jobs on one GPU, and the mean cycle of each.
pub(crate) fn two_jobs(n: usize, random: &mut Random) -> (Vec<f64>, [f64; 2]) {
    let longest = n as f64 / 6.0;
    let draw = |random: &mut Random| random.uniform(8.0, longest);
    let (first, mut second) = (draw(random), draw(random));
    while (first / second).max(second / first) < 1.15 {
        second = draw(random);
    }
    let weight = random.uniform(0.3, 0.7);
    let mut values = vec![BASE; n];
    let mut truths = [0.0; 2];
    for ((period, weight), mean) in [(first, weight), (second, 1.0 - weight)].into_iter().zip(&mut truths) {
        let duty = random.uniform(0.2, 0.8);
        let cycles = cycles(period, Variation { jitter: 0.03, pauses: 0.0 }, n as f64, random);
        *mean = truth(&cycles, 0.0..n as f64).0;
        let heights = render(&cycles, n, |elapsed, length| Shape::Square.at(elapsed / length, duty));
        values.iter_mut().zip(heights).for_each(|(value, height)| *value += HEIGHT * weight * height);
    }
    values.iter_mut().for_each(|value| *value += random.normal(5.0));
    to_percent(&mut values);
    (values, truths)
}

/// Iterations of these lengths, in samples, that fill `n` samples: idle at the start of each, then busy.
pub(crate) fn iterations(lengths: &[f64], n: usize, random: &mut Random) -> Cyclic {
    let mut sorted = lengths.to_vec();
    sorted.sort_by(f64::total_cmp);
    let idle = 0.9 * (1.0 - random.uniform(0.5, 0.85)) * sorted[sorted.len() / 2];
    let mut start = 0.0;
    let mut cycles = Vec::new();
    for length in lengths {
        cycles.push(Cycle { start, length: *length });
        start += length;
    }
    let mut values = render(&cycles, n, |elapsed, _| f64::from(u8::from(elapsed >= idle)));
    values.iter_mut().for_each(|value| *value = 5.0 + 85.0 * *value + random.normal(5.0));
    to_percent(&mut values);
    Cyclic::of(values, cycles)
}

/// The mean length of the cycles that are complete within a part of the series, and how many they are.
fn truth(cycles: &[Cycle], part: Range<f64>) -> (f64, usize) {
    let complete = cycles.iter().filter(|cycle| cycle.start >= part.start && cycle.start + cycle.length <= part.end);
    let (count, sum) = complete.fold((0, 0.0), |(count, sum), cycle| (count + 1, sum + cycle.length));
    (sum / count as f64, count)
}

#[test]
fn the_truth_is_the_mean_complete_cycle() {
    let random = &mut Random::of("truth", &[1]);
    let steady = job(Shape::Saw, 20.0, Variation { jitter: 0.0, pauses: 0.0 }, 600, random);
    assert!((steady.period - 20.0).abs() < 1e-9 && (29..=30).contains(&steady.complete));
    let pausing = job(Shape::Saw, 20.0, Variation { jitter: 0.0, pauses: 0.5 }, 600, random);
    assert!((pausing.period - 20.0).abs() < 1e-9 && pausing.complete < 24);
    let (_, [first, second]) = two_jobs(600, random);
    assert!((7.0..104.0).contains(&first) && (7.0..104.0).contains(&second));
    let counted = iterations(&[10.0; 40], 240, random);
    assert!((counted.period - 10.0).abs() < 1e-9 && counted.complete == 24);
}
