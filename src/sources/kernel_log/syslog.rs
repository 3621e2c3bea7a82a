//! Reads the kernel log by the system call `syslog` (`man 2 syslog`), for containers: the device cgroup of a container
//! that is not privileged allows no `/dev/kmsg`, and the call needs only CAP_SYSLOG.
//!
//! Every two seconds it reads the newest records; reading does not remove them from the log. Lines after the end of the
//! last read are new. If that end is no longer in the log (more was written than is read at once, or `dmesg
//! --clear`), lines with a later time are new. Without times (`printk.time=0`) no error is read: only the time shows which
//! lines are of one record, and any process can put lines into a record.

use crate::report::Reporter;
use model::observation::ErrorCounter;
use std::io::{Error, Result};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use wire::kernel_log::{KernelError, KernelMessages};

/// `SYSLOG_ACTION_READ_ALL`: the newest records that fit, oldest first.
const READ_ALL: libc::c_int = 3;
/// How long one sleep lasts, which is the delay until a stop is noticed.
const WAIT: Duration = Duration::from_millis(500);
/// Number of sleeps between two reads. For each read the kernel goes through its whole log: measured 0.6 ms for 128 KiB with 670
/// records, and large machines have 1 MiB. An XID that is reported more than 5 s late would not be recognised as the XID from NVML
/// (`nvml::xid`).
const WAITS: u32 = 4;
/// Bytes to read: first enough for two seconds, then more until the end of the last read is among them.
const SIZES: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];
/// Bytes at the end of a read that are kept and searched for in the next read.
const KEPT: usize = 1024;

/// Starts the thread `kernel-log`, which passes each error to `report` until `stop`, or until the call fails. A log
/// that the agent may not read is logged once and is not a failure. Returns whether the log is read.
///
/// # Errors
/// When the operating system cannot start a thread.
pub(super) fn spawn(
    reporter: Reporter,
    stop: CancellationToken,
    report: impl Fn(KernelError) + Send + 'static,
) -> Result<bool> {
    // Read here and not in the thread, which may start late: every record from now on is reported.
    let seen = match newest(SIZES[0]) {
        Ok(text) => Seen::of(&text),
        Err(error) => {
            tracing::info!(
                %error,
                "kernel log cannot be read by syslog(2), so XIDs come from NVML's events only (it needs CAP_SYSLOG)"
            );
            return Ok(false);
        }
    };
    let reading = move || read(seen, &reporter, &stop, &report);
    std::thread::Builder::new().name("kernel-log".into()).spawn(reading)?;
    Ok(true)
}

fn read(mut seen: Seen, reporter: &Reporter, stop: &CancellationToken, report: &impl Fn(KernelError)) {
    let (mut overrun, mut timeless, mut messages) = (false, false, KernelMessages::default());
    let mut each = |message: &[u8]| wire::kernel_log::error(message).into_iter().for_each(report);
    while !stop.is_cancelled() {
        // The rest of a message that is open is in the log by the next look.
        pause(if messages.is_open() { 1 } else { WAITS }, stop);
        let (text, from) = match read_newest(&seen) {
            Ok(found) => found,
            Err(error) => {
                messages.end(&mut each);
                reporter.trouble(ErrorCounter::KernelLogFailed);
                tracing::warn!(%error, "kernel log can no longer be read by syslog(2)");
                return;
            }
        };
        // A log that was cleared and is still empty does not show where to continue.
        if text.is_empty() {
            messages.end(&mut each);
            continue;
        }
        if from.is_none() {
            reporter.trouble(ErrorCounter::KernelLogFailed);
            if !std::mem::replace(&mut overrun, true) {
                tracing::warn!(
                    "kernel log was overwritten before it was read, or was cleared; XIDs in the lost lines are missed"
                );
            }
        }
        take_new(&mut messages, seen.new_lines(&text, from), from.is_some(), &mut each);
        seen = Seen::of(&text);
        if seen.time.is_none() && !std::mem::replace(&mut timeless, true) {
            tracing::warn!(
                "the kernel log has no times, so no XIDs are read from it; set the kernel parameter printk.time=1 and \
                 restart the agent"
            );
        }
    }
    messages.end(&mut each);
}

/// Takes the new lines of a read. The last message stays open until a read shows that it has no more lines: the kernel may have been
/// writing it. `continues`: nothing is missing between the last read and these lines.
fn take_new<'t>(
    messages: &mut KernelMessages,
    lines: impl Iterator<Item = &'t [u8]>,
    continues: bool,
    each: &mut impl FnMut(&[u8]),
) {
    let mut lines = lines.filter(|line| !line.is_empty()).peekable();
    if !continues || lines.peek().is_none() {
        messages.end(each);
    }
    lines.for_each(|line| messages.line(line, each));
}

fn pause(waits: u32, stop: &CancellationToken) {
    for _ in 0..waits {
        if !stop.is_cancelled() {
            std::thread::sleep(WAIT);
        }
    }
}

/// The newest text of the log, and the position in it at which the last read ended; `None` if that is no longer there.
fn read_newest(seen: &Seen) -> Result<(Vec<u8>, Option<usize>)> {
    let mut text = Vec::new();
    for size in SIZES {
        text = newest(size)?;
        if let Some(from) = seen.end_in(&text) {
            return Ok((text, Some(from)));
        }
    }
    Ok((text, None))
}

/// The newest whole records of the log that fit into this many bytes.
#[expect(unsafe_code, reason = "rustix has no safe form of this call")]
fn newest(size: usize) -> Result<Vec<u8>> {
    let mut text = vec![0_u8; size];
    let length = libc::c_int::try_from(size).map_err(Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, which is how long the buffer is.
    let count = unsafe { libc::klogctl(READ_ALL, text.as_mut_ptr().cast(), length) };
    text.truncate(usize::try_from(count).map_err(|_| Error::last_os_error())?);
    Ok(text)
}

/// The end of the last read.
#[derive(Debug, Default)]
struct Seen {
    end: Vec<u8>,
    /// The time of the last line that has one, in microseconds since boot.
    time: Option<u64>,
}

impl Seen {
    fn of(text: &[u8]) -> Seen {
        let end = text.get(text.len().saturating_sub(KEPT)..).unwrap_or_default();
        Seen { end: end.to_vec(), time: text.split(|byte| *byte == b'\n').rev().find_map(time) }
    }

    /// The position in this text where the last read ended; 0 if nothing was read yet.
    fn end_in(&self, text: &[u8]) -> Option<usize> {
        if self.end.is_empty() {
            return Some(0);
        }
        let start = text.windows(self.end.len()).rposition(|window| window == self.end)?;
        Some(start + self.end.len())
    }

    /// The lines of this text that are new: the lines after `from`, or with a later time.
    fn new_lines<'t>(&self, text: &'t [u8], from: Option<usize>) -> impl Iterator<Item = &'t [u8]> {
        let (known, last) = (from.is_some(), self.time);
        let later = move |line: &[u8]| last.zip(time(line)).is_some_and(|(last, time)| time > last);
        let text = text.get(from.unwrap_or(0)..).unwrap_or_default();
        text.split(|byte| *byte == b'\n').filter(move |line| known || later(line))
    }
}

/// The time of a line in microseconds since boot: `<4>[ 1234.567890] text`, with or without the priority.
fn time(line: &[u8]) -> Option<u64> {
    let line = match line.strip_prefix(b"<") {
        Some(rest) => rest.get(rest.iter().position(|byte| *byte == b'>')? + 1..)?,
        None => line,
    };
    let line = line.strip_prefix(b"[")?;
    let text = line.get(..line.iter().position(|byte| *byte == b']')?)?;
    let (seconds, micros) = std::str::from_utf8(text).ok()?.trim().split_once('.')?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new<'t>(seen: &Seen, text: &'t str) -> Vec<&'t str> {
        let lines = seen.new_lines(text.as_bytes(), seen.end_in(text.as_bytes()));
        lines.filter(|line| !line.is_empty()).map(|line| std::str::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn lines_after_the_end_of_the_last_read_are_new_even_if_its_beginning_left_the_log() {
        let seen = Seen::of(b"<6>[    1.000000] one\n<6>[    2.000000] two\n");
        assert!(new(&seen, "<6>[    1.000000] one\n<6>[    2.000000] two\n").is_empty());
        let more = "<6>[    1.000000] one\n<6>[    2.000000] two\n<4>[    2.000000] three\n";
        assert_eq!(new(&seen, more), ["<4>[    2.000000] three"]);
        // The part of the end that is kept is shorter than the text.
        let long: String = (0..200).map(|n| format!("<6>[   10.{n:06}] line\n")).collect();
        let seen = Seen::of(long.as_bytes());
        let rest = long.get(long.len() / 2..).unwrap();
        assert_eq!(new(&seen, &format!("{rest}<6>[   11.000000] next\n")), ["<6>[   11.000000] next"]);
        assert_eq!(new(&Seen::default(), "<6>[    1.000000] first\n"), ["<6>[    1.000000] first"], "an empty log");
    }

    #[test]
    fn after_an_overrun_only_lines_with_a_later_time_are_new() {
        let seen = Seen::of(b"<6>[    1.000000] one\n<6>[    2.000000] two\n");
        assert_eq!(seen.time, Some(2_000_000));
        // The kernel has appended text to "two", the last line that was read, so that line is not found again. Only "three" has
        // a later time.
        let continued = "<6>[    1.000000] one\n<6>[    2.000000] two and more\n<6>[    2.000001][  T9] three\n";
        assert_eq!(new(&seen, continued), ["<6>[    2.000001][  T9] three"]);
        assert_eq!(new(&seen, "<6>[    9.000000] after a clear\n"), ["<6>[    9.000000] after a clear"]);
        assert!(new(&Seen::of(b"<6>one\n<6>two\n"), "<6>six\n").is_empty(), "without times no line is known to be new");
    }

    #[test]
    fn a_message_whose_lines_come_in_two_reads_is_taken_whole() {
        let (mut messages, mut found) = (KernelMessages::default(), Vec::new());
        let mut each = |message: &[u8]| found.push(String::from_utf8(message.to_vec()).unwrap());
        let [first, second] = [5, 6].map(|second| {
            let header = format!("<4>[    {second}.000000] ");
            [format!("{header}NVRM: The NVIDIA GPU 0000:17:00.0"), format!("{header}NVRM: (PCI ID: 10de:2330)")]
        });
        take_new(&mut messages, [first[0].as_bytes()].into_iter(), true, &mut each);
        take_new(&mut messages, [first[1].as_bytes()].into_iter(), true, &mut each);
        take_new(&mut messages, std::iter::empty(), true, &mut each);
        take_new(&mut messages, [second[0].as_bytes()].into_iter(), true, &mut each);
        take_new(&mut messages, [second[1].as_bytes()].into_iter(), false, &mut each);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("0000:17:00.0") && found[0].contains("10de:2330"), "{found:?}");
        assert!(!found[1].contains("10de"), "lines are missing between the two");
    }

    #[test]
    fn a_time_is_read_only_at_the_beginning_of_a_line() {
        assert_eq!(time(b"<12>[48497.945067] text [1.0]"), Some(48_497_945_067));
        assert_eq!(time(b"[    0.000001] text"), Some(1));
        for line in ["", "<", "<6>", "<6>[", "<6>[1]", "text [1.000000]", "[18446744073709551615.0]", "[-1.000000]"] {
            assert_eq!(time(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    #[ignore = "needs root: tests/run"]
    fn the_call_returns_the_last_kernel_message() {
        let seen = Seen::of(&newest(SIZES[0]).unwrap());
        let line = format!("gpu-steward test {}: a line of the kernel's log", std::process::id());
        // The kernel shows a record without a line end only after the next record.
        std::fs::write("/dev/kmsg", format!("{line}\n")).unwrap();
        let (text, from) = read_newest(&seen).unwrap();
        assert!(from.is_some());
        let lines: Vec<_> = seen.new_lines(&text, from).map(String::from_utf8_lossy).collect();
        assert_eq!(lines.iter().filter(|new| new.ends_with(&line)).count(), 1, "{lines:?}");
        let seen = Seen::of(&text);
        assert!(!new(&seen, &String::from_utf8_lossy(&text)).iter().any(|new| new.ends_with(&line)));
    }
}
