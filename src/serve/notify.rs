//! Notifies the service manager (systemd): ready, status, stopping, and the watchdog's heartbeat. Without
//! `NOTIFY_SOCKET` in the environment it sends nothing.

use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The time between two heartbeats: half of the service manager's watchdog timeout; `None` without a watchdog.
pub fn heartbeat() -> Option<Duration> {
    // At least 100 ms, so that heartbeats do not load the machine. systemd's unit is the microsecond, so a tiny value
    // is a mistake.
    sd_notify::watchdog_enabled().map(|limit| (limit / 2).max(Duration::from_millis(100)))
}

/// Sends a message without waiting. A message that cannot be sent at once is dropped, because the agent's node task
/// sends messages and must not block.
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

/// Sends a heartbeat to the watchdog.
pub fn alive() {
    say(&[NotifyState::Watchdog]);
}

/// Reports that the ports are bound and the first readings have been taken, or have taken too long.
pub fn ready(status: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Sets the line that `systemctl status` shows.
pub fn status(status: &str) {
    say(&[NotifyState::Status(status)]);
}

/// Reports that the shutdown has begun.
pub fn stopping() {
    say(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}
