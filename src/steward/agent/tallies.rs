//! Keeps on disk what pods have had of GPUs, so that these counters outlive the agent.
//!
//! ```text
//!   tallies.json ──at the start──▶ owner ──view, every 15 s and at the end──▶ tallies.json ──▶ owner: this may be shown
//! ```
//!
//! What is shown is what is on disk, so that no counter falls after a crash. During an upgrade two agents write in turn, each
//! counting the same: the larger of both stays.
//!
//! What must never happen here: the owner waiting for a disk; a half written file; a file that grows with time.

use model::observation::Observation;
use model::tally::Tally;
use model::view::NodeView;
use sources::report::Reporter;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::tally;

/// Time between two writings: as often as counters are scraped. A busy node writes some ten kilobytes then.
pub(crate) const EVERY: Duration = Duration::from_secs(15);
/// In the state directory.
const FILE: &str = "tallies.json";
/// What the names of files begin with that are not whole yet; the number of the process follows.
const HIDDEN: &str = ".tallies.json.";

/// What it needs.
#[derive(Debug)]
pub(crate) struct TallyKeeper {
    /// Where they are kept.
    pub state_dir: PathBuf,
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
        let file = self.state_dir.join(FILE);
        let path = file.clone();
        let before = tokio::task::spawn_blocking(move || {
            sweep(&path);
            recall(&path)
        });
        let before = before.await.unwrap_or_default();
        self.tell(&stop, Observation::TalliesRecalled(before.into())).await;
        let mut failing = false;
        let mut kept: Arc<[Tally]> = Arc::default();
        loop {
            let last = tokio::select! { () = stop.cancelled() => true, () = tokio::time::sleep(self.every) => false };
            let now = Arc::clone(&self.view.borrow().tallies_to_keep);
            if now != kept {
                let path = file.clone();
                let (merged, written) = tokio::task::spawn_blocking(move || keep(&path, &now))
                    .await
                    .unwrap_or_else(|error| (Arc::clone(&kept), Err(io::Error::other(error))));
                match written {
                    Ok(()) => failing = false,
                    Err(error) if !std::mem::replace(&mut failing, true) => tracing::warn!(
                        file = %file.display(), %error,
                        "GPU time and energy of pods cannot be kept (--state-dir): they begin anew with the agent"
                    ),
                    Err(_) => {}
                }
                kept = Arc::clone(&merged);
                self.tell(&stop, Observation::TalliesKept(merged)).await;
            }
            if last {
                return;
            }
        }
    }

    /// The queue may be full for a moment; without what was kept there is nothing to be shown.
    async fn tell(&self, stop: &CancellationToken, observation: Observation) {
        while !self.reporter.report(observation.clone()) && !stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Takes away what agents left that were killed while they wrote. One that writes just now fails, and writes again.
fn sweep(path: &Path) {
    let left = path.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    for file in left.filter(|file| file.file_name().to_string_lossy().starts_with(HIDDEN)) {
        let _ = fs::remove_file(file.path());
    }
}

/// What an earlier life kept; nothing where there is no such file, or one that is not ours, which is told.
fn recall(path: &Path) -> Vec<Tally> {
    let mut bytes = Vec::new();
    // One byte more than ours may have: then it is not ours.
    let most = tally::MAX_BYTES as u64 + 1;
    match fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)) {
        Ok(_) => tally::decode(&bytes).unwrap_or_else(|error| {
            tracing::warn!(file = %path.display(), %error, "GPU time and energy of pods begin anew");
            Vec::new()
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "GPU time and energy of pods begin anew");
            Vec::new()
        }
    }
}

/// Keeps the larger of what is there and of `now`, and says what that is, whether it could be written or not.
fn keep(path: &Path, now: &[Tally]) -> (Arc<[Tally]>, io::Result<()>) {
    let there = recall(path);
    let larger = |own: &Tally| match there.iter().find(|other| other.pod == own.pod && other.gpu == own.gpu) {
        Some(other) => Tally {
            held: if other.held.0 > own.held.0 { other.held } else { own.held },
            energy: if other.energy.0 > own.energy.0 { other.energy } else { own.energy },
            ..own.clone()
        },
        None => own.clone(),
    };
    let merged: Arc<[Tally]> = now.iter().map(larger).collect();
    let written = write(path, &merged);
    (merged, written)
}

/// A new file is renamed over the old one, so that nobody finds half of it.
fn write(path: &Path, tallies: &[Tally]) -> io::Result<()> {
    let text = tally::encode(tallies).map_err(|fault| io::Error::other(fault.to_string()))?;
    if let Some(folder) = path.parent() {
        // No other user of the host enters the state directory, whoever makes it.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // Two agents may write at a time.
    let hidden = path.with_file_name(format!("{HIDDEN}{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&hidden)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&hidden, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{GpuUuid, PodUid};
    use model::unit::{Millijoules, Nanos};

    fn tally(pod: u8, held: u64, energy: u64) -> Tally {
        Tally {
            pod: PodUid::parse(&format!("{pod:032x}")).unwrap(),
            gpu: GpuUuid::parse("GPU-1").unwrap(),
            held: Nanos(held),
            energy: Millijoules(energy),
        }
    }

    #[test]
    fn what_is_kept_is_recalled_and_never_less_than_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").join(FILE);
        assert!(recall(&path).is_empty());
        let (kept, written) = keep(&path, &[tally(1, 100, 7), tally(2, 5, 5)]);
        written.unwrap();
        assert_eq!(recall(&path), kept.to_vec());
        // Another agent, whose time ends, has counted further; a pod that is gone is not kept for ever.
        let (kept, written) = keep(&path, &[tally(1, 90, 8)]);
        written.unwrap();
        assert_eq!(kept.to_vec(), [tally(1, 100, 8)]);
        assert_eq!(recall(&path), [tally(1, 100, 8)]);
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().flatten().map(|one| one.file_name()).collect();
        assert_eq!(left, [FILE], "no other file is left");
    }

    #[test]
    fn a_torn_file_begins_anew_and_a_disk_that_refuses_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        fs::write(&path, r#"{"version":1,"tallies":[{"pod":"#).unwrap();
        assert!(recall(&path).is_empty());
        let below_a_file = path.join("deeper").join(FILE);
        let (kept, written) = keep(&below_a_file, &[tally(1, 1, 1)]);
        assert!(written.is_err());
        assert_eq!(kept.to_vec(), [tally(1, 1, 1)], "it is shown all the same");
    }

    /// From a life that counted to one that goes on, through the owner's own state.
    #[tokio::test]
    async fn counters_outlive_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        keep(&folder.path().join(FILE), &[tally(1, 100, 7)]).1.unwrap();
        fs::write(folder.path().join(".tallies.json.4711"), "{").unwrap();
        let (reporter, mut told) = Reporter::channel();
        let name = model::id::NodeName::parse("n").unwrap();
        let mut first = NodeView::empty(name, model::time::Now::default());
        first.tallies_to_keep = Arc::from([tally(1, 130, 9)]);
        let (_views, view) = watch::channel(Arc::new(first));
        let stop = CancellationToken::new();
        let keeping =
            TallyKeeper { state_dir: folder.path().to_owned(), view, reporter, every: Duration::from_millis(5) };
        let task = tokio::spawn(keeping.run(stop.clone()));
        let Some(Observation::TalliesRecalled(before)) = told.recv().await else { panic!("first what was kept") };
        assert_eq!(before.to_vec(), [tally(1, 100, 7)]);
        assert!(!folder.path().join(".tallies.json.4711").exists(), "what a killed agent left is gone");
        let Some(Observation::TalliesKept(kept)) = told.recv().await else { panic!("then what is kept") };
        assert_eq!(kept.to_vec(), [tally(1, 130, 9)]);
        stop.cancel();
        task.await.unwrap();
        assert_eq!(recall(&folder.path().join(FILE)), [tally(1, 130, 9)]);
    }
}
