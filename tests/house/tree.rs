//! Reads the files of the repository once.

use super::finding::{Finding, Rule};
use super::imports::{Outline, outline};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Folders that are skipped: the output of cargo, fuzzers and records.
const LEFT_OUT: [&str; 6] = ["target", ".git", "corpus", "artifacts", "proptest-regressions", "runs"];
/// Larger files are data and are skipped.
const MAX_TEXT: u64 = 1 << 20;

/// Every text file by its path below the root, and the outlines of the Rust files.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) texts: BTreeMap<String, String>,
    pub(crate) outlines: BTreeMap<String, Outline>,
    pub(crate) folders: Vec<String>,
}

// === impl Tree ===

impl Tree {
    /// Reads all files below `root`. A file that cannot be read is a finding.
    pub(crate) fn read(root: &Path, findings: &mut Vec<Finding>) -> Tree {
        let mut tree = Tree::default();
        tree.folder(root, "", findings);
        for (path, text) in &tree.texts {
            if is_rust(path) {
                tree.outlines.insert(path.clone(), outline(text));
            }
        }
        tree
    }

    fn folder(&mut self, root: &Path, below: &str, findings: &mut Vec<Finding>) {
        let entries = match fs::read_dir(root.join(below)) {
            Ok(entries) => entries,
            Err(error) => return findings.push(Finding::new(Rule::Unreadable, below, 0, error.to_string())),
        };
        let mut names: Vec<_> = entries.flatten().collect();
        names.sort_by_key(fs::DirEntry::file_name);
        for entry in names {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
            let Ok(kind) = entry.file_type() else { continue };
            if LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            if kind.is_dir() {
                self.folders.push(path.clone());
                self.folder(root, &path, findings);
            } else if kind.is_file() && entry.metadata().is_ok_and(|meta| meta.len() <= MAX_TEXT) {
                self.file(root, path, findings);
            }
        }
    }

    fn file(&mut self, root: &Path, path: String, findings: &mut Vec<Finding>) {
        match fs::read(root.join(&path)).map(String::from_utf8) {
            Ok(Ok(text)) => drop(self.texts.insert(path, text)),
            Ok(Err(_)) if is_rust(&path) || path.ends_with(".toml") => {
                findings.push(Finding::new(Rule::Unreadable, &path, 0, "is not UTF-8"));
            }
            Ok(Err(_)) => {}
            Err(error) => findings.push(Finding::new(Rule::Unreadable, &path, 0, error.to_string())),
        }
    }
}

pub(crate) fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ending| ending == "rs")
}

/// The folder of a path: `a/b` for `a/b/c.rs`; empty at the root.
pub(crate) fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// `folder/name`, with `..` and an empty folder resolved.
pub(crate) fn join(folder: &str, name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
