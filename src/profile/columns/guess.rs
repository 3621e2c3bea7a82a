//! Guesses which column has the times, the values and the groups, from names and from the first rows.

use super::{Choices, SAMPLE_ROWS, Sample};
use crate::error::CsvError;
use crate::number;
use crate::table::shortened;
use crate::time::{self, TimeForm};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

/// Words in the names of columns of times.
const TIME_WORDS: [&str; 9] = ["time", "timestamp", "ts", "date", "datetime", "epoch", "stamp", "when", "t"];
/// Words in the names of columns that say of which device a row is.
const GROUP_WORDS: [&str; 14] = [
    "uuid",
    "gpu",
    "index",
    "pod",
    "container",
    "host",
    "hostname",
    "node",
    "instance",
    "worker",
    "device",
    "id",
    "name",
    "rank",
];
/// Words in the names of columns that people want to know about first.
const VALUE_WORDS: [&str; 8] = ["utilization", "utilisation", "util", "usage", "duty", "load", "used", "power"];
/// Names of columns that number the rows.
const ROW_NUMBERS: [&str; 4] = ["index", "id", "row", "unnamed"];

/// What the sample has in one column.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contents {
    filled: usize,
    /// Finite numbers, and with them the cells that are infinite or not a number.
    numbers: usize,
    numeric: usize,
    dates: usize,
    /// Cells such as 11/28/2026.
    uncertain_dates: usize,
    distinct: usize,
    /// Neighbours that are numbers, and of these the ones that do not fall, and the ones that rise by exactly one.
    pairs: usize,
    rising: usize,
    by_one: usize,
    /// Numbers with a fraction.
    fractions: usize,
}

impl Contents {
    pub(super) fn of(sample: &Sample, index: usize) -> Contents {
        let mut contents = Contents::default();
        let mut distinct = BTreeSet::new();
        let mut last = None;
        for cell in sample.cells(index).filter(|cell| !cell.is_empty()) {
            contents.filled += 1;
            contents.dates += usize::from(time::date(&cell).is_some());
            contents.uncertain_dates += usize::from(time::is_uncertain_date(&cell));
            let number = number::read(&cell, sample.decimal_comma);
            contents.numeric += usize::from(number.is_some());
            if let Some(number) = number.filter(|number| number.value.is_finite()) {
                contents.numbers += 1;
                contents.fractions += usize::from(number.value.fract() != 0.0);
                if let Some(last) = last.replace(number.value) {
                    contents.pairs += 1;
                    contents.rising += usize::from(number.value >= last);
                    contents.by_one += usize::from(number.value - last == 1.0);
                }
            }
            distinct.insert(cell);
        }
        contents.distinct = distinct.len();
        contents
    }

    fn is_dates(self) -> bool {
        self.filled > 0 && self.dates * 10 >= self.filled * 9
    }

    /// Whether most cells have numbers.
    pub(super) fn is_numbers(self) -> bool {
        self.numbers > 0 && self.numeric * 2 >= self.filled
    }

    /// Whether the column numbers the rows. Of fewer rows, measurements may do the same.
    fn counts_rows(self) -> bool {
        self.pairs >= 4 && self.by_one == self.pairs
    }

    fn never_falls(self) -> bool {
        self.distinct > 1 && self.numbers == self.filled && self.rising * 20 >= self.pairs * 19
    }
}

/// How well a name says what a column is: 2 if it is one of the words, 1 if it has one of them.
fn rank(name: &str, words: &[&str]) -> usize {
    let name = name.to_lowercase();
    if words.contains(&name.as_str()) {
        return 2;
    }
    usize::from(name.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word)))
}

/// Guesses from names and contents.
pub(super) struct Guess<'s> {
    pub(super) names: &'s [String],
    pub(super) sample: &'s Sample,
    pub(super) contents: &'s [Contents],
}

impl Guess<'_> {
    /// A column of dates; else a column of numbers that is called a time, or that does not fall and by its name or size has times.
    pub(super) fn time(&self, choices: &Choices) -> Option<usize> {
        let is_value = |index: usize| choices.value.as_deref() == Some(self.names[index].as_str());
        let all = || (0..self.names.len()).rev().filter(|index| !is_value(*index));
        let dates = all().filter(|index| self.contents[*index].is_dates());
        // Of columns with the same rank the first one counts, so they are looked at from the last one on.
        if let Some(dates) = dates.max_by_key(|index| rank(&self.names[*index], &TIME_WORDS)) {
            return Some(dates);
        }
        let numbers = all().filter(|index| self.contents[*index].is_numbers()).filter_map(|index| {
            let rank = rank(&self.names[index], &TIME_WORDS);
            let is_epoch = matches!(self.form(index), Ok(TimeForm::Epoch(_)));
            let is_time = rank == 2 || ((rank == 1 || is_epoch) && self.contents[index].never_falls());
            is_time.then_some((rank, is_epoch, index))
        });
        numbers.max_by_key(|(rank, is_epoch, _)| (*rank, *is_epoch)).map(|(_, _, index)| index)
    }

    /// The form of the times in a column: that of its first cell with a time.
    pub(super) fn form(&self, index: usize) -> Result<TimeForm, CsvError> {
        let name = &self.names[index];
        let form = self.sample.cells(index).find_map(|cell| TimeForm::of(&cell, name));
        form.ok_or_else(|| self.uncertain_dates(index).unwrap_or_else(|| self.not_that(index, "times")))
    }

    /// Why the dates of a column are not read, if it has such dates.
    pub(super) fn uncertain_dates(&self, index: usize) -> Option<CsvError> {
        let Contents { filled, uncertain_dates, .. } = self.contents[index];
        let example = self.sample.cells(index).find(|cell| time::is_uncertain_date(cell))?;
        let column = self.names[index].clone();
        (uncertain_dates * 10 >= filled * 9).then(|| CsvError::UncertainDates { column, example: shortened(&example) })
    }

    /// The column with which the times of each group rise, where they do not rise without it; and where they do, the column of devices
    /// that take turns, each with a moment of its own. Another column must be left for the values.
    pub(super) fn group(&self, time: usize, value: Option<usize>) -> Option<usize> {
        let form = self.form(time).ok()?;
        let times: Vec<Option<i64>> = self.sample.cells(time).map(|cell| form.read(&cell)).collect();
        let not_later = times.windows(2).filter(|pair| matches!(pair, [Some(one), Some(next)] if next <= one)).count();
        let rises = not_later * 5 < times.len();
        let candidates = (0..self.names.len()).rev().filter(|index| *index != time && Some(*index) != value);
        let numbers = |other: usize| other != time && self.contents[other].numbers > 0;
        let leaves_numbers =
            |index: usize| value.is_some() || (0..self.names.len()).any(|other| other != index && numbers(other));
        let candidates = candidates.filter(|index| {
            let contents = self.contents[*index];
            contents.distinct > 1
                && contents.distinct * 2 <= contents.filled
                && contents.fractions == 0
                && leaves_numbers(*index)
        });
        let fitting = candidates.filter(|index| match rises {
            false => self.separates(*index, &times),
            true => self.takes_turns(*index, &times),
        });
        fitting.max_by_key(|index| {
            (rank(&self.names[*index], &GROUP_WORDS).min(1), usize::MAX - self.contents[*index].distinct)
        })
    }

    /// Whether within each value of a column the times rise, but for at most one row in fifty.
    fn separates(&self, index: usize, times: &[Option<i64>]) -> bool {
        let mut last: HashMap<Cow<'_, str>, i64> = HashMap::new();
        let mut wrong = 0;
        for (cell, time) in self.sample.cells(index).zip(times) {
            let Some(time) = time else { continue };
            wrong += usize::from(last.insert(cell, *time).is_some_and(|last| last >= *time));
        }
        wrong * 50 <= times.len()
    }

    /// Whether a column is called as devices are, and its values come in the same order again and again, as `nvidia-smi` writes the
    /// GPUs of a node. Two values may also be a load that goes on and off, so the times of their turns must be close together.
    fn takes_turns(&self, index: usize, times: &[Option<i64>]) -> bool {
        let name = &self.names[index];
        if rank(name, &GROUP_WORDS) == 0 || rank(name, &VALUE_WORDS) > 0 || !number::unit_of_name(name).is_empty() {
            return false;
        }
        let devices = self.contents[index].distinct;
        let cells: Vec<Cow<'_, str>> = self.sample.cells(index).collect();
        let rows = cells.len().saturating_sub(devices);
        let is_again = |at: usize| cells[at] == cells[at + devices] && cells[at] != cells[at + 1];
        let again = (0..rows).filter(|at| is_again(*at)).count();
        // Only from the first row of a turn the other one is close: two fifths of the time to the next turn at most.
        let is_close = |at: usize| {
            let since = |later: usize| Some(times[at + later]?.abs_diff(times[at]?));
            since(devices - 1)
                .zip(since(devices))
                .is_some_and(|(turn, next)| turn.saturating_mul(5) <= next.saturating_mul(2))
        };
        let close = (0..rows).filter(|at| is_close(*at)).count();
        again * 20 >= rows * 19 && (devices > 2 || close * devices * 20 >= rows * 19)
    }

    /// The column of numbers whose name says most; of two equal ones the first that is not constant.
    pub(super) fn value(&self, taken: [Option<usize>; 2]) -> Option<usize> {
        let free = (0..self.names.len()).rev().filter(|index| !taken.contains(&Some(*index)));
        free.filter(|index| self.contents[*index].numbers > 0).max_by_key(|index| {
            let (name, contents) = (self.names[*index].to_lowercase(), self.contents[*index]);
            let numbers_rows = contents.counts_rows() || rank(&name, &ROW_NUMBERS) > 0;
            let named = usize::from(name == "value") * 4 + rank(&name, &VALUE_WORDS).min(1) * 2;
            (contents.is_numbers(), !numbers_rows, named + usize::from(contents.distinct > 1))
        })
    }

    /// The unit of a column: that in its name, else that of its first number.
    pub(super) fn unit(&self, index: usize) -> Result<String, CsvError> {
        let mut cells = self.sample.cells(index);
        let first =
            cells.find_map(|cell| number::read(&cell, self.sample.decimal_comma).map(|number| number.unit.to_owned()));
        if first.is_none() && self.sample.rows.len() < SAMPLE_ROWS {
            return Err(self.not_that(index, "numbers"));
        }
        let unit = first.unwrap_or_default();
        let named = number::unit_of_name(&self.names[index]);
        Ok(if unit.is_empty() { shortened(named) } else { unit })
    }

    fn not_that(&self, index: usize, expected: &'static str) -> CsvError {
        let example = self.sample.cells(index).find(|cell| !cell.is_empty()).unwrap_or_default();
        CsvError::NotThat { column: self.names[index].clone(), expected, example: shortened(&example) }
    }
}
