//! Keeps on disk what pods have had of GPUs, so that these counters outlive the agent.
//!
//! ```text
//!   tallies.json ──at the start──▶ owner ──view, every 15 s and at the end──▶ tallies.json ──▶ owner: this may be shown
//! ```
//!
//! What is shown is what is on disk, so that no counter falls after a crash.
//!
//! What must never happen here: the owner waiting for a disk; a file that grows with time.

use effects::tallies::TallyFile;
use model::observation::Observation;
use model::tally::GpuTally;
use model::view::NodeView;
use sources::report::Reporter;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Time between two writings: as often as counters are scraped. A busy node writes some ten kilobytes then.
pub(crate) const EVERY: Duration = Duration::from_secs(15);

/// What it needs.
#[derive(Debug)]
pub(crate) struct TallyKeeper {
    /// Where they are kept.
    pub file: TallyFile,
    /// What is seen of the node.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// To the owner.
    pub reporter: Reporter,
    /// Time between two writings, [`EVERY`].
    pub every: Duration,
}

impl TallyKeeper {
    /// Runs until `stop` is cancelled, and keeps them once more then.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let file = self.file.clone();
        let before = tokio::task::spawn_blocking(move || file.recall()).await.unwrap_or_default();
        self.reporter.report(Observation::TalliesRecalled(before.into()));
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
                        "GPU time and energy of pods cannot be kept (--state-dir): they begin anew with the agent"
                    ),
                    Err(_) => {}
                }
                kept = Arc::clone(&merged);
                self.reporter.report(Observation::TalliesKept(merged));
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
    use model::unit::{Millijoules, Nanos};

    fn tally(pod: u8, held: u64, energy: u64) -> GpuTally {
        GpuTally {
            pod: PodUid::parse(&format!("{pod:032x}")).unwrap(),
            gpu: GpuUuid::parse("GPU-1").unwrap(),
            held: Nanos(held),
            energy: Millijoules(energy),
        }
    }

    /// From a life that counted to one that goes on, through the owner's own state.
    #[tokio::test]
    async fn counters_outlive_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let file = TallyFile::new(folder.path());
        file.keep(&[tally(1, 100, 7)]).1.unwrap();
        let (reporter, mut told) = Reporter::channel();
        let name = model::id::NodeName::parse("n").unwrap();
        let mut first = NodeView::empty(name, model::time::Now::default());
        first.tallies_to_keep = Arc::from([tally(1, 130, 9)]);
        let (_views, view) = watch::channel(Arc::new(first));
        let stop = CancellationToken::new();
        let keeping = TallyKeeper { file: file.clone(), view, reporter, every: Duration::from_millis(5) };
        let task = tokio::spawn(keeping.run(stop.clone()));
        let Some(Observation::TalliesRecalled(before)) = told.recv().await else { panic!("first what was kept") };
        assert_eq!(before.to_vec(), [tally(1, 100, 7)]);
        let Some(Observation::TalliesKept(kept)) = told.recv().await else { panic!("then what is kept") };
        assert_eq!(kept.to_vec(), [tally(1, 130, 9)]);
        stop.cancel();
        task.await.unwrap();
        assert_eq!(file.recall(), [tally(1, 130, 9)]);
    }
}
