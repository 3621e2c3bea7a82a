//! Recorded traces: one column of a CSV file over time. Supported are logs of `nvidia-smi --format=csv` (units in
//! brackets or behind each number, gaps such as `[N/A]`, a repeated header), and tables with a time column and numbers,
//! either wide (one column for each series) or long (a column with the name of the series).

use crate::code::Code;
use flate2::read::GzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Names of the time column.
const TIME_COLUMNS: [&str; 3] = ["timestamp", "time", "timestamp_anon"];

/// One column over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Seconds since the first row, never decreasing, and the value that starts there.
    rows: Vec<(f64, Result<f64, Code>)>,
}

impl Trace {
    /// Reads `column` of a file, which is compressed with gzip if its name ends in `.gz`. With `filter` (column and
    /// text) it uses only rows with that text in that column.
    ///
    /// # Errors
    /// If the file cannot be read, lacks a column, or has no row.
    pub fn read(path: &Path, column: &str, filter: Option<(&str, &str)>) -> Result<Trace, String> {
        let named = |problem: String| format!("{}: {problem}", path.display());
        let file = File::open(path).map_err(|error| named(error.to_string()))?;
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        let reader: Box<dyn Read> = if packed { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
        Trace::parse(BufReader::new(reader), column, filter).map_err(named)
    }

    /// Parses the text of a CSV file.
    ///
    /// # Errors
    /// If a column is missing, a line cannot be read, or no row fits.
    pub fn parse(text: impl BufRead, column: &str, filter: Option<(&str, &str)>) -> Result<Trace, String> {
        let mut lines = text.lines();
        let header = lines.next().ok_or("is empty")?.map_err(|error| error.to_string())?;
        let names: Vec<&str> = header.split(',').map(plain_name).collect();
        let find = |column: &str| names.iter().position(|name| *name == plain_name(column));
        let time_column = TIME_COLUMNS.iter().find_map(|name| find(name)).ok_or("has no time column")?;
        let value_column = find(column).ok_or_else(|| format!("has no column {column:?}; it has {names:?}"))?;
        let filter = match filter {
            Some((name, text)) => Some((find(name).ok_or_else(|| format!("has no column {name:?}"))?, text)),
            None => None,
        };
        let mut trace = Trace::default();
        let mut origin = None;
        for line in lines {
            let line = line.map_err(|error| error.to_string())?;
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            if filter.is_some_and(|(at, text)| cells.get(at) != Some(&text)) {
                continue;
            }
            let Some(time) = cells.get(time_column).and_then(|text| seconds(text)) else { continue };
            let Some(value) = cells.get(value_column).and_then(|text| number(text)) else { continue };
            let since = time - *origin.get_or_insert(time);
            if trace.rows.last().is_none_or(|(last, _)| since >= *last) {
                trace.rows.push((since, value));
            }
        }
        if trace.rows.is_empty() { Err("has no row that fits".into()) } else { Ok(trace) }
    }

    /// The time from the first row to the last, in seconds.
    #[must_use]
    pub fn length(&self) -> f64 {
        self.rows.last().map_or(0.0, |(time, _)| *time)
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The value at `time` seconds after the first row, from the newest row that is not later.
    ///
    /// # Errors
    /// The error that the recording has instead of a number.
    pub fn at(&self, time: f64) -> Result<f64, Code> {
        let after = self.rows.partition_point(|(stamp, _)| *stamp <= time);
        self.rows.get(after.saturating_sub(1)).map_or(Err(Code::UNKNOWN), |(_, value)| *value)
    }
}

/// The name of a column without its unit: `power.draw [W]` is `power.draw`.
fn plain_name(text: &str) -> &str {
    text.split('[').next().unwrap_or(text).trim()
}

/// The number of a cell: `46.19 W` is 46.19. For a gap, the error that `nvidia-smi` got.
fn number(text: &str) -> Option<Result<f64, Code>> {
    match text {
        "[N/A]" | "N/A" | "[Not Supported]" => return Some(Err(Code::NOT_SUPPORTED)),
        "[Unknown Error]" => return Some(Err(Code::UNKNOWN)),
        "[GPU is lost]" => return Some(Err(Code::GPU_IS_LOST)),
        _ => {}
    }
    text.split_whitespace().next()?.parse().ok().filter(|number: &f64| number.is_finite()).map(Ok)
}

/// The time of a cell in seconds: a Unix time (in microseconds if it is above 1e14), or a date with a time of day.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some(if number > 1e14 { number / 1e6 } else { number });
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split(['/', '-']).map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let days = i32::try_from(days_since_1970(year, month, day)).ok()?;
    Some(f64::from(days) * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

/// Days since 1970 in the Gregorian calendar. The years begin in March here, so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let shifted = if month > 2 { year } else { year - 1 };
    let from_march = (month + 9) % 12;
    365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + (153 * from_march + 2) / 5 + day - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_nvidia_smi_with_units_and_gaps_is_read() {
        let text = "timestamp, power.draw [W], clocks.current.sm [MHz]\n\
                    2023/12/18 23:59:59.500, 46.19 W, [Unknown Error]\n\
                    timestamp, power.draw [W], clocks.current.sm [MHz]\n\
                    2023/12/19 00:00:00.000, 50 W, 1410\n";
        let power = Trace::parse(text.as_bytes(), "power.draw", None).unwrap();
        assert_eq!((power.at(0.0), power.at(0.49), power.at(0.5)), (Ok(46.19), Ok(46.19), Ok(50.0)));
        let clock = Trace::parse(text.as_bytes(), "clocks.current.sm [MHz]", None).unwrap();
        assert_eq!((clock.at(0.0), clock.at(9.0)), (Err(Code::UNKNOWN), Ok(1410.0)));
    }

    #[test]
    fn a_long_table_is_filtered_by_series() {
        let text = "value,timestamp_anon,container_ip\n1.5,1662858720.0,a\n9,1662858720.0,b\n2.5,1662858777.0,a\n";
        let trace = Trace::parse(text.as_bytes(), "value", Some(("container_ip", "a"))).unwrap();
        assert_eq!((trace.rows(), trace.length(), trace.at(57.0)), (2, 57.0, Ok(2.5)));
    }

    #[test]
    fn an_invalid_trace_is_reported() {
        for (text, column) in [("", "a"), ("time,a\n", "a"), ("a,b\n1,2\n", "a"), ("time,a\n1,2\n", "b")] {
            assert!(Trace::parse(text.as_bytes(), column, None).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_calendar_is_right() {
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(2000, 3, 1), 11_017);
        assert_eq!(days_since_1970(2024, 2, 29), 19_782);
    }
}
