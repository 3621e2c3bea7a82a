//! The kubelet's checkpoint: which container of which pod holds which device ids, and the plugin's answer for them.
//!
//! ```text
//!   device-plugins/kubelet_internal_checkpoint ──stat, read──▶ wire::checkpoint ──▶ rows of one resource
//! ```
//!
//! What must never happen here: the file is written; a file that cannot be read is taken for an empty one.

use crate::bounded_file;
use model::checkpoint::CheckpointEntry;
use model::file_stamp::FileStamp;
use model::id::ContainerKey;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{checkpoint, ticket};

/// Name of the file in the kubelet's directory of device plugins.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Reads the checkpoint, and does not parse the file again while it is unchanged.
#[derive(Clone, Debug)]
pub struct CheckpointReader {
    path: PathBuf,
    resource: Arc<str>,
    seen: Option<(FileStamp, CheckpointEntries)>,
}

/// The checkpoint entries of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointEntries {
    /// The entries that could be read.
    pub held: Arc<[CheckpointEntry]>,
    /// The reasons why other entries cannot be read. While there are any, a container that is not in `held` may hold
    /// devices too.
    pub unreadable: Arc<[Arc<str>]>,
}

/// Most unreadable entries whose reason is kept; one is enough to see that something is wrong.
const MAX_REASONS: usize = 16;

impl CheckpointReader {
    /// A reader of the checkpoint entries of `resource` in the kubelet's directory of device plugins.
    #[must_use]
    pub fn new(folder: &Path, resource: Arc<str>) -> CheckpointReader {
        CheckpointReader { path: folder.join(FILE), resource, seen: None }
    }

    /// The stamp of the file, by one `stat`. The kubelet replaces the file by a new one, so the stamp shows whether it
    /// has changed. Blocks for as long as the file system takes.
    #[must_use]
    pub fn stamp(&self) -> Option<FileStamp> {
        bounded_file::stamp(&self.path).ok()
    }

    /// All entries of the resource. Blocks for as long as the file system takes.
    ///
    /// # Errors
    /// A sentence that names the file: it is missing, unreadable or not a checkpoint.
    pub fn read(&mut self) -> Result<CheckpointEntries, String> {
        let with_path =
            |error: &dyn std::fmt::Display| format!("kubelet's checkpoint {}: {error}", self.path.display());
        let file = bounded_file::open(&self.path).map_err(|error| with_path(&error))?;
        let metadata = file.metadata().map_err(|error| with_path(&error))?;
        let stamp = bounded_file::stamp_of(&metadata);
        if let Some((seen, entries)) = &self.seen
            && *seen == stamp
        {
            return Ok(entries.clone());
        }
        let checkpoint = parse(file).map_err(|why| with_path(&why))?;
        let unreadable = checkpoint.unreadable.iter().filter(|one| *one.resource == *self.resource);
        let entries = CheckpointEntries {
            unreadable: unreadable.take(MAX_REASONS).map(|one| one.fault.to_string().into()).collect(),
            held: checkpoint.allocations.into_iter().filter(|row| *row.resource == *self.resource).map(held).collect(),
        };
        self.seen = Some((stamp, entries.clone()));
        Ok(entries)
    }
}

/// The ids that the checkpoint lists as devices of `resource`, from any plugin; empty if the checkpoint cannot be read.
/// Blocks for as long as the file system takes.
#[must_use]
pub fn registered(folder: &Path, resource: &str) -> Vec<Arc<str>> {
    let checkpoint = bounded_file::open(&folder.join(FILE)).ok().and_then(|file| parse(file).ok());
    checkpoint.and_then(|mut checkpoint| checkpoint.registered.remove(resource)).unwrap_or_default()
}

fn parse(file: fs::File) -> Result<checkpoint::Checkpoint, String> {
    let bytes = bounded_file::read_open(file, checkpoint::MAX_BYTES).map_err(|error| error.to_string())?;
    checkpoint::parse(&bytes).map_err(|fault| fault.to_string())
}

fn held(row: checkpoint::CheckpointRow) -> CheckpointEntry {
    let late = row.cdi_devices.iter().find_map(|name| ticket::parse(name).ok());
    CheckpointEntry {
        holder: ContainerKey { pod: row.pod, container: row.container },
        ids: row.ids,
        early: late.is_none() && row.ticket.is_some(),
        ticket: late.or(row.ticket),
        foreign: row.foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_entry_is_reported_only_for_the_agents_resource() {
        let folder = tempfile::tempdir().unwrap();
        let entry = |uid: &str, resource: &str, answer: &str| {
            format!(
                r#"{{"PodUID":"{uid}","ContainerName":"main","ResourceName":"{resource}","DeviceIDs":{{"-1":["a"]}},"AllocResp":"{answer}"}}"#
            )
        };
        let uid = "466d3e0f-28fd-4a4c-a28d-790ef2a79f8c";
        let write = |entries: &[String]| {
            let text = format!(r#"{{"Data":{{"PodDeviceEntries":[{}]}}}}"#, entries.join(","));
            fs::write(folder.path().join(FILE), text).unwrap();
        };
        let mut checkpoint = CheckpointReader::new(folder.path(), "nvidia.com/gpu".into());
        write(&[entry(uid, "nvidia.com/gpu", ""), entry(uid, "other/nic", "***")]);
        let entries = checkpoint.read().unwrap();
        assert_eq!(
            (entries.held.len(), entries.unreadable.len()),
            (1, 0),
            "the answers of other plugins are not checked"
        );
        write(&[
            entry(uid, "nvidia.com/gpu", ""),
            entry("b", "nvidia.com/gpu", "***"),
            entry(uid, "nvidia.com/gpu", "***"),
        ]);
        for _ in 0..2 {
            let entries = checkpoint.read().unwrap();
            assert_eq!((entries.held.len(), entries.unreadable.len()), (1, 2), "also when the file is not read again");
            assert!(entries.unreadable[0].contains("entry 1 cannot be read"), "{entries:?}");
        }
    }
}
