//! Settings of the device plugin: folders, resource, how the registration begins and ends, and the socket files.

use super::socket_name;
use model::plugin::SecondConnection;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tokio_util::sync::CancellationToken;

/// Maximum number of files that are checked in a folder; a node has a handful of plugins.
const MAX_SOCKETS: usize = 64;

/// How the registration begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationStart {
    /// No agent ran on this node before, or the last agent ended a while ago.
    Fresh,
    /// The previous agent has just closed. If it is of an earlier release, its socket in the registry may still
    /// exist.
    After,
    /// The previous agent is still registered, and closes when this agent is registered too.
    Beside(SecondConnection),
}

/// How the registration begins and ends.
#[derive(Clone, Debug)]
pub struct RegistrationCourse {
    /// How the registration begins.
    pub entry: RegistrationStart,
    /// Set when the agent is about to stop. From then on, a next agent may register.
    pub closing: CancellationToken,
    /// Stops the agent: calls under way are answered, then everything is closed.
    pub stop: CancellationToken,
    /// Set when the previous agent has ended.
    pub alone: CancellationToken,
    /// Whether a next agent takes over at once, if that is known.
    pub followed: Arc<OnceLock<bool>>,
}

impl RegistrationCourse {
    pub(super) fn is_followed(&self) -> bool {
        self.followed.get() == Some(&true)
    }
}

/// Identifies the file of the kubelet's socket. A kubelet makes a new file when it starts. The file system may give that
/// file the inode of the removed file, so the time counts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KubeletFile {
    inode: (u64, u64),
    /// Seconds, and nanoseconds of the second.
    created: (i64, i64),
}

/// The settings of the device plugin.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// `/var/lib/kubelet/plugins_registry`, in which an agent of an earlier release may have left its socket.
    pub registry: PathBuf,
    /// `/var/lib/kubelet/device-plugins`.
    pub plugins: PathBuf,
}

impl Settings {
    /// The file names of agents' sockets: two in the plugin folder, and one of earlier releases in the registry.
    #[must_use]
    pub fn sockets(&self) -> [String; 3] {
        let of = [socket_name::plugin, socket_name::plugin_beside, socket_name::registry];
        of.map(|name| name(&self.resource))
    }

    /// The same sockets, with their folders.
    #[must_use]
    pub fn socket_paths(&self) -> [PathBuf; 3] {
        let [plugin, beside, registry] = self.sockets();
        [self.plugins.join(plugin), self.plugins.join(beside), self.registry.join(registry)]
    }

    /// Removes the sockets that a killed agent left. Returns whether a socket was in the registry. If so, the kubelet
    /// drops the plugin that serves the resource, even a new plugin, and refuses pods until the plugin registers again;
    /// so the caller must wait before it registers.
    pub(super) fn clear(&self) -> bool {
        for folder in [&self.plugins, &self.registry] {
            clear_dead(folder, &self.sockets());
        }
        let [_, beside, registry] = self.socket_paths();
        let _ = std::fs::remove_file(beside);
        std::fs::remove_file(registry).is_ok()
    }

    /// Removes the sockets of earlier agents. This agent kept them until now, because the kubelet would have dropped
    /// this agent when they were removed.
    pub(super) fn clear_left(&self) {
        for path in self.socket_paths().into_iter().filter(|path| is_dead(path)) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Removes the socket that an agent of an earlier release has left in the registry, after the kubelet has
    /// restarted. A kubelet drops a plugin when the registry socket disappears through which the plugin registered, and
    /// no plugin has registered with the restarted kubelet through this socket.
    pub(super) fn clear_registry(&self) {
        let [.., registry] = self.socket_paths();
        if is_dead(&registry) {
            let _ = std::fs::remove_file(registry);
        }
    }

    /// The socket that answers no device plugin call.
    pub(super) fn unanswering(&self) -> PathBuf {
        self.plugins.join(socket_name::unanswering(&self.resource))
    }

    pub(super) fn kubelet(&self) -> PathBuf {
        self.plugins.join("kubelet.sock")
    }

    /// The file of the kubelet's socket; `None` if there is no file.
    pub(super) fn kubelet_file(&self) -> Option<KubeletFile> {
        let found = std::fs::symlink_metadata(self.kubelet()).ok()?;
        Some(KubeletFile { inode: (found.dev(), found.ino()), created: (found.mtime(), found.mtime_nsec()) })
    }
}

/// Removes the agents' sockets on which no process listens, except the names in `except`. A killed agent may have
/// served a resource of another name, and the kubelet tries the sockets in its registry again and again.
fn clear_dead(folder: &Path, except: &[String]) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_SOCKETS) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if except.contains(&name) || !socket_name::is_an_agents(&name) {
            continue;
        }
        if is_dead(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether no process listens on this socket.
fn is_dead(path: &Path) -> bool {
    let connected = std::os::unix::net::UnixStream::connect(path);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
