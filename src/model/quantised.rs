//! Values as 16-bit numbers with a common exponent: value = number * 2^exponent. Histories are kept so, in memory and on disk.
//!
//! A power of two as the unit has an effect that another scale lacks: a change of the exponent, up and back down, moves a number
//! by at most half a unit once, however often it is repeated.

/// The number of a step without a measurement. Numbers of measurements are smaller.
pub const NO_MEASUREMENT: u16 = u16::MAX;
/// The largest number of a measurement.
pub const LARGEST: u16 = u16::MAX - 1;
/// The exponents in use: 2^-16 cores are less than a tick of the kernel in an hour, and 2^16 times 2^44 bytes are more memory
/// than any machine has.
pub const EXPONENTS: std::ops::RangeInclusive<i8> = -16..=44;

/// Whether a value can be kept: not negative, and a number.
#[must_use]
pub fn can_be_kept(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// The smallest exponent with which all values up to this one have a number; the largest exponent if none is large enough.
#[must_use]
pub fn exponent_of(largest: f64) -> i8 {
    let (low, high) = (*EXPONENTS.start(), *EXPONENTS.end());
    (low..=high).find(|exponent| largest <= value_of(LARGEST, *exponent)).unwrap_or(high)
}

/// The value of a number.
#[must_use]
pub fn value_of(number: u16, exponent: i8) -> f64 {
    f64::from(number) * 2.0_f64.powi(i32::from(exponent))
}

/// The number of a value that can be kept; the largest number if the exponent is too small for it.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the result is in the range of the type")]
pub fn number_of(value: f64, exponent: i8) -> u16 {
    (value / 2.0_f64.powi(i32::from(exponent))).round().clamp(0.0, f64::from(LARGEST)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_a_number_with_its_exponent_and_is_found_again_within_half_a_unit() {
        for value in [0.0, 0.001, 0.5, 1.0, 37.0, 100.0, 65_534.0, 65_535.0, 8e10, 1.1e18] {
            let exponent = exponent_of(value);
            let unit = value_of(1, exponent);
            assert!((value_of(number_of(value, exponent), exponent) - value).abs() <= unit / 2.0, "{value}");
            assert!(exponent == *EXPONENTS.start() || value > value_of(LARGEST, exponent - 1), "{value}");
        }
        assert_eq!(number_of(f64::MAX, exponent_of(f64::MAX)), LARGEST, "a huge value becomes the largest number");
        assert_eq!(number_of(-1.0, 0), 0);
        assert!(!can_be_kept(f64::NAN) && !can_be_kept(-1.0) && !can_be_kept(f64::INFINITY) && can_be_kept(0.0));
    }
}
