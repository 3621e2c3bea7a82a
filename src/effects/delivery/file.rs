//! Files that containers read: whole or not there.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Read by the container's user, whoever that is; written by nobody.
const FILE_MODE: u32 = 0o444;

/// Read by the container runtime, which is root as the agent is: whose devices these are is not for every user of the host.
const SPEC_MODE: u32 = 0o400;
/// A folder that only the agent and the container runtime reach. What a container is given of it is mounted for it.
const FOLDER_MODE: u32 = 0o700;

/// What could not be done, and where.
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

/// Says what was being done, and where.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DeliveryError {
    let path = path.to_owned();
    move |error| DeliveryError { doing, path, error }
}

/// Makes a folder, and those above it, that only the agent and the container runtime reach.
pub(super) fn make_folder(path: &Path) -> Result<(), DeliveryError> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path).map_err(failed("make folder", path))
}

/// Takes away what others may do in a folder that is there already. An earlier version of the program made it wider.
pub(super) fn narrow(path: &Path) -> Result<(), DeliveryError> {
    let narrow = || {
        let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
        match mode & !FOLDER_MODE {
            0 => Ok(()),
            _ => fs::set_permissions(path, fs::Permissions::from_mode(mode & FOLDER_MODE)),
        }
    };
    narrow().map_err(failed("take away what others may do in", path))
}

/// Writes a file for containers whole or not at all.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<(), DeliveryError> {
    place(path, bytes, FILE_MODE)
}

/// Writes a file for the container runtime whole or not at all.
pub(super) fn put_spec(path: &Path, bytes: &[u8]) -> Result<(), DeliveryError> {
    place(path, bytes, SPEC_MODE)
}

/// Writes a file for the container runtime that is not there yet, whole or not at all, in a way that whoever watches the folder for files
/// that are renamed, written or taken away hears nothing of: it has no name until it is whole. Where that cannot be done, as
/// [`put_spec`].
pub(super) fn lay(path: &Path, bytes: &[u8]) -> Result<(), DeliveryError> {
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let nameless = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = fs::File::from(open(folder, nameless, Mode::from_raw_mode(SPEC_MODE))?);
        file.write_all(bytes)?;
        crate::failpoint!("spec-nameless");
        // By its path, because a name for a bare descriptor takes a capability.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(linkat(CWD, &own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    };
    write().or_else(|_| put_spec(path, bytes))
}

/// Writes a file whole or not at all: a hidden one beside it, then a rename.
pub(super) fn place(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DeliveryError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    place_by(&path.with_file_name(format!(".{name}.new")), path, bytes, mode)
}

/// Writes a file whole or not at all, by this `hidden` one: where two write the same file, each needs its own.
pub(crate) fn place_by(hidden: &Path, path: &Path, bytes: &[u8], mode: u32) -> Result<(), DeliveryError> {
    // A left-over of an earlier life is read-only and could not be opened for writing.
    let _ = fs::remove_file(hidden);
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(hidden)?;
        file.write_all(bytes)
    };
    let written = write().map_err(failed("write", hidden));
    crate::failpoint!(renames path);
    let placed = written.and_then(|()| fs::rename(hidden, path).map_err(failed("put in place", path)));
    if placed.is_err() {
        // On a full disk the half that was written is in the way of others.
        let _ = fs::remove_file(hidden);
    }
    placed
}
