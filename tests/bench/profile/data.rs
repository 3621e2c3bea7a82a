//! Reads the public recordings (`PROFILE_DATA`, `.csv.gz`) and the cuts of them in `tests/golden/traces`.

use flate2::read::GzDecoder;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The rows of a CSV file without quotes, and its header.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    path: PathBuf,
}

impl Table {
    /// Reads a file, which is compressed if its name ends in `.gz`.
    pub(crate) fn read(path: &Path) -> Result<Table, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut text = String::new();
        let mut file = File::open(path).map_err(failed)?;
        if path.extension().is_some_and(|extension| extension == "gz") {
            GzDecoder::new(file).read_to_string(&mut text).map_err(failed)?;
        } else {
            file.read_to_string(&mut text).map_err(failed)?;
        }
        let cells = |line: &str| line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let mut lines = text.lines();
        let header = cells(lines.next().ok_or_else(|| format!("{}: is empty", path.display()))?);
        Ok(Table { header, rows: lines.map(cells).collect(), path: path.to_owned() })
    }

    /// Reads a file of the repository's cuts.
    pub(crate) fn cut(name: &str) -> Result<Table, String> {
        Table::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/traces").join(name))
    }

    /// Reads a column; its name may stand there with a unit in brackets.
    pub(crate) fn column(&self, name: &str) -> Result<Vec<&str>, String> {
        let place = self.header.iter().position(|cell| cell.split(" [").next() == Some(name));
        let place = place.ok_or_else(|| format!("{} has no column {name:?}", self.path.display()))?;
        Ok(self.rows.iter().map(|row| row.get(place).map_or("", String::as_str)).collect())
    }

    /// Reads a column of numbers; a unit may follow a number.
    pub(crate) fn numbers(&self, name: &str) -> Result<Vec<Option<f64>>, String> {
        let number = |cell: &str| cell.split(' ').next().and_then(|text| text.parse().ok());
        Ok(self.column(name)?.into_iter().map(number).collect())
    }

    /// Reads a column of times as seconds.
    pub(crate) fn seconds(&self, name: &str) -> Result<Vec<Option<f64>>, String> {
        Ok(self.column(name)?.into_iter().map(seconds).collect())
    }
}

/// The path of a public recording.
pub(crate) fn recording(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.csv.gz"))
}

/// Seconds since 1970 of a number, or of a date and time such as `2023/07/14 10:12:46.483`, as if in UTC.
fn seconds(cell: &str) -> Option<f64> {
    let Some((date, time)) = cell.split_once(' ') else { return cell.parse().ok() };
    let mut parts = date.split(['-', '/']).map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let time = time.split(':').try_fold(0.0, |sum, part| part.parse::<f64>().ok().map(|part| sum * 60.0 + part))?;
    Some((days_since_1970(year, month, day) * 86_400) as f64 + time)
}

/// Days from 1970-01-01 to a date (Howard Hinnant, `days_from_civil`).
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[test]
fn dates_are_seconds_since_1970() {
    assert_eq!(seconds("2023/07/14 10:10:26.905"), Some(1_689_329_426.905));
    assert_eq!(seconds("1970-01-01 00:01:00"), Some(60.0));
    assert_eq!(seconds("1662858720.0"), Some(1_662_858_720.0));
    assert_eq!(seconds("[N/A]"), None);
}
