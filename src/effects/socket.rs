//! The file of a unix socket: replaces a stale file, and removes only the agent's own file.

use rustix::fs::{FileType, Mode};
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Owner and group may connect: an operator uses the group to give another program access.
const MODE: Mode = Mode::from_raw_mode(0o660);
/// The mode of a folder that the agent makes.
const FOLDER_MODE: u32 = 0o755;

/// Opens the socket that errors call `what` ("usage socket"), and replaces a stale file.
pub(super) fn bind(what: &str, path: &Path) -> Result<UnixListener> {
    let named = |doing: &str, error: &Error| Error::new(error.kind(), format!("{doing} {}: {error}", path.display()));
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(|error| {
            Error::new(error.kind(), format!("create folder {} of the {what}: {error}", folder.display()))
        })?;
    }
    clear(path)?;
    let listener = UnixListener::bind(path).map_err(|error| named(&format!("listen on {what}"), &error))?;
    rustix::fs::chmod(path, MODE).map_err(|error| named(&format!("set the mode of {what}"), &error.into()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Frees `path`: removes only a socket on which no process listens.
fn clear(path: &Path) -> Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => FileType::from_raw_mode(found.mode()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Error::new(error.kind(), format!("read the metadata of {}: {error}", path.display())));
        }
    };
    if kind != FileType::Socket {
        let text = format!("{} exists already and is not a socket; it is not replaced", path.display());
        return Err(Error::new(ErrorKind::AlreadyExists, text));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| Error::new(error.kind(), format!("remove stale socket {}: {error}", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(_) | Err(_) => {
            let text = format!("another program listens on {} (a second agent?)", path.display());
            Err(Error::new(ErrorKind::AddrInUse, text))
        }
    }
}

/// The file of a listener, identified by its inode, so that only the agent's own file is removed.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    /// The file that `listener` listens on; `None` if it has no file.
    pub(super) fn of(listener: &UnixListener) -> Option<SocketFile> {
        let path = listener.local_addr().ok()?.as_pathname()?.to_owned();
        let inode = inode(&path)?;
        Some(SocketFile { path, inode })
    }

    /// Whether the path still leads to this listener's file.
    pub(super) fn still_ours(&self) -> bool {
        inode(&self.path) == Some(self.inode)
    }

    /// Removes the file, unless the path leads to another file by now.
    pub(super) fn remove(&self) {
        if inode(&self.path) == Some(self.inode) {
            // A file that cannot be removed is stale, and the next start replaces a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_created_and_owner_and_group_may_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/gpu-steward/agent.sock");
        let _listener = bind("test socket", &path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o660);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        drop(UnixListener::bind(&path).unwrap());
        let live = bind("test socket", &path).unwrap();

        let refused = bind("test socket", &path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
        assert!(UnixStream::connect(&path).is_ok(), "the first socket still listens");
        drop(live);
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        fs::write(&path, "precious").unwrap();
        assert_eq!(bind("test socket", &path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn only_the_agents_own_socket_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let ours = bind("test socket", &path).unwrap();
        let file = SocketFile::of(&ours).unwrap();
        drop(ours);
        // The old file is kept until the new file exists, so that the new file cannot get the same inode number.
        let kept = folder.path().join("old");
        fs::rename(&path, &kept).unwrap();
        let _successor = bind("test socket", &path).unwrap();
        file.remove();
        assert!(path.exists(), "the successor's file stays");
        fs::rename(&kept, &path).unwrap();
        file.remove();
        assert!(!path.exists());
    }
}
