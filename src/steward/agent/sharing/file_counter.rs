//! What pods have written into their writable folders: counted now and then, beside everything else.

use effects::delivery::{Delivery, Tickets};
use model::id::{PodRef, PodUid, Ticket};
use model::plugin::PodFiles;
use model::unit::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// Between two counts. A count looks at no more than a few files of most pods.
const COUNT: Duration = Duration::from_secs(60);

/// A pod and the tickets whose folders are its own.
pub(super) type Counted = (PodUid, PodRef, Vec<Ticket>);

/// Counts, one count at a time.
#[derive(Debug)]
pub(crate) struct FileCounter {
    /// How much a pod may write.
    pub limit: Bytes,
    counting: bool,
    last: Option<Instant>,
    ends: (mpsc::Sender<Vec<PodFiles>>, mpsc::Receiver<Vec<PodFiles>>),
}

impl FileCounter {
    pub(super) fn new(limit: Bytes) -> FileCounter {
        FileCounter { limit, counting: false, last: None, ends: mpsc::channel(1) }
    }

    /// Whether it is time for the next count, and the last one has ended.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.counting && self.last.is_none_or(|last| now - last >= COUNT)
    }

    /// Counts what these have written.
    pub(super) fn start(&mut self, pods: Vec<Counted>, delivery: &Arc<Delivery>, tickets: &Tickets) {
        (self.counting, self.last) = (true, Some(Instant::now()));
        let (delivery, tickets) = (Arc::clone(delivery), tickets.clone());
        let (limit, told) = (self.limit, self.ends.0.clone());
        spawn_blocking(move || {
            let of = |(uid, pod, own): Counted| {
                let written = delivery.written(&uid, (&tickets, &own), limit);
                let bytes = Bytes(written.bytes);
                (written.files > 0).then_some(PodFiles { uid, pod, bytes, files: written.files, over: written.over })
            };
            // Only at the end of the program is nobody there to hear it.
            let _ = told.blocking_send(pods.into_iter().filter_map(of).collect());
        });
    }

    /// The next count that has ended.
    pub(super) async fn ended(&mut self) -> Option<Vec<PodFiles>> {
        let counted = self.ends.1.recv().await;
        self.counting = false;
        counted
    }
}
