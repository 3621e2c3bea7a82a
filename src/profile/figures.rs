//! Times and numbers as people read them.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// `1 d 2 h`, `5 min`, `12.7 s`, `13.2 ms`: at most the two largest units, and no zeros.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    if seconds < 1.0 {
        return format!("{} ms", significant(seconds * 1e3, 3));
    }
    if seconds < 60.0 {
        return format!("{} s", significant(seconds, 3));
    }
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")];
    let whole = span.as_secs() + u64::from(span.subsec_millis() >= 500);
    let largest = units.iter().position(|(size, _)| whole >= *size).unwrap_or(3);
    // Days are rounded to minutes, hours to minutes, minutes to seconds.
    let unit = if largest <= 1 { MINUTE } else { 1 };
    let mut rest = (whole + unit / 2) / unit * unit;
    let mut parts = Vec::new();
    for (size, name) in units {
        if rest >= size {
            parts.push(format!("{} {name}", rest / size));
            rest %= size;
        }
    }
    parts.join(" ")
}

/// `0.07`, `12.3`, `1,234`, `33.9G`: about four digits.
pub(crate) fn value(value: f64) -> String {
    let size = value.abs();
    for (unit, name) in [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")] {
        if size >= unit && size < 1e18 {
            return format!("{}{name}", significant(value / unit, 4));
        }
    }
    if size >= 1e18 || (size > 0.0 && size < 1e-4) { format!("{value:.3e}") } else { significant(value, 4) }
}

/// `10,000,000`.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with so many digits that count, without zeros at the end of its fraction.
fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor();
    #[expect(clippy::cast_possible_truncation, reason = "the logarithm of a double is between -324 and 308")]
    let decimals = (digits - 1 - magnitude as i32).clamp(0, 12);
    let text = format!("{value:.*}", usize::try_from(decimals).unwrap_or(0));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_the_units_that_people_use() {
        for (seconds, text) in [
            (0.0132, "13.2 ms"),
            (0.1, "100 ms"),
            (12.74, "12.7 s"),
            (60.0, "1 min"),
            (200.4, "3 min 20 s"),
            (86_400.0, "1 d"),
            (86_100.0, "23 h 55 min"),
            (86_701.0, "1 d 5 min"),
            (86_399.0, "1 d"),
            (1_209_300.0, "13 d 23 h 55 min"),
        ] {
            assert_eq!(span(Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn values_have_about_four_digits() {
        for (number, text) in [
            (0.0, "0"),
            (0.0703, "0.0703"),
            (87.0, "87"),
            (-21.048_382_7, "-21.05"),
            (33_879_490_560.0, "33.88G"),
            (123_456.0, "123456"),
            (1.5e-7, "1.500e-7"),
        ] {
            assert_eq!(value(number), text);
        }
        assert_eq!(count(10_000_000), "10,000,000");
        assert_eq!(count(999), "999");
    }
}
