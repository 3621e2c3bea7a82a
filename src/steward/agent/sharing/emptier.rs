//! Empties the trash on a thread of its own, which ends when nothing more can be removed.
//!
//! A container may leave a million files behind. Their removal takes a minute or more, so it never holds up the owner, and it
//! pauses often enough that starts get the disk and the processor.

use effects::delivery::{Delivery, Emptied};
use model::observation::Trouble;
use sources::report::Reporter;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::time::Instant;

/// After each 1,024 entries, which take 10 to 20 ms: at most a quarter of a processor, and a million entries in about a minute.
const PAUSE: Duration = Duration::from_millis(50);
/// Before what could not be removed is tried again. It needs a person, so more often is of no use.
const AGAIN: Duration = Duration::from_secs(600);
/// The removal does not recurse.
const STACK: usize = 128 << 10;

/// Starts the thread when there is something to do.
#[derive(Debug)]
pub(crate) struct Emptier {
    reporter: Reporter,
    state: Arc<State>,
    ended: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    running: AtomicBool,
    /// Whether it was said that something cannot be removed.
    told: AtomicBool,
}

/// Says that the thread has ended, however it ends.
struct Running(Arc<State>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

impl Emptier {
    /// Counts what cannot be removed here.
    pub(super) fn new(reporter: Reporter) -> Emptier {
        Emptier { reporter, state: Arc::default(), ended: None }
    }

    /// Empties the trash, in which there is something. What was left the last time waits, unless there is more.
    pub(super) fn start(&mut self, delivery: &Arc<Delivery>, more: bool, now: Instant) {
        let too_soon = !more && self.ended.is_some_and(|before| now - before < AGAIN);
        if too_soon || self.state.running.swap(true, Ordering::Acquire) {
            return;
        }
        self.ended = Some(now);
        let running = Running(Arc::clone(&self.state));
        let (delivery, reporter) = (Arc::clone(delivery), self.reporter.clone());
        let started = thread::Builder::new().name("trash".into()).stack_size(STACK).spawn(move || {
            let emptied = delivery.trash().empty(&mut || thread::sleep(PAUSE));
            delivery.sweep_versions();
            if emptied.left > 0 {
                reporter.trouble(Trouble::NotRemoved);
            }
            say(&emptied, &running.0.told);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start the thread that removes folders of pods that are gone; it is tried again");
        }
    }
}

fn say(Emptied { removed, left, first }: &Emptied, told: &AtomicBool) {
    match first {
        Some((path, error)) => {
            if !told.swap(true, Ordering::Relaxed) {
                let advice = advice(error);
                tracing::warn!(
                    left, path = %path.display(), %error, advice,
                    "{left} files of pods that are gone cannot be removed, first {}: {error}; {advice}", path.display()
                );
            }
        }
        None if told.swap(false, Ordering::Relaxed) => {
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
