//! The file in the state directory that keeps the GPU time and energy of pods over a restart of the agent.
//!
//! During an upgrade two agents write the file in turn, and each counts the same pods: the larger value of the two is
//! kept.
//!
//! What must never happen here: a count that falls because another agent wrote meanwhile.

use crate::state_file::StateFile;
use model::tally::GpuTally;
use std::io;
use std::path::Path;
use std::sync::Arc;
use wire::tally::{self, MAX_BYTES};

/// In the state directory.
const FILE: &str = "tallies.json";

/// The tally file.
#[derive(Clone, Debug)]
pub struct TallyFile(StateFile);

impl TallyFile {
    /// The file in this state directory.
    #[must_use]
    pub fn new(state_dir: &Path) -> TallyFile {
        TallyFile(StateFile::new(state_dir, FILE))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The tallies of an earlier agent process, for the start of this one. Removes temporary files that a killed agent
    /// left, too.
    #[must_use]
    pub fn recall(&self) -> Vec<GpuTally> {
        self.0.sweep();
        self.read()
    }

    /// The tallies in the file; none if there is no file, or if it cannot be decoded, which is logged.
    fn read(&self) -> Vec<GpuTally> {
        let start_from_zero = |error: &dyn std::fmt::Display| {
            tracing::warn!(file = %self.path().display(), %error, "GPU time and energy of pods start again from zero");
            Vec::new()
        };
        match self.0.read(MAX_BYTES) {
            Ok(None) => Vec::new(),
            Ok(Some(bytes)) => tally::decode(&bytes).unwrap_or_else(|error| start_from_zero(&error)),
            Err(error) => start_from_zero(&error),
        }
    }

    /// Keeps the larger of the values in the file and in `now`. Returns the result, also if it cannot be written.
    pub fn keep(&self, now: &[GpuTally]) -> (Arc<[GpuTally]>, io::Result<()>) {
        let in_file = self.read();
        let larger = |own: &GpuTally| match in_file.iter().find(|other| other.pod == own.pod && other.gpu == own.gpu) {
            Some(other) => GpuTally {
                held: if other.held.0 > own.held.0 { other.held } else { own.held },
                energy: if other.energy.0 > own.energy.0 { other.energy } else { own.energy },
                ..own.clone()
            },
            None => own.clone(),
        };
        let merged: Arc<[GpuTally]> = now.iter().map(larger).collect();
        let written = tally::encode(&merged)
            .map_err(|fault| io::Error::other(fault.to_string()))
            .and_then(|text| self.0.write(text.as_bytes()));
        (merged, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{GpuUuid, PodUid};
    use model::unit::{Millijoules, Nanos};
    use std::fs;

    fn tally(pod: u8, held: u64, energy: u64) -> GpuTally {
        GpuTally {
            pod: PodUid::parse(&format!("{pod:032x}")).unwrap(),
            gpu: GpuUuid::parse("GPU-1").unwrap(),
            held: Nanos(held),
            energy: Millijoules(energy),
        }
    }

    #[test]
    fn kept_tallies_are_recalled_and_never_decrease() {
        let folder = tempfile::tempdir().unwrap();
        let file = TallyFile::new(folder.path());
        assert!(file.recall().is_empty());
        let (kept, written) = file.keep(&[tally(1, 100, 7), tally(2, 5, 5)]);
        written.unwrap();
        assert_eq!(file.recall(), kept.to_vec());
        // Another agent, which is about to end, has counted further; a pod that is gone is not kept for ever.
        let (kept, written) = file.keep(&[tally(1, 90, 8)]);
        written.unwrap();
        assert_eq!(kept.to_vec(), [tally(1, 100, 8)]);
        assert_eq!(file.recall(), [tally(1, 100, 8)]);
    }

    #[test]
    fn a_truncated_tally_file_is_ignored_and_a_failed_write_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = TallyFile::new(folder.path());
        fs::write(file.path(), r#"{"version":1,"tallies":[{"pod":"#).unwrap();
        assert!(file.recall().is_empty());
        let (kept, written) = TallyFile::new(file.path()).keep(&[tally(1, 1, 1)]);
        assert!(written.is_err(), "there is no folder below a file");
        assert_eq!(kept.to_vec(), [tally(1, 1, 1)], "the tallies are returned also after a failed write");
    }
}
