//! How much is said: the numbers of `-v`, changed while the program runs.

use crate::settings::value::{self, Verbosity};
use effects::admin::LogLevel;
use parking_lot::Mutex;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

/// What decides whether an event is worth being made.
pub(crate) type Filter = Targets;

/// The crates of this program; all others are libraries.
const OURS: [&str; 6] = ["gpu_steward", "model", "wire", "decide", "sources", "effects"];

/// What each number shows: 0 key events, warnings and errors; 2 what is done about them; 4 each step; 5 the libraries
/// too. Libraries speak of warnings at most below 5: their "info" is not written for operators. The API client calls each
/// answer an error that its caller asked for, counts and tells itself, so below 5 it is silent.
pub(crate) fn filter(verbosity: Verbosity) -> Filter {
    let (ours, libraries) = match verbosity.0 {
        0 | 1 => (LevelFilter::INFO, LevelFilter::WARN),
        2 | 3 => (LevelFilter::DEBUG, LevelFilter::WARN),
        4 => (LevelFilter::TRACE, LevelFilter::WARN),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    let client = if libraries == LevelFilter::DEBUG { libraries } else { LevelFilter::OFF };
    let targets = Targets::new().with_default(libraries).with_target("kube_client", client);
    targets.with_targets(OURS.map(|target| (target, ours)))
}

/// The level that holds, and the handle to change it.
#[derive(Debug)]
pub(crate) struct Level {
    handle: reload::Handle<Filter, Registry>,
    now: Mutex<Verbosity>,
}

impl Level {
    /// The level the log was started with.
    pub(crate) fn new(handle: reload::Handle<Filter, Registry>, now: Verbosity) -> Self {
        Level { handle, now: Mutex::new(now) }
    }

    /// Sets it to what `next` makes of the one that holds; `by` says who asked.
    pub(crate) fn change(&self, by: &str, next: impl FnOnce(Verbosity) -> Verbosity) {
        let mut now = self.now.lock();
        let (old, new) = (*now, next(*now));
        if old != new && self.handle.reload(filter(new)).is_ok() {
            *now = new;
            drop(now);
            tracing::info!(old = old.0, new = new.0, by, "log level changed");
        }
    }
}

impl LogLevel for Level {
    fn show(&self) -> String {
        self.now.lock().0.to_string()
    }

    fn set(&self, text: &str) -> Result<(), String> {
        let next = value::verbosity(text.trim())?;
        self.change("PUT /loglevel", |_| next);
        Ok(())
    }
}
