//! Counts regularly, on its own thread, the files that pods have written into their writable folders.

use effects::delivery::{DeviceDelivery, PodFileSize, TicketFolders};
use model::id::{PodRef, PodUid, Ticket};
use model::observation::ErrorCounter;
use model::plugin::PodFiles;
use model::unit::Bytes;
use sources::report::Reporter;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// Pause between two counts. Most pods have only a few files.
const COUNT: Duration = Duration::from_secs(60);
/// Pause after each 1,024 entries, which take some milliseconds. If pods keep as many files as they are allowed, a
/// count uses a few percent of a core and takes longer than a minute.
const PAUSE: Duration = Duration::from_millis(50);

/// A pod, and the tickets whose folders belong to it.
pub(super) type Counted = (PodUid, PodRef, Vec<Ticket>);

/// The result of a count.
#[derive(Debug, Default)]
struct Counts {
    files: Vec<PodFiles>,
    /// How many pods have a folder that the agent cannot enter; `first_closed` is the first such pod.
    closed: usize,
    first_closed: Option<PodRef>,
}

/// Runs one count at a time.
#[derive(Debug)]
pub(crate) struct FileCounter {
    /// How much a pod may write.
    pub limit: Bytes,
    reporter: Reporter,
    /// Whether the log has a warning about files that cannot be counted.
    warned: bool,
    counting: bool,
    last: Option<Instant>,
    ends: (mpsc::Sender<Counts>, mpsc::Receiver<Counts>),
}

impl FileCounter {
    pub(super) fn new(limit: Bytes, reporter: Reporter) -> FileCounter {
        FileCounter { limit, reporter, warned: false, counting: false, last: None, ends: mpsc::channel(1) }
    }

    /// Whether the next count is due and the last count has ended.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.counting && self.last.is_none_or(|last| now - last >= COUNT)
    }

    /// Starts a count of the files that these pods have written.
    pub(super) fn start(&mut self, pods: Vec<Counted>, delivery: &Arc<DeviceDelivery>, tickets: &TicketFolders) {
        (self.counting, self.last) = (true, Some(Instant::now()));
        let (delivery, tickets) = (Arc::clone(delivery), tickets.clone());
        let (limit, results) = (self.limit, self.ends.0.clone());
        spawn_blocking(move || {
            let mut counts = Counts::default();
            for (uid, pod, own) in pods {
                let written = delivery.written(&uid, (&tickets, &own), limit, &mut || thread::sleep(PAUSE));
                let PodFileSize { bytes, files, over, closed } = written;
                if closed {
                    counts.closed += 1;
                    counts.first_closed.get_or_insert_with(|| pod.clone());
                }
                if files > 0 {
                    counts.files.push(PodFiles { uid, pod, bytes: Bytes(bytes), files, over });
                }
                // The receiver is gone when the program ends.
                if results.is_closed() {
                    return;
                }
            }
            // The receiver is gone only when the program ends.
            let _ = results.blocking_send(counts);
        });
    }

    /// Waits for the end of a count, and returns what it found.
    pub(super) async fn ended(&mut self) -> Option<Vec<PodFiles>> {
        let counts = self.ends.1.recv().await?;
        self.counting = false;
        self.report_closed(&counts);
        Some(counts.files)
    }

    /// Counts and logs pods with folders that the agent cannot enter. Such a pod does not count as over the limit,
    /// because the content of its folders is unknown; the operator must give the agent the missing capability.
    fn report_closed(&mut self, counts: &Counts) {
        let Some(pod) = &counts.first_closed else {
            self.warned = false;
            return;
        };
        self.reporter.trouble(ErrorCounter::NotCounted);
        if !std::mem::replace(&mut self.warned, true) {
            let pods = counts.closed;
            tracing::warn!(
                pods, %pod,
                "cannot count the files of {pods} pods, first {pod}: the agent may not enter their folders, so --pod-files-limit \
                 is not enforced for them; give the agent CAP_DAC_OVERRIDE"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::observation::{Observation, SourceEvent};

    #[test]
    fn every_count_reports_a_pod_that_cannot_be_counted() {
        let (reporter, mut observations) = Reporter::channel();
        let mut counter = FileCounter::new(Bytes(1), reporter);
        let pod = PodRef { namespace: "ml".into(), name: "train".into() };
        let closed = Counts { closed: 1, first_closed: Some(pod), ..Counts::default() };
        for (counts, errors) in [(&Counts::default(), 0), (&closed, 1), (&closed, 1), (&Counts::default(), 0)] {
            counter.report_closed(counts);
            assert_eq!(counter.warned, errors == 1, "the log has one warning until all pods can be counted again");
            let count = std::iter::from_fn(|| observations.try_recv().ok())
                .filter(|observation| {
                    matches!(observation, Observation::Event(SourceEvent::Trouble(ErrorCounter::NotCounted)))
                })
                .count();
            assert_eq!(count, errors);
        }
    }
}
