//! Doors: the dependencies of a manifest must be those of the plan, neither more nor less.

use super::finding::{Finding, Rule};
use super::plan::{Doors, PLAN, Plan};
use super::tree::Tree;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// Doors that the plan must not list, each with the reason. To allow one, change this table first.
const NEVER: [(&str, &[&str], &str); 10] = [
    (
        "model",
        &["wire", "decide", "apiserver", "sources", "effects", "steward", "proto", "lab"],
        "all rooms depend on the model",
    ),
    (
        "wire",
        &["decide", "apiserver", "sources", "effects", "steward", "proto", "lab"],
        "a format needs the model only",
    ),
    (
        "decide",
        &["wire", "apiserver", "sources", "effects", "steward", "proto", "lab"],
        "a decision does not depend on a format",
    ),
    (
        "proto",
        &["model", "wire", "decide", "apiserver", "sources", "effects", "steward"],
        "the protocols of others do not depend on our code",
    ),
    (
        "pprof",
        &["model", "wire", "decide", "apiserver", "sources", "effects", "steward", "proto", "lab"],
        "the profiler is useful to other programs, so it depends on nothing of this one",
    ),
    (
        "apiserver",
        &["decide", "sources", "effects", "steward", "proto"],
        "the client of the API server needs the model and formats only",
    ),
    ("sources", &["decide", "effects", "steward"], "sources decide nothing and do not depend on effects"),
    ("effects", &["decide", "sources", "steward"], "effects decide nothing and do not depend on sources"),
    (
        "fake-nvml",
        &["model", "wire", "decide", "apiserver", "sources", "effects", "steward", "proto", "lab"],
        "a fake that shares code with the program shares its mistakes",
    ),
    (
        "lab",
        &["decide", "apiserver", "sources", "effects", "steward"],
        "the test harness uses the program from outside",
    ),
];
/// The only external crates that a pure room may use: none has a clock, file, socket, async runtime or logger.
const PURE_ROOMS: [&str; 3] = ["model", "wire", "decide"];
const PURE_CRATES: [&str; 6] = ["base64", "jiff", "prost", "serde", "serde_json", "thiserror"];

/// One manifest.
pub(crate) struct Manifest {
    pub(crate) path: String,
    pub(crate) package: String,
    pub(crate) table: Table,
}

/// Separate workspaces outside the product: the fuzz targets, and a bench that needs a crate which the product lacks.
pub(crate) const OWN_WORKSPACES: [&str; 2] = ["tests/fuzz/", "tests/bench/watchers/"];

/// All manifests except that of the root and those of separate workspaces.
pub(crate) fn manifests(tree: &Tree, findings: &mut Vec<Finding>) -> Vec<Manifest> {
    let mut found = Vec::new();
    let apart = |path: &str| OWN_WORKSPACES.iter().any(|folder| path.starts_with(folder));
    let inside = |path: &&String| path.ends_with("/Cargo.toml") && !apart(path);
    for path in tree.texts.keys().filter(inside) {
        match tree.texts[path].parse::<Table>() {
            Ok(table) => {
                let name = table.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
                let package = name.unwrap_or_default().to_owned();
                found.push(Manifest { path: path.clone(), package, table });
            }
            Err(error) => findings.push(Finding::new(Rule::Unreadable, path, 0, error.message())),
        }
    }
    found
}

/// Compares every manifest with the plan.
pub(crate) fn check(manifests: &[Manifest], plan: &Plan, tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in manifests {
        match plan.doors.get(&manifest.package) {
            Some(doors) => room(manifest, doors, findings),
            None => {
                let what = format!("`{}` is no room of the plan: add it to the table in {PLAN}", manifest.package);
                findings.push(Finding::new(Rule::Door, &manifest.path, 0, what));
            }
        }
    }
    for (package, doors) in &plan.doors {
        if !manifests.iter().any(|manifest| &manifest.package == package) {
            findings.push(Finding::new(
                Rule::StalePlan,
                PLAN,
                0,
                format!("the plan has a room `{package}`, the tree has none"),
            ));
        }
        planned(package, doors, findings);
    }
    renamed(tree, findings);
}

/// Rules that hold for the plan itself.
fn planned(package: &str, doors: &Doors, findings: &mut Vec<Finding>) {
    for (room, never, why) in NEVER {
        for door in
            doors.rooms.iter().chain(&doors.crates).filter(|door| room == package && never.contains(&door.as_str()))
        {
            findings.push(Finding::new(Rule::Door, PLAN, 0, format!("`{room}` may never import `{door}`: {why}")));
        }
    }
    let pure = PURE_ROOMS.contains(&package);
    for door in doors.crates.iter().filter(|door| pure && !PURE_CRATES.contains(&door.as_str())) {
        let what = format!("`{package}` is pure and may never import `{door}`; it may import {PURE_CRATES:?}");
        findings.push(Finding::new(Rule::Door, PLAN, 0, what));
    }
}

fn room(manifest: &Manifest, doors: &Doors, findings: &mut Vec<Finding>) {
    let mut used = BTreeSet::new();
    for (section, names) in sections(&manifest.table) {
        for (name, value) in names {
            let tests = section.ends_with("dev-dependencies");
            let listed = doors.rooms.contains(name) || doors.crates.contains(name);
            if !(listed || tests && doors.tests.contains(name)) {
                let what =
                    format!("`{}` has a door to `{name}` ([{section}]) that {PLAN} does not list", manifest.package);
                findings.push(Finding::new(Rule::Door, &manifest.path, 0, what));
            }
            if value.get("workspace").and_then(Value::as_bool) != Some(true) {
                let what =
                    format!("`{name}` must be `{name}.workspace = true`: versions stand once, in the root manifest");
                findings.push(Finding::new(Rule::Door, &manifest.path, 0, what));
            }
            used.insert(name.as_str());
        }
        if section.ends_with("build-dependencies") {
            findings.push(Finding::new(
                Rule::Door,
                &manifest.path,
                0,
                "no room has a build script, so none needs crates for it",
            ));
        }
    }
    for door in doors.rooms.iter().chain(&doors.crates).chain(&doors.tests).filter(|door| !used.contains(door.as_str()))
    {
        let what =
            format!("the plan gives `{}` a door to `{door}` that {} does not have", manifest.package, manifest.path);
        findings.push(Finding::new(Rule::StalePlan, PLAN, 0, what));
    }
}

/// Every dependency table, including those of `[target.…]`.
fn sections(manifest: &Table) -> Vec<(String, &Table)> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let mut found: Vec<(String, &Table)> = Vec::new();
    for kind in KINDS {
        found.extend(manifest.get(kind).and_then(Value::as_table).map(|table| (kind.to_owned(), table)));
    }
    for (target, tables) in manifest.get("target").and_then(Value::as_table).into_iter().flatten() {
        for kind in KINDS {
            let table = tables.get(kind).and_then(Value::as_table);
            found.extend(table.map(|table| (format!("target.{target}.{kind}"), table)));
        }
    }
    found
}

/// Finds dependencies with another name than their package: they would pass every other check.
fn renamed(tree: &Tree, findings: &mut Vec<Finding>) {
    let apart = |path: &str| OWN_WORKSPACES.iter().any(|folder| path.starts_with(folder));
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with("Cargo.toml") && !apart(path)) {
        let Ok(manifest) = text.parse::<Table>() else { continue };
        let shared =
            manifest.get("workspace").and_then(|workspace| workspace.get("dependencies")).and_then(Value::as_table);
        let tables = sections(&manifest).into_iter().map(|(_, table)| table).chain(shared);
        for (name, value) in tables.flatten() {
            if let Some(real) = value.get("package").and_then(Value::as_str).filter(|real| real != name) {
                findings.push(Finding::new(Rule::Door, path, 0, format!("`{name}` is `{real}` under another name")));
            }
        }
    }
}
