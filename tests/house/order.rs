//! Order inside a room: a file imports only files that are listed above it in its `lib.rs` or parent. So the reading
//! order is the dependency order, and no room has a cycle of modules.
//!
//! A parent may use its children. A child must not use its parent, because that would be a cycle. Code for tests only
//! is not checked.

use super::doors::Manifest;
use super::finding::{Finding, Rule};
use super::imports::Named;
use super::tree::{Tree, folder_of, is_rust, join};
use std::collections::{BTreeMap, BTreeSet};
use toml::Value;

/// Longest chain of re-exports that is followed.
const MAX_REEXPORTS: usize = 8;
/// Rust files that belong to no crate of this workspace: generated code is included by name, fuzz targets and one bench
/// are separate workspaces.
const NO_CRATE: [&str; 3] = ["proto/gen/", "tests/fuzz/", "tests/bench/watchers/"];

/// A file of a crate by its module path.
#[derive(Debug)]
struct Room<'a> {
    tree: &'a Tree,
    /// Module path → file.
    files: BTreeMap<Vec<String>, String>,
    /// Module path → names of its modules, in the order they are listed.
    listed: BTreeMap<Vec<String>, Vec<String>>,
    /// Whether it is a test binary, whose modules may use what its root declares for all of them.
    test: bool,
}

/// Checks every crate that a manifest names, and that every file belongs to a crate.
pub(crate) fn check(manifests: &[Manifest], tree: &Tree, findings: &mut Vec<Finding>) {
    let mut reached = BTreeSet::new();
    for manifest in manifests {
        for (root, test) in roots(manifest) {
            let room = Room::read(tree, &root, test);
            for (module, file) in &room.files {
                reached.insert(file.clone());
                if !NO_CRATE.iter().any(|folder| file.starts_with(folder)) {
                    room.file(module, file, findings);
                }
            }
        }
    }
    let free = |path: &str| NO_CRATE.iter().any(|folder| path.starts_with(folder));
    for path in tree.outlines.keys().filter(|path| !reached.contains(*path) && !free(path)) {
        let what = "no crate reaches this file: no `mod` names it, so it is never compiled";
        findings.push(Finding::new(Rule::Orphan, path, 0, what));
    }
}

/// Files that are compiled for tests only, because they are declared by `#[cfg(test)] mod name;`.
pub(crate) fn test_only_files(manifests: &[Manifest], tree: &Tree) -> BTreeSet<String> {
    let mut test_only = BTreeSet::new();
    let mut compiled = BTreeSet::new();
    for (root, test) in manifests.iter().flat_map(roots) {
        let room = Room::read(tree, &root, test);
        for (module, file) in &room.files {
            let files = if room.test_only(module) { &mut test_only } else { &mut compiled };
            files.insert(file.clone());
        }
    }
    test_only.retain(|file| !compiled.contains(file));
    test_only
}

/// Finds fuzz targets that their manifest does not name: they would never run.
pub(crate) fn fuzz_targets(tree: &Tree, findings: &mut Vec<Finding>) {
    const FOLDER: &str = "tests/fuzz/";
    let manifest = tree.texts.get("tests/fuzz/Cargo.toml").map_or("", String::as_str);
    for path in tree.outlines.keys() {
        let Some(below) = path.strip_prefix(FOLDER).filter(|below| below.starts_with("fuzz_targets/")) else {
            continue;
        };
        if !manifest.contains(&format!("\"{below}\"")) {
            let what = "tests/fuzz/Cargo.toml has no [[bin]] for this fuzz target, so it is never run";
            findings.push(Finding::new(Rule::Orphan, path, 0, what));
        }
    }
}

/// The root files of a package's crates, and whether each is a test binary.
fn roots(manifest: &Manifest) -> Vec<(String, bool)> {
    let folder = folder_of(&manifest.path);
    let path = |target: &Value| target.get("path").and_then(Value::as_str).map(|path| join(folder, path));
    let mut found: Vec<(String, bool)> =
        manifest.table.get("lib").and_then(path).map(|lib| (lib, false)).into_iter().collect();
    for (kind, test) in [("bin", false), ("test", true), ("bench", true)] {
        let targets = manifest.table.get(kind).and_then(Value::as_array);
        found.extend(targets.into_iter().flatten().filter_map(path).map(|root| (root, test)));
    }
    found
}

// === impl Room ===

impl<'a> Room<'a> {
    fn read(tree: &'a Tree, root: &str, test: bool) -> Room<'a> {
        let mut room = Room { tree, files: BTreeMap::new(), listed: BTreeMap::new(), test };
        room.module(Vec::new(), root.to_owned(), folder_of(root).to_owned());
        room
    }

    /// Adds the module `path`, whose file is `file` and whose children are in `folder`.
    fn module(&mut self, path: Vec<String>, file: String, folder: String) {
        let Some(outline) = self.tree.outlines.get(&file) else { return };
        if self.files.insert(path.clone(), file).is_some() {
            return;
        }
        for module in &outline.modules {
            let mut around = path.clone();
            around.extend(module.scope.iter().cloned());
            self.listed.entry(around.clone()).or_default().push(module.name.clone());
            if module.inline {
                continue;
            }
            let below = join(&folder, &module.scope.join("/"));
            let name = join(&below, &module.name);
            let candidates = [format!("{name}.rs"), format!("{name}/mod.rs")];
            if let Some(file) = candidates.into_iter().find(|file| self.tree.outlines.contains_key(file)) {
                around.push(module.name.clone());
                self.module(around, file, name);
            }
        }
    }

    fn file(&self, module: &[String], file: &str, findings: &mut Vec<Finding>) {
        let Some(outline) = self.tree.outlines.get(file) else { return };
        let test_only = self.test_only(module);
        for named in outline.paths.iter().filter(|named| !named.test && !named.bang && !test_only) {
            let Some(target) = absolute(module, named) else { continue };
            if let Some(what) = self.upward(module, &target, MAX_REEXPORTS) {
                let what = format!("`{}` {what}", named.segments.join("::"));
                findings.push(Finding::new(Rule::UpwardImport, file, named.line, what));
            }
        }
    }

    /// Whether the module or one around it is compiled for tests only.
    fn test_only(&self, module: &[String]) -> bool {
        (0..module.len()).any(|depth| {
            let file = (0..=depth).rev().find(|end| self.files.contains_key(&module[..*end])).unwrap_or(0);
            let outline = self.files.get(&module[..file]).and_then(|file| self.tree.outlines.get(file));
            let declared = outline.iter().flat_map(|outline| &outline.modules);
            declared.filter(|m| m.name == module[depth] && m.scope == module[file..depth]).any(|m| m.test)
        })
    }

    /// The reason why `module` must not import `target` (an absolute path); `None` if it may.
    fn upward(&self, module: &[String], target: &[String], patience: usize) -> Option<String> {
        let owner = (0..=target.len()).rev().map(|end| &target[..end]).find(|path| self.files.contains_key(*path))?;
        if owner.starts_with(module) {
            return None;
        }
        if module.starts_with(owner) {
            let name = target.get(owner.len());
            if let Some(real) = name.and_then(|name| self.reexport(owner, name)) {
                return if patience == 0 { None } else { self.upward(module, &real, patience - 1) };
            }
            if self.test && owner.is_empty() {
                return None;
            }
            let parent = self.files.get(owner)?;
            return Some(format!("belongs to {parent}, which stands above this file and uses it: a circle"));
        }
        let depth = owner.iter().zip(module).take_while(|(theirs, ours)| theirs == ours).count();
        let listed = self.listed.get(&module[..depth])?;
        let place = |name: &String| listed.iter().position(|listed| listed == name);
        let (theirs, ours) = (&owner[depth], &module[depth]);
        if place(theirs) < place(ours) {
            return None;
        }
        let parent = self.files.get(&module[..depth]).map_or("its parent", String::as_str);
        Some(format!("is imported upwards: {parent} lists `{theirs}` below `{ours}`"))
    }

    /// The path behind `name`, if the file of `module` only re-exports it.
    fn reexport(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let outline = self.tree.outlines.get(self.files.get(module)?)?;
        let passed = outline.paths.iter().find(|path| path.scope.is_empty() && path.import.as_deref() == Some(name))?;
        match passed.segments.first().map(String::as_str) {
            Some("crate" | "self" | "super") => absolute(module, passed),
            Some(first) if self.listed.get(module).is_some_and(|listed| listed.iter().any(|name| name == first)) => {
                Some(module.iter().chain(&passed.segments).cloned().collect())
            }
            // An external crate.
            _ => None,
        }
    }
}

/// The absolute path of `named` in the file of `module`; `None` if it begins outside the crate.
fn absolute(module: &[String], named: &Named) -> Option<Vec<String>> {
    let mut here: Vec<String> = module.iter().chain(&named.scope).cloned().collect();
    let mut rest = named.segments.as_slice();
    match rest.first().map(String::as_str)? {
        "crate" => here.clear(),
        "self" => {}
        "super" => drop(here.pop()),
        _ => return None,
    }
    rest = &rest[1..];
    while rest.first().is_some_and(|next| next == "super") {
        here.pop();
        rest = &rest[1..];
    }
    here.extend(rest.iter().cloned());
    Some(here)
}

/// Tests of the built program use it from outside: of this workspace they import the test harness and the formats only.
pub(crate) fn outside(tree: &Tree, findings: &mut Vec<Finding>) {
    const INSIDES: [&str; 4] = ["decide", "sources", "effects", "steward"];
    let tests = |path: &&String| is_rust(path) && (path.starts_with("tests/node/") || path.starts_with("tests/lab/"));
    for path in tree.outlines.keys().filter(tests) {
        for named in tree.outlines[path].paths.iter().filter(|named| named.import.is_some()) {
            if let Some(inside) = named.segments.first().filter(|first| INSIDES.contains(&first.as_str())) {
                let what =
                    format!("imports `{inside}`: tests under tests/ run the built program and see it from outside");
                findings.push(Finding::new(Rule::Outside, path, named.line, what));
            }
        }
    }
}
