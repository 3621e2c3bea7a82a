//! Empties the trash on its own thread, which ends when nothing more can be removed.
//!
//! A container may leave a million files behind. Removing them takes a minute or more, so the sharing task does not
//! wait for it. The thread pauses often enough to leave disk and CPU time to container starts.

use effects::delivery::{DeviceDelivery, EmptiedTrash};
use model::observation::ErrorCounter;
use parking_lot::Mutex;
use sources::report::Reporter;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::time::Instant;

/// Pause after every 1,024 removed entries. Removing them takes 10 to 20 ms, so the thread uses less than a third of a
/// core, and a million entries take about a minute.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause between two calls, each of which removes a bounded amount. While a container keeps writing, the thread keeps
/// running.
const REST: Duration = Duration::from_secs(1);
/// Time until the agent tries again to remove files that it could not remove. A person must act first, so trying more
/// often is of no use.
const AGAIN: Duration = Duration::from_secs(600);
/// Stack size of the thread in bytes; small, because the removal does not recurse.
const STACK: usize = 128 << 10;

/// Starts the thread when there is something to do.
#[derive(Debug)]
pub(crate) struct Emptier {
    reporter: Reporter,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    turns: Mutex<Turns>,
    /// Whether the log has a warning that something cannot be removed.
    warned: AtomicBool,
}

/// When the thread runs.
#[derive(Debug, Default)]
struct Turns {
    running: bool,
    /// Whether files were added that the last run may have missed.
    more: bool,
    ended: Option<Instant>,
}

impl Turns {
    /// Whether the thread starts now. Files that the last run could not remove wait for [`AGAIN`], unless `more` files
    /// were added. Files that are added while the thread runs count for the next run, because the thread may miss them.
    fn starts(&mut self, more: bool, now: Instant) -> bool {
        self.more |= more;
        let too_soon = !self.more && self.ended.is_some_and(|ended| now.saturating_duration_since(ended) < AGAIN);
        if self.running || too_soon {
            return false;
        }
        (self.running, self.more) = (true, false);
        true
    }

    /// Records that the thread has ended, or could not be started.
    fn ends(&mut self, now: Instant) {
        (self.running, self.ended) = (false, Some(now));
    }
}

/// Marks the thread as ended when this value is dropped, however the thread ends.
struct Running(Arc<State>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.turns.lock().ends(Instant::now());
    }
}

impl Emptier {
    /// The emptier reports files that it cannot remove to this reporter.
    pub(super) fn new(reporter: Reporter) -> Emptier {
        Emptier { reporter, state: Arc::default() }
    }

    /// Starts the thread that empties the trash. Call this only if the trash is not empty; `more` says whether files
    /// were just added. Otherwise files that the last run could not remove wait for [`AGAIN`].
    pub(super) fn start(&mut self, delivery: &Arc<DeviceDelivery>, more: bool, now: Instant) {
        if !self.state.turns.lock().starts(more, now) {
            return;
        }
        let running = Running(Arc::clone(&self.state));
        let (delivery, reporter) = (Arc::clone(delivery), self.reporter.clone());
        let started = thread::Builder::new().name("trash".into()).stack_size(STACK).spawn(move || {
            loop {
                let emptied = delivery.trash().empty(&mut || thread::sleep(PAUSE));
                delivery.sweep_versions();
                if emptied.left > 0 {
                    reporter.trouble(ErrorCounter::NotRemoved);
                }
                log_result(&emptied, &running.0.warned);
                if !emptied.unfinished {
                    break;
                }
                thread::sleep(REST);
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start the thread that removes folders of pods that are gone; it is tried again");
        }
    }
}

fn log_result(EmptiedTrash { removed, left, first, .. }: &EmptiedTrash, warned: &AtomicBool) {
    match first {
        Some((path, error)) => {
            if !warned.swap(true, Ordering::Relaxed) {
                let advice = advice(error);
                tracing::warn!(
                    left, path = %path.display(), %error, advice,
                    "{left} files of pods that are gone cannot be removed, first {}: {error}; {advice}", path.display()
                );
            }
        }
        None if warned.swap(false, Ordering::Relaxed) => {
            tracing::info!(removed, "all files of pods that are gone are removed")
        }
        None => tracing::debug!(removed, "files of pods that are gone are removed"),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "a container's user owns them: give the agent CAP_DAC_OVERRIDE and CAP_FOWNER, or remove them by hand (lsattr shows files \
             that are immutable)"
        }
        io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices => "something is mounted there: unmount it",
        _ => "remove them by hand",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_come_during_a_run_start_the_next_one_and_files_that_are_left_wait_ten_minutes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut turns = Turns::default();
        assert!(turns.starts(false, at(0)));
        // The thread still runs, and may miss files that are added now.
        assert!(!turns.starts(false, at(60)) && !turns.starts(true, at(120)));
        turns.ends(at(700));
        assert!(turns.starts(false, at(701)), "files were added during the run");
        turns.ends(at(1400));
        for (seconds, more, starts) in [(1401, false, false), (1999, false, false), (2000, false, true)] {
            assert_eq!(turns.starts(more, at(seconds)), starts, "{seconds}");
        }
        turns.ends(at(2001));
        assert!(turns.starts(true, at(2002)), "more files were added");
    }
}
