//! Rows of cells from a text, and the names of the columns.
//!
//! What must never happen here: a row that is kept whole whatever its length, such as the rest of a file after a quotation mark.

use crate::error::CsvError;
use crate::text::{Encoding, Text, peeked};
use crate::{number, separator, time};
use csv::{ByteRecord, Trim};
use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Bytes from which the separator is guessed.
const HEAD: u64 = 64 << 10;
/// Longest row in bytes: a thousand columns of long numbers have 32 KiB.
const MAX_ROW: usize = 256 << 10;
/// Bytes that the CSV reader takes at a time, also beyond the end of a row.
const READ_AHEAD: usize = 64 << 10;
/// More columns than any recorder of a node writes; each of them costs a look at a thousand cells.
pub(crate) const MAX_COLUMNS: usize = 1024;
/// Longest name of a column or a group that is kept, in characters.
const MAX_NAME: usize = 128;

/// A table that is read row by row.
pub(crate) struct Table<'r> {
    reader: csv::Reader<LimitedRow<Box<dyn Read + 'r>>>,
    left: Rc<Cell<usize>>,
    header: Option<ByteRecord>,
    /// The first row, if it has data.
    first: Option<ByteRecord>,
    names: Vec<String>,
    rows: u64,
    is_gzip: bool,
    /// How the text was stored.
    pub(crate) encoding: Encoding,
    /// Whether cells write 0.5 as `0,5`.
    pub(crate) separator: u8,
}

impl<'r> Table<'r> {
    /// Reads the header, or the first row if there is none.
    pub(crate) fn open(input: impl Read + 'r) -> Result<Table<'r>, CsvError> {
        let text = Text::open(input)?;
        let (is_gzip, encoding) = (text.is_gzip, text.encoding);
        let (head, mut rest) = peeked(text, HEAD);
        if head.iter().all(u8::is_ascii_whitespace) {
            // After the head comes the error that ended it, if there was one.
            let error = rest.by_ref().take(HEAD + 1).read_to_end(&mut Vec::new()).err();
            return Err(error.map_or(CsvError::Empty, |error| broken(error, is_gzip, 0)));
        }
        let separator = separator::guess(&head);
        let left = Rc::new(Cell::new(MAX_ROW));
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(separator)
            .trim(Trim::All)
            .buffer_capacity(READ_AHEAD)
            .from_reader(LimitedRow { inner: rest, left: Rc::clone(&left) });
        let mut table =
            Table { reader, left, header: None, first: None, names: Vec::new(), rows: 0, is_gzip, encoding, separator };
        table.read_header()?;
        Ok(table)
    }

    /// The names of the columns. A column without a name has its number.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the first row has the names of the columns.
    pub(crate) fn has_header(&self) -> bool {
        self.header.is_some()
    }

    /// Reads the next row of data; `false` at the end. A repeated header is skipped: recorders write it again at each start.
    pub(crate) fn read(&mut self, row: &mut ByteRecord) -> Result<bool, CsvError> {
        if let Some(first) = self.first.take() {
            *row = first;
            return Ok(true);
        }
        while self.next(row)? {
            if self.header.as_ref().is_none_or(|header| header != &*row) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn next(&mut self, row: &mut ByteRecord) -> Result<bool, CsvError> {
        self.left.set(MAX_ROW);
        self.rows += 1;
        self.reader.read_byte_record(row).map_err(|error| match error.into_kind() {
            _ if self.left.get() == 0 => CsvError::LongRow { row: self.rows, limit: MAX_ROW },
            csv::ErrorKind::Io(error) => broken(error, self.is_gzip, self.rows - 1),
            other => CsvError::Read(io::Error::other(format!("{other:?}"))),
        })
    }

    fn read_header(&mut self) -> Result<(), CsvError> {
        let mut row = ByteRecord::new();
        if !self.next(&mut row)? {
            return Err(CsvError::Empty);
        }
        if row.len() > MAX_COLUMNS {
            return Err(CsvError::ManyColumns { columns: row.len(), limit: MAX_COLUMNS });
        }
        let is_header = !row.iter().any(|cell| is_data(&String::from_utf8_lossy(cell)));
        let name = |(at, cell): (usize, &[u8])| {
            let name = String::from_utf8_lossy(cell);
            let name = shortened(name.trim_start_matches('#').trim());
            if name.is_empty() || !is_header { format!("column {}", at + 1) } else { name }
        };
        self.names = row.iter().enumerate().map(name).collect();
        *(if is_header { &mut self.header } else { &mut self.first }) = Some(row);
        Ok(())
    }
}

/// At most [`MAX_NAME`] characters of a text. Control characters, which no picture may contain, are replaced.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(MAX_NAME).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Whether a cell has a number or a time, and therefore is not the name of a column.
fn is_data(cell: &str) -> bool {
    number::read(cell, false).is_some() || time::date(cell).is_some()
}

fn broken(error: io::Error, is_gzip: bool, rows: u64) -> CsvError {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    match error.kind() {
        InvalidData | InvalidInput | UnexpectedEof if is_gzip => CsvError::Gzip { rows },
        _ => CsvError::Read(error),
    }
}

/// Fails once more than `left` bytes have been read since it was set.
struct LimitedRow<R> {
    inner: R,
    left: Rc<Cell<usize>>,
}

impl<R: Read> Read for LimitedRow<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::Error::other("the row is too long"));
        }
        let read = self.inner.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(read));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::read::GzEncoder;
    use proptest::prelude::*;

    /// Names and rows.
    fn read(bytes: &[u8]) -> Result<(Vec<String>, Vec<Vec<String>>), CsvError> {
        let mut table = Table::open(bytes)?;
        let mut rows = Vec::new();
        let mut row = ByteRecord::new();
        while table.read(&mut row)? {
            rows.push(row.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect());
        }
        Ok((table.names().to_vec(), rows))
    }

    #[test]
    fn names_come_from_the_header_and_a_repeated_header_is_skipped() {
        let (names, rows) = read(b"# time,\"a, b\",\n1, 2, 3\n# time,\"a, b\",\n\n4, 5\n").unwrap();
        assert_eq!(names, ["time", "a, b", "column 3"]);
        assert_eq!(rows, [vec!["1", "2", "3"], vec!["4", "5"]]);
        let (names, rows) = read(b"7399a,CPU,96\n7399b,CPU,97\n").unwrap();
        assert_eq!((names, rows.len()), (vec!["column 1".into(), "column 2".into(), "column 3".into()], 2));
    }

    #[test]
    fn a_quotation_mark_that_is_not_closed_takes_no_memory() {
        let mut bytes = b"time,value\n1,2\n2,\"3\n".to_vec();
        bytes.resize(4 << 20, b'x');
        let error = read(&bytes).unwrap_err();
        assert!(matches!(error, CsvError::LongRow { row: 3, .. }), "{error}");
        assert!(error.to_string().contains("quotation mark"));
    }

    #[test]
    fn damaged_gzip_gives_the_rows_before_the_damage() {
        let rows: String = (0..30_000_u32).map(|at| format!("{at},{}\n", at.wrapping_mul(2_654_435_761))).collect();
        let mut packed = Vec::new();
        GzEncoder::new(rows.as_bytes(), Compression::fast()).read_to_end(&mut packed).unwrap();
        for (kept, rows) in
            [(packed.len() - 8, 30_000..=30_000), (packed.len() / 2, 5_000..=25_000), (40, 0..=20), (5, 0..=0)]
        {
            let error = read(&packed[..kept]).unwrap_err();
            let CsvError::Gzip { rows: read } = error else { panic!("{error}") };
            assert!(rows.contains(&read), "{kept} bytes: {read}");
        }
        assert_eq!(CsvError::Gzip { rows: 0 }.to_string(), "the gzip data is damaged or cut");
    }

    #[test]
    fn empty_files_and_wide_files_are_refused() {
        for empty in [&b""[..], b"\n \r\n\t", b"\xef\xbb\xbf\n"] {
            assert!(matches!(read(empty), Err(CsvError::Empty)), "{empty:?}");
        }
        let wide = "a,".repeat(MAX_COLUMNS);
        assert!(matches!(read(wide.as_bytes()), Err(CsvError::ManyColumns { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }

        #[test]
        fn no_table_causes_a_panic(text in "([a-z0-9.\"';,|\t %-]{0,12}[,;\t\n\r]){0,60}") {
            if let Ok((names, rows)) = read(text.as_bytes()) {
                prop_assert!(!names.is_empty() && rows.iter().all(|row| !row.is_empty()));
            }
        }
    }
}
