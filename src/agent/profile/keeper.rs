//! Keeps the histories in their file: opens it, writes and reads it, and tries again while it cannot be used.
//!
//! What must never happen here: an error that stops the thread; the same error in the log again and again.

use effects::profile_store::{FILE, KeptClock, OpenedStore, ProfileStore, StoreError};
use model::id::BootId;
use model::stored_history::HistoryStep;
use model::time::{Monotonic, Now};
use profiles::Recorder;
use profiles::anchor::Anchor;
use profiles::recorder::StoredRange;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Pause between two attempts to open the file: during an upgrade the previous agent has it for some seconds.
const AGAIN: Duration = Duration::from_secs(30);

/// The file, or the reason why there is none.
#[derive(Debug)]
pub(super) struct HistoryKeeper {
    state_dir: PathBuf,
    /// `None` if it cannot be read.
    boot: Option<BootId>,
    store: Option<ProfileStore>,
    /// Why histories are in memory only.
    not_kept: Option<Arc<str>>,
    /// When the file may be opened again.
    again: Monotonic,
}

impl HistoryKeeper {
    /// A keeper that has not opened its file yet.
    pub(super) fn new(state_dir: PathBuf, procfs: &Path) -> HistoryKeeper {
        let (boot, not_kept) = match sources::boot::boot_id(procfs) {
            Ok(boot) => (Some(boot), None),
            Err(error) => (None, Some(format!("the boot id of the machine cannot be read: {error}"))),
        };
        let mut keeper = HistoryKeeper { state_dir, boot, store: None, not_kept: None, again: Monotonic::default() };
        if let Some(why) = not_kept {
            keeper.cannot_keep(&why, false);
        }
        keeper
    }

    /// Opens the file if it is not open, and not more often than every half minute. Ties the recorder's clocks by the pair of this
    /// boot that the file has, else by that of this moment.
    pub(super) fn open(&mut self, recorder: &mut Recorder, now: Now) {
        match self.opened(now.monotonic) {
            Ok(Some(kept)) => recorder.tie_clocks_as_kept(kept, now.monotonic),
            Ok(None) => {}
            Err(error) => self.failed(&error),
        }
        recorder.tie_clocks(Anchor::new(now));
    }

    /// Opens the file. Returns the pair of this boot, if the file has been opened now and has it. A file whose pair cannot be read
    /// stays closed, because the next write would replace the pair.
    fn opened(&mut self, now: Monotonic) -> Result<Option<Anchor>, StoreError> {
        let Some(boot) = self.boot.as_ref().filter(|_| self.store.is_none() && now >= self.again) else {
            return Ok(None);
        };
        self.again = now.after(AGAIN);
        let OpenedStore { store, put_aside } = ProfileStore::open(&self.state_dir)?;
        if let Some(why) = put_aside {
            tracing::warn!("the histories of GPUs and pods before the agent started are not known: {why}");
        }
        let kept = store.clock(boot)?;
        self.store = Some(store);
        self.keeps();
        Ok(kept.and_then(Anchor::new))
    }

    /// Writes the steps that wait. What cannot be written waits on, up to the recorder's bound.
    pub(super) fn write(&mut self, recorder: &mut Recorder, now: Monotonic) {
        let (Some(store), Some(boot)) = (&mut self.store, &self.boot) else { return };
        let Some(anchor) = recorder.anchor() else {
            return self.cannot_keep("the wall clock is not set", false);
        };
        let clock = KeptClock { boot: boot.clone(), pair: anchor.pair() };
        match store.write(|| recorder.unwritten(), &clock, anchor.wall(now)) {
            Ok(()) => {
                recorder.written();
                self.keeps();
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Steps from the file; none if there is no file.
    ///
    /// # Errors
    /// The reason why the file cannot be read.
    pub(super) fn read(
        &mut self,
        StoredRange { key, tier, steps }: &StoredRange,
    ) -> Result<Vec<HistoryStep>, Arc<str>> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        store.read(key, *tier, steps.clone()).map_err(|error| {
            self.failed(&error);
            error.to_string().into()
        })
    }

    /// Bytes of the file, and why histories are in memory only.
    pub(super) fn state(&self) -> (Option<u64>, Option<Arc<str>>) {
        (self.store.as_ref().map(ProfileStore::bytes), self.not_kept.clone())
    }

    fn keeps(&mut self) {
        if self.not_kept.take().is_some() {
            tracing::info!(file = %self.state_dir.join(FILE).display(), "histories of GPUs and pods are kept on disk again");
        }
    }

    fn failed(&mut self, error: &StoreError) {
        if matches!(error, StoreError::Unreadable(_)) {
            // The next attempt puts it aside.
            self.store = None;
        }
        let why = format!("{}: {error}", self.state_dir.join(FILE).display());
        self.cannot_keep(&why, matches!(error, StoreError::Locked));
    }

    /// Logs a new reason. A lock is expected during an upgrade.
    fn cannot_keep(&mut self, why: &str, expected: bool) {
        if self.not_kept.as_deref() == Some(why) {
            return;
        }
        self.not_kept = Some(why.into());
        let advice = "they are in memory only, which holds some hours; the agent tries again";
        if expected {
            tracing::info!(why, "histories of GPUs and pods cannot be kept: {why}; {advice}");
        } else {
            tracing::warn!(why, "histories of GPUs and pods cannot be kept (--state-dir): {why}; {advice}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Reading;
    use model::gpu::GpuSample;
    use model::id::GpuUuid;
    use model::stored_history::StoredTier;
    use model::time::WallTime;
    use model::unit::Percent;
    use profiles::RecorderEvent;
    use profiles::recorder::Periods;
    use std::fs;
    use std::ops::Range;

    fn now(second: u64) -> Now {
        let wall = WallTime(1_800_000_000_000_000 + second * 1_000_000);
        Now { monotonic: Monotonic(1_000_000_000_000 + second * 1_000_000_000), wall }
    }

    /// A recorder that has read nothing yet.
    fn recorder() -> Recorder {
        let second = Duration::from_secs(1);
        Recorder::new(Periods { period: second, slow: second, lists: second }, None)
    }

    /// Reads a GPU once in each of these seconds, and computes the steps that are over.
    fn read_gpu(recorder: &mut Recorder, seconds: Range<u64>) {
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        for at in seconds.map(|second| now(second).monotonic) {
            let utilization = Reading::Measured(Percent(50.0), at);
            recorder.apply(RecorderEvent::Gpu(&gpu, &GpuSample { utilization, ..GpuSample::default() }), at);
            recorder.close_steps(at);
        }
    }

    fn opened(folder: &Path, recorder: &mut Recorder, now: Now) -> HistoryKeeper {
        let mut keeper = HistoryKeeper::new(folder.to_owned(), Path::new("/proc"));
        keeper.open(recorder, now);
        keeper
    }

    /// This moment after the wall clock was set an hour ahead.
    fn jumped(second: u64) -> Now {
        Now { wall: WallTime(now(second).wall.0 + 3_600_000_000), ..now(second) }
    }

    /// The minutes between these seconds that are in the file.
    fn minutes(keeper: &mut HistoryKeeper, from: u64, to: u64) -> Vec<u64> {
        let steps = StoredTier::Minute.index_of(now(from).wall)..StoredTier::Minute.index_of(now(to).wall);
        let range = StoredRange { key: an_analysis().key, tier: StoredTier::Minute, steps };
        keeper.read(&range).unwrap().iter().map(|step| step.index).collect()
    }

    #[test]
    fn the_pair_of_clock_readings_of_a_boot_outlives_the_process_although_the_clock_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let mut before = recorder();
        let mut keeper = opened(folder.path(), &mut before, now(0));
        read_gpu(&mut before, 0..200);
        keeper.write(&mut before, now(200).monotonic);
        assert_eq!((before.unwritten().count(), keeper.state().1), (0, None));
        assert!(keeper.state().0.is_some_and(|bytes| bytes > 0));
        drop(keeper);
        let mut after = recorder();
        drop(opened(folder.path(), &mut after, jumped(300)));
        assert_eq!(after.anchor(), Anchor::new(now(0)));
    }

    #[test]
    fn a_file_that_another_process_has_is_opened_once_it_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let previous = opened(folder.path(), &mut recorder(), now(0));
        let mut recorder = recorder();
        let mut keeper = opened(folder.path(), &mut recorder, now(0));
        assert!(keeper.state().1.is_some_and(|why| why.contains("locked")));
        read_gpu(&mut recorder, 0..200);
        keeper.write(&mut recorder, now(200).monotonic);
        assert!(recorder.unwritten().count() > 0, "they wait");
        drop(previous);
        keeper.open(&mut recorder, now(1));
        assert!(keeper.state().1.is_some(), "not more often than every half minute");
        keeper.open(&mut recorder, now(40));
        keeper.write(&mut recorder, now(200).monotonic);
        assert_eq!((recorder.unwritten().count(), keeper.state().1), (0, None));
    }

    /// Promise 24 in docs/specification.md. During an upgrade the previous agent has the file for some time.
    #[test]
    fn the_pair_of_clock_readings_of_a_boot_outlives_an_upgrade_in_which_two_agents_run_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut before = recorder();
        let mut previous = opened(folder.path(), &mut before, now(0));
        read_gpu(&mut before, 0..1000);
        previous.write(&mut before, now(1000).monotonic);
        // The clock is set, and then the next agent starts.
        let mut after = recorder();
        let mut keeper = opened(folder.path(), &mut after, jumped(1000));
        assert_eq!(after.anchor(), Anchor::new(jumped(1000)), "nothing else is known yet");
        read_gpu(&mut before, 1000..1300);
        read_gpu(&mut after, 1000..1300);
        assert!(after.unwritten().count() > 0, "steps an hour ahead");
        previous.write(&mut before, now(1300).monotonic);
        drop(previous);
        keeper.open(&mut after, jumped(1300));
        assert_eq!(after.anchor(), Anchor::new(now(0)));
        read_gpu(&mut after, 1300..2000);
        keeper.write(&mut after, now(2000).monotonic);
        let kept = minutes(&mut keeper, 0, 3 * 3600);
        assert!(kept.len() >= 32, "{kept:?}");
        assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1), "no hole and nothing an hour ahead: {kept:?}");
    }

    #[test]
    fn without_a_writable_directory_the_histories_stay_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let mut recorder = recorder();
        let mut keeper = opened(&file.join("below"), &mut recorder, now(0));
        assert!(keeper.state().1.is_some() && keeper.state().0.is_none());
        read_gpu(&mut recorder, 0..200);
        keeper.write(&mut recorder, now(200).monotonic);
        let range = recorder.stored_range(&an_analysis(), now(200).monotonic).unwrap();
        assert_eq!((keeper.read(&range), recorder.unwritten().count() > 0), (Ok(Vec::new()), true));
    }

    fn an_analysis() -> profiles::recorder::Analysis {
        use model::workload_profile::{ProfiledQuantity, ProfiledSubject};
        let subject = ProfiledSubject::Gpu(GpuUuid::parse("GPU-1").unwrap());
        let key = model::stored_history::HistoryKey { subject, quantity: ProfiledQuantity::Utilization };
        profiles::recorder::Analysis { key, kind: profiles::schedule::AnalysisKind::Minutes }
    }
}
