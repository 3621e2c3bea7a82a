//! Joins the lines of one kernel message, and finds out which lines are the driver's.
//!
//! A driver may print one message as several lines, and each reader of the kernel log shows these lines differently:
//!
//! ```text
//!   /dev/kmsg      4,812,99,-;NVRM: Xid (PCI:0000:10:00): 145, RLW_RXPIPE\x0a Nonfatal XC0      one record, escaped
//!                   SUBSYSTEM=pci                                                               its dictionary
//!                  4,813,99,c;NVRM: Xid (PCI:0000:10:00): 145,                                  a fragment,
//!                  4,814,99,+; RLW_RXPIPE Nonfatal XC0                                          and the rest of it
//!   syslog, dmesg  <4>[   12.345678] NVRM: Xid (PCI:0000:10:00): 145, RLW_RXPIPE                one header for each line
//!                  <4>[   12.345678]  Nonfatal XC0
//!   the driver     NVRM: The NVIDIA GPU 0000:17:00.0                                            a sentence in many lines,
//!                  NVRM: (PCI ID: 10de:2330)                                                    each with its prefix
//!                  NVRM: installed in this system has
//!                  NVRM: fallen off the bus and is not responding to commands.
//! ```
//!
//! Any process can put lines of its own into the log, because the kernel prints the name of a file that crashes, with its
//! newlines. So a message begins only at the beginning of a record, or later in a record that begins with a message. By `syslog(2)`,
//! two records with the same header look like one: there, every line before it must begin a message. A record of another program
//! begins with at most 15 bytes that the program chooses (its name), which are too few to begin a message (`super::is_head`).
//!
//! What must never happen here: a line that another program has chosen begins a message; a line of another message becomes part
//! of a message about a GPU without a sign that it belongs to it; a message that grows without a bound.

use super::header::{Line, Stamp, split};
use super::{contains, is_head};

/// The prefix of the GPU driver's messages.
const DRIVER: &[u8] = b"NVRM:";
/// The beginning of the only sentence that the driver prints as several lines, each with the prefix.
const SENTENCE: &[u8] = b"NVRM: The NVIDIA GPU ";
/// Maximum bytes of a joined message. The kernel cuts a record at 1 KiB; the driver's messages need less than two.
const LONGEST: usize = 4096;
/// Maximum number of lines of a message: the driver's longest message has seven.
const MOST_LINES: u32 = 32;

/// The lines of the message that is read at the moment. Only messages of NVIDIA's drivers about a device are kept.
#[derive(Debug, Default)]
pub struct KernelMessages {
    open: Option<OpenMessage>,
    /// The header of the last line.
    last: Stamp,
    /// A message of a driver may begin in the last line: its record is the driver's.
    is_driver: bool,
    /// The kernel writes no times. This never becomes false again, because a text may have a time in it.
    lacks_times: bool,
}

/// A message to which the next line may belong.
#[derive(Debug)]
struct OpenMessage {
    text: Vec<u8>,
    lines: u32,
    stamp: Stamp,
    record: bool,
    /// The record is a fragment: the next record whose flags mark it as a continuation belongs to it.
    fragment: bool,
}

/// How a line continues the message before it.
enum Joint {
    /// The rest of a fragment.
    Fragment,
    /// Another line.
    Line,
    /// A line that is not text.
    Nothing,
}

impl KernelMessages {
    /// Takes the next line, without its line end. Calls `each` with every message that is complete.
    pub fn line(&mut self, line: &[u8], each: &mut impl FnMut(&[u8])) {
        if line.is_empty() {
            return;
        }
        let line = split(line);
        self.judge(&line);
        let joint = self.open.as_ref().and_then(|open| open.joint(&line));
        let mut parts = parts(line.text);
        match joint {
            None => self.end(each),
            Some(Joint::Nothing) => return,
            Some(Joint::Fragment) => {
                let first = parts.next().unwrap_or_default();
                if let Some(open) = &mut self.open {
                    open.text.extend_from_slice(first);
                    open.fragment = line.is_fragment();
                }
            }
            Some(Joint::Line) => {}
        }
        for part in parts {
            if is_head(part) {
                self.end(each);
                self.begin(&line, part);
            } else if let Some(open) = &mut self.open {
                open.append(part);
            }
        }
        if self.open.as_ref().is_some_and(OpenMessage::is_full) {
            self.end(each);
        }
    }

    /// Calls `each` with the message that is open. Call this when the log had no new line for a moment: the lines of a message
    /// are written together, so the message is complete.
    pub fn end(&mut self, each: &mut impl FnMut(&[u8])) {
        if let Some(open) = self.open.take() {
            each(&open.text);
        }
    }

    /// Whether a message is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Finds out whether a message may begin on this line.
    fn judge(&mut self, line: &Line<'_>) {
        self.lacks_times |= line.lacks_time();
        let begins = parts(line.text).next().is_some_and(is_head) && !line.is_rest() && !self.lacks_times;
        self.is_driver = begins && (self.is_driver || !line.is_of_record(self.last));
        self.last = line.stamp;
    }

    fn begin(&mut self, line: &Line<'_>, text: &[u8]) {
        if self.is_driver {
            self.open = Some(OpenMessage {
                text: text.get(..text.len().min(LONGEST)).unwrap_or_default().to_vec(),
                lines: 1,
                stamp: line.stamp,
                record: line.flags.is_some(),
                fragment: line.is_fragment(),
            });
        }
    }
}

impl OpenMessage {
    /// How this line continues the message; `None` if it begins another message.
    fn joint(&self, line: &Line<'_>) -> Option<Joint> {
        let indented = line.text.first().is_some_and(u8::is_ascii_whitespace);
        if let Some(flags) = line.flags {
            let rest = flags.contains(&b'+') || (self.fragment && flags.contains(&b'c'));
            if self.record && rest {
                return Some(Joint::Fragment);
            }
        } else if line.bare && self.record && indented && is_dictionary(line.text) {
            return Some(Joint::Nothing);
        }
        let same = line.is_of_record(self.stamp);
        let near = line.bare || self.stamp.leads_to(line.stamp);
        let other = line.text.starts_with(DRIVER) || names_subsystem(line.text);
        let sentence = self.text.starts_with(SENTENCE) && !self.text.ends_with(b".");
        let goes_on = sentence && line.text.starts_with(DRIVER) && !is_head(line.text);
        ((near && (indented || goes_on)) || (same && !other)).then_some(Joint::Line)
    }

    fn append(&mut self, part: &[u8]) {
        let part = part.strip_prefix(DRIVER).unwrap_or(part).trim_ascii();
        self.lines += 1;
        if !part.is_empty() && self.text.len() + part.len() < LONGEST {
            self.text.push(b' ');
            self.text.extend_from_slice(part);
        }
    }

    fn is_full(&self) -> bool {
        self.lines >= MOST_LINES || self.text.len() >= LONGEST
    }
}

/// The lines in the text of one line: newlines are escaped by `/dev/kmsg` as `\x0a` and by rsyslog as `#012`.
fn parts(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let found = text.windows(4).position(|four| matches!(four, b"\\x0a" | b"#012"));
        rest = found.and_then(|at| text.get(at + 4..));
        text.get(..found.unwrap_or(text.len()))
    })
}

/// A line of a record's dictionary: ` SUBSYSTEM=pci`.
fn is_dictionary(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let key = text.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'_').count();
    key > 0 && text.get(key) == Some(&b'=')
}

/// Whether the line begins like a line of another part of the kernel: `pcieport 0000:00:01.0: AER: …`, `usb 1-1: …`.
fn names_subsystem(text: &[u8]) -> bool {
    contains(text.get(..text.len().min(48)).unwrap_or_default(), b": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::mutated;
    use crate::kernel_log::error;
    use crate::kernel_log::tests::{forms, text, values};
    use proptest::prelude::*;

    /// Headers of a line in each form of the log.
    const HEADERS: [&str; 6] = [
        "",
        "4,1234,5678901,-;",
        "4,1234,5678901,-,caller=T99;",
        "<4>[   12.345678] ",
        "[   12.345678][  T99] ",
        "Nov 21 10:00:00 node kernel: [   12.345678] ",
    ];

    /// The texts `key` of a list of the golden file.
    fn texts(list: &str, key: &str) -> Vec<String> {
        forms(list).iter().map(|form| text(form, key)).collect()
    }

    fn messages(text: &str) -> Vec<String> {
        let (mut messages, mut all) = (KernelMessages::default(), Vec::new());
        let mut each = |message: &[u8]| all.push(String::from_utf8_lossy(message).into_owned());
        text.split('\n').for_each(|line| messages.line(line.as_bytes(), &mut each));
        messages.end(&mut each);
        all
    }

    const JOINED: &str = "NVRM: Xid (PCI:0000:10:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13";

    #[test]
    fn a_message_of_several_lines_is_one_in_every_form_of_the_log() {
        for form in forms("logs") {
            assert_eq!(messages(&text(&form, "text")), [JOINED], "{}", form["form"]);
        }
    }

    #[test]
    fn the_drivers_sentence_about_a_lost_gpu_is_one() {
        let sentence = "NVRM: The NVIDIA GPU 0000:17:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands.";
        let lines = [
            "NVRM: The NVIDIA GPU 0000:17:00.0",
            "NVRM: (PCI ID: 10de:2330)",
            "NVRM: installed in this system has",
            "NVRM: fallen off the bus and is not",
            "NVRM: responding to commands.",
        ];
        let next = "NVRM: GPU 0000:17:00.0: GPU serial number is 1.";
        let records: Vec<String> = lines.iter().chain([&next]).map(|line| format!("3,7,99,-;{line}")).collect();
        assert_eq!(messages(&records.join("\n")), [sentence, next]);
        assert_eq!(messages(&format!("3,7,99,-;{}\\x0a{next}", lines.join("\\x0a"))), [sentence, next]);
        assert_eq!(messages(&[lines[0], next].join("\n")), [lines[0], next]);
    }

    #[test]
    fn lines_of_other_messages_stay_apart() {
        let one = "NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.";
        let two = "NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action changed";
        for (name, text) in [
            ("another XID", format!("4,1,1,-;{one}\n4,2,1,-;{two}")),
            (
                "another part of the kernel at the same time",
                format!(
                    "<4>[    1.000000] {one}\n<4>[    1.000000] pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error\n<4>[    1.000001] {two}"
                ),
            ),
            ("a line without an indent", format!("4,1,1,-;{one}\n6,2,1,-;Nonfatal\n4,3,1,-;{two}")),
            ("in one record", format!("4,1,1,-;{one}\\x0a{two}")),
            ("printed in one microsecond", format!("<4>[    1.000000] {one}\n<4>[    1.000000] {two}")),
        ] {
            assert_eq!(messages(&text), [one, two], "{name}");
        }
        assert_eq!(messages("6,1,1,-;usb 1-1: new device\n SUBSYSTEM=usb\n"), [""; 0], "other drivers are not kept");
    }

    /// The kernel prints the names of processes and of files, which their owners choose.
    #[test]
    fn no_text_of_another_program_begins_a_message() {
        for form in forms("forged") {
            assert_eq!(messages(&text(&form, "text")), [""; 0], "{}", form["form"]);
        }
        let mark = "NVRM: Xid (PCI:0000:10:00): 79";
        assert_eq!(messages(&format!("<4>{mark}")), [""; 0], "without times, this may be the rest of another record");
        assert_eq!(messages(&format!("<4>x\n<4>[    1.000000] {mark}")), [""; 0], "the time is part of the text");
        assert_eq!(messages(&format!("4,1,1,+;{mark}")), [""; 0], "the rest of another record");
    }

    /// What a process prints right after an error does not count as the error's text.
    #[test]
    fn a_record_goes_on_only_with_records_of_the_same_moment() {
        let one = "NVRM: Xid (PCI:0000:10:00): 109, pid=7, name=x, Ch 1";
        for (header, next, joined) in [
            ("4,1,100,-;", "4,2,100,-;", true),
            ("4,1,100,-;", "4,2,101,-;", false),
            ("4,1,100,-;", "6,2,100,-;", false),
            ("4,1,100,-,caller=T9;", "4,2,121,-,caller=T9;", true),
            ("4,1,100,-,caller=T9;", "4,2,151,-,caller=T9;", false),
            ("4,1,100,-,caller=T9;", "4,2,100,-,caller=T8;", false),
            ("<4>[    1.000100] ", "<4>[    1.000100] ", true),
            ("<4>[    1.000100] ", "<4>[    1.000101] ", false),
        ] {
            let text = format!("{header}{one}\n{next} Fatal[8] misaligned vsyscall");
            assert_eq!(messages(&text)[0].contains("Fatal"), joined, "{header} {next}");
        }
    }

    #[test]
    fn a_message_without_an_end_is_cut() {
        let flood = format!("4,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, x{}", "\n y".repeat(1000));
        let all = messages(&flood);
        assert_eq!(all.len(), 1, "what follows it begins no message");
        assert!(all[0].len() < LONGEST && all[0].starts_with("NVRM: Xid (PCI:0000:10:00): 79"));
        let long = format!("NVRM: GPU 0000:10:00.0: {}", "x".repeat(100_000));
        assert_eq!(messages(&long), [&long[..LONGEST]]);
    }

    /// A crash as the kernel logs it: the name of the process, then the name of its file.
    fn crash(process: &str, file: &str) -> String {
        let process: String = process.chars().take(15).collect();
        format!(
            "{process}[1001]: segfault at 0 ip 0000000000400078 sp 00007ffc2b7cbd10 error 6 in {file}[7a,400000+1000]"
        )
    }

    /// A record in each form of the log.
    fn printed(text: &str, caller: bool) -> [String; 3] {
        let escape = |c: char| match c {
            '\\' | '\0'..='\x1f' | '\x7f' => format!("\\x{:02x}", u32::from(c)),
            _ => c.to_string(),
        };
        let (record, line) = if caller { (",caller=T1001", "[T1001]") } else { ("", "") };
        let lines = |header: &str| text.split('\n').map(|text| format!("{header}{text}\n")).collect::<String>();
        [
            format!("4,812,99000001,-{record};{}\n SUBSYSTEM=pci\n", text.chars().map(escape).collect::<String>()),
            lines(&format!("<4>[   99.000001]{line} ")),
            lines(&format!("Nov 21 10:00:00 node kernel: [   99.000001]{line} ")),
        ]
    }

    /// Parts of names that look like parts of the log.
    const PARTS: &str = "(\n|NVRM: |Xid \\(|PCI:|0000:10:00|0:1:0|1:2|\\): |79, |GPU |The NVIDIA GPU |fallen off the bus|name=|nvidia-nvswitch|0: |SXid \\(|22013, Fatal| Fatal| kernel: |<4>|\\[   99.000000\\]|4,1,1,-;|#012|\\\\x0a| |a){0,9}";

    proptest! {
        #[test]
        fn no_names_of_processes_and_files_make_an_error_or_change_one(process in PARTS, file in PARTS, caller: bool) {
            let text = crash(&process, &file);
            for (crash, header) in printed(&text, caller).iter().zip(["4,811,99000000,-;", "<4>[   99.000000] ", "Nov 21 10:00:00 node kernel: [   99.000000] "]) {
                let error_before = "NVRM: Xid (PCI:0000:65:00): 109, pid=7, name=x, Ch 1";
                let log = format!("{header}{error_before}\n{crash}");
                prop_assert_eq!(messages(&log), [error_before], "{:?}", log);
            }
        }

        #[test]
        fn no_lines_cause_a_panic_or_grow(lines in prop::collection::vec("[ -~\\t]{0,80}|(<4>\\[ 1.5\\] |4,1,1,[-c+];| |NVRM: |NVRM: Xid \\(|\\\\x0a){0,9}", 0..40)) {
            let mut messages = KernelMessages::default();
            let mut each = |message: &[u8]| assert!(message.len() <= LONGEST);
            for line in &lines {
                messages.line(line.as_bytes(), &mut each);
            }
            messages.end(&mut each);
            prop_assert!(!messages.is_open());
        }

        #[test]
        fn an_error_is_one_message_of_its_device_in_every_form_of_the_log_whatever_follows_it(
            form in prop::sample::select(forms("errors")),
            end in mutated(texts("errors", "end")),
        ) {
            let line = text(&form, "begin") + &end;
            for header in HEADERS {
                prop_assert_eq!(messages(&format!("{header}{line}")), [line.clone()], "{:?}", header);
            }
            let found = error(line.as_bytes()).as_ref().map(values).unwrap_or_default();
            for key in ["gpu", "xid", "gpuInstance", "computeInstance", "lost", "switch", "sxid", "fatal"] {
                prop_assert_eq!(&found[key], &form[key], "{} of {:?}", key, line);
            }
        }

        /// No text is made up, repeated or moved.
        #[test]
        fn the_messages_of_a_log_that_differs_a_little_from_a_golden_one_are_parts_of_it_in_its_order(
            log in mutated(texts("logs", "text")),
        ) {
            let mut rest = log.bytes();
            for message in messages(&log) {
                for byte in message.bytes().filter(|byte| *byte != b' ') {
                    prop_assert!(rest.any(|other| other == byte), "{:?} of {:?}", message, log);
                }
            }
        }
    }
}
