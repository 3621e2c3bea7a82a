//! Doors: the dependencies in a manifest are those of the table in `docs/architecture.md`, neither more nor less.

use super::{Findings, Tree, is_rust};
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// The file with the table: room, imports rooms, imports crates, tests import.
const PLAN: &str = "docs/architecture.md";
/// The only crates from a registry that a pure room may use: none has a clock, file, socket, async runtime or logger.
const PURE_ROOMS: [&str; 5] = ["model", "wire", "decide", "timeseries", "profiles"];
const PURE_CRATES: [&str; 8] = ["base64", "foldhash", "jiff", "prost", "realfft", "serde", "serde_json", "thiserror"];
/// Rooms that share no code with other rooms: a fake would share the program's mistakes, and the profiler, the protocols and the
/// analysis of series are useful to other programs.
const ALONE: [&str; 4] = ["fake-nvml", "pprof", "proto", "timeseries"];
/// Pairs of rooms of which neither may import the other.
const APART: [(&str, &str); 3] = [("sources", "effects"), ("agent", "extender"), ("wire", "decide")];
/// Rooms that the test harness and the tests of the built program do not import.
const SEEN_FROM_OUTSIDE: [&str; 6] = ["decide", "sources", "effects", "agent", "extender", "steward"];
/// Workspaces of their own: the fuzz targets, and a bench that needs a crate which the product lacks.
const OWN_WORKSPACES: [&str; 2] = ["tests/fuzz/", "tests/bench/watchers/"];
const RULE: &str = "door";

/// What one room may import.
#[derive(Default)]
struct Doors<'t> {
    rooms: Vec<&'t str>,
    crates: Vec<&'t str>,
    tests: Vec<&'t str>,
}

/// Compares every manifest with the table, in both directions.
pub(crate) fn check(tree: &Tree, findings: &mut Findings) {
    let plan = plan(tree.get(PLAN).map_or("", String::as_str));
    let mut seen = BTreeSet::new();
    for (path, text) in tree.iter().filter(|(path, _)| is_manifest(path)) {
        let manifest = match text.parse::<Table>() {
            Ok(manifest) => manifest,
            Err(error) => {
                findings.add(RULE, path, 0, error.message());
                continue;
            }
        };
        renamed(path, &manifest, findings);
        let Some(package) = manifest.get("package").and_then(|package| package.get("name")?.as_str()) else { continue };
        seen.insert(package.to_owned());
        match plan.get(package) {
            Some(doors) => room(path, (package, &manifest), doors, findings),
            None => findings.add(RULE, path, 0, format!("`{package}` is no room in the table of {PLAN}: add a row")),
        }
    }
    for (package, doors) in &plan {
        if !seen.contains(*package) {
            findings.add(RULE, PLAN, 0, format!("the table has a room `{package}`, and no manifest has that name"));
        }
        never(package, doors, &plan, findings);
    }
    outside(tree, findings);
}

fn is_manifest(path: &str) -> bool {
    path.ends_with("Cargo.toml") && !OWN_WORKSPACES.iter().any(|folder| path.starts_with(folder))
}

/// The rows of the table whose first heading is `room`.
fn plan(text: &str) -> BTreeMap<&str, Doors<'_>> {
    let rows = text.lines().skip_while(|line| !line.starts_with("| room |")).take_while(|line| line.starts_with('|'));
    let mut plan = BTreeMap::new();
    for row in rows.skip(2) {
        let mut cells = row.split('|').skip(1).map(|cell| cell.split('`').skip(1).step_by(2).collect::<Vec<_>>());
        let mut cell = || cells.next().unwrap_or_default();
        if let [room, ..] = cell().as_slice() {
            plan.insert(*room, Doors { rooms: cell(), crates: cell(), tests: cell() });
        }
    }
    plan
}

/// Compares one manifest with its row.
fn room(path: &str, (package, manifest): (&str, &Table), doors: &Doors<'_>, findings: &mut Findings) {
    let mut used = BTreeSet::new();
    for (section, dependencies) in sections(manifest) {
        for (name, value) in dependencies {
            let name = name.as_str();
            let for_tests = section.ends_with("dev-dependencies") && doors.tests.contains(&name);
            if !(for_tests || doors.rooms.contains(&name) || doors.crates.contains(&name)) {
                let what = format!("`{package}` depends on `{name}` ([{section}]), which {PLAN} does not list for it");
                findings.add(RULE, path, 0, what);
            }
            if value.get("workspace").and_then(Value::as_bool) != Some(true) {
                let what = format!("write `{name}.workspace = true`: versions stand once, in the root manifest");
                findings.add(RULE, path, 0, what);
            }
            used.insert(name);
        }
        if section.ends_with("build-dependencies") {
            findings.add(RULE, path, 0, "no room has a build script");
        }
    }
    let listed = doors.rooms.iter().chain(&doors.crates).chain(&doors.tests);
    for name in listed.filter(|name| !used.contains(*name)) {
        findings.add(RULE, PLAN, 0, format!("lists `{name}` for `{package}`, and {path} does not"));
    }
}

/// Every table of dependencies, including those of `[target.…]`.
fn sections(manifest: &Table) -> Vec<(String, &Table)> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let targets = targets.filter_map(|(target, tables)| Some((format!("target.{target}."), tables.as_table()?)));
    let mut found = Vec::new();
    for (prefix, tables) in [(String::new(), manifest)].into_iter().chain(targets) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies = tables.get(kind).and_then(Value::as_table);
            found.extend(dependencies.map(|dependencies| (format!("{prefix}{kind}"), dependencies)));
        }
    }
    found
}

/// Finds dependencies with another name than their package: they would pass every other check.
fn renamed(path: &str, manifest: &Table, findings: &mut Findings) {
    let workspace = manifest.get("workspace").and_then(|workspace| workspace.get("dependencies")?.as_table());
    for (name, value) in sections(manifest).into_iter().map(|(_, table)| table).chain(workspace).flatten() {
        if let Some(real) = value.get("package").and_then(Value::as_str).filter(|real| real != name) {
            findings.add(RULE, path, 0, format!("`{name}` is the package `{real}` under another name"));
        }
    }
}

/// What the table itself must never list.
fn never(package: &str, doors: &Doors<'_>, plan: &BTreeMap<&str, Doors<'_>>, findings: &mut Findings) {
    let mut wrong = |name: &str, why: &str| {
        findings.add(RULE, PLAN, 0, format!("`{package}` may never import `{name}`: {why}"));
    };
    for name in doors.rooms.iter().chain(&doors.crates) {
        let apart = APART.iter().any(|(one, other)| [(*one, *other), (*other, *one)].contains(&(package, *name)));
        if plan.contains_key(name) && ALONE.contains(&package) {
            wrong(name, "it shares no code with the product");
        } else if apart {
            wrong(name, "neither of the two knows the other");
        } else if package == "lab" && SEEN_FROM_OUTSIDE.contains(name) {
            wrong(name, "the test harness uses the program from outside");
        }
    }
    for name in doors.crates.iter().filter(|name| PURE_ROOMS.contains(&package) && !PURE_CRATES.contains(name)) {
        wrong(name, &format!("it is pure, and uses at most {PURE_CRATES:?}"));
    }
}

/// Tests of the built program belong to a package that may import everything, and import only the test harness and formats.
fn outside(tree: &Tree, findings: &mut Findings) {
    for (path, text) in tree.iter().filter(|(path, _)| path.starts_with("tests/node/") && is_rust(path)) {
        for (at, line) in text.lines().enumerate() {
            let import = line.trim_start().strip_prefix("use ").and_then(|path| path.split("::").next());
            if let Some(room) = import.filter(|room| SEEN_FROM_OUTSIDE.contains(room)) {
                findings.add(RULE, path, at + 1, format!("imports `{room}`: tests/node uses the program from outside"));
            }
        }
    }
}
