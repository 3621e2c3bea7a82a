//! Rules for single files: names, `unsafe`, machine paths, diagrams, length.

use super::finding::{Finding, Rule};
use super::plan::{PLAN, Plan};
use super::tree::Tree;

/// Words that do not say what a file contains.
const EMPTY_WORDS: [&str; 12] = [
    "util", "utils", "utility", "helper", "helpers", "common", "misc", "types", "manager", "managers", "stuff",
    "shared",
];
/// Names that cargo claims inside a package whose root is the room's folder.
const CARGO_CLAIMS: [&str; 4] = ["build", "tests", "benches", "examples"];
/// Folders on a developer's machine. Written in two halves, so that this file does not break its own rule.
const MACHINE_FOLDERS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
/// The words that the head comment of every room must contain.
const PICTURE: &str = "What must never happen here";
/// Most lines of a Rust file. The fake API server of the tests and the table of all settings need nearly as many; other files
/// have half of it or less.
pub(crate) const MOST_LINES: usize = 800;

/// Finds forbidden names of files, folders and modules.
pub(crate) fn names(tree: &Tree, findings: &mut Vec<Finding>) {
    let ours = |path: &&String| ["src/", "tests/", "proto/"].iter().any(|top| path.starts_with(top));
    for path in tree.folders.iter().filter(ours).chain(tree.outlines.keys().filter(ours)) {
        let last = path.rsplit('/').next().unwrap_or_default();
        let name = last.strip_suffix(".rs").unwrap_or(last);
        if last == "mod.rs" {
            let what = "a module `foo` is `foo.rs` with a folder `foo/` beside it, never `foo/mod.rs`";
            findings.push(Finding::new(Rule::ForbiddenName, path, 0, what));
        } else if let Some(word) = empty_word(name) {
            findings.push(Finding::new(Rule::ForbiddenName, path, 0, nothing(word)));
        } else if path.starts_with("src/") && path.matches('/').count() == 2 && CARGO_CLAIMS.contains(&name) {
            let what = format!("cargo claims the name `{name}` in a room's folder: take another");
            findings.push(Finding::new(Rule::ForbiddenName, path, 0, what));
        }
    }
    for (path, outline) in tree.outlines.iter().filter(|(path, _)| ours(path)) {
        for module in outline.modules.iter().filter(|module| module.inline) {
            if let Some(word) = empty_word(&module.name) {
                findings.push(Finding::new(Rule::ForbiddenName, path, module.line, nothing(word)));
            }
        }
    }
}

fn empty_word(name: &str) -> Option<&str> {
    name.split(['_', '-']).find(|word| EMPTY_WORDS.contains(word))
}

fn nothing(word: &str) -> String {
    format!("`{word}` says nothing of what is inside: name the noun or verb that it owns")
}

/// `unsafe` stands only in files that the plan lists with a reason, and every listed file has some.
pub(crate) fn unsafe_code(tree: &Tree, plan: &Plan, findings: &mut Vec<Finding>) {
    let listed =
        |path: &str| plan.unsafe_files.iter().any(|file| path == file || file.ends_with('/') && path.starts_with(file));
    for (path, outline) in tree.outlines.iter().filter(|(path, _)| !path.starts_with("proto/gen/") && !listed(path)) {
        if let Some(line) = outline.unsafe_lines.first() {
            let what = format!("`unsafe` in a file that the table `file with unsafe` in {PLAN} does not list");
            findings.push(Finding::new(Rule::Unsafe, path, *line, what));
        }
    }
    for file in &plan.unsafe_files {
        let inside = |path: &str| path == file || file.ends_with('/') && path.starts_with(file.as_str());
        if !tree.outlines.iter().any(|(path, outline)| inside(path) && !outline.unsafe_lines.is_empty()) {
            findings.push(Finding::new(
                Rule::StalePlan,
                PLAN,
                0,
                format!("`{file}` is listed for `unsafe` and has none"),
            ));
        }
    }
}

/// No file contains a path of the machine on which it was written.
pub(crate) fn machine_paths(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, text) in tree.texts.iter().filter(|(path, _)| *path != "Cargo.lock") {
        for (number, line) in text.lines().enumerate() {
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| stands_alone(line, folder)) {
                let what = format!("a path of somebody's machine: `{folder}…`");
                findings.push(Finding::new(Rule::MachinePath, path, number + 1, what));
            }
        }
    }
}

/// Whether `folder` begins an absolute path in `line`, and is not the middle of another path.
fn stands_alone(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || "/._-}>*$~".contains(c)))
    })
}

/// The head comment of each room has a diagram and says what must never happen there.
pub(crate) fn pictures(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, text) in &tree.texts {
        let room = path.starts_with("src/") && path.matches('/').count() == 2;
        if room && path.ends_with("/lib.rs") {
            let head: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
            if !(head.contains("```text") && head.contains(PICTURE)) {
                let what = format!("the head must draw the room (```text) and say \"{PICTURE}\"");
                findings.push(Finding::new(Rule::Picture, path, 0, what));
            }
        }
    }
}

/// Finds code blocks in doc comments that the compiler would take for examples: only the examples of `pprof` are run
/// (`doctest = false`).
pub(crate) fn examples(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, text) in &tree.texts {
        if !path.ends_with(".rs") || path.starts_with("src/pprof/") {
            continue;
        }
        let mut open = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
            let Some(language) = comment.and_then(|comment| comment.trim_start().strip_prefix("```")) else { continue };
            open = !open;
            if open && language != "text" {
                let what = "an example that no run tries; make it a test, or a picture (```text)";
                findings.push(Finding::new(Rule::Picture, path, number + 1, what));
            }
        }
    }
}

/// Finds Rust files that are too long. Generated code has the length that it has.
pub(crate) fn lengths(tree: &Tree, findings: &mut Vec<Finding>) {
    for path in tree.outlines.keys().filter(|path| !path.starts_with("proto/gen/")) {
        let lines = tree.texts.get(path).map_or(0, |text| text.lines().count());
        if lines > MOST_LINES {
            let what =
                format!("has {lines} lines, and {MOST_LINES} are the most; move a noun of it to a file of its own");
            findings.push(Finding::new(Rule::Length, path, 0, what));
        }
    }
}
