//! Names of types: the name of a public type is unique in the whole workspace, so that it means one thing in a text, a
//! search or an import.

use super::declared::Declared;
use super::finding::{Finding, Rule};
use super::plan::{PLAN, Plan, REPEATED_NAMES};
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// The folder of the fuzz targets. They are separate crates, which nothing imports.
const FUZZ: &str = "tests/fuzz/";

/// A type of the product or of a test crate, with its file. Types under `cfg(test)` are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeAt<'t> {
    pub(crate) file: &'t str,
    pub(crate) declared: &'t Declared,
}

/// All types below `src/` and `tests/`, in order of file and line.
pub(crate) fn types<'t>(tree: &'t Tree, test_only: &BTreeSet<String>) -> Vec<TypeAt<'t>> {
    let ours = |file: &str| (file.starts_with("src/") || file.starts_with("tests/")) && !file.starts_with(FUZZ);
    let files = tree.outlines.iter().filter(|(file, _)| ours(file) && !test_only.contains(*file));
    files
        .flat_map(|(file, outline)| outline.types.iter().map(move |declared| TypeAt { file, declared }))
        .filter(|found| !found.declared.test)
        .collect()
}

/// Finds names of public types that are not unique and not in the table of exceptions.
pub(crate) fn check(types: &[TypeAt<'_>], plan: &Plan, findings: &mut Vec<Finding>) {
    let mut first: BTreeMap<&str, TypeAt<'_>> = BTreeMap::new();
    let mut repeated = BTreeSet::new();
    for found in types.iter().filter(|found| found.declared.public) {
        let name = found.declared.name.as_str();
        let Some(other) = first.get(name) else {
            first.insert(name, *found);
            continue;
        };
        repeated.insert(name);
        if !plan.repeated_names.iter().any(|listed| listed == name) {
            let what = format!(
                "a public type `{name}` is also declared in {}:{}: rename one of them after what it holds, or list the \
                 name with a reason in the table `{REPEATED_NAMES}` of {PLAN}",
                other.file, other.declared.line
            );
            findings.push(Finding::new(Rule::PublicName, found.file, found.declared.line, what));
        }
    }
    for name in plan.repeated_names.iter().filter(|name| !repeated.contains(name.as_str())) {
        let what = format!("no two public types have the name `{name}`: remove it from the table `{REPEATED_NAMES}`");
        findings.push(Finding::new(Rule::StalePlan, PLAN, 0, what));
    }
}
