//! Histograms of the time that the kubelet waits for an answer.

use model::histogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Histograms of both kinds of call since the agent started.
#[derive(Debug, Default)]
pub struct CallMeter {
    pub(super) allocate: Timer,
    pub(super) start: Timer,
}

impl CallMeter {
    /// `Allocate`.
    #[must_use]
    pub fn allocate(&self) -> Histogram {
        self.allocate.read()
    }

    /// `PreStartContainer`.
    #[must_use]
    pub fn start(&self) -> Histogram {
        self.start.read()
    }
}

/// The histogram of one kind of call.
#[derive(Debug, Default)]
pub(super) struct Timer {
    counts: [AtomicU64; Histogram::BUCKETS],
    nanos: AtomicU64,
}

impl Timer {
    /// Counts a call that arrived at `since` and is answered now.
    pub(super) fn answered(&self, since: Instant) {
        let took = since.elapsed();
        if let Some(count) = self.counts.get(Histogram::bucket(took)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn read(&self) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|place| self.counts[place].load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
        }
    }
}
