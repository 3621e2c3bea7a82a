//! Which column has the times, the values and the groups: as the options say, else guessed from names and from the first rows.
//!
//! What must never happen here: a guess that is not shown ([`Columns::sentence`]).

mod guess;

use crate::error::CsvError;
use crate::figures::span;
use crate::table::{Table, shortened};
use crate::time::TimeForm;
use csv::ByteRecord;
use guess::{Contents, Guess};
use std::borrow::Cow;
use std::time::Duration;

/// Rows from which columns are guessed: of a GPU that is read each 10 ms these are 10 s.
const SAMPLE_ROWS: usize = 1000;
/// Bytes of these rows. Rows of a thousand columns fill it after some hundred.
const SAMPLE_BYTES: usize = 4 << 20;
/// Names of columns that a sentence lists.
const LISTED: usize = 12;
/// Says that no column is meant.
const NONE: &str = "none";

/// What the caller chooses.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// The column of the values.
    pub value: Option<String>,
    /// The column of the times; `none` numbers the rows.
    pub time: Option<String>,
    /// The column that makes a series of its own of each of its values; `none` makes one series.
    pub group: Option<String>,
    /// The distance between two points of the series; without times, between two rows.
    pub step: Option<Duration>,
    /// How far ahead forecasts are made; empty takes those that fit.
    pub horizons: Vec<Duration>,
    /// Whether a picture is to be made, which needs more forecasts.
    pub picture: bool,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) index: usize,
    pub(crate) name: String,
}

/// The columns that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    pub(crate) time: Option<Column>,
    pub(crate) form: TimeForm,
    pub(crate) value: Column,
    /// The unit of the values; empty if none is known.
    pub(crate) unit: String,
    pub(crate) group: Option<Column>,
    /// Whether cells write 0.5 as `0,5`.
    pub(crate) decimal_comma: bool,
    guessed: bool,
    /// Other columns of numbers.
    others: Vec<String>,
}

impl Columns {
    /// The name of the column of the values.
    #[must_use]
    pub fn value_name(&self) -> &str {
        &self.value.name
    }

    /// Whether there is one series for each value of a column.
    #[must_use]
    pub fn is_grouped(&self) -> bool {
        self.group.is_some()
    }

    /// Says which columns are used.
    pub(crate) fn sentence(&self) -> String {
        let time = match (&self.time, self.form) {
            (Some(time), TimeForm::Date { zone: true }) => format!("times are column `{}`", time.name),
            (Some(time), TimeForm::Date { zone: false }) => format!("times are column `{}`, without a zone", time.name),
            (Some(time), TimeForm::Epoch(unit)) => {
                format!("times are column `{}`, {} since 1970", time.name, unit.name())
            }
            (Some(time), TimeForm::Count(unit)) => format!("times are column `{}`, in {}", time.name, unit.name()),
            (_, TimeForm::Row(step)) => format!("no times are read, so rows are numbered and {} apart", span(step)),
            (None, _) => "no times are read".to_owned(),
        };
        let mut sentence = format!("{time}; values are column `{}`", self.value.name);
        if let Some(group) = &self.group {
            sentence.push_str(&format!("; each value of column `{}` is a series", group.name));
        }
        if self.guessed {
            let others =
                if self.others.is_empty() { String::new() } else { format!("; other numbers: {}", list(&self.others)) };
            sentence.push_str(&format!(" (guessed{others}; --time, --value and --group choose)"));
        }
        sentence
    }
}

/// The first rows of a table.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) rows: Vec<ByteRecord>,
    decimal_comma: bool,
}

impl Sample {
    /// Reads them.
    pub(crate) fn read(table: &mut Table<'_>) -> Result<Sample, CsvError> {
        let mut rows = Vec::new();
        let mut bytes = 0;
        let mut row = ByteRecord::new();
        while rows.len() < SAMPLE_ROWS && bytes < SAMPLE_BYTES && table.read(&mut row)? {
            bytes += row.as_slice().len();
            rows.push(row.clone());
        }
        Ok(Sample { rows, decimal_comma: table.separator == b';' })
    }

    fn cells(&self, index: usize) -> impl Iterator<Item = Cow<'_, str>> {
        self.rows.iter().map(move |row| text(row, index))
    }
}

/// A cell as text; empty if the row has no such cell.
pub(crate) fn text(row: &ByteRecord, index: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(row.get(index).unwrap_or_default())
}

/// Chooses the columns.
///
/// # Errors
/// If an option names no column, or there is no column of numbers.
pub(crate) fn choose(names: &[String], sample: &Sample, choices: &Choices) -> Result<Columns, CsvError> {
    if sample.rows.is_empty() {
        return Err(CsvError::TooFewRows { rows: 0 });
    }
    let contents: Vec<Contents> = (0..names.len()).map(|index| Contents::of(sample, index)).collect();
    let guess = Guess { names, sample, contents: &contents };
    let time = match named(names, "time", choices.time.as_deref())? {
        Asked::Column(index) => Some(index),
        Asked::None => None,
        Asked::Nothing => guess.time(choices),
    };
    // Without a step, numbered rows would give a period that nobody measured.
    if time.is_none()
        && choices.time.is_none()
        && choices.step.is_none()
        && let Some(error) = (0..names.len()).find_map(|index| guess.uncertain_dates(index))
    {
        return Err(error);
    }
    let value = match named(names, "value", choices.value.as_deref())? {
        Asked::Column(index) => Some(index),
        _ => None,
    };
    let group = match named(names, "group", choices.group.as_deref())? {
        Asked::Column(index) => Some(index),
        Asked::None => None,
        Asked::Nothing => time.and_then(|time| guess.group(time, value)),
    };
    let value =
        value.or_else(|| guess.value([time, group])).ok_or_else(|| CsvError::NoNumbers { columns: list(names) })?;
    let column = |index: usize| Column { index, name: names[index].clone() };
    let form = match time {
        Some(index) => guess.form(index)?,
        None => TimeForm::Row(choices.step.unwrap_or(Duration::from_secs(1))),
    };
    let is_other = |index: &usize| ![time, group, Some(value)].contains(&Some(*index)) && contents[*index].is_numbers();
    Ok(Columns {
        time: time.map(column),
        form,
        value: column(value),
        unit: guess.unit(value)?,
        group: group.map(column),
        decimal_comma: sample.decimal_comma,
        guessed: choices.value.is_none() || choices.time.is_none(),
        others: (0..names.len()).filter(is_other).map(|index| names[index].clone()).collect(),
    })
}

/// What an option says.
enum Asked {
    Column(usize),
    None,
    Nothing,
}

/// The column that an option names: by its name, by its name without unit and case, or by its number.
fn named(names: &[String], option: &'static str, asked: Option<&str>) -> Result<Asked, CsvError> {
    let Some(asked) = asked else { return Ok(Asked::Nothing) };
    let bare = |name: &str| name.split(['[', '(']).next().unwrap_or(name).trim().to_lowercase();
    let number = || asked.parse::<usize>().ok()?.checked_sub(1).filter(|index| *index < names.len());
    let exact = names.iter().position(|name| name == asked);
    let found = exact.or_else(|| names.iter().position(|name| bare(name) == bare(asked))).or_else(number);
    match found {
        Some(index) => Ok(Asked::Column(index)),
        None if asked == NONE && option != "value" => Ok(Asked::None),
        None => Err(CsvError::NoColumn { option, asked: shortened(asked), columns: list(names) }),
    }
}

/// Names for a sentence.
pub(crate) fn list(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(csv: &str, choices: &Choices) -> Result<Columns, CsvError> {
        let mut table = Table::open(csv.as_bytes())?;
        let sample = Sample::read(&mut table)?;
        choose(table.names(), &sample, choices)
    }

    /// The guessed columns of times, values and groups.
    fn guessed(csv: &str) -> (Option<String>, String, Option<String>) {
        let columns = chosen(csv, &Choices::default()).unwrap();
        (columns.time.map(|column| column.name), columns.value.name, columns.group.map(|column| column.name))
    }

    fn some(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn columns_are_guessed_as_a_person_would_choose_them() {
        let smi = "timestamp, temperature.gpu, utilization.gpu [%], pstate\n\
                   2023/07/14 10:12:46.483, 37, 0, P0\n2023/07/14 10:12:46.499, 38, 0, P0\n";
        assert_eq!(guessed(smi), (some("timestamp"), "utilization.gpu [%]".into(), None));
        let broken = "timestamp, power.draw [W], clocks.current.sm [MHz]\n\
                      2023/12/18 17:01:44.300, 46.19 W, [Unknown Error]\n2023/12/18 17:01:44.355, 46.20 W, [Unknown Error]\n";
        assert_eq!(guessed(broken), (some("timestamp"), "power.draw [W]".into(), None));
        let pods: String =
            (0..20).map(|at| format!("{}.5,{},p{}\n", at * 7, 1_662_858_720 + at / 2 * 60, at % 2)).collect();
        let pods = format!("value,timestamp_anon,container_ip\n{pods}");
        assert_eq!(guessed(&pods), (some("timestamp_anon"), "value".into(), some("container_ip")));
        let workers: String =
            (0..30).map(|at| format!("{at},{},25,{},{}\n", at % 3, at / 3 * 10 + 1, 400 + at * 37 % 90)).collect();
        let workers = format!(",worker,gpu,time,batch_time_norm\n{workers}");
        assert_eq!(guessed(&workers), (some("time"), "batch_time_norm".into(), some("worker")));
        let doubled: String = (0..20).map(|at| format!("{},{at}\n", at / 2)).collect();
        assert_eq!(guessed(&format!("time,value\n{doubled}")), (some("time"), "value".into(), None));
        for (gpus, distance) in [(2, 10), (4, 10), (4, 250)] {
            let row = |at: u32| format!("{},{},{}\n", at / gpus * 1000 + at % gpus * distance, at % gpus, at * 37 % 90);
            let turns: String = (0..80).map(row).collect();
            assert_eq!(guessed(&format!("time_ms,index,load\n{turns}")).2, some("index"), "{gpus} {distance}");
        }
        // A load that alternates takes no turns with another one.
        let load: String = (0..40).map(|at| format!("{at},{},{}\n", at % 2, at * 37 % 90)).collect();
        assert_eq!(guessed(&format!("time,gpu,memory\n{load}")).2, None);
        let wide = "time,vc3sl,vc6YE\n2020-05-01 00:00:00,59,162\n2020-05-01 00:01:00,60,162\n";
        assert_eq!(guessed(wide), (some("time"), "vc3sl".into(), None));
        assert_eq!(guessed("3\n1\n4\n1\n5\n"), (None, "column 1".into(), None));
    }

    #[test]
    fn options_choose_by_name_by_bare_name_and_by_number() {
        let csv = "when,power.draw [W],b\n2023-07-14,46.19 W,2\n2023-07-15,46.2 W,3\n";
        for asked in ["power.draw [W]", "Power.Draw", "2"] {
            let columns = chosen(csv, &Choices { value: some(asked), ..Choices::default() }).unwrap();
            assert_eq!((columns.value.index, columns.unit.as_str()), (1, "W"), "{asked}");
        }
        let numbered =
            chosen(csv, &Choices { time: some("none"), step: Some(Duration::from_secs(60)), ..Choices::default() });
        assert_eq!(numbered.unwrap().form, TimeForm::Row(Duration::from_secs(60)));
        let error = chosen(csv, &Choices { value: some("watts"), ..Choices::default() }).unwrap_err();
        assert!(error.is_argument());
        assert_eq!(
            error.to_string(),
            "--value: there is no column `watts`; the columns are `when`, `power.draw [W]`, `b`"
        );
        let error = chosen(csv, &Choices { value: some("when"), ..Choices::default() }).unwrap_err();
        assert_eq!(error.to_string(), "column `when` has no numbers, but for example `2023-07-14`");
        let error = chosen("a,b\nx,y\nz,w\n", &Choices::default()).unwrap_err();
        assert_eq!(error.to_string(), "no column has numbers beside the times; the columns are `a`, `b`");
    }

    #[test]
    fn the_guess_is_said() {
        let columns = chosen("time,a,b\n1700000000,1,2\n1700000060,2,3\n", &Choices::default()).unwrap();
        assert_eq!(
            columns.sentence(),
            "times are column `time`, seconds since 1970; values are column `a` (guessed; other numbers: `b`; --time, --value and \
             --group choose)"
        );
    }
}
