//! Whose process is this? Number, start time and cgroup of one process, read together.

use crate::roots::HostRoots;
use model::id::ProcessKey;
use model::process::Owner;
use std::sync::Arc;

/// A process as it was at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Identified {
    /// Number and start time.
    pub key: ProcessKey,
    /// `comm`.
    pub command: Arc<str>,
    /// Whose it is.
    pub owner: Owner,
}

/// Reads identities; keeps what it learned of cgroups so that a second look is cheap. One for each thread.
#[derive(Debug)]
pub struct Owners {
    roots: HostRoots,
}

impl Owners {
    /// For processes under these roots.
    #[must_use]
    pub fn new(roots: HostRoots) -> Self {
        Owners { roots }
    }

    /// Reads the process now; `None` when there is none of that number (or it is hidden from us).
    pub fn identify(&mut self, _pid: u32) -> Option<Identified> {
        let _ = &self.roots;
        None
    }

    /// When a process with these start ticks began, on the wall clock, in microseconds; `None` if boot time is unknown.
    #[must_use]
    pub fn started_at(&self, _start_ticks: u64) -> Option<model::time::WallTime> {
        None
    }
}
