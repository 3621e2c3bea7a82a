//! Keeps the tallies on disk: GPU time and energy of pods. So these counters survive a restart of the agent.
//!
//! ```text
//!   tallies.json ──at the start──▶ owner ──view, every 15 s and at the end──▶ tallies.json ──▶ owner: may show these
//! ```
//!
//! Metrics show only what is on disk, so that no counter falls after a crash.
//!
//! What must never happen here: the owner waiting for a disk; a file that grows with time.

use effects::tallies::TallyFile;
use model::observation::Fact;
use model::tally::GpuTally;
use model::view::NodeView;
use sources::report::Reporter;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Time between two writes: about as often as counters are scraped. A busy node writes some ten kilobytes each time.
pub(crate) const EVERY: Duration = Duration::from_secs(15);

/// The task that keeps the tallies.
#[derive(Debug)]
pub(crate) struct TallyKeeper {
    /// The file of the tallies.
    pub file: TallyFile,
    /// The newest view, which has the tallies to keep.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// Reports to the owner what is on disk.
    pub reporter: Reporter,
    /// Time between two writes, [`EVERY`].
    pub every: Duration,
}

impl TallyKeeper {
    /// Runs until `stop` is cancelled, and then writes the tallies once more.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let file = self.file.clone();
        let before = tokio::task::spawn_blocking(move || file.recall()).await.unwrap_or_default();
        self.reporter.fact(Fact::TalliesRecalled(before.into()));
        let mut failing = false;
        let mut kept: Arc<[GpuTally]> = Arc::default();
        loop {
            let last = tokio::select! { () = stop.cancelled() => true, () = tokio::time::sleep(self.every) => false };
            let now = Arc::clone(&self.view.borrow().tallies_to_keep);
            if now != kept {
                let file = self.file.clone();
                let (merged, written) = tokio::task::spawn_blocking(move || file.keep(&now))
                    .await
                    .unwrap_or_else(|error| (Arc::clone(&kept), Err(io::Error::other(error))));
                match written {
                    Ok(()) => failing = false,
                    Err(error) if !std::mem::replace(&mut failing, true) => tracing::warn!(
                        file = %self.file.path().display(), %error,
                        "GPU time and energy of pods cannot be kept (--state-dir): a restart of the agent resets these counters"
                    ),
                    Err(_) => {}
                }
                kept = Arc::clone(&merged);
                self.reporter.fact(Fact::TalliesKept(merged));
            }
            if last {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{GpuUuid, PodUid};
    use model::observation::Observation;
    use model::unit::{Millijoules, Nanos};

    fn tally(pod: u8, held: u64, energy: u64) -> GpuTally {
        GpuTally {
            pod: PodUid::parse(&format!("{pod:032x}")).unwrap(),
            gpu: GpuUuid::parse("GPU-1").unwrap(),
            held: Nanos(held),
            energy: Millijoules(energy),
        }
    }

    /// The first agent counts, and the next one continues from its file.
    #[tokio::test]
    async fn counters_outlive_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let file = TallyFile::new(folder.path());
        file.keep(&[tally(1, 100, 7)]).1.unwrap();
        let (reporter, mut observations) = Reporter::channel();
        let name = model::id::NodeName::parse("n").unwrap();
        let mut first = NodeView::empty(name, model::time::Now::default());
        first.tallies_to_keep = Arc::from([tally(1, 130, 9)]);
        let (_views, view) = watch::channel(Arc::new(first));
        let stop = CancellationToken::new();
        let keeping = TallyKeeper { file: file.clone(), view, reporter, every: Duration::from_millis(5) };
        let task = tokio::spawn(keeping.run(stop.clone()));
        let Some(Observation::Fact(Fact::TalliesRecalled(before))) = observations.recv().await else {
            panic!("first what was kept")
        };
        assert_eq!(before.to_vec(), [tally(1, 100, 7)]);
        let Some(Observation::Fact(Fact::TalliesKept(kept))) = observations.recv().await else {
            panic!("then what is kept")
        };
        assert_eq!(kept.to_vec(), [tally(1, 130, 9)]);
        stop.cancel();
        task.await.unwrap();
        assert_eq!(file.recall(), [tally(1, 130, 9)]);
    }
}
