//! Names that say nothing, and paths of the machine on which a file was written.

use super::{Findings, Tree, is_rust};

/// Words that do not say what a file contains.
const EMPTY_WORDS: [&str; 12] = [
    "util", "utils", "utility", "helper", "helpers", "common", "misc", "types", "manager", "managers", "stuff",
    "shared",
];
/// Folders on a developer's machine. Written in two halves, so that this file does not break its own rule.
const MACHINE_FOLDERS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// Checks the names of our folders, Rust files and modules, and the lines of all files.
pub(crate) fn check(tree: &Tree, findings: &mut Findings) {
    for (path, text) in tree.iter().filter(|(path, _)| *path != "Cargo.lock") {
        let ours = ["src/", "tests/", "proto/"].iter().any(|top| path.starts_with(top));
        let (folders, file) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = file.strip_suffix(".rs");
        for name in folders.split('/').chain(stem).filter(|_| ours) {
            no_empty_word(name, path, 0, findings);
        }
        for (at, line) in text.lines().enumerate() {
            let module = line.trim_end().strip_suffix('{').and_then(|line| line.trim().rsplit_once("mod "));
            if let Some((_, name)) = module.filter(|(before, _)| ours && is_rust(path) && !before.contains('/')) {
                no_empty_word(name, path, at + 1, findings);
            }
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| begins_a_path(line, folder)) {
                findings.add("machine-path", path, at + 1, format!("a path of somebody's machine: `{folder}…`"));
            }
        }
    }
}

fn no_empty_word(name: &str, path: &str, line: usize, findings: &mut Findings) {
    if let Some(word) = name.split(['_', '-']).find(|word| EMPTY_WORDS.contains(word)) {
        let what = format!("`{word}` says nothing of what is inside: name the noun or verb that it owns");
        findings.add("forbidden-name", path, line, what);
    }
}

/// Whether `folder` begins an absolute path in `line`, and is not the middle of another path.
fn begins_a_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || "/._-}>*$~".contains(c)))
    })
}
