//! The log: who hears it, how much of it, and how often the same thing is said.
//!
//! ```text
//!   event ──level (changed while running)──▶ repeats (says it once, counts the rest)──▶ text | json | journald
//! ```

pub(crate) mod level;
pub(crate) mod repeats;
pub(crate) mod text;
mod journal;

use crate::settings::value::{LogFormat, Verbosity};
use journal::Journal;
use level::Level;
use repeats::Repeats;
use std::io::IsTerminal;
use std::os::linux::fs::MetadataExt;
use std::sync::Arc;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// The handles that the rest of the program needs.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    /// How much is said.
    pub level: Arc<Level>,
    /// What was said again and again.
    pub repeats: Repeats,
}

/// Starts the log of the whole process. Cannot fail: where journald was asked for and does not answer, lines go to
/// stderr as JSON and the first of them says so.
pub(crate) fn start(format: LogFormat, verbosity: Verbosity) -> Telemetry {
    let (filter, handle) = reload::Layer::new(level::filter(verbosity));
    let repeats = Repeats::default();
    let (output, missing) = output(format);
    let registry = tracing_subscriber::registry().with(filter).with(output_with(repeats.clone(), output));
    // Fails only when a logger was set before, which nothing else in this program does.
    let _ = registry.try_init();
    if let Some(error) = missing {
        tracing::warn!(%error, "journald was asked for and does not answer; the log goes to stderr as JSON");
    }
    log_panics();
    Telemetry { level: Arc::new(Level::new(handle, verbosity)), repeats }
}

type Filtered = tracing_subscriber::layer::Layered<reload::Layer<level::Filter, Registry>, Registry>;
type Output = Box<dyn Layer<Filtered> + Send + Sync>;

fn output_with(repeats: Repeats, output: Output) -> impl Layer<Filtered> {
    repeats.and_then(output)
}

/// The layer that writes, and why it is not the one that was asked for.
fn output(format: LogFormat) -> (Output, Option<std::io::Error>) {
    match format {
        LogFormat::Text => (text_output(), None),
        LogFormat::Json => (json_output(), None),
        LogFormat::Auto if !stderr_is_journald() => (text_output(), None),
        LogFormat::Auto | LogFormat::Journald => match Journal::open() {
            Ok(journal) => (journal.boxed(), None),
            Err(error) => (json_output(), Some(error)),
        },
    }
}

fn text_output() -> Output {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt::layer()
        .with_ansi(colours)
        .event_format(text::Lines)
        .fmt_fields(text::Fields)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .boxed()
}

fn json_output() -> Output {
    tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(std::io::stderr)
        // A closed stderr must not become a panic inside the logger.
        .log_internal_errors(false)
        .boxed()
}

/// systemd names device and inode of the stream it connected to stdout and stderr; only if ours is still that one does
/// a line to journald's socket end up in the same place.
fn stderr_is_journald() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(stderr) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", stderr.st_dev(), stderr.st_ino())
}

/// A panic of any thread is an error line in the log like every other, with the thread's name.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), place, panic = what, "a thread panicked");
    }));
}
