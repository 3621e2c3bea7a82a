//! XIDs and SXids from the kernel log, if the agent may read it. The kernel log has XIDs even when NVML sends no events
//! (a lost GPU, no driver library, a hanging call), and it is the only source of NVSwitch errors.
//!
//! The reader starts at the end of `/dev/kmsg` and reads one record at a time, without blocking. If the kernel has
//! overwritten the next record (`EPIPE`), it continues with the oldest one. A container that may not open that device
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
use wire::kernel_log::KernelError;

/// The value that selects the system call instead of a path.
const SYSLOG: &str = "syslog";
/// The kernel never makes a longer record (`CONSOLE_EXT_LOG_MAX`), and refuses a smaller buffer with `EINVAL`.
const RECORD: usize = 8192;
/// The longest wait, which is the delay until a stop is noticed.
const WAIT: Duration = Duration::from_millis(500);
/// A plain file (or a pipe without a writer) is always "readable"; reading it five times a second costs almost nothing.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts the thread `kernel-log`, which passes each error to `report` until `stop`, or until the log cannot be read. A
/// log that the agent may not read is logged once and is not a failure. The path `syslog` selects the system call of that
/// name.
///
/// # Errors
/// When the operating system cannot start a thread.
pub fn spawn(
    path: PathBuf,
    reporter: Reporter,
    stop: CancellationToken,
    report: impl Fn(KernelError) + Send + 'static,
) -> std::io::Result<()> {
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
            return Ok(());
        }
    };
    let reading = move || read(&log, &path, &reporter, &stop, &report);
    std::thread::Builder::new().name("kernel-log".into()).spawn(reading)?;
    Ok(())
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
    let mut overrun = false;
    while !stop.is_cancelled() {
        match rustix::io::read(log, buffer.get_mut(kept..).unwrap_or_default()) {
            Ok(0) => std::thread::sleep(PAUSE),
            Ok(count) => kept = lines(&mut buffer, kept + count, report),
            Err(Errno::AGAIN) => wait(log),
            Err(Errno::INTR) => {}
            Err(Errno::PIPE) => {
                reporter.trouble(ErrorCounter::KernelLogFailed);
                if !std::mem::replace(&mut overrun, true) {
                    tracing::warn!(path = %path.display(), "kernel log was overwritten before it was read; XIDs in the lost lines are missed");
                }
            }
            Err(error) => {
                reporter.trouble(ErrorCounter::KernelLogFailed);
                tracing::warn!(path = %path.display(), %error, "kernel log can no longer be read");
                return;
            }
        }
    }
}

/// Waits until more can be read, at most [`WAIT`]. An error here shows again in the next read.
fn wait(log: &OwnedFd) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(WAIT.subsec_nanos()) };
    let _ = poll(&mut [PollFd::new(log, PollFlags::IN)], Some(&timeout));
}

/// Reports the errors in the whole lines of the first `filled` bytes. Moves an unfinished line to the front and returns
/// its length. A line longer than the buffer is dropped.
fn lines(buffer: &mut [u8], filled: usize, report: &impl Fn(KernelError)) -> usize {
    let text = buffer.get(..filled).unwrap_or_default();
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    for line in text.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
        if let Some(error) = wire::kernel_log::error(line) {
            report(error);
        }
    }
    if whole == 0 && filled == buffer.len() {
        return 0;
    }
    buffer.copy_within(whole..filled, 0);
    filled - whole
}

#[cfg(test)]
mod tests {
    use super::*;
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
        stop.cancel();
        reader.join().unwrap();
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn a_line_longer_than_the_buffer_is_dropped_and_the_next_one_is_read() {
        let reported = std::cell::Cell::new(0);
        let mut buffer = vec![b'x'; 64];
        assert_eq!(lines(&mut buffer, 64, &|_| reported.set(reported.get() + 1)), 0);
        let line = b"\nNVRM: Xid (PCI:0000:01:00): 31\nrest";
        buffer[..line.len()].copy_from_slice(line);
        assert_eq!(lines(&mut buffer, line.len(), &|_| reported.set(reported.get() + 1)), 4);
        assert_eq!((reported.get(), &buffer[..4]), (1, &b"rest"[..]));
    }
}
