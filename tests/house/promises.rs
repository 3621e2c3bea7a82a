//! Promises: each promise in `docs/specification.md` has a test that names its number, and no test names another
//! number.

use super::{Findings, Tree, is_rust};
use std::collections::BTreeMap;

/// The file with the promises.
const SPECIFICATION: &str = "docs/specification.md";
/// The words in the text of a promise without a test.
const UNTESTED: &str = "not tested";
const RULE: &str = "promise";

/// Compares the numbers of the promises with those of the tests.
pub(crate) fn check(tree: &Tree, findings: &mut Findings) {
    let Some(text) = tree.get(SPECIFICATION) else { return };
    let promises = promises(text);
    let mut shown: BTreeMap<u32, (&str, usize)> = BTreeMap::new();
    let tests = |path: &str| is_rust(path) && !path.starts_with("tests/house") || path == "tests/run";
    for (path, text) in tree.iter().filter(|(path, _)| tests(path)) {
        for (line, text) in text.lines().enumerate() {
            for number in named(text) {
                shown.entry(number).or_insert((path, line + 1));
            }
        }
    }
    for (number, (path, line)) in shown.iter().filter(|(number, _)| !promises.contains_key(number)) {
        let what = format!("names promise {number}, which {SPECIFICATION} does not have");
        findings.add(RULE, path, *line, what);
    }
    for (number, (line, text)) in &promises {
        match (shown.get(number), text.contains(UNTESTED)) {
            (None, false) => {
                let what = format!("no test says `Promise {number}`: write one, or say \"{UNTESTED}\" in the promise");
                findings.add(RULE, SPECIFICATION, *line, what);
            }
            (Some((path, _)), true) => {
                let what = format!("promise {number} says \"{UNTESTED}\", but {path} names it");
                findings.add(RULE, SPECIFICATION, *line, what);
            }
            _ => {}
        }
    }
}

/// The items of the numbered list: line and text, including continued lines.
fn promises(text: &str) -> BTreeMap<u32, (usize, String)> {
    let mut found: BTreeMap<u32, (usize, String)> = BTreeMap::new();
    let mut last = None;
    for (line, text) in text.lines().enumerate() {
        let number = text.split_once(". ").and_then(|(number, _)| number.parse::<u32>().ok());
        if let Some(number) = number {
            found.insert(number, (line + 1, String::new()));
            last = Some(number);
        } else if !text.starts_with(' ') {
            last = None;
        }
        if let Some((_, item)) = last.and_then(|number| found.get_mut(&number)) {
            item.push_str(text.trim());
            item.push(' ');
        }
    }
    found
}

/// The numbers of `Promise 3` and `Promises 3 and 4` in a line.
fn named(line: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for word in ["romise ", "romises "] {
        for (at, _) in line.match_indices(word) {
            let rest = line[at + word.len()..].split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
            found.extend(
                rest.take_while(|word| *word == "and" || word.parse::<u32>().is_ok())
                    .filter_map(|n| n.parse::<u32>().ok()),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_a_line() {
        for (line, expect) in [
            ("//! Promise 12 in docs/specification.md.", vec![12]),
            ("/// Promises 3 and 14, and what follows", vec![3, 14]),
            ("\"promise 1: memory\"", vec![1]),
            ("keeps its promise to 9 of them", vec![]),
        ] {
            assert_eq!(named(line), expect, "{line}");
        }
    }

    #[test]
    fn an_item_continues_over_indented_lines() {
        let found = promises("# 1. no\n1. **One** is\n   not tested.\n\ntext not of it\n2. Two\n");
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert!(found[&1].1.contains("not tested") && !found[&1].1.contains("text"));
    }
}
