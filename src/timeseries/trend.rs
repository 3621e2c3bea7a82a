//! Whether a series rises or falls: a robust slope with an interval that allows for values that depend on each other.
//!
//! What must never happen here: a direction because neighbours are alike (a random walk has none).

use crate::series::Series;

/// Fewer values have no trend.
const MIN_VALUES: usize = 10;
/// The slope is taken from at most this many points, so from 8,128 pairs, in under 1 ms. Longer series are averaged in
/// blocks of equal length first.
const MAX_POINTS_OF_LINE: usize = 128;
/// A direction needs a smaller probability than this that there is none.
const SIGNIFICANCE: f64 = 0.05;
/// The two-sided 90 % quantile of the normal distribution.
const NORMAL_90: f64 = 1.644_854;
/// The fewest independent points that the normal distribution of Kendall's statistic holds for.
const MIN_EFFECTIVE: f64 = 8.0;

/// Where a series goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Up.
    Rising,
    /// Down.
    Falling,
    /// Neither for certain.
    None,
}

/// The slope of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// The direction, if it is certain.
    pub direction: Direction,
    /// Change in an hour, in the unit of the series.
    pub slope_per_hour: f64,
    /// 90 % interval of the change in an hour.
    pub interval: (f64, f64),
    /// Probability of such a rank correlation with time in a series without a trend (two-sided).
    pub p_value: f64,
    /// Number of independent values that say as much as these dependent ones; at most 128.
    pub effective_samples: f64,
}

/// A line through points whose times increase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    /// Change in one unit of time.
    pub(crate) slope: f64,
    /// 90 % interval of the slope.
    pub(crate) interval: (f64, f64),
    /// Kendall's statistic in standard deviations; positive for a rise.
    pub(crate) score: f64,
    pub(crate) effective: f64,
}

/// Fits a line: the median slope of pairs of values (Theil, Sen), with the Mann–Kendall test for the direction and the
/// interval. Both take the variance of the effective number of values (Hamed and Rao 1998). Takes O(n) time.
///
/// `None` with fewer than ten values.
#[must_use]
pub fn trend(series: &Series) -> Option<Trend> {
    let values = series.values().iter().enumerate().filter(|(_, value)| !value.is_nan());
    let points: Vec<(f64, f64)> = values.map(|(at, value)| (at as f64, *value)).collect();
    if points.len() < MIN_VALUES {
        return None;
    }
    let line = Line::through(&points)?;
    let steps_per_hour = 3600.0 / series.step().as_secs_f64();
    let p_value = two_sided(line.score);
    let certain = p_value < SIGNIFICANCE && line.effective >= MIN_EFFECTIVE;
    let direction = match line.slope {
        slope if certain && slope > 0.0 && line.score > 0.0 => Direction::Rising,
        slope if certain && slope < 0.0 && line.score < 0.0 => Direction::Falling,
        _ => Direction::None,
    };
    Some(Trend {
        direction,
        slope_per_hour: line.slope * steps_per_hour,
        interval: (line.interval.0 * steps_per_hour, line.interval.1 * steps_per_hour),
        p_value,
        effective_samples: line.effective,
    })
}

impl Line {
    /// The line through points `(time, value)`, in the order of time. `None` with fewer than three points.
    pub(crate) fn through(points: &[(f64, f64)]) -> Option<Self> {
        let points = block_means(points);
        if points.len() < 3 {
            return None;
        }
        let mut slopes = Vec::with_capacity(points.len() * (points.len() - 1) / 2);
        let mut concordant = 0_i32;
        for (place, (time, value)) in points.iter().enumerate() {
            for (later, other) in &points[place + 1..] {
                slopes.push((other - value) / (later - time));
                concordant += i32::from(other > value) - i32::from(other < value);
            }
        }
        slopes.sort_unstable_by(f64::total_cmp);
        let slope = (slopes[slopes.len() / 2] + slopes[(slopes.len() - 1) / 2]) / 2.0;
        let ratio = correlation_time(&points, slope);
        let deviation = (kendall_variance(&points) * ratio).sqrt();
        let half = NORMAL_90 * deviation / 2.0;
        let concordant = f64::from(concordant);
        let score = if deviation > 0.0 { (concordant - concordant.signum()) / deviation } else { 0.0 };
        let middle = slopes.len() as f64 / 2.0;
        let interval = (slopes[place(middle - half, slopes.len())], slopes[place(middle + half, slopes.len())]);
        Some(Self { slope, interval, score, effective: points.len() as f64 / ratio })
    }
}

/// Probability that a normal variable is at least so far from its mean, on either side.
pub(crate) fn two_sided(score: f64) -> f64 {
    complementary_error(score.abs() / std::f64::consts::SQRT_2).min(1.0)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and the result is limited"
)]
fn place(position: f64, count: usize) -> usize {
    (position as usize).min(count - 1)
}

/// At most 128 points: each is the mean of the times and of the values of equally many neighbours.
fn block_means(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mean = |block: &[(f64, f64)]| {
        let count = block.len() as f64;
        let sums = block.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / count, sum.1 + point.1 / count));
        (sums.0, sums.1)
    };
    points.chunks(points.len().div_ceil(MAX_POINTS_OF_LINE).max(1)).map(mean).collect()
}

/// Variance of Kendall's statistic for independent values, with ties (Mann 1945, Kendall 1975).
fn kendall_variance(points: &[(f64, f64)]) -> f64 {
    let term = |count: f64| count * (count - 1.0) * (2.0 * count + 5.0);
    let mut values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    values.sort_unstable_by(f64::total_cmp);
    let ties: f64 = values.chunk_by(|one, other| one == other).map(|tied| term(tied.len() as f64)).sum();
    (term(points.len() as f64) - ties) / 18.0
}

/// How many neighbouring points say as much as one independent point.
///
/// From the ranks of what the line leaves, after Hamed and Rao: once as for an autoregressive process of the first order, with
/// the correlation corrected for the fitted line (Hamed 2009), and once as the sum of the correlations up to the first that
/// is not positive. The larger one counts, or none if the correlation of neighbours is not significant. The part `trends` of the
/// bench counts the series that then have a direction: of 120 values 6 to 8 % of the autoregressive ones and 12 % of the random
/// walks, of 600 values 4 % and less, and 12 to 14 % of 1/f noise.
fn correlation_time(points: &[(f64, f64)], slope: f64) -> f64 {
    let count = points.len() as f64;
    let left: Vec<f64> = points.iter().map(|(time, value)| value - slope * time).collect();
    let ranks = centred_ranks(&left);
    let variance: f64 = ranks.iter().map(|rank| rank * rank).sum();
    if variance <= 0.0 {
        return 1.0;
    }
    let significant = NORMAL_90 / count.sqrt();
    let correlation =
        |lag: usize| ranks.iter().zip(&ranks[lag..]).map(|(one, other)| one * other).sum::<f64>() / variance;
    let first = correlation(1);
    if first < significant {
        return 1.0;
    }
    let corrected = ((count * first + 2.0) / (count - 4.0).max(1.0)).min(1.0 - 1.0 / count);
    let summed: f64 = (1..ranks.len() / 2).map(correlation).take_while(|value| *value > 0.0).sum();
    ((1.0 + corrected) / (1.0 - corrected)).max(1.0 + 2.0 * summed).min(count / 2.0)
}

/// Ranks less their mean. Equal values have equal ranks.
fn centred_ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|one, other| values[*one].total_cmp(&values[*other]));
    let mut ranks = vec![0.0; values.len()];
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let mut below = 0.0;
    for tied in order.chunk_by(|one, other| values[*one] == values[*other]) {
        let count = tied.len() as f64;
        for place in tied {
            ranks[*place] = below + (count - 1.0) / 2.0 - middle;
        }
        below += count;
    }
    ranks
}

/// The complementary error function for arguments from 0, with a relative error under 1.2e-7 (Press et al., Numerical
/// Recipes, section 6.2).
fn complementary_error(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let t = 1.0 / (1.0 + 0.5 * x);
    let polynomial = COEFFICIENTS.iter().fold(0.0, |sum, coefficient| sum * t + coefficient);
    t * (-x * x + polynomial).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use proptest::prelude::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn of(values: impl IntoIterator<Item = f64>) -> Trend {
        trend(&Series::regular(SECOND, values.into_iter().map(Some)).unwrap()).unwrap()
    }

    /// The sum of all numbers so far.
    fn walk(seed: u64, count: usize) -> Vec<f64> {
        let mut sum = 0.0;
        let steps = noise(seed).map(|step| {
            sum += step - 0.5;
            sum
        });
        steps.take(count).collect()
    }

    #[test]
    fn a_line_has_its_slope() {
        for count in [10, 128, 1000] {
            let rising = of((0..count).map(|at| f64::from(at) * 0.5));
            assert_eq!(rising.direction, Direction::Rising, "{count}");
            assert!((rising.slope_per_hour - 1800.0).abs() < 1e-6 && rising.p_value < 0.001, "{rising:?}");
            assert_eq!(of((0..count).map(|at| f64::from(-at))).direction, Direction::Falling);
        }
    }

    #[test]
    fn the_interval_holds_the_slope_in_nine_of_ten_series() {
        let inside = (0..200).filter(|seed| {
            let trend = of(noise(*seed).take(300).enumerate().map(|(at, noise)| at as f64 / 1000.0 + noise));
            trend.interval.0 <= 3.6 && 3.6 <= trend.interval.1
        });
        let inside = inside.count();
        assert!((165..=195).contains(&inside), "{inside} of 200");
    }

    #[test]
    fn noise_and_random_walks_seldom_have_a_direction() {
        let wrong = |series: &dyn Fn(u64) -> Vec<f64>| {
            (0..200).filter(|seed| of(series(*seed)).direction != Direction::None).count()
        };
        let (independent, walks) = (wrong(&|seed| noise(seed).take(300).collect()), wrong(&|seed| walk(seed, 300)));
        assert!(independent <= 20 && walks <= 20, "{independent} and {walks} of 200");
    }

    #[test]
    fn a_constant_has_no_direction_and_few_values_no_trend() {
        let constant = of([4.0; 50]);
        assert_eq!((constant.direction, constant.slope_per_hour, constant.p_value), (Direction::None, 0.0, 1.0));
        let nine = Series::regular(SECOND, (0..30).map(|at| (at % 10 < 3).then_some(1.0))).unwrap();
        assert_eq!(trend(&nine), None);
    }

    #[test]
    fn gaps_do_not_bend_the_slope() {
        let points = (0..300).map(|at| (at % 7 != 0 && !(50..90).contains(&at)).then_some(f64::from(at)));
        let trend = trend(&Series::regular(SECOND, points).unwrap()).unwrap();
        assert!((trend.slope_per_hour - 3600.0).abs() < 1e-6, "{trend:?}");
    }

    #[test]
    fn the_error_function_is_that_of_tables() {
        for (score, probability) in [(0.0, 1.0), (NORMAL_90, 0.1), (1.959_964, 0.05), (5.0, 5.733e-7)] {
            assert!((two_sided(score) / probability - 1.0).abs() < 1e-3, "{score}: {}", two_sided(score));
        }
    }

    proptest! {
        #[test]
        fn no_series_makes_a_trend_panic_or_infinite(
            points in proptest::collection::vec(proptest::option::of(prop_oneof![any::<f64>(), -9.0..9.0_f64, Just(0.0)]), 0..400),
        ) {
            if let Some(trend) = trend(&Series::regular(SECOND, points).unwrap()) {
                prop_assert!(trend.slope_per_hour.is_finite() && (0.0..=1.0).contains(&trend.p_value));
                prop_assert!(trend.interval.0 <= trend.slope_per_hour && trend.slope_per_hour <= trend.interval.1);
                prop_assert!((1.0..=128.0).contains(&trend.effective_samples), "{:?}", trend);
            }
        }
    }
}
