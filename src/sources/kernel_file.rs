//! Reads the kernel's files. Each thread has one reader with three buffers: path, contents, directory entries. Once the
//! buffers have grown, reading allocates nothing.
//!
//! ```text
//!   parts of a path ──open, check, read──▶ bytes of the whole file, or a `ReadFailure`
//! ```
//!
//! What must never happen here: the thread waits for a FIFO or a device. So each file is opened with `O_NONBLOCK`, and
//! only a regular file is accepted. A symlink at the end of a path is not followed.

use model::Absence;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Maximum size in bytes of a file that is read: `/proc/stat` of 1,024 processors is about 400 KiB, `cgroup.procs` of
/// 100,000 processes 700 KiB. A longer file is refused.
pub const MAX_FILE: usize = 1 << 20;
/// Initial size of the buffer in bytes: more than any file that is read every second.
const FIRST: usize = 16 << 10;
/// From a file of many records the kernel returns as many as fit into a page (`seq_read_iter`, fs/seq_file.c). So if no
/// record is longer than half a page, a first read that returns less than half a page is the whole file.
const SHORT: usize = 2048;

/// Why a file could not be read. It does not hold the path, because thousands of files may fail and a failure must cost
/// nothing. The caller knows the path and names it in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFailure {
    /// There is no file of that name.
    #[error("no such file")]
    NotFound,
    /// The kernel refused access.
    #[error("permission denied")]
    Refused,
    /// The file went away after it was opened.
    #[error("went away while it was read")]
    Gone,
    /// The file is a FIFO, a device, a symlink or a directory.
    #[error("not a regular file")]
    NotAFile,
    /// The file is longer than [`MAX_FILE`].
    #[error("longer than {MAX_FILE} bytes")]
    TooLong,
    /// The file exists, but the kernel does not fill it (pressure switched off at boot).
    #[error("not supported")]
    NotSupported,
    /// Any other error.
    #[error("error {0} of the operating system")]
    Os(i32),
}

impl ReadFailure {
    /// The reason for an absent reading from this file.
    #[must_use]
    pub fn absence(self) -> Absence {
        match self {
            ReadFailure::NotFound => Absence::NoSuchFile,
            ReadFailure::Refused => Absence::NoPermission,
            ReadFailure::Gone => Absence::Vanished,
            ReadFailure::NotSupported => Absence::NotSupported,
            ReadFailure::NotAFile | ReadFailure::TooLong | ReadFailure::Os(_) => Absence::Unreadable,
        }
    }
}

impl From<Errno> for ReadFailure {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NOTDIR => ReadFailure::NotFound,
            Errno::ACCESS | Errno::PERM => ReadFailure::Refused,
            // ENODEV: the cgroup of an open file was removed; ESRCH: the process of an open file ended.
            Errno::NODEV | Errno::SRCH => ReadFailure::Gone,
            Errno::OPNOTSUPP => ReadFailure::NotSupported,
            Errno::LOOP => ReadFailure::NotAFile,
            other => ReadFailure::Os(other.raw_os_error()),
        }
    }
}

/// What `stat` reports about a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryLinks {
    /// On the kernel's own file systems, 2 plus one for each subdirectory.
    pub count: u64,
    /// Differs for another directory of the same name.
    pub inode: u64,
}

/// Reads files, links and directories into buffers that it keeps.
#[derive(Debug)]
pub struct KernelFileReader {
    path: Vec<u8>,
    text: Vec<u8>,
    entries: Vec<MaybeUninit<u8>>,
}

impl Default for KernelFileReader {
    fn default() -> Self {
        KernelFileReader {
            path: Vec::with_capacity(512),
            text: vec![0; FIRST],
            entries: vec![MaybeUninit::uninit(); FIRST],
        }
    }
}

impl KernelFileReader {
    /// Reads a whole file, whose path is these parts joined.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn read(&mut self, parts: &[&[u8]]) -> Result<&[u8], ReadFailure> {
        let file = self.open(parts)?;
        self.read_open(&file)
    }

    /// Like [`KernelFileReader::read`], for a file that the kernel writes in one piece. This needs one system call
    /// less.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn read_piece(&mut self, parts: &[&[u8]]) -> Result<&[u8], ReadFailure> {
        let file = self.open(parts)?;
        self.read_open_piece(&file)
    }

    /// A number in decimal, such as a PID, for a part of a path.
    #[must_use]
    pub fn decimal(number: u32, text: &mut [u8; 10]) -> &[u8] {
        let mut rest = number;
        let mut at = text.len();
        loop {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return &text[at..];
            }
        }
    }

    /// Opens a regular file for repeated reads.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn open(&mut self, parts: &[&[u8]]) -> Result<OwnedFd, ReadFailure> {
        Self::regular(CWD, self.join(parts))
    }

    /// Opens a directory, so that files below it can be opened without resolving its path again.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn directory(&mut self, parts: &[&[u8]]) -> Result<OwnedFd, ReadFailure> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(CWD, self.join(parts), flags, Mode::empty())?)
    }

    /// Like [`KernelFileReader::read_piece`], for a file in an open directory.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn read_piece_in(&mut self, directory: impl AsFd, name: &[u8]) -> Result<&[u8], ReadFailure> {
        let file = Self::regular(directory, self.join(&[name]))?;
        self.read_open_piece(&file)
    }

    /// Like [`KernelFileReader::read`], for a file of short records (each less than 2 KiB) in an open directory.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn read_records_in(&mut self, directory: impl AsFd, name: &[u8]) -> Result<&[u8], ReadFailure> {
        let file = Self::regular(directory, self.join(&[name]))?;
        self.read_all(&file, SHORT)
    }

    /// Like [`KernelFileReader::read`], for a file of short records (each less than 2 KiB); also returns its inode
    /// number.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn read_records_with_inode(&mut self, parts: &[&[u8]]) -> Result<(&[u8], u64), ReadFailure> {
        let file = self.open(parts)?;
        let stat = rustix::fs::fstat(&file)?;
        #[allow(clippy::useless_conversion, reason = "32 bits wide on some machines")]
        Ok((self.read_all(&file, SHORT)?, u64::from(stat.st_ino)))
    }

    fn regular(directory: impl AsFd, path: &CStr) -> Result<OwnedFd, ReadFailure> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(directory, path, flags, Mode::empty())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind == FileType::RegularFile { Ok(file) } else { Err(ReadFailure::NotAFile) }
    }

    /// Reads all of an open file, from its beginning.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn read_open(&mut self, file: impl AsFd) -> Result<&[u8], ReadFailure> {
        self.read_all(file, 0)
    }

    /// Stops when a read returns nothing, or when the first returned less than `short` bytes.
    fn read_all(&mut self, file: impl AsFd, short: usize) -> Result<&[u8], ReadFailure> {
        let mut end = 0;
        loop {
            if end == self.text.len() {
                if end >= MAX_FILE {
                    return Err(ReadFailure::TooLong);
                }
                self.text.resize(end * 2, 0);
            }
            match rustix::io::pread(&file, &mut self.text[end..], end as u64) {
                Ok(0) => return Ok(&self.text[..end]),
                Ok(all) if end == 0 && all < short => return Ok(&self.text[..all]),
                Ok(more) => end += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads an open file that the kernel writes in one piece, from its beginning: one `pread`; other files need two.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn read_open_piece(&mut self, file: impl AsFd) -> Result<&[u8], ReadFailure> {
        match rustix::io::pread(&file, &mut self.text[..], 0) {
            Ok(read) if read < self.text.len() => Ok(&self.text[..read]),
            Ok(_) | Err(Errno::INTR) => self.read_open(file),
            Err(error) => Err(error.into()),
        }
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn link(&mut self, parts: &[&[u8]]) -> Result<&[u8], ReadFailure> {
        self.join(parts);
        let path = CStr::from_bytes_until_nul(&self.path).unwrap_or(c"");
        let read = rustix::fs::readlinkat_raw(CWD, path, &mut self.text[..])?;
        Ok(&self.text[..read])
    }

    /// The inode number of a regular file; the file is not opened.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn inode(&mut self, parts: &[&[u8]]) -> Result<u64, ReadFailure> {
        let stat = rustix::fs::statat(CWD, self.join(parts), AtFlags::SYMLINK_NOFOLLOW)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        #[allow(clippy::useless_conversion, reason = "32 bits wide on some machines")]
        if regular { Ok(u64::from(stat.st_ino)) } else { Err(ReadFailure::NotAFile) }
    }

    /// Link count and inode of a directory.
    ///
    /// # Errors
    /// [`ReadFailure`]; a symlink or file in its place is [`ReadFailure::NotFound`].
    pub fn directory_links(&mut self, parts: &[&[u8]]) -> Result<DirectoryLinks, ReadFailure> {
        self.directory_links_in(CWD, parts)
    }

    /// Like [`KernelFileReader::directory_links`], for an entry of an open directory; for that directory itself if the
    /// name is empty.
    ///
    /// # Errors
    /// Like [`KernelFileReader::directory_links`].
    pub fn directory_links_in(&mut self, directory: impl AsFd, parts: &[&[u8]]) -> Result<DirectoryLinks, ReadFailure> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statat(directory, self.join(parts), flags)?;
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        #[allow(clippy::useless_conversion, reason = "32 bits wide on some machines")]
        if directory {
            Ok(DirectoryLinks { count: u64::from(stat.st_nlink), inode: u64::from(stat.st_ino) })
        } else {
            Err(ReadFailure::NotFound)
        }
    }

    /// Calls `each` with the names of all subdirectories, without symlinks.
    ///
    /// # Errors
    /// [`ReadFailure`]; names before the error have been passed to `each`.
    pub fn subdirectories(&mut self, parts: &[&[u8]], mut each: impl FnMut(&[u8])) -> Result<(), ReadFailure> {
        self.entries(parts, |name, kind| {
            if kind == FileType::Directory {
                each(name);
            }
        })
    }

    /// Calls `each` with the names of all subdirectories and symlinks.
    ///
    /// # Errors
    /// [`ReadFailure`]; names before the error have been passed to `each`.
    pub fn names(&mut self, parts: &[&[u8]], mut each: impl FnMut(&[u8])) -> Result<(), ReadFailure> {
        self.entries(parts, |name, kind| {
            if matches!(kind, FileType::Directory | FileType::Symlink) {
                each(name);
            }
        })
    }

    fn entries(&mut self, parts: &[&[u8]], mut each: impl FnMut(&[u8], FileType)) -> Result<(), ReadFailure> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let directory = rustix::fs::openat(CWD, self.join(parts), flags, Mode::empty())?;
        let mut entries = RawDir::new(&directory, &mut self.entries);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            each(name.to_bytes(), kind);
        }
        Ok(())
    }

    fn join(&mut self, parts: &[&[u8]]) -> &CStr {
        self.path.clear();
        for part in parts {
            self.path.extend_from_slice(part);
        }
        self.path.push(0);
        CStr::from_bytes_until_nul(&self.path).unwrap_or(c"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_are_read_and_a_fifo_does_not_block() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name).as_os_str().as_bytes().to_vec();
        std::fs::write(root.path().join("file"), "42\n").unwrap();
        std::fs::create_dir(root.path().join("directory")).unwrap();
        symlink("file", root.path().join("link")).unwrap();
        let fifo = rustix::fs::mknodat(CWD, root.path().join("fifo"), FileType::Fifo, Mode::RUSR, 0);
        fifo.unwrap();
        let mut reader = KernelFileReader::default();
        assert_eq!(reader.read(&[&at("file")]), Ok(&b"42\n"[..]));
        assert_eq!(reader.read_piece(&[&at(""), b"file"]), Ok(&b"42\n"[..]));
        for (name, failure) in [
            ("fifo", ReadFailure::NotAFile),
            ("link", ReadFailure::NotAFile),
            ("directory", ReadFailure::NotAFile),
            ("none", ReadFailure::NotFound),
        ] {
            assert_eq!(reader.read(&[&at(name)]), Err(failure), "{name}");
        }
        assert_eq!(reader.link(&[&at("link")]), Ok(&b"file"[..]));
        assert!(reader.inode(&[&at("file")]).is_ok());
        assert_eq!(reader.inode(&[&at("link")]), Err(ReadFailure::NotAFile));
        let mut names = Vec::new();
        reader.subdirectories(&[&at("")], |name| names.push(name.to_vec())).unwrap();
        assert_eq!(names, [b"directory"]);
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_completely_and_one_beyond_the_limit_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let mut reader = KernelFileReader::default();
        for (length, whole) in [
            (SHORT - 1, true),
            (SHORT, true),
            (FIRST - 1, true),
            (FIRST, true),
            (3 * FIRST + 1, true),
            (MAX_FILE + 1, false),
        ] {
            std::fs::write(&path, vec![b'x'; length]).unwrap();
            let expected = if whole { Ok(length) } else { Err(ReadFailure::TooLong) };
            assert_eq!(reader.read(&[path.as_os_str().as_bytes()]).map(<[u8]>::len), expected);
            assert_eq!(reader.read_piece(&[path.as_os_str().as_bytes()]).map(<[u8]>::len), expected);
            let records = reader.read_records_with_inode(&[path.as_os_str().as_bytes()]);
            assert_eq!(records.map(|(text, _)| text.len()), expected);
        }
    }

    #[test]
    fn numbers_are_formatted_in_decimal() {
        for number in [0, 7, 10, 4_194_304, u32::MAX] {
            assert_eq!(KernelFileReader::decimal(number, &mut [0; 10]), number.to_string().as_bytes());
        }
    }
}
