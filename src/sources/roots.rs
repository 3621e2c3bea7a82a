//! Roots of the kernel's file trees. In a container the host's trees are mounted elsewhere, and tests pass trees of
//! their own.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Roots of the trees that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoots {
    /// The host's `/proc`.
    pub procfs: PathBuf,
    /// The host's `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// The host's `/sys`.
    pub sysfs: PathBuf,
}

impl Default for HostRoots {
    fn default() -> Self {
        HostRoots { procfs: "/proc".into(), cgroup: "/sys/fs/cgroup".into(), sysfs: "/sys".into() }
    }
}

/// A root as the first part of a path: without a slash at its end, because every other part begins with one.
#[must_use]
pub fn part(root: &Path) -> Vec<u8> {
    let mut bytes = root.as_os_str().as_bytes();
    while let [rest @ .., b'/'] = bytes {
        bytes = rest;
    }
    bytes.to_vec()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_root_ends_without_a_slash() {
        for (root, part) in [("/proc", "/proc"), ("/proc//", "/proc"), ("/", "")] {
            assert_eq!(super::part(root.as_ref()), part.as_bytes());
        }
    }
}
