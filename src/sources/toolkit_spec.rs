//! The CDI spec of NVIDIA's container toolkit, which lists what a container with a GPU needs from the host: libraries,
//! hooks, device nodes.
//!
//! ```text
//!   <cdi folder>/nvidia*.{json,yaml} ──stat, read──▶ wire::cdi ──▶ ToolkitSpec, the first that describes GPUs
//! ```
//!
//! If no spec describes GPUs for all containers, the spec for containers of the GPU Operator counts
//! (`management.nvidia.com/gpu`): it has the driver's libraries, and one device with the device nodes of all GPUs.
//!
//! What must never happen here: a spec is written; a spec that gives one GPU to every container is used.

use crate::bounded_file;
use model::file_stamp::FileStamp;
use model::nvidia::{CDI_FILES, CDI_KIND, MANAGEMENT_CDI_KIND};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::cdi::{self, CdiSpec, host};

/// Maximum number of entries of a folder of CDI specs that are listed: more than there are tickets on the largest node.
const MAX_ENTRIES: usize = 65_536;
/// Maximum number of toolkit files that are read at once; usually there is one.
const MAX_FILES: usize = 8;

/// A CDI spec that is used.
#[derive(Debug)]
pub struct ToolkitSpec {
    /// The path of the file.
    pub path: PathBuf,
    /// The spec's content.
    pub spec: CdiSpec,
}

/// The result of [`ToolkitSpecReader::poll`].
#[derive(Debug)]
pub enum ToolkitSpecUpdate {
    /// No file has changed since the last poll.
    Unchanged,
    /// The spec that holds now; `None` without a spec.
    Now(Option<Arc<ToolkitSpec>>),
}

/// Reads the spec, and does not read the files again while they are unchanged.
#[derive(Clone, Debug)]
pub struct ToolkitSpecReader {
    folders: Vec<PathBuf>,
    /// The toolkit's files at the last poll; `None` before the first.
    seen: Option<Vec<(PathBuf, FileStamp)>>,
}

impl ToolkitSpecReader {
    /// A reader of the specs in these folders; a later folder has priority over an earlier folder.
    #[must_use]
    pub fn new(folders: Vec<PathBuf>) -> ToolkitSpecReader {
        ToolkitSpecReader { folders, seen: None }
    }

    /// The folders.
    #[must_use]
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Reads the files if one of them has changed. Each file that cannot be used is logged. Blocks for as long as the
    /// file system takes.
    #[must_use]
    pub fn poll(&mut self) -> ToolkitSpecUpdate {
        let files = files(&self.folders);
        if self.seen.as_ref() == Some(&files) {
            return ToolkitSpecUpdate::Unchanged;
        }
        let spec = first_usable(&files);
        self.seen = Some(files);
        ToolkitSpecUpdate::Now(spec.map(Arc::new))
    }
}

/// The toolkit's files by priority: the last folder first, and by name within a folder.
fn files(folders: &[PathBuf]) -> Vec<(PathBuf, FileStamp)> {
    let of_folder = |folder: &PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().take(MAX_ENTRIES).flatten();
        let mut found: Vec<(PathBuf, FileStamp)> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(is_name))
            .filter_map(|entry| {
                let metadata = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
                Some((entry.path(), bounded_file::stamp_of(&metadata)))
            })
            .collect();
        found.sort();
        found
    };
    folders.iter().rev().flat_map(of_folder).take(MAX_FILES).collect()
}

fn is_name(name: &str) -> bool {
    let end = Path::new(name).extension().and_then(|end| end.to_str());
    CDI_FILES.iter().any(|start| name.starts_with(start)) && matches!(end, Some("json" | "yaml"))
}

/// The first of these files that describes GPUs for all containers, otherwise the first for containers of the GPU Operator.
/// Unusable files before it are logged.
fn first_usable(files: &[(PathBuf, FileStamp)]) -> Option<ToolkitSpec> {
    let mut management = None;
    for (path, _) in files {
        match read(path) {
            Ok(Some(spec)) if spec.kind == CDI_KIND => return Some(ToolkitSpec { path: path.clone(), spec }),
            Ok(spec) => management = management.or(spec.map(|spec| ToolkitSpec { path: path.clone(), spec })),
            Err(why) => tracing::warn!(
                file = %path.display(), why,
                "this CDI spec cannot be used: containers do not get its libraries, hooks and device nodes"
            ),
        }
    }
    management
}

/// Reads a CDI spec; `None` if it is of another kind of device.
fn read(path: &Path) -> Result<Option<CdiSpec>, String> {
    let bytes = bounded_file::read(path, cdi::MAX_BYTES).map_err(|error| error.to_string())?;
    let spec = if path.extension().is_some_and(|end| end == "json") {
        cdi::decode(&bytes)
    } else {
        let text = std::str::from_utf8(&bytes).map_err(|error| error.to_string())?;
        cdi::of_value(serde_saphyr::from_str(text).map_err(|error| error.to_string())?)
    };
    let spec = spec.map_err(|fault| fault.to_string())?;
    if ![CDI_KIND, MANAGEMENT_CDI_KIND].contains(&spec.kind.as_str()) {
        return Ok(None);
    }
    host::for_all(&spec)?;
    Ok(Some(spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = include_str!("../../tests/golden/cdi/nvidia-ctk.yaml");

    fn found(folders: &[PathBuf]) -> Option<ToolkitSpec> {
        first_usable(&files(folders))
    }

    #[test]
    fn the_later_folder_has_priority_and_a_broken_file_is_skipped() {
        let root = tempfile::tempdir().unwrap();
        let folders = [root.path().join("etc"), root.path().join("run"), root.path().join("none")];
        for folder in &folders[..2] {
            fs::create_dir(folder).unwrap();
        }
        assert!(found(&folders).is_none());
        fs::write(folders[0].join("nvidia.yaml"), YAML).unwrap();
        fs::write(folders[0].join("other.yaml"), YAML).unwrap();
        assert_eq!(found(&folders).unwrap().path, folders[0].join("nvidia.yaml"));
        fs::write(folders[1].join("nvidia.com-gpu.json"), "{").unwrap();
        fs::write(folders[1].join("nvidia-imex.yaml"), YAML.replace("kind: nvidia.com/gpu", "kind: nvidia.com/imex"))
            .unwrap();
        assert_eq!(found(&folders).unwrap().path, folders[0].join("nvidia.yaml"), "the broken file is skipped");
        fs::write(folders[1].join("nvidia.yaml"), YAML).unwrap();
        let spec = found(&folders).unwrap();
        assert_eq!(spec.path, folders[1].join("nvidia.yaml"));
        assert!(!spec.spec.container_edits.mounts.is_empty());
    }

    #[test]
    fn the_spec_of_the_gpu_operator_counts_where_there_is_no_other() {
        let root = tempfile::tempdir().unwrap();
        let folders = [root.path().join("etc"), root.path().join("run")];
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let management = folders[1].join("management.nvidia.com-gpu.yaml");
        fs::write(&management, YAML.replace("kind: nvidia.com/gpu", "kind: management.nvidia.com/gpu")).unwrap();
        let spec = found(&folders).unwrap();
        assert_eq!(spec.path, management);
        let libraries = &spec.spec.container_edits.mounts;
        assert!(libraries.iter().any(|mount| mount.container_path.contains("libcuda.so")), "{libraries:?}");
        let other = folders[0].join("nvidia.yaml");
        fs::write(&other, YAML).unwrap();
        assert_eq!(
            found(&folders).unwrap().path,
            other,
            "the spec for all containers, even in a folder of lower priority"
        );
    }

    #[test]
    fn an_unusable_spec_gives_a_reason() {
        let root = tempfile::tempdir().unwrap();
        let loose = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}]},"devices":[{"name":"0","containerEdits":{"env":["A=b"]}}]}"#;
        for (name, text, word) in [
            ("nvidia.json", "{", "JSON"),
            ("nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "0 devices"),
            ("nvidia-1.yaml", "\u{0}", ""),
            ("nvidia-2.json", loose, "to every container"),
            ("nvidia-3.yaml", &"#".repeat(cdi::MAX_BYTES + 1), "longer than"),
        ] {
            let path = root.path().join(name);
            fs::write(&path, text).unwrap();
            let why = read(&path).unwrap_err();
            assert!(why.contains(word), "{name}: {why}");
        }
    }

    #[test]
    fn files_are_read_again_only_after_a_change() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("nvidia.yaml");
        let mut reader = ToolkitSpecReader::new(vec![root.path().to_owned()]);
        assert!(matches!(reader.poll(), ToolkitSpecUpdate::Now(None)), "the first poll reports that there is none");
        assert!(matches!(reader.poll(), ToolkitSpecUpdate::Unchanged));
        fs::write(&path, YAML).unwrap();
        assert!(matches!(reader.poll(), ToolkitSpecUpdate::Now(Some(found)) if found.path == path));
        assert!(matches!(reader.poll(), ToolkitSpecUpdate::Unchanged));
        fs::remove_file(&path).unwrap();
        assert!(matches!(reader.poll(), ToolkitSpecUpdate::Now(None)));
    }
}
