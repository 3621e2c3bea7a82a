//! Whether a file that another program writes is whole: a file that was the same at two looks.

use model::file_stamp::FileStamp;

/// A file that is looked at regularly, and used in a new version when it is whole.
#[derive(Clone, Copy, Debug)]
pub struct SettledFile {
    /// The version that is used.
    used: Option<FileStamp>,
    /// The file at the last look.
    last: Option<FileStamp>,
}

impl SettledFile {
    /// A file of which this version is used already; `None` if its stamp is not known.
    #[must_use]
    pub fn used(stamp: Option<FileStamp>) -> SettledFile {
        SettledFile { used: stamp, last: stamp }
    }

    /// The file as it is now. Returns whether it is a whole new version, which is then the one that is used. A file that
    /// has changed since the last look may still be written.
    pub fn is_new(&mut self, now: FileStamp) -> bool {
        let settled = self.last.replace(now) == Some(now);
        settled && self.used.replace(now) != Some(now)
    }

    /// The file is gone. Returns whether it was there at the last look.
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
    fn a_new_version_is_used_once_and_not_before_it_was_the_same_at_two_looks() {
        let mut file = SettledFile::used(Some(version(1)));
        for (size, is_new) in [(1, false), (2, false), (3, false), (3, true), (3, false), (1, false), (1, true)] {
            assert_eq!(file.is_new(version(size)), is_new, "{size}");
        }
    }

    #[test]
    fn a_file_that_goes_is_told_once_and_must_settle_again_when_it_comes_back() {
        let mut file = SettledFile::used(Some(version(1)));
        assert_eq!((file.is_gone(), file.is_gone()), (true, false));
        assert_eq!((file.is_new(version(1)), file.is_new(version(1))), (false, false), "the version that is used");
        assert!(file.is_gone());
        assert_eq!((file.is_new(version(2)), file.is_new(version(2))), (false, true));
        let mut unknown = SettledFile::used(None);
        assert_eq!((unknown.is_new(version(1)), unknown.is_new(version(1))), (false, true));
    }
}
