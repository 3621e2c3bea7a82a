//! Sentences about what was guessed, made coarser or left out.

use crate::answer::Answer;
use crate::columns::Columns;
use crate::figures;
use crate::gather::{AllGathered, Counts};
use crate::plot;
use crate::table::Table;
use crate::text::Encoding;
use timeseries::MAX_MAGNITUDE;

/// All sentences, in the order of the steps that they are about.
pub(crate) fn of(table: &Table<'_>, columns: &Columns, gathered: &AllGathered) -> Vec<String> {
    let mut notes = Vec::new();
    if table.encoding == Encoding::Windows1252 {
        let read = "the file is not UTF-8 and was read as windows-1252; if names look wrong, save it as UTF-8";
        notes.push(read.to_owned());
    }
    if !table.has_header() {
        notes.push("the first row has data, so columns are named by their numbers".to_owned());
    }
    notes.push(columns.sentence());
    if let Some(width) = gathered.width.filter(|_| gathered.is_coarse) {
        let rows = figures::count(gathered.counts.rows);
        notes.push(format!(
            "{rows} rows are more than are analysed one by one; they are put together to means of {}",
            figures::span(width)
        ));
    }
    counted(&gathered.counts, columns, &mut notes);
    notes
}

fn counted(counts: &Counts, columns: &Columns, notes: &mut Vec<String>) {
    let time = columns.time.as_ref().map_or("", |time| time.name.as_str());
    let value = &columns.value.name;
    let Counts { timeless_example, text_example, .. } = counts;
    for (count, what, happens) in [
        (counts.timeless, format!("no time in column `{time}` (for example `{timeless_example}`)"), "left out"),
        (counts.back, "a time before that of an earlier row".to_owned(), "left out"),
        (counts.doubled, "the same time as the row before".to_owned(), "left out"),
        (counts.beyond, "a group beyond the largest number of groups".to_owned(), "left out"),
        (counts.texts, format!("no number in column `{value}` (for example `{text_example}`)"), "a gap"),
        (counts.not_finite, format!("NaN or an infinite number in column `{value}`"), "a gap"),
        (counts.too_large, format!("a number beyond {MAX_MAGNITUDE:e} in column `{value}`"), "a gap"),
        (counts.empty, format!("an empty cell in column `{value}`"), "a gap"),
    ] {
        match count {
            0 => {}
            1 => notes.push(format!("1 row has {what}: {happens}")),
            count => notes.push(format!("{} rows have {what}: {happens}", figures::count(count))),
        }
    }
}

/// The sentence about series that a picture has no room for.
pub(crate) fn not_drawn(series: usize) -> Option<String> {
    let drawn = plot::MAX_STRIPS;
    (series > drawn).then(|| format!("a picture has {drawn} of the {series} series, those with a period first"))
}

/// The sentence about groups that are too short for a series.
pub(crate) fn short_groups(groups: usize) -> Option<String> {
    match groups {
        0 => None,
        1 => Some("1 group has fewer than 2 values: left out".to_owned()),
        groups => Some(format!("{groups} groups have fewer than 2 values: left out")),
    }
}

/// The sentences about series that have too many points as they are.
pub(crate) fn made_to_fit(answers: &[Answer]) -> Vec<String> {
    let outside: usize = answers.iter().map(|answer| answer.outside).sum();
    let coarse = answers.iter().filter(|answer| answer.is_coarse).count();
    let mut notes = Vec::new();
    if outside > 0 {
        let values = if outside == 1 {
            "1 value is".to_owned()
        } else {
            format!("{} values are", figures::count(outside as u64))
        };
        notes.push(format!("{values} beyond a hole in the times that is longer than all rows together: left out"));
    }
    if coarse > 0 {
        notes.push(format!(
            "the distances of the rows differ so much that {coarse} series got a longer step than the usual one"
        ));
    }
    notes
}
