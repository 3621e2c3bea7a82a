//! The stamp of a file: shows whether the file has changed without reading it.

/// Inode, size and time of the last change. A program that replaces a file changes at least one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileStamp {
    /// The number of the inode.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change: whole seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that second.
    pub nanoseconds: i64,
}
