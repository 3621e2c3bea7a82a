//! How far the reading of a large file is, on the terminal.
//!
//! What must never happen here: a character on a standard error that is no terminal (`indicatif` sees to that); a bar that stays
//! beside the answer.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Read};

/// Reading as much takes about a second.
const LARGE: u64 = 16 << 20;
/// The same for gzip, which makes a table of measurements four to twenty times as small.
const LARGE_GZIP: u64 = 1 << 20;
/// The first bytes of a file in gzip.
const GZIP: &[u8] = b"\x1f\x8b";

/// A reader that shows its progress if it reads much. Where a pipe ends is not known, so it shows the number of bytes.
pub(super) struct WithProgress<R> {
    reader: R,
    /// Bytes of the file; `None` for a pipe.
    size: Option<u64>,
    large: u64,
    position: u64,
    bar: Option<ProgressBar>,
}

impl<R: Read> WithProgress<R> {
    /// Reads from `reader`, which is a file of `size` bytes, or a pipe.
    pub(super) fn new(reader: R, size: Option<u64>) -> WithProgress<R> {
        WithProgress { reader, size, large: LARGE, position: 0, bar: None }
    }

    fn advance(&mut self, bytes: &[u8]) {
        if self.position == 0 && bytes.starts_with(GZIP) {
            self.large = LARGE_GZIP;
        }
        self.position += bytes.len() as u64;
        if self.bar.is_none() && self.size.unwrap_or(self.position) >= self.large {
            self.bar = Some(bar(self.size));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.position);
        }
    }
}

impl<R: Read> Read for WithProgress<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer);
        if let Ok(count @ 1..) = read {
            self.advance(&buffer[..count]);
        } else if let Some(bar) = self.bar.take() {
            // The answer follows.
            bar.finish_and_clear();
        }
        read
    }
}

/// It draws on standard error, and only if that is a terminal.
fn bar(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (ProgressBar::new(size), "reading {bar:40} {bytes} of {total_bytes}, {eta} left"),
        None => (ProgressBar::no_length(), "reading {bytes}, {elapsed}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_have_a_bar_and_gzip_counts_as_larger() {
        let (plain, gzip) = ([b'1'; 64], [GZIP, &[0; 62]].concat());
        for (bytes, size, expected) in [
            (&plain[..], LARGE - 1, false),
            (&plain[..], LARGE, true),
            (&gzip[..], LARGE_GZIP - 1, false),
            (&gzip[..], LARGE_GZIP, true),
        ] {
            let mut file = WithProgress::new(bytes, Some(size));
            file.read_exact(&mut [0; 32]).unwrap();
            assert_eq!(file.bar.is_some(), expected, "{size}");
        }
    }

    #[test]
    fn a_pipe_has_a_bar_once_there_were_many_bytes_and_until_its_end() {
        let mut pipe = WithProgress::new(io::repeat(b'1').take(LARGE + 1), None);
        io::copy(&mut pipe.by_ref().take(LARGE - 1), &mut io::sink()).unwrap();
        assert!(pipe.bar.is_none());
        pipe.read_exact(&mut [0]).unwrap();
        let bar = pipe.bar.clone().unwrap();
        assert_eq!((bar.length(), bar.position()), (None, LARGE));
        io::copy(&mut pipe, &mut io::sink()).unwrap();
        assert!(pipe.bar.is_none() && bar.is_finished());
    }
}
