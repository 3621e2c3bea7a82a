//! Writes files that containers read: each appears whole or not at all.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Every user of a container may read the file; no user may write it.
const FILE_MODE: u32 = 0o444;

/// Only root (the container runtime and the agent) may read a CDI spec: other users of the host must not see which pod
/// has which devices.
const SPEC_MODE: u32 = 0o400;
/// A folder that only the agent and the container runtime can enter. A container reaches a part of it only through a
/// mount.
const FOLDER_MODE: u32 = 0o700;

/// A step that failed, and the path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {error}", path.display())]
pub struct DeliveryError {
    doing: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl From<DeliveryError> for io::Error {
    fn from(failed: DeliveryError) -> io::Error {
        io::Error::new(failed.error.kind(), failed)
    }
}

/// Adds the step and the path to an error.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DeliveryError {
    let path = path.to_owned();
    move |error| DeliveryError { doing, path, error }
}

/// Makes a folder and its parents, which only the agent and the container runtime can enter.
pub(super) fn make_folder(path: &Path) -> Result<(), DeliveryError> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path).map_err(failed("make folder", path))
}

/// Removes the rights of other users on an existing folder. Earlier versions of the agent made it with more rights.
pub(super) fn restrict(path: &Path) -> Result<(), DeliveryError> {
    let restrict = || {
        let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
        match mode & !FOLDER_MODE {
            0 => Ok(()),
            _ => fs::set_permissions(path, fs::Permissions::from_mode(mode & FOLDER_MODE)),
        }
    };
    restrict().map_err(failed("remove the rights of other users on", path))
}

/// Writes a file for containers, whole or not at all.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<(), DeliveryError> {
    rename_into_place(path, bytes, FILE_MODE)
}

/// Writes a file for the container runtime, whole or not at all.
pub(super) fn put_spec(path: &Path, bytes: &[u8]) -> Result<(), DeliveryError> {
    rename_into_place(path, bytes, SPEC_MODE)
}

/// Writes a new file for the container runtime, whole or not at all. A process that watches the folder for renamed,
/// written or removed files gets no event: the file has no name until it is complete. If the file system cannot do
/// this, or the file exists, this does the same as [`put_spec`].
pub(super) fn link_spec(path: &Path, bytes: &[u8]) -> Result<(), DeliveryError> {
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = fs::File::from(open(folder, unnamed, Mode::from_raw_mode(SPEC_MODE))?);
        file.write_all(bytes)?;
        crate::failpoint!("spec-nameless");
        // Linked by its path, because linking a bare descriptor needs a capability.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(linkat(CWD, &own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    };
    write().or_else(|_| put_spec(path, bytes))
}

/// Writes a file whole or not at all: first a hidden file in the same folder, then a rename.
pub(super) fn rename_into_place(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DeliveryError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    rename_through(&path.with_file_name(format!(".{name}.new")), path, bytes, mode)
}

/// Writes a file whole or not at all, through the file `hidden`: two writers of the same file need two hidden files.
pub(crate) fn rename_through(hidden: &Path, path: &Path, bytes: &[u8], mode: u32) -> Result<(), DeliveryError> {
    // A hidden file of an earlier agent process is read-only and cannot be opened for writing.
    let _ = fs::remove_file(hidden);
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(hidden)?;
        file.write_all(bytes)
    };
    let written = write().map_err(failed("write", hidden));
    crate::failpoint!(renames path);
    let renamed = written.and_then(|()| fs::rename(hidden, path).map_err(failed("put in place", path)));
    if renamed.is_err() {
        // On a full disk, the incomplete file takes up space.
        let _ = fs::remove_file(hidden);
    }
    renamed
}
