//! Decides whether a file that another program writes is complete: two reads in a row must give the same stamp.

use model::file_stamp::FileStamp;

/// A file that is read at intervals. A new version is used once it is complete.
#[derive(Clone, Copy, Debug)]
pub struct SettledFile {
    /// The version that is used.
    used: Option<FileStamp>,
    /// The stamp at the last read.
    last: Option<FileStamp>,
}

impl SettledFile {
    /// A file whose version with this stamp is already used; `None` if the stamp is not known.
    #[must_use]
    pub fn used(stamp: Option<FileStamp>) -> SettledFile {
        SettledFile { used: stamp, last: stamp }
    }

    /// Takes in the stamp that the file has now. Returns whether the file is a complete new version, which then counts
    /// as used. A file that has changed since the last read may still be incomplete.
    pub fn is_new(&mut self, now: FileStamp) -> bool {
        let settled = self.last.replace(now) == Some(now);
        settled && self.used.replace(now) != Some(now)
    }

    /// The file is gone. Returns whether it existed at the last read.
    pub fn is_gone(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(size: u64) -> FileStamp {
        FileStamp { inode: 1, size, seconds: 0, nanoseconds: 0 }
    }

    #[test]
    fn a_new_version_is_used_once_and_only_after_two_equal_reads() {
        let mut file = SettledFile::used(Some(version(1)));
        for (size, is_new) in [(1, false), (2, false), (3, false), (3, true), (3, false), (1, false), (1, true)] {
            assert_eq!(file.is_new(version(size)), is_new, "{size}");
        }
    }

    #[test]
    fn a_removed_file_is_reported_once_and_must_settle_again_when_it_comes_back() {
        let mut file = SettledFile::used(Some(version(1)));
        assert_eq!((file.is_gone(), file.is_gone()), (true, false));
        assert_eq!((file.is_new(version(1)), file.is_new(version(1))), (false, false), "the version that is used");
        assert!(file.is_gone());
        assert_eq!((file.is_new(version(2)), file.is_new(version(2))), (false, true));
        let mut unknown = SettledFile::used(None);
        assert_eq!((unknown.is_new(version(1)), unknown.is_new(version(1))), (false, true));
    }
}
