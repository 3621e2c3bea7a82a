//! The autocorrelation of a signal, by two Fourier transforms.
//!
//! What must never happen here: a transform that is planned anew for each series, or plans that keep memory for good.

use std::cell::RefCell;
use std::sync::Arc;

use realfft::num_complex::Complex32;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};

/// Longer transforms are planned for one use, because a plan keeps tables of its length: 0.5 MiB here.
const LONGEST_KEPT: usize = 1 << 15;

thread_local! {
    /// Plans of this thread. Lengths are powers of two, so there are 15 at most.
    static PLANNER: RefCell<RealFftPlanner<f32>> = RefCell::new(RealFftPlanner::new());
}

/// The correlation of a signal of mean 0 with itself, for lags from 0 to `longest`. Each lag is divided by the number of
/// products that it has, and lag 0 is 1.
pub(super) fn autocorrelation(points: &[f32], longest: usize) -> Vec<f32> {
    let longest = longest.min(points.len().saturating_sub(1));
    let length = (points.len() + longest).next_power_of_two().max(2);
    let (forward, inverse) = plans(length);
    let mut signal = vec![0.0; length];
    signal[..points.len()].copy_from_slice(points);
    let mut spectrum = vec![Complex32::default(); length / 2 + 1];
    let mut scratch = vec![Complex32::default(); forward.get_scratch_len().max(inverse.get_scratch_len())];
    // The lengths fit by construction; if they did not, the result would be a signal without any correlation.
    if forward.process_with_scratch(&mut signal, &mut spectrum, &mut scratch).is_err() {
        return vec![0.0; longest + 1];
    }
    for bin in &mut spectrum {
        *bin = Complex32::new(bin.norm_sqr(), 0.0);
    }
    if inverse.process_with_scratch(&mut spectrum, &mut signal, &mut scratch).is_err() {
        return vec![0.0; longest + 1];
    }
    signal.truncate(longest + 1);
    let unit = points.len() as f32 / signal[0].max(f32::MIN_POSITIVE);
    for (lag, value) in signal.iter_mut().enumerate() {
        *value *= unit / (points.len() - lag) as f32;
    }
    signal
}

type Plans = (Arc<dyn RealToComplex<f32>>, Arc<dyn ComplexToReal<f32>>);

fn plans(length: usize) -> Plans {
    let both = |planner: &mut RealFftPlanner<f32>| (planner.plan_fft_forward(length), planner.plan_fft_inverse(length));
    if length <= LONGEST_KEPT { PLANNER.with_borrow_mut(both) } else { both(&mut RealFftPlanner::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_gives_what_the_definition_gives() {
        let points: Vec<f32> =
            (0_u8..100).map(|index| (f32::from(index) * 0.7).sin() + (f32::from(index) * 1.3).cos()).collect();
        let product = |lag: usize| {
            let sum: f32 = points.iter().zip(&points[lag..]).map(|(one, other)| one * other).sum();
            sum / (points.len() - lag) as f32
        };
        for (lag, value) in autocorrelation(&points, 40).iter().enumerate() {
            assert!((value - product(lag) / product(0)).abs() < 1e-4, "{lag}");
        }
    }
}
