//! Releases the GPU driver when an operator requests it, at the admin port or by a signal.

use clock::now;
use model::driver_hold::DriverHold;
use model::time::Monotonic;
use sources::nvml::DriverGate;
use std::time::Duration;
use tokio::sync::watch;

/// Length of a release if the caller gives no length. A reset of one GPU takes some seconds.
pub(super) const USUAL: Duration = Duration::from_secs(60);

/// Controls the driver gate of the sources.
#[derive(Clone, Debug, Default)]
pub(super) struct DriverRelease(pub(super) DriverGate);

impl DriverRelease {
    /// Releases the driver for the usual time, after a signal.
    pub(super) fn signalled(&self) {
        tracing::info!(seconds = USUAL.as_secs(), "a signal requests a release of the GPU driver");
        self.release(USUAL);
    }

    /// Requests a release of this length.
    pub(super) fn release(&self, span: Duration) {
        self.0.release(now().monotonic.after(span));
    }

    /// Ends the release, so that the agent opens the driver again.
    pub(super) fn take_back(&self) {
        self.0.take_back();
    }

    /// The current state, and every change of it.
    pub(super) fn hold(&self) -> watch::Receiver<DriverHold> {
        self.0.seen()
    }

    /// The time from now until `until`.
    pub(super) fn left(&self, until: Monotonic) -> Duration {
        until.since(now().monotonic)
    }
}
