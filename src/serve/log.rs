//! The log: its output, its level, and the suppression of repeated lines.
//!
//! ```text
//!   event ──level (changes while running)──▶ repeats (writes it once, counts the rest)──▶ text | json | journald
//! ```

pub mod level;
pub mod repeats;
pub mod text;
mod journal;

use journal::Journal;
use level::{Level, Verbosity};
use repeats::Repeats;
use std::io::IsTerminal;
use std::os::linux::fs::MetadataExt;
use std::sync::Arc;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people, on stderr.
    Text,
    /// One JSON object a line, on stderr.
    Json,
    /// journald's own protocol, with fields.
    Journald,
    /// journald when stderr is connected to it, otherwise text.
    Auto,
}

impl LogFormat {
    /// Parses `text`, `json`, `journald` or `auto`.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(text: &str) -> Result<LogFormat, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            "journald" => Ok(LogFormat::Journald),
            "auto" => Ok(LogFormat::Auto),
            _ => Err("expected text, json, journald or auto".into()),
        }
    }
}

/// The handles that the rest of the program needs.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// The level of the log.
    pub level: Arc<Level>,
    /// The repeated lines that were suppressed.
    pub repeats: Repeats,
}

/// Starts the log of the whole process. Cannot fail: if journald is requested and does not answer, the log goes to
/// stderr as JSON, and its first line says so.
pub fn start(format: LogFormat, verbosity: Verbosity) -> Telemetry {
    let (filter, handle) = reload::Layer::new(level::filter(verbosity));
    let repeats = Repeats::default();
    let (output, missing) = output(format);
    let registry = tracing_subscriber::registry().with(filter).with(output_with(repeats.clone(), output));
    // Fails only if a logger was set before, and no other code of this program sets a logger.
    let _ = registry.try_init();
    if let Some(error) = missing {
        tracing::warn!(%error, "journald was requested and does not answer; the log goes to stderr as JSON");
    }
    log_panics();
    Telemetry { level: Arc::new(Level::new(handle, verbosity)), repeats }
}

type Filtered = tracing_subscriber::layer::Layered<reload::Layer<level::Filter, Registry>, Registry>;
type Output = Box<dyn Layer<Filtered> + Send + Sync>;

fn output_with(repeats: Repeats, output: Output) -> impl Layer<Filtered> {
    repeats.and_then(output)
}

/// The layer that writes the log. Also returns the error if journald was requested and does not answer.
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

/// Whether stderr goes to journald. systemd puts device and inode of the stream that it connected to stdout and stderr
/// into `JOURNAL_STREAM`; stderr may have been redirected since, so the two are compared.
fn stderr_is_journald() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(stderr) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", stderr.st_dev(), stderr.st_ino())
}

/// Writes the panic of any thread to the log as an error line, with the thread's name.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), place, panic = what, "a thread panicked");
    }));
}
