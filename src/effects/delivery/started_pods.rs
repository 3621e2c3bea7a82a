//! The file of started pods. Before the agent answers the first `PreStartContainer` of a pod, it appends the pod's UID,
//! so that the next agent process knows that the pod holds devices. If the write fails, the agent logs the error and
//! continues. The pods' folders cannot show which pods have started, because the agent writes the folders earlier.

use super::file::{DeliveryError, failed, rename_into_place};
use model::id::PodUid;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use wire::started_pods::{self, FILE, StartedPods};

/// Only the agent may read and write it.
const MODE: u32 = 0o600;
/// The file is rewritten when more than this number of its lines are about pods that are gone. Each such pod has two
/// lines.
const MAX_GONE: usize = 256;
/// Maximum size of the file in bytes.
const MAX_BYTES: u64 = started_pods::MAX_BYTES as u64;

/// The file of started pods.
#[derive(Debug)]
pub struct StartedPodsFile {
    path: PathBuf,
    file: Option<File>,
    pods: BTreeSet<PodUid>,
    lines: usize,
    length: u64,
}

impl StartedPodsFile {
    /// The file in this state directory.
    #[must_use]
    pub fn new(state: &Path) -> StartedPodsFile {
        StartedPodsFile { path: state.join(FILE), file: None, pods: BTreeSet::new(), lines: 0, length: 0 }
    }

    /// Continues the file of an earlier agent process; `earlier` is its content.
    pub fn continues(&mut self, earlier: StartedPods) {
        (self.pods, self.lines, self.length) = (earlier.pods, earlier.lines, earlier.bytes);
    }

    /// Adds a pod before one of its starts is answered.
    ///
    /// # Errors
    /// If the line cannot be written: the file is full, or the disk is full or gone.
    pub fn note(&mut self, pod: &PodUid) -> Result<(), DeliveryError> {
        if self.pods.contains(pod) {
            return Ok(());
        }
        self.append(&started_pods::line(pod), 1)?;
        self.pods.insert(pod.clone());
        Ok(())
    }

    /// Appends this text, which has this number of lines.
    fn append(&mut self, text: &str, lines: usize) -> Result<(), DeliveryError> {
        let cannot_write = failed("write into", &self.path);
        if self.length + text.len() as u64 > MAX_BYTES {
            return Err(cannot_write(io::Error::other("it is full")));
        }
        let mut write = || {
            let mut file = match self.file.take() {
                Some(file) => file,
                None => fs::OpenOptions::new().append(true).create(true).mode(MODE).open(&self.path)?,
            };
            file.write_all(text.as_bytes())?;
            Ok(file)
        };
        self.file = Some(write().map_err(cannot_write)?);
        self.lines += lines;
        self.length += text.len() as u64;
        Ok(())
    }

    /// Removes all pods that are not in `pods`, and records that they have ended. If an etcd restore brings such a pod
    /// back, it starts like a new pod. Rewrites the file if it has many lines of pods that are gone.
    ///
    /// # Errors
    /// If it cannot be written; the file stays as it was.
    pub fn keep_only(&mut self, pods: &BTreeSet<PodUid>) -> Result<(), DeliveryError> {
        let ended: Vec<PodUid> = self.pods.difference(pods).cloned().collect();
        self.pods.retain(|pod| pods.contains(pod));
        if self.lines + ended.len() <= self.pods.len() + MAX_GONE {
            let text: String = ended.iter().map(started_pods::end_line).collect();
            return if ended.is_empty() { Ok(()) } else { self.append(&text, ended.len()) };
        }
        let text: String = self.pods.iter().map(started_pods::line).collect();
        rename_into_place(&self.path, text.as_bytes(), MODE)?;
        // The file that is open has been replaced, so the new file is opened.
        (self.file, self.lines, self.length) = (None, self.pods.len(), text.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of the next agent process, and the pods that it knows.
    fn next(folder: &Path) -> (StartedPodsFile, BTreeSet<PodUid>) {
        let mut starts = StartedPodsFile::new(folder);
        let earlier = started_pods::decode(&fs::read(folder.join(FILE)).unwrap_or_default());
        starts.continues(earlier.clone());
        (starts, earlier.pods)
    }

    fn recall(folder: &Path) -> BTreeSet<PodUid> {
        next(folder).1
    }

    fn uid(n: usize) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    #[test]
    fn an_answered_start_is_known_to_the_next_agent_process_until_its_pod_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (mut starts, known) = next(folder.path());
        assert_eq!(known, BTreeSet::new());
        for n in [2, 1, 2] {
            starts.note(&uid(n)).unwrap();
        }
        assert_eq!(fs::read_to_string(folder.path().join(FILE)).unwrap().trim().lines().count(), 2, "each pod once");
        // Lines that were cut or damaged, for example by a power loss.
        let mut file = fs::OpenOptions::new().append(true).open(folder.path().join(FILE)).unwrap();
        file.write_all(b"\n\xff\0\xfe\n0000").unwrap();
        let (mut starts, known) = next(folder.path());
        assert_eq!(known, BTreeSet::from([uid(1), uid(2)]));
        starts.note(&uid(3)).unwrap();
        starts.keep_only(&BTreeSet::from([uid(2), uid(3)])).unwrap();
        assert_eq!(recall(folder.path()), BTreeSet::from([uid(2), uid(3)]), "the first one has ended");
        starts.note(&uid(1)).unwrap();
        assert_eq!(recall(folder.path()), BTreeSet::from([uid(1), uid(2), uid(3)]));
    }

    #[test]
    fn the_file_of_started_pods_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut starts = StartedPodsFile::new(folder.path());
        for n in 0..10 * MAX_GONE {
            starts.note(&uid(n)).unwrap();
            starts.keep_only(&BTreeSet::from([uid(0), uid(n)])).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= (MAX_GONE as u64 + 3) * 34);
        }
        assert!(recall(folder.path()).contains(&uid(10 * MAX_GONE - 1)));
        let refused = (0..1 << 20).map(|n| starts.note(&uid(1 << 20 | n))).find_map(Result::err);
        assert!(refused.is_some_and(|error| error.to_string().contains("full")));
        assert!(fs::metadata(&path).unwrap().len() <= MAX_BYTES);
    }

    /// Damage that a power loss may cause.
    #[test]
    fn a_damaged_file_of_started_pods_loses_only_the_damaged_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut starts = StartedPodsFile::new(folder.path());
        starts.note(&uid(1)).unwrap();
        let line = fs::read(&path).unwrap();
        let zeros = [0; 4096];
        for (left, known) in [
            (vec![], 0),
            (zeros.to_vec(), 0),
            (line[..line.len() / 2].to_vec(), 0),
            ([&line[..], &zeros].concat(), 1),
            ([&zeros[..], &line].concat(), 1),
        ] {
            fs::write(&path, &left).unwrap();
            let (mut starts, pods) = next(folder.path());
            assert_eq!(pods.len(), known);
            starts.note(&uid(2)).unwrap();
            assert!(recall(folder.path()).contains(&uid(2)));
        }
    }
}
