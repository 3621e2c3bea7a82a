//! XIDs and SXids from the kernel log, if the agent may read it. The kernel log has XIDs even when NVML sends no events
//! (a lost GPU, no driver library, a hanging call), and it is the only source of NVSwitch errors.
//!
//! The reader starts at the end of `/dev/kmsg` and reads one record at a time, without blocking. If the kernel has
//! overwritten the next record (`EPIPE`), it continues with the oldest record. A container that may not open that device
//! reads the log by a system call.

mod syslog;

use crate::report::Reporter;
use model::observation::ErrorCounter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use wire::kernel_log::{KernelError, KernelMessages};

/// The value that selects the system call instead of a path.
const SYSLOG: &str = "syslog";
/// Bytes of the buffer. The kernel makes no longer record (`CONSOLE_EXT_LOG_MAX`); a smaller buffer gets `EINVAL`.
const RECORD: usize = 8192;
/// The first byte of what is kept of a line that is longer than the buffer. No message begins with it, so the rest of the line does
/// not count as a line of its own.
const CUT: u8 = b'~';
/// Longest wait for a record, which is the delay until a stop is noticed.
const WAIT: Duration = Duration::from_millis(500);
/// A plain file (or a pipe without a writer) is always "readable"; reading it five times a second costs almost nothing.
/// After a pause of this length, a message has no further lines.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts the thread `kernel-log`, which passes each error to `report` until `stop`, or until the log cannot be read. A
/// log that the agent may not read is logged once and is not a failure. The path `syslog` selects the system call of that
/// name. Returns whether the log is read.
///
/// # Errors
/// When the operating system cannot start a thread.
pub fn spawn(
    path: PathBuf,
    reporter: Reporter,
    stop: CancellationToken,
    report: impl Fn(KernelError) + Send + 'static,
) -> std::io::Result<bool> {
    if path.as_os_str() == SYSLOG {
        return syslog::spawn(reporter, stop, report);
    }
    // Opened here and not in the thread, which may start late: every record from now on is reported.
    let log = match follow(&path) {
        Ok(log) => log,
        Err(error) => {
            tracing::info!(
                path = %path.display(), %error,
                "kernel log cannot be read, so XIDs come from NVML's events only (it needs CAP_SYSLOG and the device)"
            );
            return Ok(false);
        }
    };
    let reading = move || read(&log, &path, &reporter, &stop, &report);
    std::thread::Builder::new().name("kernel-log".into()).spawn(reading)?;
    Ok(true)
}

/// Opens the log at its end.
fn follow(path: &Path) -> rustix::io::Result<OwnedFd> {
    let log = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    seek(&log, SeekFrom::End(0))?;
    Ok(log)
}

fn read(log: &OwnedFd, path: &Path, reporter: &Reporter, stop: &CancellationToken, report: &impl Fn(KernelError)) {
    let mut buffer = vec![0_u8; RECORD];
    // The length of an unfinished line at the end of the last read: plain files are cut anywhere, kmsg never.
    let mut kept = 0;
    let mut messages = KernelMessages::default();
    // The last read found nothing.
    let mut quiet = false;
    let mut overrun = false;
    while !stop.is_cancelled() {
        match rustix::io::read(log, buffer.get_mut(kept..).unwrap_or_default()) {
            answer @ (Ok(0) | Err(Errno::AGAIN)) => {
                // The lines of a message are written together, so after a pause the message is complete.
                if std::mem::replace(&mut quiet, true) {
                    end(&mut messages, report);
                }
                match answer {
                    Ok(_) => std::thread::sleep(PAUSE),
                    Err(_) => wait(log, if messages.is_open() { PAUSE } else { WAIT }),
                }
            }
            Ok(count) => {
                quiet = false;
                kept = lines(&mut messages, (&mut buffer, kept + count), report);
            }
            Err(Errno::INTR) => {}
            Err(Errno::PIPE) => {
                reporter.trouble(ErrorCounter::KernelLogFailed);
                if !std::mem::replace(&mut overrun, true) {
                    tracing::warn!(path = %path.display(), "kernel log was overwritten before it was read; XIDs in the lost lines are missed");
                }
            }
            Err(error) => {
                end(&mut messages, report);
                reporter.trouble(ErrorCounter::KernelLogFailed);
                tracing::warn!(path = %path.display(), %error, "kernel log can no longer be read");
                return;
            }
        }
    }
}

/// Waits until more can be read, at most this long. An error here shows again in the next read.
fn wait(log: &OwnedFd, most: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(most.subsec_nanos()) };
    let _ = poll(&mut [PollFd::new(log, PollFlags::IN)], Some(&timeout));
}

/// Reports the error in the message that is open.
fn end(messages: &mut KernelMessages, report: &impl Fn(KernelError)) {
    messages.end(&mut |message| wire::kernel_log::error(message).into_iter().for_each(report));
}

/// Reports the errors in the whole lines of the first `filled` bytes. Moves an unfinished line to the front and returns
/// its length. Of a line longer than the buffer, only [`CUT`] is kept.
fn lines(messages: &mut KernelMessages, (buffer, filled): (&mut [u8], usize), report: &impl Fn(KernelError)) -> usize {
    let text = buffer.get(..filled).unwrap_or_default();
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    for line in text.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
        messages.line(line, &mut |message| wire::kernel_log::error(message).into_iter().for_each(report));
    }
    if whole == 0
        && filled == buffer.len()
        && let Some(first) = buffer.first_mut()
    {
        *first = CUT;
        return 1;
    }
    buffer.copy_within(whole..filled, 0);
    filled - whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::gpu::XidSeverity;
    use std::io::Write;
    use std::sync::mpsc;

    #[test]
    fn only_lines_after_the_start_are_reported_even_if_they_arrive_in_pieces() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=old").unwrap();
        let (sender, receiver) = mpsc::channel();
        let (reporter, _queue) = Reporter::channel();
        let stop = CancellationToken::new();
        let log = follow(file.path()).unwrap();
        let (path, watched) = (file.path().to_owned(), stop.clone());
        let reader = std::thread::spawn(move || {
            read(&log, &path, &reporter, &watched, &move |error| sender.send(error).unwrap());
        });
        write!(file, "4,2,2,-;NVRM: Xid (PCI:0000:65").unwrap();
        file.flush().unwrap();
        writeln!(file, ":00): 79, pid=7, name=x\n6,3,3,-;something else").unwrap();
        let error = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        let KernelError::Gpu(xid) = error else { panic!("{error:?}") };
        assert_eq!((xid.slot.bus, xid.code, xid.pid), (0x65, 79, Some(7)));
        // Nothing follows the last message: the reader does not wait for another line.
        writeln!(file, "4,4,4,-;NVRM: Xid (PCI:0000:66:00): 145, RLW_RXPIPE\n SUBSYSTEM=pci\n4,5,4,-;  Nonfatal XC0")
            .unwrap();
        let error = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        let KernelError::Gpu(xid) = error else { panic!("{error:?}") };
        assert_eq!((xid.slot.bus, xid.code, xid.severity), (0x66, 145, Some(XidSeverity::Nonfatal)));
        stop.cancel();
        reader.join().unwrap();
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn a_line_longer_than_the_buffer_is_dropped_and_the_next_one_is_read() {
        let (reported, mut messages) = (std::cell::Cell::new(0), KernelMessages::default());
        let count = |_| reported.set(reported.get() + 1);
        let mut buffer = vec![b'x'; 128];
        let mut kept = lines(&mut messages, (&mut buffer, 128), &count);
        assert_eq!(kept, 1);
        // What follows is the rest of the long line, whatever it looks like.
        let line = b"NVRM: Xid (PCI:0000:02:00): 31\nNVRM: Xid (PCI:0000:01:00): 31\nrest";
        buffer[kept..kept + line.len()].copy_from_slice(line);
        kept = lines(&mut messages, (&mut buffer, kept + line.len()), &count);
        end(&mut messages, &count);
        assert_eq!((reported.get(), &buffer[..kept]), (1, &b"rest"[..]));
    }
}
