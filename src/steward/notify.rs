//! The service manager: ready, stopping, reloading, and a sign of life. All of it is nothing where no service manager
//! asked for it.

use sd_notify::NotifyState;
use std::time::Duration;

/// How often a sign of life is due: half of the time after which the service manager would give us up; `None` when it
/// does not watch.
pub(crate) fn heartbeat() -> Option<Duration> {
    // Below a tenth of a second the signs would be the load; systemd's unit is the microsecond, nobody means it.
    sd_notify::watchdog_enabled().map(|limit| (limit / 2).max(Duration::from_millis(100)))
}

/// Says something. That nobody listens any more is not our trouble.
fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager's socket does not take a message");
    }
}

/// We live.
pub(crate) fn alive() {
    say(&[NotifyState::Watchdog]);
}

/// Everything is bound and the first looks have been taken.
pub(crate) fn ready(status: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What `systemctl status` shows.
pub(crate) fn status(status: &str) {
    say(&[NotifyState::Status(status)]);
}

/// We begin to end.
pub(crate) fn stopping() {
    say(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}
