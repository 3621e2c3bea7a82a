//! Sizes of types: a struct with many fields has more than one job, or its doc comment says why it has one.

use super::finding::{Finding, Rule};
use super::public_names::TypeAt;
use super::tree::Tree;

/// The most fields of a struct without a reason.
const MOST_FIELDS: usize = 10;
/// The word that the reason contains.
const WORD: &str = "field";

/// Finds structs of the product with more fields than that, whose doc comment does not speak of them.
pub(crate) fn check(types: &[TypeAt<'_>], tree: &Tree, findings: &mut Vec<Finding>) {
    for found in types.iter().filter(|found| found.file.starts_with("src/")) {
        let Some(text) = tree.texts.get(found.file) else { continue };
        let (name, line) = (&found.declared.name, found.declared.line);
        let lines: Vec<&str> = text.lines().collect();
        let Some((before, from)) = lines.split_at_checked(line.saturating_sub(1)) else { continue };
        let fields = fields(from);
        let has_reason = before.iter().rev().take_while(|line| !line.is_empty()).any(|line| is_reason(line));
        if fields > MOST_FIELDS && !has_reason {
            let what = format!(
                "`{name}` has {fields} fields: split it by what it owns, or say in its doc comment why one type has \
                 so many fields"
            );
            findings.push(Finding::new(Rule::Fields, found.file, line, what));
        }
    }
}

fn is_reason(line: &str) -> bool {
    line.trim_start().strip_prefix("///").is_some_and(|text| text.contains(WORD))
}

/// The fields of the struct that begins with the first of these lines, which are formatted by rustfmt: one field a
/// line, four columns deeper than the struct. An enum, a tuple struct or a struct on one line has none.
fn fields(lines: &[&str]) -> usize {
    let Some(first) = lines.first().filter(|line| line.contains("struct ")) else { return 0 };
    let depth = first.len() - first.trim_start().len();
    let ends =
        |line: &&&str| line.trim_start().len() + depth == line.len() && line.trim_start().starts_with(['}', ')']);
    if !first.ends_with('{') {
        return 0;
    }
    let body = lines.iter().skip(1).take_while(|line| !ends(line));
    body.filter(|line| is_field(line, depth + 4)).count()
}

/// Whether the line, at this depth, has a field: a name and a colon, perhaps with a visibility.
fn is_field(line: &str, depth: usize) -> bool {
    let text = line.trim_start();
    let after = match text.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, rest)| rest),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => text,
    };
    let named = after
        .split_once(": ")
        .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    line.len() - text.len() == depth && named
}
