//! The 90 % interval of the mean length, from the lengths of the cycles.
//!
//! The mean is that of the load, of which the cycles in the series are a part: so the intervals of two windows of one load overlap.
//! The mean of the cycles in the series itself is known far better, and differs from window to window.

use super::track::Start;

/// The 90 % quantile (two-sided) of the normal distribution.
const NORMAL: f64 = 1.645;

/// Correlation of the lengths of neighbouring cycles: 0.60 to 0.77 in four training jobs. It is not measured in the series: a few
/// lengths have a lower correlation among themselves, and so have those whose starts are found with an error. The part `intervals`
/// of the bench counts how often the interval holds the mean.
const CORRELATION: f64 = 0.7;

/// Half of the interval in samples.
pub(super) fn half_interval(starts: &[Start], length: f64) -> f64 {
    let lengths = starts.windows(2).filter(|pair| !pair[1].after_pause).map(|pair| pair[1].at - pair[0].at);
    let (count, squares) = lengths.fold((0.0_f64, 0.0_f64), |(count, squares), one| {
        let deviation = one - length;
        (count + 1.0, deviation.mul_add(deviation, squares))
    });
    if count < 2.0 {
        return length;
    }
    // Lengths that are k cycles apart have the correlation r^k. So the variance of the mean of n lengths is this share of the variance
    // of one, and the n lengths show only the rest of it.
    let odds = (1.0 + CORRELATION) / (1.0 - CORRELATION);
    let ends = 2.0 * CORRELATION * (1.0 - CORRELATION.powf(count)) / (1.0 - CORRELATION).powi(2);
    let share = (odds - ends / count) / count;
    let variance = squares / count / (1.0 - share);
    // The variance of n such lengths is known as well as that of so many independent ones. Student's quantile to the first order in 1 / degrees of freedom.
    let square = CORRELATION * CORRELATION;
    let freedom = (count * (1.0 - square) / (1.0 + square)).max(1.0);
    let student = NORMAL * (1.0 + (NORMAL * NORMAL + 1.0) / (4.0 * freedom));
    student * (variance * share).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;

    /// Starts of cycles with a mean length of 100 whose lengths vary by 5 and follow each other as those of training jobs.
    fn starts(count: usize, seed: u64) -> Vec<Start> {
        let mut noise = noise(seed);
        let mut normal = || (noise.by_ref().take(12).sum::<f64>() - 6.0) * 5.0;
        let (mut at, mut deviation) = (0.0, normal());
        (0..=count)
            .map(|_| {
                let start = Start { at, after_pause: false };
                at += 100.0 + deviation;
                deviation = 0.7 * deviation + 0.51_f64.sqrt() * normal();
                start
            })
            .collect()
    }

    #[test]
    fn nine_in_ten_intervals_hold_the_mean_length() {
        for (count, widest) in [(4, 12.0), (8, 8.0), (20, 5.0), (60, 3.0)] {
            let (mut held, mut sum) = (0, 0.0);
            for seed in 0..1000 {
                let starts = starts(count, seed);
                let length = starts[count].at / count as f64;
                let half = half_interval(&starts, length);
                held += u32::from((length - 100.0).abs() <= half);
                sum += half;
            }
            assert!((870..=950).contains(&held), "{count} cycles: {held} of 1000");
            assert!(sum / 1000.0 < widest, "{count} cycles: {sum}");
        }
    }
}
