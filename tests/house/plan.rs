//! The plan: the tables of `docs/architecture.md`. The test checks the same tables that people read.

use super::finding::{Finding, Rule};
use super::tree::Tree;
use std::collections::BTreeMap;

/// The file with the plan.
pub(crate) const PLAN: &str = "docs/architecture.md";

/// The first heading of the table of names that several public types may have.
pub(crate) const REPEATED_NAMES: &str = "name of several types";

/// The doors of one room: what it may import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doors {
    /// Rooms.
    pub(crate) rooms: Vec<String>,
    /// External crates.
    pub(crate) crates: Vec<String>,
    /// Further rooms and crates for its tests.
    pub(crate) tests: Vec<String>,
}

/// The tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The doors, by package name.
    pub(crate) doors: BTreeMap<String, Doors>,
    /// Files (or folders, ending in `/`) that may contain `unsafe`.
    pub(crate) unsafe_files: Vec<String>,
    /// Names that several public types may have.
    pub(crate) repeated_names: Vec<String>,
}

// === impl Plan ===

impl Plan {
    /// Reads the tables; a missing table of rooms is a finding.
    pub(crate) fn read(tree: &Tree, findings: &mut Vec<Finding>) -> Plan {
        let text = tree.texts.get(PLAN).map_or("", String::as_str);
        let mut plan = Plan::default();
        for row in table(text, "room") {
            let cell = |n: usize| row.get(n).map_or_else(Vec::new, |cell| words(cell));
            let doors = Doors { rooms: cell(1), crates: cell(2), tests: cell(3) };
            for room in cell(0) {
                plan.doors.insert(room, doors.clone());
            }
        }
        for row in table(text, "file with `unsafe`") {
            plan.unsafe_files.extend(row.first().map_or_else(Vec::new, |cell| words(cell)));
        }
        for row in table(text, REPEATED_NAMES) {
            plan.repeated_names.extend(row.first().map_or_else(Vec::new, |cell| words(cell)));
        }
        if plan.doors.is_empty() {
            let what = "has no table whose first column is `room`: room, imports rooms, imports crates, tests import";
            findings.push(Finding::new(Rule::StalePlan, PLAN, 0, what));
        }
        plan
    }
}

/// The rows of the table whose first heading is `heading`, with trimmed cells, without the heading and the line below
/// it.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    text.lines()
        .map(cells)
        .skip_while(|row| row.first().is_none_or(|first| *first != heading))
        .take_while(|row| !row.is_empty())
        .skip(2)
        .collect()
}

fn cells(line: &str) -> Vec<&str> {
    let Some(inner) = line.trim().strip_prefix('|') else { return Vec::new() };
    inner.trim_end_matches('|').split('|').map(str::trim).collect()
}

/// The words between back quotes.
fn words(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_with_its_last_line() {
        let text = "| room | a |\n|---|---|\n| `x` | `y`, `z` |\n\n| `not` | this |\n";
        assert_eq!(table(text, "room"), [["`x`", "`y`, `z`"]]);
        assert_eq!(words("`y`, `z` and –"), ["y", "z"]);
    }
}
