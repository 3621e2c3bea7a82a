//! Counters and resource use of the program itself.

use model::Reading;
use model::unit::{Bytes, Count};
use serve::server::ConnectionCounts;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Counters of the server that shows the metrics.
#[derive(Debug, Default)]
pub struct ServerCounts {
    /// Scrapes answered.
    pub scrapes: AtomicU64,
    /// Scrapes refused because too many answers were in progress.
    pub scrapes_refused: AtomicU64,
    /// The server's connections.
    pub connections: Arc<ConnectionCounts>,
}

/// Resource use from `/proc/self`. A field that cannot be read has no series; the other fields are still shown.
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
    /// Maximum number of open files.
    pub files_limit: Reading<Count>,
    /// Threads.
    pub threads: Reading<Count>,
}
