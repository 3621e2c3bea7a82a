//! Counters and resource use of the program itself.

use model::Reading;
use model::unit::{Bytes, Count};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the server that shows the metrics.
#[derive(Debug, Default)]
pub struct ServerCounts {
    /// Scrapes answered.
    pub scrapes: AtomicU64,
    /// Scrapes refused because too many answers were in progress.
    pub scrapes_refused: AtomicU64,
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Connections closed for newer ones, or refused because all were busy.
    pub connections_cut: AtomicU64,
}

/// Resource use from `/proc/self`. A field that cannot be read has no series; the others still have theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFootprint {
    /// When the program was started, in seconds since 1970.
    pub started_seconds: Reading<f64>,
    /// Processor time of all threads.
    pub cpu_seconds: Reading<f64>,
    /// Resident memory.
    pub resident: Reading<Bytes>,
    /// Address space.
    pub address_space: Reading<Bytes>,
    /// Open files.
    pub files: Reading<Count>,
    /// Limit of open files.
    pub files_limit: Reading<Count>,
    /// Threads.
    pub threads: Reading<Count>,
}

/// An open connection; it counts as open until this is dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<ServerCounts>);

impl ServerCounts {
    /// Counts an open connection.
    #[must_use]
    pub fn open(self: &Arc<ServerCounts>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Counts connections that were closed or refused at the limit.
    pub fn cut(&self, count: u64) {
        self.connections_cut.fetch_add(count, Ordering::Relaxed);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
