//! Why a CSV file has no answer. Each text is a sentence that says what is wrong with the file, and where it can, what to do.

use std::io;

/// Why a CSV file has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    /// The operating system refuses the read.
    #[error("cannot read the file: {0}")]
    Read(#[source] io::Error),
    /// The gzip stream is damaged or cut.
    #[error("the gzip data is damaged or cut{}", after(*rows))]
    Gzip {
        /// Rows that were read before.
        rows: u64,
    },
    /// Compressed in another way, or a workbook.
    #[error("the file is {0}; write it as plain CSV or CSV in gzip")]
    Packed(&'static str),
    /// Not a text in an encoding that is known.
    #[error("the file is not a text in a known encoding ({0}); save it as UTF-8")]
    Encoding(&'static str),
    /// No bytes but white space.
    #[error("the file is empty")]
    Empty,
    /// A row that does not end.
    #[error("row {row} is longer than {limit} bytes; look for a quotation mark that is not closed")]
    LongRow {
        /// The row, counted from 1.
        row: u64,
        /// The limit.
        limit: usize,
    },
    /// More columns than are looked at.
    #[error("the file has {columns} columns, and at most {limit} are read")]
    ManyColumns {
        /// Columns of the first row.
        columns: usize,
        /// The limit.
        limit: usize,
    },
    /// A series needs two values at different times.
    #[error("the file has {rows} row{} of data that can be used, and a series needs at least 2", if *rows == 1 { "" } else { "s" })]
    TooFewRows {
        /// Rows of data.
        rows: u64,
    },
    /// No column of numbers.
    #[error("no column has numbers beside the times; the columns are {columns}")]
    NoNumbers {
        /// The names of the columns.
        columns: String,
    },
    /// A column has something else than what it should have.
    #[error("column `{column}` has no {expected}, but for example `{example}`")]
    NotThat {
        /// The column.
        column: String,
        /// Numbers or times.
        expected: &'static str,
        /// A cell of it.
        example: String,
    },
    /// Dates whose day and month cannot be told apart.
    #[error(
        "column `{column}` has dates such as `{example}`, whose order is not certain; write them as 2026-11-28, or number the rows \
         with --time none and give their distance with --step"
    )]
    UncertainDates {
        /// The column.
        column: String,
        /// A cell of it.
        example: String,
    },
    /// An option names a column that does not exist.
    #[error("--{option}: there is no column `{asked}`; the columns are {columns}")]
    NoColumn {
        /// The option.
        option: &'static str,
        /// What it named.
        asked: String,
        /// The names of the columns.
        columns: String,
    },
    /// An option does not fit the file.
    #[error("--{option}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// Why it does not fit.
        why: String,
    },
    /// Most rows are older than the row above them.
    #[error("{rows} of {all} rows have a time before that of an earlier row; sort the file by column `{column}`")]
    Backwards {
        /// Rows that go back.
        rows: u64,
        /// All rows.
        all: u64,
        /// The column of the times.
        column: String,
    },
    /// Most rows have the time of another row.
    #[error(
        "{rows} of {all} rows have the same time as the row before them; if column `{column}` has the times of several devices, name the \
         column that tells them apart with --group"
    )]
    Doubled {
        /// Rows with a time that was there.
        rows: u64,
        /// All rows.
        all: u64,
        /// The column of the times.
        column: String,
    },
}

impl CsvError {
    /// Whether an option is wrong, and not the file.
    #[must_use]
    pub fn is_argument(&self) -> bool {
        matches!(self, CsvError::NoColumn { .. } | CsvError::Option { .. })
    }
}

fn after(rows: u64) -> String {
    if rows == 0 { String::new() } else { format!(" after row {rows}") }
}
