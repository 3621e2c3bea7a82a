//! The service manager: ready, stopping, reloading, and a sign of life. All of it is nothing where no service manager
//! asked for it.

use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How often a sign of life is due: half of the time after which the service manager would give us up; `None` when it
/// does not watch.
pub(crate) fn heartbeat() -> Option<Duration> {
    // Below a tenth of a second the signs would be the load; systemd's unit is the microsecond, nobody means it.
    sd_notify::watchdog_enabled().map(|limit| (limit / 2).max(Duration::from_millis(100)))
}

/// Says something. That nobody listens any more, or that the one who listens has stopped to read, is not our trouble: a
/// message that cannot be sent at once is left out, because the task that sends it also owns the node's state.
fn say(states: &[NotifyState<'_>]) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, states) {
        tracing::debug!(%error, "the service manager's socket does not take a message");
    }
}

fn send(socket: &OsStr, states: &[NotifyState<'_>]) -> std::io::Result<()> {
    // A leading @ means the abstract namespace.
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let message = states.iter().fold(String::new(), |message, state| format!("{message}{state}\n"));
    let ours = UnixDatagram::unbound()?;
    ours.set_nonblocking(true)?;
    ours.send_to_addr(message.as_bytes(), &address).map(|_| ())
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
