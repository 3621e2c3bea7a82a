//! Rows become series. Memory is bounded: too many rows are put together, several to one mean, while they are read.
//!
//! What must never happen here: a row or a cell that is left out and not counted.

use crate::columns::{Columns, text};
use crate::error::CsvError;
use crate::number;
use crate::table::shortened;
use crate::time::TimeForm;
use csv::ByteRecord;
use std::collections::HashMap;
use std::time::Duration;
use timeseries::{MAX_MAGNITUDE, MAX_POINTS, Sample};

/// Most means over all series, 24 bytes each: 48 MiB, and as much again while a list grows.
const MAX_MEANS: usize = 1 << 21;
/// Most series. A cluster has fewer GPUs, and a person reads fewer rows.
const MAX_GROUPS: usize = 4096;

/// The mean of the values in one span of time.
#[derive(Clone, Copy, Debug)]
struct Mean {
    /// Nanoseconds since the first time of the series.
    at: u64,
    sum: f64,
    /// Zero for a gap.
    count: u32,
}

/// A series while it is read.
#[derive(Debug)]
struct Open {
    group: Option<String>,
    origin: i64,
    last: i64,
    means: Vec<Mean>,
}

/// A series of the file.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// The value of the group's column.
    pub(crate) group: Option<String>,
    /// Time of the first sample.
    pub(crate) origin: i64,
    /// Samples since that time; what is not a number is a gap.
    pub(crate) samples: Vec<Sample>,
}

/// What was left out, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Rows of data.
    pub(crate) rows: u64,
    /// Rows without a time, and one of these cells.
    pub(crate) timeless: u64,
    pub(crate) timeless_example: String,
    /// Rows with a time before that of an earlier row of their series.
    pub(crate) back: u64,
    /// Rows with the time of the row before them.
    pub(crate) doubled: u64,
    /// Cells of the values that have text, and one of them.
    pub(crate) texts: u64,
    pub(crate) text_example: String,
    /// Cells of the values that are empty.
    pub(crate) empty: u64,
    /// Cells of the values that are infinite or not a number.
    pub(crate) not_finite: u64,
    /// Cells of the values beyond what can be analysed.
    pub(crate) too_large: u64,
    /// Rows of groups beyond the limit.
    pub(crate) beyond: u64,
}

/// Everything that was read.
#[derive(Debug)]
pub(crate) struct AllGathered {
    pub(crate) series: Vec<Gathered>,
    pub(crate) counts: Counts,
    /// The span of each mean, if rows were put together or the caller asked for it.
    pub(crate) width: Option<Duration>,
    /// Whether rows were put together because there were too many.
    pub(crate) is_coarse: bool,
}

/// Reads rows into series.
#[derive(Debug)]
pub(crate) struct Gatherer<'c> {
    columns: &'c Columns,
    series: Vec<Open>,
    groups: HashMap<Vec<u8>, usize>,
    means: usize,
    /// Nanoseconds; zero keeps each row.
    width: u64,
    is_coarse: bool,
    limit: usize,
    counts: Counts,
}

impl<'c> Gatherer<'c> {
    /// A step puts the rows within it together.
    pub(crate) fn new(columns: &'c Columns, step: Option<Duration>) -> Gatherer<'c> {
        // Rows that are numbered are a step apart as they are.
        let step = step.filter(|_| columns.time.is_some());
        let width = step.map_or(0, |step| u64::try_from(step.as_nanos()).unwrap_or(u64::MAX));
        let counts = Counts::default();
        Gatherer {
            columns,
            series: Vec::new(),
            groups: HashMap::new(),
            means: 0,
            width,
            is_coarse: false,
            limit: MAX_MEANS,
            counts,
        }
    }

    /// Takes one row.
    pub(crate) fn push(&mut self, row: &ByteRecord) {
        self.counts.rows += 1;
        let Some(at) = self.time(row) else { return };
        let Some(index) = self.series_of(row, at) else {
            self.counts.beyond += 1;
            return;
        };
        let open = &mut self.series[index];
        if !open.means.is_empty() && at <= open.last {
            *(if at < open.last { &mut self.counts.back } else { &mut self.counts.doubled }) += 1;
            return;
        }
        let value = self.value(row);
        let open = &mut self.series[index];
        open.last = at;
        // The difference of two times fits: neither is before the origin.
        let since = at.abs_diff(open.origin);
        self.means += usize::from(open.add(since, value, self.width));
        if open.means.len() >= MAX_POINTS || self.means >= self.limit {
            self.make_coarser();
        }
    }

    fn time(&mut self, row: &ByteRecord) -> Option<i64> {
        let Some(column) = &self.columns.time else {
            let TimeForm::Row(step) = self.columns.form else { return None };
            let rows = i64::try_from(self.counts.rows - 1).ok()?;
            return i64::try_from(step.as_nanos()).ok()?.checked_mul(rows);
        };
        let cell = text(row, column.index);
        let time = self.columns.form.read(&cell);
        if time.is_none() {
            self.counts.timeless += 1;
            if self.counts.timeless_example.is_empty() {
                self.counts.timeless_example = shortened(&cell);
            }
        }
        time
    }

    /// The series of a row; `None` if there are too many.
    fn series_of(&mut self, row: &ByteRecord, at: i64) -> Option<usize> {
        let key = self.columns.group.as_ref().map(|group| row.get(group.index).unwrap_or_default());
        if let Some(index) = self.groups.get(key.unwrap_or_default()) {
            return Some(*index);
        }
        if self.series.len() == MAX_GROUPS {
            return None;
        }
        let group = key.map(|key| shortened(&String::from_utf8_lossy(key)));
        self.series.push(Open { group, origin: at, last: at, means: Vec::new() });
        self.groups.insert(key.unwrap_or_default().to_vec(), self.series.len() - 1);
        Some(self.series.len() - 1)
    }

    /// The value of a row; NaN for a gap.
    fn value(&mut self, row: &ByteRecord) -> f64 {
        let cell = text(row, self.columns.value.index);
        let number = number::read(&cell, self.columns.decimal_comma);
        let value = number.and_then(|number| Some(number.value * number::factor(number.unit, &self.columns.unit)?));
        match value {
            Some(value) if value.abs() <= MAX_MAGNITUDE => return value,
            Some(value) if value.is_finite() => self.counts.too_large += 1,
            Some(_) => self.counts.not_finite += 1,
            None if cell.is_empty() => self.counts.empty += 1,
            None => {
                self.counts.texts += 1;
                if self.counts.text_example.is_empty() {
                    self.counts.text_example = shortened(&cell);
                }
            }
        }
        f64::NAN
    }

    /// Doubles the span of the means until the limits leave room again.
    fn make_coarser(&mut self) {
        self.is_coarse = true;
        let room = |len: usize, limit: usize| len * 4 <= limit * 3;
        while !(room(self.means, self.limit) && self.series.iter().all(|open| room(open.means.len(), MAX_POINTS))) {
            let longest = self.series.iter().max_by_key(|open| open.means.len());
            let distance = longest.and_then(Open::distance).unwrap_or(1);
            self.width = self.width.max(distance).saturating_mul(2);
            for open in &mut self.series {
                open.make_coarser(self.width);
            }
            self.means = self.series.iter().map(|open| open.means.len()).sum();
            if self.width == u64::MAX {
                return;
            }
        }
    }

    /// Ends the read.
    ///
    /// # Errors
    /// If most rows have no usable time, or no cell of the values has a number.
    pub(crate) fn finish(self) -> Result<AllGathered, CsvError> {
        let Gatherer { columns, series, width, is_coarse, counts, .. } = self;
        let column = || columns.time.as_ref().map(|time| time.name.clone()).unwrap_or_default();
        let all = counts.rows;
        if counts.timeless * 2 > all {
            return Err(CsvError::NotThat { column: column(), expected: "times", example: counts.timeless_example });
        }
        if counts.back * 2 > all {
            return Err(CsvError::Backwards { rows: counts.back, all, column: column() });
        }
        if counts.doubled * 2 >= all {
            return Err(CsvError::Doubled { rows: counts.doubled, all, column: column() });
        }
        if series.iter().all(|open| open.means.iter().all(|mean| mean.count == 0)) {
            let example = if counts.text_example.is_empty() { "NaN".to_owned() } else { counts.text_example };
            return Err(CsvError::NotThat { column: columns.value.name.clone(), expected: "numbers", example });
        }
        let width = (width > 0).then(|| Duration::from_nanos(width));
        let series = series.into_iter().map(Open::close).collect();
        Ok(AllGathered { series, counts, width, is_coarse })
    }
}

impl Open {
    /// Adds a value to the mean of its span. Returns whether that is a new one.
    fn add(&mut self, since: u64, value: f64, width: u64) -> bool {
        let at = since.checked_div(width).map_or(since, |number| number * width);
        let (sum, count) = if value.is_nan() { (0.0, 0) } else { (value, 1) };
        let same = self.means.last_mut().filter(|mean| mean.at == at && width > 0);
        match same {
            Some(mean) => {
                mean.sum += sum;
                mean.count = mean.count.saturating_add(count);
                false
            }
            None => {
                self.means.push(Mean { at, sum, count });
                true
            }
        }
    }

    /// The median distance between two means: a hole in the times does not change it.
    fn distance(&self) -> Option<u64> {
        let mut distances: Vec<u64> = self.means.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        let middle = distances.len() / 2;
        (!distances.is_empty()).then(|| *distances.select_nth_unstable(middle).1)
    }

    fn make_coarser(&mut self, width: u64) {
        let mut kept = 0_usize;
        for index in 0..self.means.len() {
            let mut mean = self.means[index];
            mean.at = mean.at / width * width;
            match kept.checked_sub(1).map(|last| self.means[last]).filter(|last| last.at == mean.at) {
                Some(last) => {
                    mean.sum += last.sum;
                    mean.count = mean.count.saturating_add(last.count);
                    self.means[kept - 1] = mean;
                }
                None => {
                    self.means[kept] = mean;
                    kept += 1;
                }
            }
        }
        self.means.truncate(kept);
    }

    fn close(self) -> Gathered {
        let sample = |mean: &Mean| {
            let value = if mean.count == 0 { f64::NAN } else { mean.sum / f64::from(mean.count) };
            Sample { at: Duration::from_nanos(mean.at), value }
        };
        Gathered { group: self.group, origin: self.origin, samples: self.means.iter().map(sample).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{self, Choices};
    use crate::table::Table;

    fn gathered(csv: &str, choices: &Choices, limit: usize) -> Result<AllGathered, CsvError> {
        let mut table = Table::open(csv.as_bytes())?;
        let sample = columns::Sample::read(&mut table)?;
        let columns = columns::choose(table.names(), &sample, choices)?;
        let mut gatherer = Gatherer { limit, ..Gatherer::new(&columns, choices.step) };
        sample.rows.iter().for_each(|row| gatherer.push(row));
        let mut row = ByteRecord::new();
        while table.read(&mut row)? {
            gatherer.push(&row);
        }
        gatherer.finish()
    }

    fn all(csv: &str) -> Result<AllGathered, CsvError> {
        gathered(csv, &Choices::default(), MAX_MEANS)
    }

    /// Seconds and values.
    fn samples(series: &Gathered) -> Vec<(u64, f64)> {
        series.samples.iter().map(|sample| (sample.at.as_secs(), sample.value)).collect()
    }

    #[test]
    fn what_is_no_number_is_a_gap_and_is_counted() {
        let read = all("time,value\n0,1\n1,\n2,NaN\n3,[N/A]\n4,-inf\n5,6\n6,-1e200\n").unwrap();
        let values: Vec<Option<f64>> =
            read.series[0].samples.iter().map(|sample| Some(sample.value).filter(|value| value.is_finite())).collect();
        assert_eq!(values, [Some(1.0), None, None, None, None, Some(6.0), None]);
        let counts = read.counts;
        assert_eq!((counts.empty, counts.not_finite, counts.too_large), (1, 2, 1));
        assert_eq!((counts.texts, counts.text_example.as_str()), (1, "[N/A]"));
    }

    #[test]
    fn times_that_do_not_rise_are_left_out_and_counted() {
        let read = all("time,value\n0,1\n10,2\n10,9\n5,9\n20,3\nlater,4\n30,5\n").unwrap();
        assert_eq!(samples(&read.series[0]), [(0, 1.0), (10, 2.0), (20, 3.0), (30, 5.0)]);
        let counts = read.counts;
        assert_eq!((counts.rows, counts.doubled, counts.back, counts.timeless), (7, 1, 1, 1));
        let error = all("time,value\n9,1\n8,2\n7,3\n6,4\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "3 of 4 rows have a time before that of an earlier row; sort the file by column `time`"
        );
        let error = all("time,value\n0,0\n0,1\n1,2\n1,3\n").unwrap_err();
        assert!(error.to_string().starts_with("2 of 4 rows have the same time"), "{error}");
        let error = all("time,value\n9,1\n9,2\n9,3\n9,4\n10,5\n").unwrap_err();
        assert!(error.to_string().starts_with("3 of 5 rows have the same time"), "{error}");
    }

    #[test]
    fn each_group_has_its_own_series_and_its_own_start() {
        let read = all("time,gpu,value\n5,a,1\n5,b,2\n6,a,3\n6,b,4\n7,b,5\n7,a,6\n").unwrap();
        assert_eq!(read.series.len(), 2);
        assert_eq!((read.series[1].group.as_deref(), read.series[1].origin), (Some("b"), 5_000_000_000));
        assert_eq!(samples(&read.series[1]), [(0, 2.0), (1, 4.0), (2, 5.0)]);
    }

    #[test]
    fn units_that_change_within_a_column_are_converted() {
        let read = all("time,memory\n0,512 MiB\n1,1 GiB\n2,3 W\n").unwrap();
        assert_eq!(samples(&read.series[0])[..2], [(0, 512.0), (1, 1024.0)]);
        assert_eq!(read.counts.texts, 1);
    }

    #[test]
    fn a_hole_in_the_times_makes_no_longer_means() {
        let rows: String = (0..4000).map(|at| format!("{},7\n", at + at / 2000 * 1_000_000_000)).collect();
        let read = gathered(&format!("time,value\n{rows}"), &Choices::default(), 1000).unwrap();
        assert_eq!((read.width, read.series[0].samples.len()), (Some(Duration::from_secs(8)), 500));
    }

    #[test]
    fn too_many_rows_become_means_and_no_value_is_lost() {
        let rows: String = (0..10_000).map(|at| format!("{at},{}\n", at % 7)).collect();
        let read = gathered(&format!("time,value\n{rows}"), &Choices::default(), 1000).unwrap();
        assert!(read.is_coarse && read.width == Some(Duration::from_secs(16)));
        let means = &read.series[0].samples;
        assert_eq!(means.len(), 625);
        let mean = means.iter().map(|sample| sample.value).sum::<f64>() / 625.0;
        assert!((mean - 3.0).abs() < 0.01, "{mean}");
        let stepped = Choices { step: Some(Duration::from_secs(100)), ..Choices::default() };
        let read = gathered(&format!("time,value\n{rows}"), &stepped, MAX_MEANS).unwrap();
        assert_eq!((read.series[0].samples.len(), read.is_coarse), (100, false));
    }
}
