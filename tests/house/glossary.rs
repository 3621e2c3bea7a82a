//! The glossary: each type that it names exists, and no term and no type has two rows.

use super::finding::{Finding, Rule};
use super::public_names::TypeAt;
use super::tree::Tree;
use std::collections::BTreeMap;

/// The file with the terms: term, what it is, where the term comes from, type.
const GLOSSARY: &str = "docs/glossary.md";
/// The first heading of each table of terms.
const HEADING: &str = "term";
const COLUMNS: usize = 4;

/// Compares each row of the glossary with the types of the rooms.
pub(crate) fn check(types: &[TypeAt<'_>], tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(text) = tree.texts.get(GLOSSARY) else {
        let what = "is not there: write it, with a table of term, what it is, where the term comes from, and type";
        return findings.push(Finding::new(Rule::Glossary, GLOSSARY, 0, what));
    };
    let mut terms = BTreeMap::new();
    let mut named = BTreeMap::new();
    for (line, row) in rows(text) {
        let mut wrong = |what: String| findings.push(Finding::new(Rule::Glossary, GLOSSARY, line, what));
        let [term, .., last] = row.as_slice() else { continue };
        if row.len() != COLUMNS {
            wrong(format!("the row of `{term}` has {} columns: it must have {COLUMNS}", row.len()));
            continue;
        }
        if let Some(other) = terms.insert(term.to_lowercase(), line) {
            wrong(format!("the term `{term}` also stands in line {other}: make one row of the two"));
        }
        for path in last.split('`').skip(1).step_by(2) {
            if let Some(other) = named.insert(path, line) {
                wrong(format!("`{path}` is also named in line {other}: name each type in one row"));
            }
            if let Some(what) = missing(path, types) {
                wrong(what);
            }
        }
    }
}

/// The reason why `path` is not a type of the workspace.
fn missing(path: &str, types: &[TypeAt<'_>]) -> Option<String> {
    let Some((room, name)) = path.split_once("::").filter(|(_, name)| !name.contains(':')) else {
        return Some(format!("`{path}` names no type: write `room::Type`"));
    };
    let folder = format!("src/{room}/");
    if types.iter().any(|found| found.declared.name == name && found.file.starts_with(&folder)) {
        return None;
    }
    let elsewhere = types.iter().find(|found| found.declared.name == name);
    let hint = elsewhere.map_or_else(String::new, |found| format!(" (it is declared in {})", found.file));
    Some(format!("{folder} declares no type `{name}`{hint}: write the name that the code uses, or remove the row"))
}

/// Line and cells of each row of the tables of terms, without their headings.
fn rows(text: &str) -> Vec<(usize, Vec<&str>)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (at, line) in text.lines().enumerate() {
        let Some(inner) = line.trim().strip_prefix('|') else {
            inside = false;
            continue;
        };
        let row: Vec<&str> = inner.trim_end_matches('|').split('|').map(str::trim).collect();
        let heading = row.first() == Some(&HEADING);
        let line_below = row.iter().all(|cell| cell.chars().all(|c| c == '-' || c == ':'));
        if inside && !heading && !line_below {
            found.push((at + 1, row));
        }
        inside |= heading;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_tables_are_left_out() {
        let text =
            "| term | what |\n|---|---|\n| a | b |\n\n| file | c |\n|---|---|\n| d | e |\n\n| term |\n|---|\n| f |\n";
        let lines: Vec<_> = rows(text).into_iter().map(|(line, row)| (line, row[0])).collect();
        assert_eq!(lines, [(3, "a"), (11, "f")]);
    }
}
