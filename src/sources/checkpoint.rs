//! The kubelet's checkpoint: which container of which pod holds which device ids, and the plugin's answer for them.
//!
//! ```text
//!   device-plugins/kubelet_internal_checkpoint ──stat, read──▶ wire::checkpoint ──▶ rows of one resource
//! ```
//!
//! What must never happen here: the file is written; an unreadable file is taken for an empty file.

use crate::bounded_file;
use model::checkpoint::{CheckpointEntry, ForeignEntry};
use model::file_stamp::FileStamp;
use model::gpu_id;
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
    /// Devices that may be GPUs and that containers got from other plugins, or under other resources.
    pub foreign: Arc<[ForeignEntry]>,
    /// The reasons why other entries cannot be read. If there are such entries, a container that is not in `held` may
    /// hold devices too.
    pub unreadable: Arc<[Arc<str>]>,
}

/// Maximum number of unreadable entries whose reason is kept; one is enough to see that something is wrong.
const MAX_REASONS: usize = 16;

impl CheckpointReader {
    /// A reader of the checkpoint entries of `resource` in the kubelet's directory of device plugins.
    #[must_use]
    pub fn new(folder: &Path, resource: Arc<str>) -> CheckpointReader {
        CheckpointReader { path: folder.join(FILE), resource, seen: None }
    }

    /// The stamp of the file, by one `stat`. The kubelet replaces the file by a new file, so the stamp shows whether it
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
        let unreadable = unreadable.take(MAX_REASONS).map(|one| one.fault.to_string().into()).collect();
        let (mut own, mut foreign) = (Vec::new(), Vec::new());
        for mut row in checkpoint.allocations {
            let own_resource = *row.resource == *self.resource;
            let answer = (std::mem::take(&mut row.answered), std::mem::take(&mut row.nodes));
            let entry = held(row);
            foreign.extend(foreign_entry(&entry, answer, own_resource));
            if own_resource {
                own.push(entry);
            }
        }
        let entries = CheckpointEntries { held: own.into(), foreign: foreign.into(), unreadable };
        self.seen = Some((stamp, entries.clone()));
        Ok(entries)
    }
}

/// The devices that a container got from another plugin, or GPUs that it got under another resource. `None` if the
/// entry has neither. The plugin's answer names the GPUs `answered`, and has the device nodes of the GPUs `nodes`.
fn foreign_entry(
    entry: &CheckpointEntry,
    (answered, nodes): (Vec<Arc<str>>, Vec<u32>),
    own_resource: bool,
) -> Option<ForeignEntry> {
    if own_resource && !entry.is_foreign() {
        return None;
    }
    let mut devices = if answered.is_empty() { entry.ids.clone() } else { answered };
    if !own_resource {
        devices.retain(|name| gpu_id::is_of_gpu(name));
    }
    let has_gpus = own_resource || !devices.is_empty() || !nodes.is_empty();
    has_gpus.then(|| ForeignEntry { holder: entry.holder.clone(), own_resource, devices, nodes })
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

    /// `tests/golden/checkpoints` has one container for each way in which another plugin gives a GPU.
    #[test]
    fn what_other_plugins_gave_is_reported_with_the_gpus_in_their_answers() {
        let folder = tempfile::tempdir().unwrap();
        let others = include_str!("../../tests/golden/checkpoints/other-plugins.json");
        fs::write(folder.path().join(FILE), others).unwrap();
        let mut checkpoint = CheckpointReader::new(folder.path(), "nvidia.com/gpu".into());
        let entries = checkpoint.read().unwrap();
        let shown: Vec<(&str, bool, Vec<&str>)> = entries
            .foreign
            .iter()
            .map(|entry| {
                let devices = entry.devices.iter().map(AsRef::as_ref).collect();
                (&*entry.holder.container, entry.own_resource, devices)
            })
            .collect();
        let nodes: Vec<u32> = entries.foreign.iter().flat_map(|entry| entry.nodes.clone()).collect();
        assert_eq!(nodes, [0, 1], "of the last two entries");
        let (zero, one) = ("GPU-00000000-0d2c-4b7f-9a51-2f1f6a1f8d11", "GPU-00000001-0d2c-4b7f-9a51-2f1f6a1f8d11");
        let mig = "MIG-00000002-0d2c-4b7f-9a51-2f1f6a1f8d11";
        assert_eq!(
            shown,
            [
                ("whole", true, vec![zero]),
                ("by-index", true, vec![one]),
                ("time-slice", true, vec![&*format!("{one}::3")]),
                ("hami", true, vec![one]),
                ("volume-mount", true, vec![one]),
                ("cdi-annotation", true, vec![one]),
                ("cdi", true, vec![one]),
                ("mig", false, vec![mig]),
                ("named-otherwise", true, vec!["nvidia0"]),
                ("elsewhere", false, vec![]),
            ]
        );
        assert_eq!((entries.held.len(), entries.unreadable.len()), (9, 0), "the agent's own entry is no foreign one");
    }

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
