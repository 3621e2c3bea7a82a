//! A small seeded generator: xoshiro256++, whose state comes from SplitMix64 (Blackman, Vigna: prng.di.unimi.it). A bench that is
//! reported once must give the same series with every version of every crate, so it has its own.

use std::f64::consts::TAU;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: [u64; 4],
    /// The second number of the last pair of normal numbers.
    spare: Option<f64>,
}

impl Random {
    /// The stream of this name: different names give independent streams.
    pub(crate) fn of(name: &str, numbers: &[u64]) -> Random {
        let mut seed = 0xcbf2_9ce4_8422_2325_u64;
        for byte in name.bytes().chain(numbers.iter().flat_map(|number| number.to_le_bytes())) {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        let mut next = || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        Random { state: [next(), next(), next(), next()], spare: None }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Uniform in 0..1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform between two numbers.
    pub(crate) fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// A number between two numbers whose logarithm is uniform.
    pub(crate) fn log_uniform(&mut self, from: f64, to: f64) -> f64 {
        self.uniform(from.ln(), to.ln()).exp()
    }

    /// One of 0..`count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Normal with this standard deviation (Box and Muller).
    pub(crate) fn normal(&mut self, deviation: f64) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare * deviation;
        }
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let (sine, cosine) = (TAU * self.unit()).sin_cos();
        self.spare = Some(radius * sine);
        radius * cosine * deviation
    }

    /// Exponential with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }

    /// Poisson with this small mean (Knuth).
    pub(crate) fn poisson(&mut self, mean: f64) -> usize {
        let limit = (-mean).exp();
        let mut product = self.unit();
        let mut count = 0;
        while product > limit {
            product *= self.unit();
            count += 1;
        }
        count
    }

    /// Puts the values in a random order (Fisher and Yates).
    pub(crate) fn shuffle(&mut self, values: &mut [f64]) {
        for last in (1..values.len()).rev() {
            let other = self.below(last + 1);
            values.swap(last, other);
        }
    }
}
