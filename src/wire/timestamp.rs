//! Times as text: RFC 3339 as Kubernetes writes it, Unix seconds, the date and time without a zone of HAMi's handshake, and the
//! date of an HTTP answer.
//!
//! Supports the years 1970 to 9999 in whole seconds; fractions of a second are cut off. Leases alone have microseconds.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::tz::Offset;
use model::time::WallTime;

const MICROS: u64 = 1_000_000;
/// The last second that can be written as a date: `jiff::Timestamp::MAX`, the end of the year 9999 less a day.
const LAST: i64 = 253_402_207_200;

/// Reads `2006-01-02T15:04:05Z` with any offset and any fraction of a second; `None` for times before 1970.
#[must_use]
pub fn rfc3339(text: &str) -> Option<WallTime> {
    // The library also reads a space between date and time, and dates without separators.
    let separated = text.as_bytes().get(10).is_some_and(|byte| matches!(byte, b'T' | b't'));
    let at: Timestamp = text.parse().ok().filter(|_| separated)?;
    wall(at.as_second())
}

/// Writes whole seconds of UTC: `2006-01-02T15:04:05Z`. A time beyond the year 9999 is written as the last possible
/// time.
#[must_use]
pub fn to_rfc3339(at: WallTime) -> String {
    let seconds = i64::try_from(at.0 / MICROS).unwrap_or(i64::MAX).min(LAST);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

/// Reads a time in RFC 3339 with microseconds, as a Lease has it (`MicroTime`).
#[must_use]
pub fn rfc3339_micros(text: &str) -> Option<WallTime> {
    rfc3339(text)?;
    let at: Timestamp = text.parse().ok()?;
    Some(WallTime(u64::try_from(at.as_microsecond()).ok()?))
}

/// Writes microseconds of UTC, always with six digits: `2006-01-02T15:04:05.000000Z`.
#[must_use]
pub fn to_rfc3339_micros(at: WallTime) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX).min(LAST * 1_000_000);
    format!("{:.6}", Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX))
}

/// Reads a date and a time without a zone, as if they were UTC: `2006-01-02 15:04:05`, or with points in the date.
#[must_use]
pub fn zoneless(text: &str) -> Option<WallTime> {
    let (date, time) = text.split_once(' ')?;
    let dashes = date.replace('.', "-");
    let uniform = dashes == date || !date.contains('-');
    let at: DateTime = format!("{dashes}T{time}").parse().ok().filter(|_| uniform)?;
    wall(Offset::UTC.to_timestamp(at).ok()?.as_second())
}

/// Reads the `Date` of an HTTP answer: `Sat, 21 Nov 2026 10:21:12 GMT`.
#[must_use]
pub fn http_date(text: &str) -> Option<WallTime> {
    let at: Timestamp = DateTimeParser::new().parse_timestamp(text).ok()?;
    wall(at.as_second())
}

/// Reads Unix seconds, digits only.
#[must_use]
pub fn unix_seconds(text: &str) -> Option<WallTime> {
    if text.is_empty() || text.len() > 12 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    wall(text.parse().ok()?)
}

/// Writes Unix seconds.
#[must_use]
pub fn to_unix_seconds(at: WallTime) -> String {
    (at.0 / MICROS).to_string()
}

fn wall(seconds: i64) -> Option<WallTime> {
    let seconds = u64::try_from(seconds).ok().filter(|_| seconds <= LAST)?;
    Some(WallTime(seconds.checked_mul(MICROS)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(at: Option<WallTime>) -> Option<u64> {
        at.map(|at| at.0 / MICROS)
    }

    #[test]
    fn every_form_of_a_time_gives_the_same_time() {
        for text in [
            "2026-11-21T10:21:47Z",
            "2026-11-21T18:21:47+08:00",
            "2026-11-21T05:51:47-0430",
            "2026-11-21T10:21:47.123456789Z",
            "2026-11-21t10:21:47z",
        ] {
            assert_eq!(seconds(rfc3339(text)), Some(1_795_256_507), "{text}");
        }
        assert_eq!(seconds(zoneless("2026-11-21 10:21:47")), Some(1_795_256_507));
        assert_eq!(seconds(zoneless("2026.11.21 10:21:47")), Some(1_795_256_507));
        assert_eq!(seconds(unix_seconds("1795256507")), Some(1_795_256_507));
        assert_eq!(seconds(http_date("Sat, 21 Nov 2026 10:21:47 GMT")), Some(1_795_256_507));
        assert_eq!(to_rfc3339(WallTime(1_795_256_507_999_999)), "2026-11-21T10:21:47Z");
        assert_eq!(to_unix_seconds(WallTime(1_795_256_507_999_999)), "1795256507");
    }

    #[test]
    fn texts_without_a_valid_time_are_refused() {
        for text in [
            "",
            "2026-11-21",
            "2026-11-21T10:21:47",
            "2026-11-21T10:21:47.Z",
            "2026-11-21T10:21:47+8:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T10:60:00Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "ö026-11-21T10:21:47Z",
            "2026-11-21T10:21:47ö",
            "2026-11-21 10:21:47Z",
        ] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
        for text in ["", "2026-11-21", "2026-11-21T10:21:47", "2026-11.21 10:21:47", "2026-11-21 10:21:47 +0000"] {
            assert_eq!(zoneless(text), None, "{text}");
        }
        for text in ["", "today", "Sat, 21 Nov 2026", "2026-11-21T10:21:47Z"] {
            assert_eq!(http_date(text), None, "{text}");
        }
        for text in ["", "-1", "+1", "1.5", "0x1", "9999999999999", "253402300800", "１"] {
            assert_eq!(unix_seconds(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,40}") {
            let _ = (rfc3339(&text), zoneless(&text), unix_seconds(&text), rfc3339_micros(&text), http_date(&text));
        }

        #[test]
        fn a_moment_with_microseconds_comes_back(micros in 0_u64..4_000_000_000_000_000) {
            let text = to_rfc3339_micros(WallTime(micros));
            prop_assert_eq!(text.len(), "2006-01-02T15:04:05.000000Z".len());
            prop_assert_eq!(rfc3339_micros(&text), Some(WallTime(micros)));
        }

        #[test]
        fn no_similar_text_causes_a_panic(text in "[0-9]{0,5}[-.:][0-9]{1,3}[-.][0-9]{1,3}[T ][0-9:.Z+-]{0,20}") {
            let _ = (rfc3339(&text), zoneless(&text));
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(at in 0..=u64::try_from(LAST).unwrap()) {
            let at = WallTime(at * MICROS);
            prop_assert_eq!(rfc3339(&to_rfc3339(at)), Some(at));
            prop_assert_eq!(unix_seconds(&to_unix_seconds(at)), Some(at));
        }
    }
}
