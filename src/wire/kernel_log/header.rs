//! Headers of lines of the kernel log.
//!
//! ```text
//!   /dev/kmsg   4,812,99,-,caller=T99;text                       a record is one line: newlines in it are escaped
//!   syslog(2)   <4>[   12.345678][  T99] text                    each line of a record has the record's header
//!   dmesg       [   12.345678][  T99] text                       the same
//!   rsyslog     Nov 21 10:00:00 node kernel: [   12.345678] text
//! ```
//!
//! What must never happen here: the text of a record is read as a header.

use super::position;

/// Maximum bytes of a header: date, host name (at most 64 bytes), `kernel:` and the time since boot.
const LONGEST_HEADER: usize = 160;
/// Maximum bytes in a pair of brackets: the kernel writes at most 20 digits, a point and six digits.
const LONGEST_FIELD: usize = 32;
/// Maximum microseconds between two records that one caller prints for one message. Twenty were seen. A process whose error the
/// driver has reported needs longer until it crashes: the driver handles the error first.
const LONGEST_GAP: u64 = 50;

/// What a header says of its record. All lines of a record have the same stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    level: Option<u64>,
    /// Microseconds since boot.
    time: Option<u64>,
    /// The thread (`T`) or CPU (`C`) that printed the record.
    caller: Option<(u8, u64)>,
}

/// A line without its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub(super) stamp: Stamp,
    /// The flags of a record of `/dev/kmsg`.
    pub(super) flags: Option<&'a [u8]>,
    /// The line has no header.
    pub(super) bare: bool,
    pub(super) text: &'a [u8],
}

impl Stamp {
    /// Whether a record with the stamp `next` may go on with the message of a record with this stamp.
    pub(super) fn leads_to(self, next: Stamp) -> bool {
        let most = if self.caller.is_some() { LONGEST_GAP } else { 0 };
        let gap = self.time.zip(next.time).and_then(|(time, next)| next.checked_sub(time));
        self.level == next.level && self.caller == next.caller && gap.is_some_and(|gap| gap <= most)
    }
}

impl Line<'_> {
    /// Whether this line belongs to the record of a line with the stamp `before`, as far as its header shows.
    pub(super) fn is_of_record(&self, before: Stamp) -> bool {
        self.flags.is_none() && self.stamp.time.is_some() && self.stamp == before
    }

    /// Whether the kernel writes no times (`printk.time=0`). Then the lines of a record look like records.
    pub(super) fn lacks_time(&self) -> bool {
        self.stamp.level.is_some() && self.stamp.time.is_none()
    }

    /// Whether the line is part of a record that was printed in fragments.
    pub(super) fn is_fragment(&self) -> bool {
        self.flags.is_some_and(|flags| flags.iter().any(|flag| matches!(flag, b'c' | b'+')))
    }

    /// Whether the line is a fragment that is not the first one of its record.
    pub(super) fn is_rest(&self) -> bool {
        self.flags.is_some_and(|flags| flags.contains(&b'+'))
    }
}

/// Cuts the header off.
pub(super) fn split(line: &[u8]) -> Line<'_> {
    if let Some(record) = record(line) {
        return record;
    }
    let (level, text) = match priority(line) {
        Some((level, text)) => (Some(level), text),
        None => (None, after_date(line)),
    };
    let (time, caller, text) = match time(text) {
        Some((time, caller, text)) => (Some(time), caller, text),
        None => (None, None, text),
    };
    Line { stamp: Stamp { level, time, caller }, flags: None, bare: text.len() == line.len(), text }
}

/// A record of `/dev/kmsg`, with more fields possible after the flags.
fn record(line: &[u8]) -> Option<Line<'_>> {
    let front = line.get(..line.len().min(LONGEST_HEADER))?;
    let end = front.iter().position(|byte| *byte == b';')?;
    let mut fields = front.get(..end)?.split(|byte| *byte == b',');
    let (level, _sequence, time) = (number(fields.next()?)?, number(fields.next()?)?, number(fields.next()?)?);
    let flags = fields.next()?;
    let caller = fields.find_map(|field| caller(field.strip_prefix(b"caller=")?));
    let stamp = Stamp { level: Some(level), time: Some(time), caller };
    Some(Line { stamp, flags: Some(flags), bare: false, text: line.get(end + 1..)? })
}

/// The priority `<4>` and the text after it.
fn priority(line: &[u8]) -> Option<(u64, &[u8])> {
    let inside = line.strip_prefix(b"<")?;
    let end = inside.iter().take(LONGEST_FIELD).position(|byte| *byte == b'>')?;
    Some((number(inside.get(..end)?)?, inside.get(end + 1..)?))
}

/// The text after the header of a syslog file: `Nov 21 10:00:00 node kernel: `, `2026-11-21T10:00:00+00:00 node kernel: `. A message
/// of another program may have ` kernel: ` in its text, after more words.
fn after_date(line: &[u8]) -> &[u8] {
    const KERNEL: &[u8] = b" kernel: ";
    let front = line.get(..line.len().min(LONGEST_HEADER)).unwrap_or_default();
    let Some(at) = position(front, KERNEL) else { return line };
    let words = front.get(..at).unwrap_or_default().split(u8::is_ascii_whitespace);
    let words: Vec<&[u8]> = words.filter(|word| !word.is_empty()).collect();
    let is_header = match words.as_slice() {
        [month, _day, _time, _host] => month.iter().all(u8::is_ascii_alphabetic),
        [date, _host] => date.first().is_some_and(u8::is_ascii_digit),
        _ => false,
    };
    line.get(at + KERNEL.len()..).filter(|_| is_header).unwrap_or(line)
}

/// The thread or processor that wrote a record: `T` or `C`, and its number.
type Caller = (u8, u64);

/// Time since boot in microseconds, the caller, and the text after them: `[   12.345678][  T99] text`.
fn time(text: &[u8]) -> Option<(u64, Option<Caller>, &[u8])> {
    let (inside, rest) = bracketed(text)?;
    let point = inside.iter().position(|byte| *byte == b'.')?;
    let (seconds, micros) = (number(inside.get(..point)?)?, number(inside.get(point + 1..)?)?);
    let time = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    let (caller, rest) = match bracketed(rest).and_then(|(inside, after)| Some((caller(inside)?, after))) {
        Some((caller, after)) => (Some(caller), after),
        None => (None, rest),
    };
    Some((time, caller, rest.strip_prefix(b" ").unwrap_or(rest)))
}

/// The text in brackets, without the spaces before it, and the text after them.
fn bracketed(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = text.strip_prefix(b"[")?;
    let end = inside.iter().take(LONGEST_FIELD).position(|byte| *byte == b']')?;
    Some((inside.get(..end)?.trim_ascii_start(), inside.get(end + 1..)?))
}

/// `T99`, `C3`.
fn caller(text: &[u8]) -> Option<(u8, u64)> {
    let (kind, id) = text.split_first()?;
    matches!(kind, b'T' | b'C').then_some(())?;
    Some((*kind, number(id)?))
}

fn number(text: &[u8]) -> Option<u64> {
    text.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_of_a_record_is_not_read_as_its_header() {
        for (line, text) in [
            ("4,812,99,-;text", "text"),
            ("4,812,99,-,caller=T99;a;b", "a;b"),
            ("<4>[   12.345678] text", "text"),
            ("<4>[   12.345678][  T99] text", "text"),
            ("[   12.345678][   C3] text", "text"),
            ("Nov  1 10:00:00 node kernel: [   12.345678] text", "text"),
            ("Nov 21 10:00:00 node kernel: text", "text"),
            ("2026-11-21T10:00:00.123456+00:00 node kernel: text", "text"),
            ("text", "text"),
            // What processes and files are called.
            ("<6>[   12.345678] [1.5] text", "[1.5] text"),
            ("<6>[   12.345678]  [T9] text", " [T9] text"),
            ("<6>[   12.345678] [T9][1.5] text", "[T9][1.5] text"),
            ("<6>[   12.345678] 4,1,1,-;text", "4,1,1,-;text"),
            ("<6>[   12.345678] a[7]: segfault in b kernel: text", "a[7]: segfault in b kernel: text"),
            ("<6>[   12.345678] kernel: text", "kernel: text"),
            ("6,1,1,-;a kernel: text", "a kernel: text"),
            ("6,1,1,-;[1.5] text", "[1.5] text"),
            ("Nov 21 10:00:00 node app: kernel: text", "Nov 21 10:00:00 node app: kernel: text"),
            ("2026-11-21T10:00:00 node app: a kernel: b", "2026-11-21T10:00:00 node app: a kernel: b"),
        ] {
            assert_eq!(String::from_utf8_lossy(split(line.as_bytes()).text), text, "{line}");
        }
    }

    #[test]
    fn a_header_shows_record_and_caller() {
        let stamp = |line: &str| split(line.as_bytes()).stamp;
        let whole = Stamp { level: Some(4), time: Some(12_345_678), caller: Some((b'T', 99)) };
        assert_eq!(stamp("<4>[   12.345678][  T99] x"), whole);
        assert_eq!(stamp("4,7,12345678,-,caller=T99;x"), whole);
        assert_eq!(stamp("[   12.345678][  T99] x"), Stamp { level: None, ..whole });
        assert_eq!(stamp("x"), Stamp::default());
        let later = |time: u64| Stamp { time: Some(time), ..whole };
        assert!(whole.leads_to(whole) && whole.leads_to(later(12_345_728)));
        for other in [later(12_345_677), later(12_345_729), Stamp { level: Some(6), ..whole }, Stamp::default()] {
            assert!(!whole.leads_to(other), "{other:?}");
        }
        let unnamed = |time: u64| Stamp { caller: None, ..later(time) };
        assert!(unnamed(1).leads_to(unnamed(1)) && !unnamed(1).leads_to(unnamed(2)), "any caller may be meant");
        assert!(split(b"<4>x").lacks_time() && split(b"<4>[  T9] x").lacks_time());
        for line in ["x", "4,7,1,-;x", "<4>[ 1.5] x", "[ 1.5] x", "Nov 21 10:00:00 node kernel: x"] {
            assert!(!split(line.as_bytes()).lacks_time(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_causes_a_panic_and_its_text_is_its_end(line in "(<4>|4,1,1,[-c+]|;|\\[ 1.5\\]|\\[T9\\]| |Nov 1 1 n kernel: |\\PC{0,5}){0,9}") {
            prop_assert!(line.as_bytes().ends_with(split(line.as_bytes()).text));
        }
    }
}
