//! Files that containers read: whole or not there.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Read by the container's user, whoever that is; written by nobody.
const FILE_MODE: u32 = 0o444;

/// What could not be done, and where.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {error}", path.display())]
pub struct Failed {
    doing: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// Says what was being done, and where.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failed {
    let path = path.to_owned();
    move |error| Failed { doing, path, error }
}

/// Writes a file for containers whole or not at all.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    place(path, bytes, FILE_MODE)
}

/// Writes a file for containers that is not there yet, whole or not at all, in a way that whoever watches the folder for files
/// that are renamed, written or taken away hears nothing of: it has no name until it is whole. Where that cannot be done, as
/// [`put`].
pub(super) fn lay(path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let nameless = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = fs::File::from(open(folder, nameless, Mode::from_raw_mode(FILE_MODE))?);
        file.write_all(bytes)?;
        crate::failpoint!("spec-nameless");
        // By its path, because a name for a bare descriptor takes a capability.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(linkat(CWD, &own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    };
    write().or_else(|_| put(path, bytes))
}

/// Writes a file whole or not at all: a hidden one beside it, then a rename.
pub(super) fn place(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failed> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hidden = path.with_file_name(format!(".{name}.new"));
    // A left-over of an earlier life is read-only and could not be opened for writing.
    let _ = fs::remove_file(&hidden);
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&hidden)?;
        file.write_all(bytes)
    };
    let written = write().map_err(failed("write", &hidden));
    crate::failpoint!(crate::failpoint::written(path));
    let placed = written.and_then(|()| fs::rename(&hidden, path).map_err(failed("put in place", path)));
    if placed.is_err() {
        // On a full disk the half that was written is in the way of others.
        let _ = fs::remove_file(&hidden);
    }
    placed
}
