//! Two other detectors, built from their descriptions, that stand beside ours in the table.

use crate::random::Random;
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use std::sync::Arc;

/// The rule of Alnair's profiler (github.com/CentaurusInfra/alnair, profiler, before October 2022): the series is cyclic if more
/// than two lags have a correlation above the normal 97.5 % quantile of all of them; the period is the median distance of these
/// lags. Returns it in samples.
pub(crate) fn alnair(values: &[f64]) -> Option<f64> {
    if values.iter().all(|value| *value <= 0.0) {
        return None;
    }
    let n = values.len();
    let correlations: Vec<f64> = (0..n / 2).map(|lag| correlation(&values[lag..], &values[..n - lag])).collect();
    let count = correlations.len() as f64;
    let mean = correlations.iter().sum::<f64>() / count;
    let deviation = (correlations.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count).sqrt();
    let threshold = mean + 1.959_964 * deviation;
    let lags: Vec<usize> = (0..correlations.len()).filter(|lag| correlations[*lag] > threshold).collect();
    if lags.len() <= 2 {
        return None;
    }
    let mut distances: Vec<f64> = lags.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    distances.sort_by(f64::total_cmp);
    let middle = distances.len() / 2;
    Some(if distances.len() % 2 == 1 { distances[middle] } else { (distances[middle - 1] + distances[middle]) / 2.0 })
}

/// Pearson's correlation; NaN if one side is constant, as in the original.
fn correlation(left: &[f64], right: &[f64]) -> f64 {
    let n = left.len() as f64;
    let (mut sums, mut squares, mut product) = ((0.0, 0.0), (0.0, 0.0), 0.0);
    for (a, b) in left.iter().zip(right) {
        sums = (sums.0 + a, sums.1 + b);
        squares = (squares.0 + a * a, squares.1 + b * b);
        product += a * b;
    }
    let (first, second) = (squares.0 - sums.0 * sums.0 / n, squares.1 - sums.1 * sums.1 / n);
    (product - sums.0 * sums.1 / n) / (first * second).sqrt()
}

/// Permutations of AUTOPERIOD: the threshold is the second largest of this many maxima, its 99 % quantile.
const PERMUTATIONS: usize = 100;

/// AUTOPERIOD (Vlachos, Yu, Castelli: *On Periodicity Detection and Structural Periodic Similarity*, SDM 2005) for one length.
/// Hints are the bins of the periodogram above the largest power of permuted series; a hint counts if it lies on a hill of the
/// autocorrelation, and its period is the top of that hill.
pub(crate) struct Autoperiod {
    n: usize,
    forward: Arc<dyn RealToComplex<f64>>,
    padded: (Arc<dyn RealToComplex<f64>>, Arc<dyn ComplexToReal<f64>>),
}

impl Autoperiod {
    pub(crate) fn new(n: usize) -> Autoperiod {
        let mut planner = RealFftPlanner::new();
        let twice = (2 * n).next_power_of_two();
        Autoperiod {
            n,
            forward: planner.plan_fft_forward(n),
            padded: (planner.plan_fft_forward(twice), planner.plan_fft_inverse(twice)),
        }
    }

    /// The period of the strongest hint that counts, in samples.
    pub(crate) fn period(&self, values: &[f64], random: &mut Random) -> Option<f64> {
        let mean = values.iter().sum::<f64>() / self.n as f64;
        let centred: Vec<f64> = values.iter().map(|value| value - mean).collect();
        if centred.iter().all(|value| value.abs() < 1e-9) {
            return None;
        }
        let power = self.periodogram(&centred);
        let mut permuted = centred.clone();
        let mut largest: Vec<f64> = (0..PERMUTATIONS)
            .map(|_| {
                random.shuffle(&mut permuted);
                self.periodogram(&permuted).into_iter().fold(0.0, f64::max)
            })
            .collect();
        largest.sort_by(f64::total_cmp);
        let threshold = largest[PERMUTATIONS - 2];
        let mut hints: Vec<usize> = (2..power.len()).filter(|k| power[*k] > threshold).collect();
        hints.sort_by(|a, b| power[*b].total_cmp(&power[*a]));
        let correlation = self.autocorrelation(&centred);
        hints.into_iter().find_map(|hint| self.top_of_hill(hint, &correlation))
    }

    fn periodogram(&self, values: &[f64]) -> Vec<f64> {
        let (mut input, mut spectrum) = (values.to_vec(), self.forward.make_output_vec());
        self.forward.process(&mut input, &mut spectrum).expect("the buffers are those of this plan");
        spectrum.iter().enumerate().map(|(k, bin)| if k == 0 { 0.0 } else { bin.norm_sqr() }).collect()
    }

    /// The biased autocorrelation of the lags below the length.
    fn autocorrelation(&self, values: &[f64]) -> Vec<f64> {
        let (forward, inverse) = &self.padded;
        let mut input = values.to_vec();
        input.resize(forward.len(), 0.0);
        let mut spectrum = forward.make_output_vec();
        forward.process(&mut input, &mut spectrum).expect("the buffers are those of this plan");
        spectrum.iter_mut().for_each(|bin| *bin = Complex::new(bin.norm_sqr(), 0.0));
        inverse.process(&mut spectrum, &mut input).expect("the buffers are those of this plan");
        let scale = input[0];
        input.truncate(self.n);
        input.iter_mut().for_each(|value| *value /= scale);
        input
    }

    /// The lag of the local maximum of the hill on which the period of bin `k` lies; `None` if it lies in a valley.
    fn top_of_hill(&self, k: usize, correlation: &[f64]) -> Option<f64> {
        let n = self.n as f64;
        let period = |k: usize| n / k as f64;
        let start = (f64::midpoint(period(k + 1), period(k)) - 1.0).floor().max(1.0) as usize;
        let end = (f64::midpoint(period(k), period(k - 1)) + 1.0).ceil() as usize;
        let end = end.min(self.n - 1);
        if period(k) < 2.0 || end < start + 3 {
            return None;
        }
        let (rising, falling) = two_lines(&correlation[start..=end]);
        if !(rising > 0.0 && falling < 0.0) {
            return None;
        }
        let mut lag = period(k).round() as usize;
        while lag + 1 < self.n && correlation[lag + 1] > correlation[lag] {
            lag += 1;
        }
        while lag > 1 && correlation[lag - 1] > correlation[lag] {
            lag -= 1;
        }
        Some(lag as f64)
    }
}

/// The slopes of the two lines that fit the values best, one up to a value and one from there.
fn two_lines(values: &[f64]) -> (f64, f64) {
    let mut best = (f64::INFINITY, (0.0, 0.0));
    for split in 1..values.len() - 1 {
        let ((left, left_error), (right, right_error)) = (line(&values[..=split]), line(&values[split..]));
        if left_error + right_error < best.0 {
            best = (left_error + right_error, (left, right));
        }
    }
    best.1
}

/// The slope of the least-squares line, and its squared error.
fn line(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let (middle, mean) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let (mut product, mut squares) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        product += (at as f64 - middle) * (value - mean);
        squares += (at as f64 - middle).powi(2);
    }
    let slope = product / squares;
    let error =
        values.iter().enumerate().map(|(at, value)| (value - mean - slope * (at as f64 - middle)).powi(2)).sum();
    (slope, error)
}

#[test]
fn the_detectors_do_what_their_descriptions_say() {
    let sine = |period: f64, n: usize| -> Vec<f64> {
        (0..n).map(|at| 50.0 + 20.0 * (std::f64::consts::TAU * at as f64 / period).sin()).collect()
    };
    let auto = |values: &[f64]| Autoperiod::new(values.len()).period(values, &mut Random::of("test", &[1]));
    assert_eq!(auto(&sine(20.0, 600)), Some(20.0));
    assert_eq!(auto(&[37.0; 120]), None);
    // A correlation is at most 1, and that of a sine varies so much that no lag exceeds the threshold.
    assert_eq!(alnair(&sine(20.0, 120)), None);
    // Short pulses: few lags are high, and they are a period apart.
    let pulses: Vec<f64> = (0..120).map(|at| if at % 12 == 0 { 90.0 } else { 10.0 }).collect();
    assert_eq!(alnair(&pulses), Some(12.0));
}
