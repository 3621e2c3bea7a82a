//! Where the kernel's trees are. Inside a container the host's are mounted elsewhere, and tests hand in trees of their own.

use std::path::PathBuf;

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
