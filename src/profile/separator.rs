//! Which character separates the cells of a table.

/// Candidates. If two fit equally well, the earlier one counts: a comma is also in numbers and sentences.
const CANDIDATES: [u8; 4] = [b';', b'\t', b'|', b','];
/// Rows that are looked at. Tables say within a few rows what separates them.
const ROWS: usize = 64;

/// The separator with which most rows have the same number of cells, at least two. A comma if there is none, so that a file of one
/// column is read too.
pub(crate) fn guess(head: &[u8]) -> u8 {
    let mut best = (0, b',');
    for separator in CANDIDATES {
        let score = score(head, separator);
        if score > best.0 {
            best = (score, separator);
        }
    }
    best.1
}

/// The share of rows, in thousandths, that have the most frequent number of cells; 0 if that is one cell.
fn score(head: &[u8], separator: u8) -> usize {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(head);
    let mut lengths: Vec<usize> =
        reader.byte_records().take(ROWS).filter_map(Result::ok).map(|row| row.len()).collect();
    // The head ends within a row.
    if lengths.len() > 2 {
        lengths.pop();
    }
    let times = |length: usize| lengths.iter().filter(|other| **other == length).count();
    let usual = lengths.iter().copied().max_by_key(|length| times(*length)).filter(|usual| *usual > 1);
    usual.map_or(0, |usual| times(usual) * 1000 / lengths.len())
}

#[cfg(test)]
mod tests {
    use super::guess;

    #[test]
    fn the_separator_is_the_one_that_makes_a_table() {
        for (text, separator) in [
            ("time,value\n1,2\n2,3\n3,4\n", b','),
            ("zeit;wert\n1;2,5\n2;3,5\n3;4,5\n", b';'),
            ("1;2,5\n2;3,5\n3;4,5\n", b';'),
            ("a\tb, c\n1\t2\n", b'\t'),
            ("a|b\n1|2\n", b'|'),
            ("value\n1\n2\n", b','),
            ("name,what\n\"a;b;c\",1\n\"d;e;f\",2\n\"g\",3\n", b','),
            ("", b','),
        ] {
            assert_eq!(guess(text.as_bytes()), separator, "{text:?}");
        }
    }
}
