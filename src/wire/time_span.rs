//! A span of time as people write it in settings and queries: `500ms`, `30s`, `15m`, `2h`, `7d`.

use std::time::Duration;

/// Reads digits with a unit. A number that is too large gives the largest span.
///
/// # Errors
/// A text that says what is expected.
pub fn parse(text: &str) -> Result<Duration, &'static str> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "expected a time such as 500ms, 5s or 2m")?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err("a time needs a unit: ms, s, m, h or d"),
        _ => return Err("the unit of a time is one of ms, s, m, h, d"),
    };
    Ok(Duration::from_millis(number.saturating_mul(milliseconds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_with_a_unit_is_a_span() {
        for (text, seconds) in [("500ms", 0.5), ("5s", 5.0), ("15m", 900.0), ("2h", 7200.0), ("35d", 3_024_000.0)] {
            assert_eq!(parse(text).map(|span| span.as_secs_f64()), Ok(seconds), "{text}");
        }
        assert_eq!(parse(&format!("{}d", u64::MAX)), Ok(Duration::from_millis(u64::MAX)));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "s", "-2h", "+2h", " 1h", "１h", "99999999999999999999s"] {
            assert_eq!(parse(text), Err("expected a time such as 500ms, 5s or 2m"), "{text}");
        }
        assert_eq!(parse("5"), Err("a time needs a unit: ms, s, m, h or d"));
        for text in ["5w", "1.5h", "1h ", "1H"] {
            assert_eq!(parse(text), Err("the unit of a time is one of ms, s, m, h, d"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,30}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_span_in_milliseconds_comes_back(milliseconds: u64) {
            prop_assert_eq!(parse(&format!("{milliseconds}ms")), Ok(Duration::from_millis(milliseconds)));
        }
    }
}
