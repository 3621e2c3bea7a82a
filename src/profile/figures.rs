//! Times and numbers as people read them.

pub(crate) use timeseries::span_text as span;

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
