//! A time in the units that people use.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Units of less than a minute, in seconds.
const SHORT: [(f64, &str); 4] = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")];

/// `1 d 2 h`, `5 min`, `12.7 s`, `13.2 ms`: from an hour on in whole minutes, below a minute with three digits, and without zeros.
#[must_use]
pub fn span_text(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    if seconds < 60.0 {
        let (size, name) = SHORT.into_iter().find(|(size, _)| seconds >= *size).unwrap_or(SHORT[0]);
        return format!("{} {name}", three_digits(seconds / size));
    }
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")];
    let whole = span.as_secs().saturating_add(u64::from(span.subsec_millis() >= 500));
    // Days are rounded to minutes, hours to minutes, minutes to seconds.
    let unit = if whole >= HOUR { MINUTE } else { 1 };
    let mut rest = whole.saturating_add(unit / 2) / unit * unit;
    let mut parts = Vec::new();
    for (size, name) in units {
        if rest >= size {
            parts.push(format!("{} {name}", rest / size));
            rest %= size;
        }
    }
    parts.join(" ")
}

/// A number from 0 to 1,000, without zeros at the end of its fraction.
fn three_digits(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_the_units_that_people_use() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.000_05, "50 µs"),
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
            assert_eq!(span_text(Duration::from_secs_f64(seconds)), text);
        }
        assert!(span_text(Duration::MAX).starts_with("213503982334601 d"));
    }
}
