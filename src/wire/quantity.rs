//! Quantities as Kubernetes writes them: `3`, `1500m`, `1.5Gi`, `5k`, `3e3`.
//!
//! ```text
//!   sign? digits [ . digits ] suffix      suffix = Ki Mi Gi Ti Pi Ei | n u m "" k M G T P E | (e|E) sign? digits
//! ```
//!
//! A quantity is held in billionths; finer parts are rounded away from zero, as in Kubernetes. `E` with digits after
//! it is an exponent; `E` alone is exa.

use crate::decode_error::shown;
use std::borrow::Cow;

/// Billionths in one.
const NANO: i128 = 1_000_000_000;
/// Kubernetes' limit for an amount, in either direction.
const MAX: i128 = i64::MAX as i128;
/// Maximum bytes of a quantity: the largest amount has 19 digits; the rest is zeros, a point, a sign and a suffix.
const MAX_LENGTH: usize = 64;
/// Maximum number of significant digits: the largest amount has 19.
const MAX_DIGITS: usize = 19;

/// An amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAQuantity {
    /// The text does not follow the grammar.
    #[error("not a quantity: {0}")]
    Text(String),
    /// The amount is beyond 2^63 in either direction.
    #[error("larger than any quantity can be: {0}")]
    TooLarge(String),
}

impl Quantity {
    /// The amount, if it is a whole number.
    #[must_use]
    pub fn integer(self) -> Option<i64> {
        if self.nanos % NANO == 0 { i64::try_from(self.nanos / NANO).ok() } else { None }
    }

    /// The amount rounded up to a whole number.
    #[must_use]
    pub fn ceil(self) -> i64 {
        let whole = self.nanos.div_euclid(NANO) + i128::from(self.nanos.rem_euclid(NANO) != 0);
        i64::try_from(whole).unwrap_or(i64::MAX)
    }
}

/// Reads a quantity.
///
/// # Errors
/// [`NotAQuantity`].
pub fn parse(text: &str) -> Result<Quantity, NotAQuantity> {
    let no = || NotAQuantity::Text(shown(text));
    if text.len() > MAX_LENGTH {
        return Err(no());
    }
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (mantissa, suffix) = rest.split_at(end);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if fraction.contains('.') || whole.is_empty() && fraction.is_empty() {
        return Err(no());
    }
    let scale = scale(suffix).ok_or_else(no)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = if fraction.is_empty() { Cow::from(whole) } else { format!("{whole}{fraction}").into() };
    let digits = digits.trim_start_matches('0');
    if digits.len() > MAX_DIGITS {
        return Err(no());
    }
    let digits: i128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| no())? };
    let magnitude = magnitude(digits, fraction.len(), scale)
        .filter(|nanos| *nanos <= MAX * NANO)
        .ok_or_else(|| NotAQuantity::TooLarge(shown(text)))?;
    Ok(Quantity { nanos: if negative { -magnitude } else { magnitude } })
}

/// The factor of a mantissa.
enum Scale {
    /// A power of ten.
    Ten(i32),
    /// A power of two.
    Two(u32),
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Two(10),
        "Mi" => Scale::Two(20),
        "Gi" => Scale::Two(30),
        "Ti" => Scale::Two(40),
        "Pi" => Scale::Two(50),
        "Ei" => Scale::Two(60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let bare = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // An exponent that does not fit into an i32 makes the amount too large, or smaller than a billionth.
            let far = if digits.starts_with('-') { -1000 } else { 1000 };
            Scale::Ten(digits.parse::<i32>().map_or(far, |power| power.clamp(-1000, 1000)))
        }
    })
}

/// The amount in billionths, rounded up; `None` if it overflows. 19 digits times 2^60 fit.
fn magnitude(digits: i128, behind: usize, scale: Scale) -> Option<i128> {
    let behind = i32::try_from(behind).ok()?;
    let (product, power) = match scale {
        Scale::Ten(power) => (digits, power),
        Scale::Two(power) => (digits.checked_shl(power)?, 0),
    };
    let power = power - behind + 9;
    if product == 0 {
        return Some(0);
    }
    match (10_i128.checked_pow(power.unsigned_abs()), power >= 0) {
        (Some(ten), true) => product.checked_mul(ten),
        (None, true) => None,
        (Some(ten), false) => Some(product / ten + i128::from(product % ten != 0)),
        // Any amount above 0 and below a billionth is rounded up to a billionth.
        (None, false) => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_exact() {
        for (text, integer, ceil) in [
            ("0", Some(0), 0),
            ("3", Some(3), 3),
            ("+3.", Some(3), 3),
            (".5", None, 1),
            ("1.5", None, 2),
            ("-1.5", None, -1),
            ("5k", Some(5000), 5000),
            ("1500m", None, 2),
            ("2000m", Some(2), 2),
            ("1u", None, 1),
            ("1n", None, 1),
            ("0.1n", None, 1),
            ("0.000n", Some(0), 0),
            ("1.5Gi", Some(1_610_612_736), 1_610_612_736),
            ("1Ki", Some(1024), 1024),
            ("0.5Ki", Some(512), 512),
            ("7Ei", Some(8_070_450_532_247_928_832), 8_070_450_532_247_928_832),
            ("9E", Some(9_000_000_000_000_000_000), 9_000_000_000_000_000_000),
            ("3e3", Some(3000), 3000),
            ("3E+3", Some(3000), 3000),
            ("3000e-3", Some(3), 3),
            ("1e-1000000", None, 1),
            ("0e99999", Some(0), 0),
            ("0000000000000000000000000000001", Some(1), 1),
            ("1.0000000000000000000000000000000", Some(1), 1),
            ("9223372036854775807", Some(i64::MAX), i64::MAX),
            ("-9223372036854775807", Some(-i64::MAX), -i64::MAX),
        ] {
            let quantity = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((quantity.integer(), quantity.ceil()), (integer, ceil), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            ".",
            "-",
            "+-1",
            "1K",
            "1KI",
            "1ki",
            "1e",
            "1e+",
            "1ee3",
            "1.2.3",
            "1 ",
            " 1",
            "1_000",
            "0x10",
            "k",
            "٣",
            "1e3k",
            "12345678901234567890m",
            "1.23456789012345678901",
        ] {
            assert!(matches!(parse(text), Err(NotAQuantity::Text(_))), "{text}");
        }
        assert!(matches!(parse(&"0".repeat(100)), Err(NotAQuantity::Text(_))));
        for text in ["9223372036854775808", "8Ei", "10E", "1e19", "1e99999999999", "-9223372036854775808"] {
            assert!(matches!(parse(text), Err(NotAQuantity::TooLarge(_))), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,70}") {
            let _ = parse(&text);
        }

        #[test]
        fn no_similar_input_causes_a_panic(text in "[+-]?[0-9]{0,22}\\.?[0-9]{0,22}([KMGTPEk]i?|[num]|[eE][+-]?[0-9]{0,12})?") {
            let _ = parse(&text);
        }

        #[test]
        fn whole_numbers_are_themselves(number: i64, zeros in 0..5_usize) {
            prop_assume!(number != i64::MIN);
            let text = format!("{number}.{}", "0".repeat(zeros));
            prop_assert_eq!(parse(&text).unwrap().integer(), Some(number));
            prop_assert_eq!(parse(&text).unwrap().ceil(), number);
        }

        #[test]
        fn thousandths_are_rounded_up(number in -1_000_000_000_i64..1_000_000_000) {
            let quantity = parse(&format!("{number}m")).unwrap();
            prop_assert_eq!(quantity.ceil(), -(-number).div_euclid(1000));
            prop_assert_eq!(quantity.integer(), (number % 1000 == 0).then_some(number / 1000));
            prop_assert_eq!(quantity, parse(&format!("{number}e-3")).unwrap());
        }

        #[test]
        fn suffixes_of_two_are_powers_of_1024(number in 0..8_i64, power in 0..6_u32) {
            let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi"][power as usize];
            prop_assert_eq!(parse(&format!("{number}{suffix}")).unwrap().integer(), Some(number << (10 * power)));
        }
    }
}
