//! The GPU driver, as operators may ask for it: at the admin port and by a signal.

use effects::admin::DriverControl;
use effects::admin::release::USUAL;
use model::driver_hold::DriverHold;
use model::time::Monotonic;
use sources::clock::now;
use sources::nvml::DriverGate;
use std::time::Duration;
use tokio::sync::watch;

/// The gate of the driver's library.
#[derive(Clone, Debug, Default)]
pub(super) struct DriverDoor(pub(super) DriverGate);

impl DriverDoor {
    /// A signal asks for the usual time.
    pub(super) fn signalled(&self) {
        tracing::info!(seconds = USUAL.as_secs(), "asked by a signal to let go of the GPU driver");
        self.release(USUAL);
    }
}

impl DriverControl for DriverDoor {
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
