//! Generators of load without a cycle: what idle, steady, drifting and bursty GPUs look like in whole percent.
//!
//! The families and their parameters are fixed: a report of another day, or by somebody else, must use the same series. N(s) in
//! a comment is normal noise of standard deviation s.

use crate::random::Random;
use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

/// A family of series without a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Null {
    /// 50 + N(10).
    White,
    /// 50 + 15 · AR(1) of this φ, in hundredths, scaled to standard deviation 1.
    Autoregressive(u8),
    /// 50 + the sum of N(3).
    Walk,
    /// 10 to 80, + N(4).
    Ramp,
    /// 30 + N(4), with 1 to 3 jumps N(25) in the middle 80 %.
    Steps,
    /// 50 + 15 · noise whose amplitude falls with the square root of the frequency, scaled to standard deviation 1.
    Pink,
    /// Bursts at a rate of U(0.03, 0.2), exponential length of mean 3, height U(30, 60), + N(2).
    Poisson,
    /// Bursts that cause bursts: base rate 0.03, each adds 0.15, which decays by e^-¼ a sample; + N(2).
    Hawkes,
    /// 20 + N(2), with 1 to 3 samples of 90.
    Spike,
    /// Always 37.
    Constant,
    /// Always 0.
    Idle,
    /// 97 + N(1).
    Flat,
}

impl Null {
    /// All families of the marks.
    pub(crate) const ALL: [Null; 14] = [
        Null::White,
        Null::Autoregressive(50),
        Null::Autoregressive(70),
        Null::Autoregressive(95),
        Null::Walk,
        Null::Ramp,
        Null::Steps,
        Null::Pink,
        Null::Poisson,
        Null::Hawkes,
        Null::Spike,
        Null::Constant,
        Null::Idle,
        Null::Flat,
    ];

    /// The name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Null::White => "white noise",
            Null::Autoregressive(50) => "AR(1) 0.5",
            Null::Autoregressive(70) => "AR(1) 0.7",
            Null::Autoregressive(_) => "AR(1) 0.95",
            Null::Walk => "random walk",
            Null::Ramp => "ramp",
            Null::Steps => "steps",
            Null::Pink => "1/f noise",
            Null::Poisson => "Poisson bursts",
            Null::Hawkes => "Hawkes bursts",
            Null::Spike => "spikes",
            Null::Constant => "constant",
            Null::Idle => "idle",
            Null::Flat => "flat",
        }
    }

    /// A series of `n` values.
    pub(crate) fn series(self, n: usize, random: &mut Random) -> Vec<f64> {
        let mut values = match self {
            Null::White => (0..n).map(|_| 50.0 + random.normal(10.0)).collect(),
            Null::Autoregressive(hundredths) => around_50(autoregressive(f64::from(hundredths) / 100.0, n, random)),
            Null::Walk => walk(n, random),
            Null::Ramp => (0..n).map(|at| 10.0 + 70.0 * at as f64 / (n - 1) as f64 + random.normal(4.0)).collect(),
            Null::Steps => steps(n, random),
            Null::Pink => around_50(pink(n, random)),
            Null::Poisson => poisson(n, random),
            Null::Hawkes => hawkes(n, random),
            Null::Spike => spikes(n, random),
            Null::Constant => vec![37.0; n],
            Null::Idle => vec![0.0; n],
            Null::Flat => (0..n).map(|_| 97.0 + random.normal(1.0)).collect(),
        };
        to_percent(&mut values);
        values
    }
}

/// Rounds to whole percent, as NVML reports utilisation.
pub(crate) fn to_percent(values: &mut [f64]) {
    for value in values {
        *value = value.round().clamp(0.0, 100.0);
    }
}

/// AR(1) with standard deviation 1, in its stationary state.
pub(crate) fn autoregressive(phi: f64, n: usize, random: &mut Random) -> Vec<f64> {
    let fresh = (1.0 - phi * phi).sqrt();
    let mut value = random.normal(1.0);
    (0..n)
        .map(|_| {
            value = phi * value + random.normal(fresh);
            value
        })
        .collect()
}

/// 50 + 15 times the values after scaling them to mean 0 and standard deviation 1.
fn around_50(values: Vec<f64>) -> Vec<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n).sqrt();
    values.into_iter().map(|value| 50.0 + 15.0 * (value - mean) / deviation).collect()
}

fn walk(n: usize, random: &mut Random) -> Vec<f64> {
    let mut value = 50.0;
    (0..n)
        .map(|_| {
            value += random.normal(3.0);
            value
        })
        .collect()
}

fn steps(n: usize, random: &mut Random) -> Vec<f64> {
    let mut values: Vec<f64> = (0..n).map(|_| 30.0 + random.normal(4.0)).collect();
    for _ in 0..=random.below(3) {
        let at = random.uniform(0.1, 0.9) * n as f64;
        let height = random.normal(25.0);
        values.iter_mut().skip(at as usize).for_each(|value| *value += height);
    }
    values
}

/// Random phases and normal amplitudes, weighted with k^-½.
fn pink(n: usize, random: &mut Random) -> Vec<f64> {
    let inverse = RealFftPlanner::<f64>::new().plan_fft_inverse(n);
    let mut spectrum = inverse.make_input_vec();
    let last = spectrum.len() - 1;
    for (k, bin) in spectrum.iter_mut().enumerate().skip(1) {
        let weight = (k as f64).powf(-0.5);
        *bin = Complex::new(random.normal(weight), random.normal(weight));
    }
    if n.is_multiple_of(2) {
        spectrum[last].im = 0.0;
    }
    let mut values = inverse.make_output_vec();
    inverse.process(&mut spectrum, &mut values).expect("the buffers are those of this plan");
    values
}

fn poisson(n: usize, random: &mut Random) -> Vec<f64> {
    let rate = random.uniform(0.03, 0.2);
    let mut values: Vec<f64> = (0..n).map(|_| random.normal(2.0)).collect();
    let mut at = random.exponential(1.0 / rate);
    while at < n as f64 {
        let length = random.exponential(3.0).max(1.0) as usize;
        let height = random.uniform(30.0, 60.0);
        values.iter_mut().skip(at as usize).take(length).for_each(|value| *value += height);
        at += random.exponential(1.0 / rate);
    }
    values
}

fn hawkes(n: usize, random: &mut Random) -> Vec<f64> {
    let decay = (-0.25_f64).exp();
    let mut excited = 0.0;
    let mut running: Vec<usize> = Vec::new();
    (0..n)
        .map(|_| {
            let events = random.poisson(0.03 + excited);
            excited = excited * decay + 0.15 * events as f64;
            running.extend((0..events).map(|_| random.exponential(2.0).max(1.0) as usize));
            let height = 40.0 * running.len().min(2) as f64;
            running.iter_mut().for_each(|left| *left -= 1);
            running.retain(|left| *left > 0);
            height + random.normal(2.0)
        })
        .collect()
}

fn spikes(n: usize, random: &mut Random) -> Vec<f64> {
    let mut values: Vec<f64> = (0..n).map(|_| 20.0 + random.normal(2.0)).collect();
    for _ in 0..=random.below(3) {
        let at = random.below(n);
        values[at] = 90.0;
    }
    values
}

/// Phases of 1 to 3 hours, each of another family, for a stream with this many values an hour.
pub(crate) fn regimes(n: usize, hour: f64, random: &mut Random) -> Vec<f64> {
    const FAMILIES: [Null; 6] =
        [Null::Idle, Null::Poisson, Null::Flat, Null::Autoregressive(95), Null::Hawkes, Null::Pink];
    let mut values = Vec::with_capacity(n);
    while values.len() < n {
        let length = random.uniform(hour, 3.0 * hour) as usize;
        let family = FAMILIES[random.below(FAMILIES.len())];
        values.extend(family.series(length.min(n - values.len()).max(2), random));
    }
    values.truncate(n);
    values
}

#[test]
fn each_family_is_reproducible_and_in_whole_percent() {
    for (number, family) in Null::ALL.into_iter().enumerate() {
        let series = |seed| family.series(600, &mut Random::of(family.name(), &[seed]));
        assert_eq!(series(3), series(3), "{}", family.name());
        assert_eq!(series(3) == series(4), matches!(family, Null::Constant | Null::Idle), "{number}");
        assert!(series(5).iter().all(|value| value.fract() == 0.0 && (0.0..=100.0).contains(value)));
    }
}

#[test]
fn slow_families_have_the_correlation_of_their_names() {
    let neighbours = |family: Null| {
        let values = family.series(4096, &mut Random::of("neighbours", &[1]));
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let product =
            |lag: usize| -> f64 { values.iter().zip(&values[lag..]).map(|(a, b)| (a - mean) * (b - mean)).sum() };
        product(1) / product(0)
    };
    assert!((neighbours(Null::Autoregressive(70)) - 0.7).abs() < 0.05);
    assert!((neighbours(Null::Autoregressive(95)) - 0.95).abs() < 0.03);
    assert!((0.5..0.98).contains(&neighbours(Null::Pink)));
    assert!(neighbours(Null::White).abs() < 0.05);
}
