//! Times as text: RFC 3339 as Kubernetes' programs write it, Unix seconds, and a date and time without a zone.
//!
//! This file has its own calendar, because a pure crate has no dependency for it: the proleptic Gregorian calendar,
//! years 1970 to 9999, whole seconds. Fractions of a second are cut off.

use model::time::WallTime;

const SECONDS_A_DAY: i64 = 86_400;
const MICROS: u64 = 1_000_000;
/// The first second of the year 10000, from which on a year has more than four digits.
const END: i64 = 253_402_300_800;

/// Reads `2006-01-02T15:04:05Z` with any offset and any fraction of a second; `None` for times before 1970.
#[must_use]
pub fn rfc3339(text: &str) -> Option<WallTime> {
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't'])?;
    let (time, zone) = rest.split_at_checked(8)?;
    let zone = match zone.strip_prefix('.') {
        Some(fraction) => {
            let behind = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if behind.len() == fraction.len() {
                return None;
            }
            behind
        }
        None => zone,
    };
    let local = civil(date, '-', time)?;
    wall(local.checked_sub(offset(zone)?)?)
}

/// Writes whole seconds in UTC: `2006-01-02T15:04:05Z`. A time after the year 9999 is written as the last second of
/// 9999.
#[must_use]
pub fn to_rfc3339(at: WallTime) -> String {
    let seconds = i64::try_from(at.0 / MICROS).unwrap_or(i64::MAX).min(END - 1);
    let (days, of_day) = (seconds.div_euclid(SECONDS_A_DAY), seconds.rem_euclid(SECONDS_A_DAY));
    let (year, month, day) = date_of(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Reads a date and a time without a zone as UTC: `2006-01-02 15:04:05`, or with points in the date.
#[must_use]
pub fn zoneless(text: &str) -> Option<WallTime> {
    let (date, time) = text.split_once(' ')?;
    let separator = if date.contains('.') { '.' } else { '-' };
    wall(civil(date, separator, time)?)
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
    if seconds >= END { None } else { Some(WallTime(u64::try_from(seconds).ok()?.checked_mul(MICROS)?)) }
}

/// Seconds between 1970 and a date and time.
fn civil(date: &str, separator: char, time: &str) -> Option<i64> {
    let mut parts = date.split(separator);
    let (year, month, day) = (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let mut clock = time.split(':');
    let (hour, minute, second) = (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    let ends = parts.next().is_none() && clock.next().is_none();
    // A leap second is read as the second that follows.
    let sound = (1..=12).contains(&month)
        && day >= 1
        && day <= days_in(year, month)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !ends || !sound {
        return None;
    }
    Some(days_before(year, month, day) * SECONDS_A_DAY + hour * 3600 + minute * 60 + second)
}

/// `Z`, `+02:00`, `-0700`.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_at_checked(2)?;
    let (hours, minutes) = (number(hours, 2)?, number(minutes.strip_prefix(':').unwrap_or(minutes), 2)?);
    if hours > 23 || minutes > 59 { None } else { Some(sign * (hours * 3600 + minutes * 60)) }
}

fn number(text: &str, digits: usize) -> Option<i64> {
    if text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days between 1970 and a date. Years begin in March here, so that the leap day is the last of its year.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

/// Year, month and day of the day `days` after 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(at: Option<WallTime>) -> Option<u64> {
        at.map(|at| at.0 / MICROS)
    }

    #[test]
    fn every_spelling_of_a_moment_is_that_moment() {
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
        assert_eq!(to_rfc3339(WallTime(1_795_256_507_999_999)), "2026-11-21T10:21:47Z");
        assert_eq!(to_unix_seconds(WallTime(1_795_256_507_999_999)), "1795256507");
    }

    #[test]
    fn what_is_no_moment_is_refused() {
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
        for text in ["", "-1", "+1", "1.5", "0x1", "9999999999999", "253402300800", "１"] {
            assert_eq!(unix_seconds(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,40}") {
            let _ = (rfc3339(&text), zoneless(&text), unix_seconds(&text));
        }

        #[test]
        fn nothing_like_a_time_makes_it_panic(text in "[0-9]{0,5}[-.:][0-9]{1,3}[-.][0-9]{1,3}[T ][0-9:.Z+-]{0,20}") {
            let _ = (rfc3339(&text), zoneless(&text));
        }

        #[test]
        fn what_is_written_is_read_back(at in 0..u64::try_from(END).unwrap()) {
            let at = WallTime(at * MICROS);
            prop_assert_eq!(rfc3339(&to_rfc3339(at)), Some(at));
            prop_assert_eq!(unix_seconds(&to_unix_seconds(at)), Some(at));
        }
    }
}
