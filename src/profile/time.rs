//! A cell with a time: ISO 8601, the form of `nvidia-smi` (`2026/11/28 00:30:41.123`), and numbers, which count from 1970 or from any
//! other moment.
//!
//! Times are nanoseconds since 1970, or since the zero of numbers that are not dates. A date without a zone is taken as it stands, as
//! if it were UTC: only distances count.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use std::time::Duration;

/// Nanoseconds of a second and of a thousandth of it.
const SECOND: i64 = 1_000_000_000;
const MILLISECOND: i64 = 1_000_000;
/// Longest text of a time: `2026-11-28T00:30:41.123456789+01:00` has 35 characters.
const MAX_DATE: usize = 64;
/// Smaller numbers are no dates: as seconds since 1970 they were before March 1973, earlier than any recorder of a GPU.
const SMALLEST_DATE: f64 = 1e8;

/// How a column writes its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeForm {
    /// Dates, with or without a zone.
    Date {
        /// Whether they have a zone.
        zone: bool,
    },
    /// Numbers since 1970.
    Epoch(Unit),
    /// Numbers since any other moment.
    Count(Unit),
    /// No column has times: rows are one step apart.
    Row(Duration),
}

/// The unit of times that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Second,
    Millisecond,
    Microsecond,
    Nanosecond,
}

impl Unit {
    fn nanoseconds(self) -> i64 {
        match self {
            Unit::Second => SECOND,
            Unit::Millisecond => MILLISECOND,
            Unit::Microsecond => 1_000,
            Unit::Nanosecond => 1,
        }
    }

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Second => "seconds",
            Unit::Millisecond => "milliseconds",
            Unit::Microsecond => "microseconds",
            Unit::Nanosecond => "nanoseconds",
        }
    }

    /// The unit that a column's name ends with, such as `time_ms` or `time [us]`.
    fn of_name(name: &str) -> Unit {
        match name.rsplit(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty()) {
            Some("ms" | "msec" | "millis" | "milliseconds") => Unit::Millisecond,
            Some("us" | "µs" | "usec" | "micros" | "microseconds") => Unit::Microsecond,
            Some("ns" | "nsec" | "nanos" | "nanoseconds") => Unit::Nanosecond,
            _ => Unit::Second,
        }
    }
}

impl TimeForm {
    /// The form of a column with this name that has this cell; `None` if the cell has no time.
    pub(crate) fn of(cell: &str, name: &str) -> Option<TimeForm> {
        if let Some((_, zone)) = date_and_zone(cell) {
            return Some(TimeForm::Date { zone });
        }
        let size = cell.parse::<f64>().ok().filter(|number| number.is_finite())?.abs();
        Some(match size {
            size if size < SMALLEST_DATE => TimeForm::Count(Unit::of_name(name)),
            size if size < 1e11 => TimeForm::Epoch(Unit::Second),
            size if size < 1e14 => TimeForm::Epoch(Unit::Millisecond),
            size if size < 1e17 => TimeForm::Epoch(Unit::Microsecond),
            _ => TimeForm::Epoch(Unit::Nanosecond),
        })
    }

    /// The time in a cell; `None` if it has none of this form.
    pub(crate) fn read(self, cell: &str) -> Option<i64> {
        match self {
            TimeForm::Date { .. } => date(cell),
            TimeForm::Epoch(unit) | TimeForm::Count(unit) => count(cell, unit),
            TimeForm::Row(_) => None,
        }
    }

    /// A time as people read it, to a thousandth of a second.
    pub(crate) fn show(self, at: i64) -> String {
        let stamp = || Timestamp::from_millisecond(at.div_euclid(MILLISECOND)).unwrap_or_default();
        match self {
            TimeForm::Date { zone: false } => Offset::UTC.to_datetime(stamp()).to_string().replace('T', " "),
            TimeForm::Date { zone: true } | TimeForm::Epoch(_) => stamp().to_string(),
            TimeForm::Count(_) => format!("{} s", seconds(at)),
            TimeForm::Row(step) => {
                let row = i64::try_from(step.as_nanos()).ok().and_then(|step| at.checked_div(step)).unwrap_or(0);
                format!("row {}", row + 1)
            }
        }
    }
}

fn seconds(at: i64) -> f64 {
    let seconds = at as f64 / 1e9;
    (seconds * 1e3).round() / 1e3
}

/// Reads a date with the time of day, or a date alone.
pub(crate) fn date(cell: &str) -> Option<i64> {
    date_and_zone(cell).map(|(at, _)| at)
}

/// Whether a cell has a date whose day and month cannot be told apart: `11/28/2026 00:30`, `28.11.26`.
pub(crate) fn is_uncertain_date(cell: &str) -> bool {
    let date = cell.split([' ', 'T', ',']).next().unwrap_or_default();
    let is_number =
        |part: &str, digits: &[usize]| digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    ['/', '.', '-'].into_iter().any(|separator| match date.split(separator).collect::<Vec<_>>().as_slice() {
        [one, other, year] => is_number(one, &[1, 2]) && is_number(other, &[1, 2]) && is_number(year, &[2, 4]),
        _ => false,
    })
}

fn date_and_zone(cell: &str) -> Option<(i64, bool)> {
    // Numbers have neither; the library would read `20261128` as a date.
    let separated = cell.len() <= MAX_DATE && cell.len() > 7 && cell.is_ascii();
    if !separated || cell.parse::<f64>().is_ok() {
        return None;
    }
    let mut text = cell.to_owned();
    for separator in ['/', '.'] {
        if cell.as_bytes().get(4).zip(cell.as_bytes().get(7)) == Some((&(separator as u8), &(separator as u8))) {
            text = text.replacen(separator, "-", 2);
        }
    }
    if let Some(utc) = text.strip_suffix(" UTC").or_else(|| text.strip_suffix(" GMT")) {
        text = format!("{utc}Z");
    }
    // `2026-11-28 00:30:41 +0100` has a space that the library does not read.
    if let Some((time, offset)) = text.rsplit_once(' ').filter(|(_, last)| last.starts_with(['+', '-'])) {
        text = format!("{time}{offset}");
    }
    let zone = text.ends_with(['Z', 'z']) || text.get(11..).is_some_and(|time| time.contains(['+', '-']));
    let stamp = match zone {
        true => text.parse::<Timestamp>().ok()?,
        false => Offset::UTC.to_timestamp(text.parse::<DateTime>().ok()?).ok()?,
    };
    Some((i64::try_from(stamp.as_nanosecond()).ok()?, zone))
}

/// Reads a decimal number of units, exactly: a double has only quarters of a microsecond for times since 1970.
fn count(cell: &str, unit: Unit) -> Option<i64> {
    let (sign, digits) = cell.strip_prefix('-').map_or((1, cell), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_decimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_decimal(whole) || !is_decimal(fraction) {
        return exponential(cell, unit);
    }
    let mut part = 0;
    let mut size = unit.nanoseconds();
    for digit in fraction.bytes() {
        size /= 10;
        part += i64::from(digit - b'0') * size;
    }
    whole.parse::<i64>().ok()?.checked_mul(unit.nanoseconds())?.checked_add(part)?.checked_mul(sign)
}

/// Reads `1.7e9`, as spreadsheets write large numbers.
fn exponential(cell: &str, unit: Unit) -> Option<i64> {
    let nanoseconds = cell.parse::<f64>().ok()? * unit.nanoseconds() as f64;
    // Below the largest i64, so that the conversion is in range.
    #[expect(clippy::cast_possible_truncation, reason = "in range, and rounded to nanoseconds")]
    (nanoseconds.abs() < 9e18).then_some(nanoseconds as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2026-11-28 00:30:41.
    const AT: i64 = 1_795_825_841 * SECOND;

    #[test]
    fn every_form_of_a_date_gives_the_same_time() {
        for cell in [
            "2026-11-28T00:30:41Z",
            "2026-11-28 00:30:41",
            "2026/11/28 00:30:41.000",
            "2026.11.28 00:30:41",
            "2026-11-28T01:30:41+01:00",
            "2026-11-28 01:30:41 +0100",
            "2026-11-28 00:30:41+00:00",
            "2026-11-28 00:30:41 UTC",
            "20261128T003041Z",
        ] {
            assert_eq!(date(cell), Some(AT), "{cell}");
        }
        assert_eq!(date("2026/11/28 00:30:41.123"), Some(AT + 123_000_000));
        assert_eq!(date("2026-11-28"), Some(AT - 1841 * SECOND));
        assert_eq!(date("2026-11-28 00:30"), Some(AT - 41 * SECOND));
        for cell in [
            "",
            "20261128",
            "1795825841",
            "10:12:46",
            "P0",
            "2026-13-01",
            "28.11.2026",
            "11/28/2026",
            "-5",
            "ö026-11-28",
        ] {
            assert_eq!(date(cell), None, "{cell}");
        }
    }

    #[test]
    fn numbers_count_in_the_unit_that_their_size_or_their_name_says() {
        for (cell, name, form, nanoseconds) in [
            ("1795825841", "t", TimeForm::Epoch(Unit::Second), AT),
            ("1795825841.25", "t", TimeForm::Epoch(Unit::Second), AT + SECOND / 4),
            ("1795825841000", "t", TimeForm::Epoch(Unit::Millisecond), AT),
            ("1795825841000000", "t", TimeForm::Epoch(Unit::Microsecond), AT),
            ("1795825841000000007", "t", TimeForm::Epoch(Unit::Nanosecond), AT + 7),
            ("1.795825841e9", "t", TimeForm::Epoch(Unit::Second), AT),
            ("-1.5", "time", TimeForm::Count(Unit::Second), -3 * SECOND / 2),
            ("250", "time_ms", TimeForm::Count(Unit::Millisecond), SECOND / 4),
            ("250", "elapsed [us]", TimeForm::Count(Unit::Microsecond), 250_000),
        ] {
            assert_eq!(TimeForm::of(cell, name), Some(form), "{cell}");
            assert_eq!(form.read(cell), Some(nanoseconds), "{cell}");
        }
        for cell in ["NaN", "inf", "1e300", "9999999999999999999999", "1.2.3", "--1", "."] {
            assert_eq!(TimeForm::Epoch(Unit::Second).read(cell), None, "{cell}");
        }
    }

    #[test]
    fn times_are_shown_in_the_form_in_which_they_were_written() {
        assert_eq!(TimeForm::Date { zone: false }.show(AT), "2026-11-28 00:30:41");
        assert_eq!(TimeForm::Date { zone: false }.show(AT + 12_345_678), "2026-11-28 00:30:41.012");
        assert_eq!(TimeForm::Epoch(Unit::Nanosecond).show(AT), "2026-11-28T00:30:41Z");
        assert_eq!(TimeForm::Count(Unit::Second).show(1_500_000_000), "1.5 s");
        assert_eq!(TimeForm::Row(Duration::from_secs(1)).show(119 * SECOND), "row 120");
    }

    #[test]
    fn dates_whose_order_is_not_certain_are_known() {
        for cell in ["11/01/2026 00:00", "1/2/26", "28.11.2026", "28-11-2026T00:30", "01.11.2026, 00:30"] {
            assert!(is_uncertain_date(cell) && date(cell).is_none(), "{cell}");
        }
        for cell in ["2026-11-28", "2026/11/28 00:30", "1.5", "1.234.567", "10.0.0.1", "12:30:00", "", "//", "a/b/2026"]
        {
            assert!(!is_uncertain_date(cell), "{cell}");
        }
    }

    proptest! {
        #[test]
        fn no_cell_causes_a_panic(cell in "\\PC{0,70}") {
            let _ = (date(&cell), is_uncertain_date(&cell), TimeForm::of(&cell, &cell), count(&cell, Unit::Nanosecond));
        }

        #[test]
        fn no_similar_cell_causes_a_panic(cell in "[0-9]{0,5}[-./][0-9]{1,3}[-./][0-9]{1,3}[T ][0-9:.Z+ -]{0,20}") {
            let _ = TimeForm::of(&cell, "").map(|form| form.read(&cell).map(|at| form.show(at)));
        }
    }
}
