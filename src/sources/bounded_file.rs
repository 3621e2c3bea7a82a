//! Reads a file that another program or an earlier agent process wrote, up to a limit, and its stamp.
//!
//! ```text
//!   path ──open, check, read──▶ bytes for a decoder of `wire`
//! ```
//!
//! A symlink is followed, because Kubernetes mounts the files of a ConfigMap as symlinks. The paths come from settings
//! or lie in the agent's own folders; a container cannot replace them.
//!
//! What must never happen here: the thread waits for a FIFO or a device; memory grows with the length of the file.

use model::file_stamp::FileStamp;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Reads the whole file.
///
/// # Errors
/// If it cannot be read, is not a regular file, or is longer than `max_bytes`.
pub fn read(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    read_open(open(path)?, max_bytes)
}

/// Reads the whole file as text.
///
/// # Errors
/// Like [`read`], and if it is not UTF-8.
pub fn read_text(path: &Path, max_bytes: usize) -> io::Result<String> {
    String::from_utf8(read(path, max_bytes)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads the first `max_bytes` bytes of a file of lines, so that excess lines do not make the other lines unreadable.
///
/// # Errors
/// If it cannot be read, or is not a regular file.
pub fn read_start(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The stamp of the file, by one `stat`.
///
/// # Errors
/// If there is no such file, or the agent may not read its metadata.
pub fn stamp(path: &Path) -> io::Result<FileStamp> {
    fs::metadata(path).map(|metadata| stamp_of(&metadata))
}

/// The rest of an open file.
///
/// # Errors
/// If it cannot be read, or is longer than `max_bytes`.
pub(crate) fn read_open(file: File, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    match bytes.len() > max_bytes {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("is longer than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}

/// The stamp of the file with this metadata.
pub(crate) fn stamp_of(metadata: &Metadata) -> FileStamp {
    FileStamp {
        inode: metadata.ino(),
        size: metadata.size(),
        seconds: metadata.mtime(),
        nanoseconds: metadata.mtime_nsec(),
    }
}

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn a_file_is_read_up_to_its_limit_and_a_longer_one_is_refused_or_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let error = read(&path, 4).unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (io::ErrorKind::FileTooLarge, "is longer than 4 bytes"));
        assert_eq!(read_start(&path, 4).unwrap(), b"1234");
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn fifos_and_directories_are_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "1").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read(&at("link"), 5).unwrap(), b"1");
        for (path, kind) in [
            (at("fifo"), io::ErrorKind::InvalidInput),
            (at(""), io::ErrorKind::InvalidInput),
            (at("none"), io::ErrorKind::NotFound),
        ] {
            assert_eq!(read(&path, 5).unwrap_err().kind(), kind, "{path:?}");
        }
    }

    #[test]
    fn a_replaced_file_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let (path, next) = (folder.path().join("file"), folder.path().join("next"));
        fs::write(&path, "1").unwrap();
        let first = stamp(&path).unwrap();
        assert_eq!(stamp(&path).unwrap(), first);
        fs::write(&next, "1").unwrap();
        fs::rename(&next, &path).unwrap();
        assert_ne!(stamp(&path).unwrap(), first);
        assert!(stamp(&next).is_err());
    }
}
