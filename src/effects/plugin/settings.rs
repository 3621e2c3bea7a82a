//! Where and as what kubelet is served, how that begins and ends, and which socket files are whose.

use super::rival::MAX_SOCKETS;
use super::socket_name;
use model::plugin::SecondConnection;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio_util::sync::CancellationToken;

/// How serving kubelet begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationStart {
    /// No agent was here, or it has been away for a while.
    Fresh,
    /// The agent before this one has closed just now. Its socket in the registry may still be there.
    After,
    /// The agent before this one is registered still, and closes when this one is registered too.
    Beside(SecondConnection),
}

/// How serving kubelet begins and ends.
#[derive(Clone, Debug)]
pub struct RegistrationCourse {
    /// The begin.
    pub entry: RegistrationStart,
    /// The end: calls that are under way are answered, then all is closed.
    pub stop: CancellationToken,
    /// The end of the agent before this one.
    pub alone: CancellationToken,
    /// Whether another agent follows at once: then our socket in the registry is left to it.
    pub followed: Arc<AtomicBool>,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationMethod {
    /// The watcher, and the classic way where it comes to nothing.
    Auto,
    /// The watcher only.
    Watcher,
    /// `Register` only.
    Classic,
}

/// Where and as what.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// Which way.
    pub registration: RegistrationMethod,
    /// `/var/lib/kubelet/plugins_registry`.
    pub registry: PathBuf,
    /// `/var/lib/kubelet/device-plugins`.
    pub plugins: PathBuf,
}

impl Settings {
    /// The file names of our sockets: two in the plugin folder, one in the registry.
    #[must_use]
    pub fn sockets(&self) -> [String; 3] {
        let of = [socket_name::plugin, socket_name::plugin_beside, socket_name::registry];
        of.map(|name| name(&self.resource))
    }

    /// The same with their folders.
    #[must_use]
    pub fn socket_paths(&self) -> [PathBuf; 3] {
        let [plugin, beside, registry] = self.sockets();
        [self.plugins.join(plugin), self.plugins.join(beside), self.registry.join(registry)]
    }

    /// Takes away what an agent that was killed has left. Says whether kubelet has lost a socket of its registry by it: it
    /// would drop us with that one, were we there already, and refuse pods until it knows us again.
    pub(super) fn clear(&self, by_watcher: bool) -> bool {
        for folder in [&self.plugins, &self.registry] {
            clear_dead(folder, &self.sockets());
        }
        let [plugin, beside, registry] = self.socket_paths();
        if by_watcher {
            let _ = std::fs::remove_file(plugin);
        }
        let _ = std::fs::remove_file(beside);
        std::fs::remove_file(registry).is_ok()
    }

    /// Takes away what agents before us have left, and we have kept because kubelet would have dropped us with it.
    pub(super) fn clear_left(&self) {
        for path in self.socket_paths().into_iter().filter(|path| is_dead(path)) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Where nothing of the plugin is answered.
    pub(super) fn unanswering(&self) -> PathBuf {
        self.plugins.join(socket_name::unanswering(&self.resource))
    }

    pub(super) fn kubelet(&self) -> PathBuf {
        self.plugins.join("kubelet.sock")
    }
}

/// Takes away the sockets of agents at which nobody listens, but for these: the resource may have had another name when the
/// agent was killed, and kubelet dials what lies in its registry again and again.
fn clear_dead(folder: &Path, but: &[String]) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_SOCKETS) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if but.contains(&name) || !socket_name::is_an_agents(&name) {
            continue;
        }
        if is_dead(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether nobody listens at this socket.
fn is_dead(path: &Path) -> bool {
    let dialled = std::os::unix::net::UnixStream::connect(path);
    dialled.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
