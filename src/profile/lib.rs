//! What one column of a CSV file does over time: whether it repeats, where it goes, what it will need.
//!
//! ```text
//!   bytes ──text──▶ UTF-8 ──table──▶ rows ──columns, time, number──▶ gather ──▶ series ──answer──▶ people | json | plot
//! ```
//!
//! ```text
//!   text      gzip and encodings
//!   separator which character separates the cells
//!   table     rows of cells, the header
//!   number    a cell with a number and perhaps a unit
//!   time      a cell with a time, in every usual form
//!   columns   which column has the times, the values, the groups
//!   gather    rows become series, in bounded memory
//!   notes     sentences about what was guessed, made coarser or left out
//!   grid      which samples of a series are analysed, and with what step
//!   answer    verdict, trend, steps, forecasts of a series
//!   figures   times and numbers as people read them
//!   people    the answer as text
//!   json      the answer as JSON
//!   plot      the answer as a picture
//!   error     why a file has no answer
//! ```
//!
//! What must never happen here: a file, a terminal or a clock (the caller has them); memory that grows with the length of the file; a
//! panic, whatever the bytes are; a row that is left out without a sentence that says so.

mod error;
mod text;
mod separator;
mod table;
mod number;
mod time;
mod columns;
mod gather;
mod notes;
mod grid;
mod answer;
mod figures;
mod people;
mod json;
mod plot;

pub use answer::Answer;
pub use columns::{Choices, Columns};
pub use error::CsvError;
pub use json::json;
pub use people::{Look, people};
pub use plot::{PlotError, png, svg};

use columns::Sample;
use csv::ByteRecord;
use gather::Gatherer;
use std::io::Read;
use table::Table;
use timeseries::MAX_POINTS;

/// What a CSV file says.
#[derive(Debug)]
pub struct Profile {
    /// The columns that were used.
    pub columns: Columns,
    /// Sentences about what was guessed, made coarser or left out.
    pub notes: Vec<String>,
    /// One answer, or with groups one for each group, in the order in which they appear.
    pub answers: Vec<Answer>,
}

/// Reads a CSV file, which may be compressed with gzip, and analyses it.
///
/// # Errors
/// If the file cannot be read, contains no series, or has no column of a name in `choices`.
pub fn csv(input: impl Read, choices: &Choices) -> Result<Profile, CsvError> {
    let mut table = Table::open(input)?;
    let sample = Sample::read(&mut table)?;
    let columns = columns::choose(table.names(), &sample, choices)?;
    let mut gatherer = Gatherer::new(&columns, choices.step);
    for row in &sample.rows {
        gatherer.push(row);
    }
    drop(sample);
    let mut row = ByteRecord::new();
    while table.read(&mut row)? {
        gatherer.push(&row);
    }
    let gathered = gatherer.finish()?;
    let mut notes = notes::of(&table, &columns, &gathered);
    let grouped = columns.group.is_some();
    let share = MAX_POINTS / gathered.series.len().max(1);
    let mut answers = Vec::new();
    let mut short = 0_usize;
    for series in gathered.series {
        match answer::of(series, &columns, choices, gathered.width, share) {
            Ok(answer) => answers.push(answer),
            Err(CsvError::TooFewRows { .. }) if grouped => short += 1,
            Err(error) => return Err(error),
        }
    }
    if answers.is_empty() {
        return Err(CsvError::TooFewRows { rows: gathered.counts.rows });
    }
    notes.extend(notes::short_groups(short));
    notes.extend(notes::made_to_fit(&answers));
    notes.extend(notes::not_drawn(answers.len()).filter(|_| choices.picture));
    Ok(Profile { columns, notes, answers })
}

#[cfg(test)]
mod tests;
