//! Bytes of a file as UTF-8: unpacks gzip and decodes UTF-16 and windows-1252.
//!
//! What must never happen here: a file that is read whole.

use crate::error::CsvError;
use encoding_rs::{Decoder, UTF_16BE, UTF_16LE, WINDOWS_1252};
use flate2::read::MultiGzDecoder;
use std::io::{self, Cursor, Read};

/// First bytes, from which the encoding is guessed. A table of thousands of columns has its header within them.
const HEAD: u64 = 16 << 10;
/// Bytes that are decoded at a time: a page of a pipe.
const BLOCK: usize = 8 << 10;

/// First bytes of files that are not CSV, and what such a file is.
const PACKED: [(&[u8], &str); 6] = [
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\xfd7zXZ\0", "compressed with xz"),
    (b"BZh", "compressed with bzip2"),
    (b"PK\x03\x04", "a zip archive or the workbook of a spreadsheet"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3\0", "an SQLite database"),
];

/// How the text was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// UTF-8 or ASCII.
    Utf8,
    /// UTF-16 of either byte order, as PowerShell writes it.
    Utf16,
    /// None of them: the western European code page, in which every byte is a character.
    Windows1252,
}

/// A text in UTF-8.
pub(crate) struct Text<'r> {
    reader: Box<dyn Read + 'r>,
    /// Whether the bytes came out of gzip.
    pub(crate) is_gzip: bool,
    /// How the text was stored.
    pub(crate) encoding: Encoding,
}

impl<'r> Text<'r> {
    /// Looks at the first bytes of the file.
    pub(crate) fn open(input: impl Read + 'r) -> Result<Text<'r>, CsvError> {
        let (mut head, mut reader) = peeked(input, HEAD);
        let is_gzip = head.starts_with(b"\x1f\x8b");
        if is_gzip {
            (head, reader) = peeked(MultiGzDecoder::new(reader), HEAD);
        }
        if let Some((_, what)) = PACKED.iter().find(|(magic, _)| head.starts_with(magic)) {
            return Err(CsvError::Packed(what));
        }
        let (encoding, decoder) = encoding(&head)?;
        let reader: Box<dyn Read + 'r> = match decoder {
            Some(decoder) => Box::new(Decoded::new(reader, decoder)),
            None => Box::new(reader),
        };
        Ok(Text { reader, is_gzip, encoding })
    }
}

impl Read for Text<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

/// The first bytes, and a reader of all bytes. An error comes after the bytes before it, so that rows before it count.
pub(crate) fn peeked<'r>(mut input: impl Read + 'r, most: u64) -> (Vec<u8>, Box<dyn Read + 'r>) {
    let mut head = Vec::new();
    let error = input.by_ref().take(most).read_to_end(&mut head).err();
    let reader = Cursor::new(head.clone()).chain(Failing(error)).chain(input);
    (head, Box::new(reader))
}

/// A reader without bytes that may fail once.
struct Failing(Option<io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// The encoding of a text with these first bytes, and its decoder. A decoder also takes off the byte order mark.
fn encoding(head: &[u8]) -> Result<(Encoding, Option<Decoder>), CsvError> {
    if head.starts_with(b"\xff\xfe\0\0") || head.starts_with(b"\0\0\xfe\xff") {
        return Err(CsvError::Encoding("it begins as UTF-32"));
    }
    let utf16 = |decoder| Ok((Encoding::Utf16, Some(decoder)));
    if head.starts_with(b"\xff\xfe") || mostly_zero(head, 1) {
        return utf16(UTF_16LE.new_decoder_with_bom_removal());
    }
    if head.starts_with(b"\xfe\xff") || mostly_zero(head, 0) {
        return utf16(UTF_16BE.new_decoder_with_bom_removal());
    }
    // White space and escape sequences of terminals are in logs; other control characters are in no text.
    if head.iter().any(|byte| *byte < 0x08) {
        return Err(CsvError::Encoding("it contains control characters"));
    }
    match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_some() => {
            Ok((Encoding::Windows1252, Some(WINDOWS_1252.new_decoder_without_bom_handling())))
        }
        // The last character of the head may be cut.
        _ if head.starts_with(b"\xef\xbb\xbf") => {
            Ok((Encoding::Utf8, Some(encoding_rs::UTF_8.new_decoder_with_bom_removal())))
        }
        _ => Ok((Encoding::Utf8, None)),
    }
}

/// Whether of each two bytes the one at `odd` is zero in most cases, and the other one in none: UTF-16 without a mark.
fn mostly_zero(head: &[u8], odd: usize) -> bool {
    let pairs = head.chunks_exact(2);
    let count = pairs.len();
    let zeros = pairs.clone().filter(|pair| pair[odd] == 0).count();
    count > 0 && zeros * 10 >= count * 9 && pairs.clone().all(|pair| pair[1 - odd] != 0)
}

/// A reader that decodes.
struct Decoded<R> {
    inner: R,
    decoder: Decoder,
    raw: Vec<u8>,
    text: Vec<u8>,
    given: usize,
    ended: bool,
}

impl<R: Read> Decoded<R> {
    fn new(inner: R, decoder: Decoder) -> Decoded<R> {
        Decoded { inner, decoder, raw: vec![0; BLOCK], text: Vec::new(), given: 0, ended: false }
    }

    fn fill(&mut self) -> io::Result<()> {
        let read = self.inner.read(&mut self.raw)?;
        self.ended = read == 0;
        // Three bytes for two of UTF-16, and for a replacement character at most three for one.
        let room = self.decoder.max_utf8_buffer_length(read).unwrap_or(BLOCK * 4);
        self.text.resize(room, 0);
        let (_, _, written, _) = self.decoder.decode_to_utf8(&self.raw[..read], &mut self.text, self.ended);
        self.text.truncate(written);
        self.given = 0;
        Ok(())
    }
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() && !self.ended {
            self.fill()?;
        }
        let rest = &self.text[self.given..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn read(bytes: &[u8]) -> Result<(String, Encoding), CsvError> {
        let mut text = Text::open(bytes)?;
        let mut all = String::new();
        text.read_to_string(&mut all).map_err(CsvError::Read)?;
        Ok((all, text.encoding))
    }

    fn utf16(text: &str, encode: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(encode).collect()
    }

    #[test]
    fn every_known_encoding_gives_the_same_text() {
        let text = "time,größe [°C]\n1,2\n".repeat(2000);
        let marked = format!("\u{feff}{text}");
        let (western, _, _) = WINDOWS_1252.encode(&text);
        for (bytes, encoding) in [
            (text.clone().into_bytes(), Encoding::Utf8),
            (marked.clone().into_bytes(), Encoding::Utf8),
            (utf16(&marked, u16::to_le_bytes), Encoding::Utf16),
            (utf16(&marked, u16::to_be_bytes), Encoding::Utf16),
            (utf16(&text, u16::to_le_bytes), Encoding::Utf16),
            (utf16(&text, u16::to_be_bytes), Encoding::Utf16),
            (western.into_owned(), Encoding::Windows1252),
        ] {
            assert_eq!(read(&bytes).unwrap(), (text.clone(), encoding));
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&bytes).unwrap();
            assert_eq!(read(&packed.finish().unwrap()).unwrap(), (text.clone(), encoding));
        }
    }

    #[test]
    fn what_is_no_text_is_refused_with_what_it_is() {
        for (bytes, said) in [
            (&b"PK\x03\x04rest"[..], "zip archive"),
            (b"\x28\xb5\x2f\xfd", "zstd"),
            (b"SQLite format 3\0rest", "SQLite"),
            (b"\xff\xfe\0\0t\0\0\0", "UTF-32"),
            (b"\x7fELF\x02\x01\x01\0", "control characters"),
        ] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
