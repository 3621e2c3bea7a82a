//! Releases the GPU driver when an operator requests it, at the admin port or by a signal.

use effects::admin::DriverControl;
use effects::admin::release::USUAL;
use model::driver_hold::DriverHold;
use model::time::Monotonic;
use sources::clock::now;
use sources::nvml::DriverGate;
use std::time::Duration;
use tokio::sync::watch;

/// Controls the driver gate of the sources.
#[derive(Clone, Debug, Default)]
pub(super) struct DriverRelease(pub(super) DriverGate);

impl DriverRelease {
    /// Releases the driver for the usual time, after a signal.
    pub(super) fn signalled(&self) {
        tracing::info!(seconds = USUAL.as_secs(), "a signal asks to release the GPU driver");
        self.release(USUAL);
    }
}

impl DriverControl for DriverRelease {
    fn release(&self, span: Duration) {
        self.0.release(now().monotonic.after(span));
    }

    fn take_back(&self) {
        self.0.take_back();
    }

    fn hold(&self) -> watch::Receiver<DriverHold> {
        self.0.seen()
    }

    fn left(&self, until: Monotonic) -> Duration {
        until.since(now().monotonic)
    }
}
