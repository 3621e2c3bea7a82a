//! Decoders: code that reads bytes of other programs has a property test and a fuzz target, and the table of both is
//! complete.

use super::{Findings, Tree};

/// The file with the table: file of the decoder, its target, `–` for a file that decodes nothing.
const TABLE: &str = "tests/fuzz/README.md";
/// The room whose files all read or write formats of other programs.
const ROOM: &str = "src/wire/lib.rs";
const TARGETS: &str = "tests/fuzz/fuzz_targets/";
/// The manifest of the targets. Cargo builds only those that it lists.
const MANIFEST: &str = "tests/fuzz/Cargo.toml";
const RULE: &str = "decoder";

/// A line of the table.
struct Row<'t> {
    line: usize,
    file: &'t str,
    target: Option<&'t str>,
}

/// Compares the table with the room, the targets and the property tests.
pub(crate) fn check(tree: &Tree, findings: &mut Findings) {
    let Some(text) = tree.get(TABLE) else { return };
    let rows: Vec<Row<'_>> = text.lines().enumerate().filter_map(|(at, line)| row(at + 1, line)).collect();
    let room = tree.get(ROOM).map_or("", String::as_str);
    for (at, line) in room.lines().enumerate() {
        let Some(module) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) else { continue };
        let file = format!("src/wire/{module}.rs");
        if !rows.iter().any(|row| row.file == file) {
            let what = format!("`{module}` has no row in {TABLE}: name its fuzz target, or – if it decodes nothing");
            findings.add(RULE, ROOM, at + 1, what);
        }
    }
    let manifest = tree.get(MANIFEST).map_or("", String::as_str);
    for path in tree.keys() {
        let Some(target) = path.strip_prefix(TARGETS).and_then(|name| name.strip_suffix(".rs")) else { continue };
        if !rows.iter().any(|row| row.target == Some(target)) {
            findings.add(RULE, path, 0, format!("no row of {TABLE} names this target"));
        }
        if !manifest.contains(&format!("\"fuzz_targets/{target}.rs\"")) {
            findings.add(RULE, path, 0, format!("{MANIFEST} has no [[bin]] for this target, so it is never run"));
        }
    }
    for row in &rows {
        row.check(tree, findings);
    }
}

impl Row<'_> {
    fn check(&self, tree: &Tree, findings: &mut Findings) {
        let mut wrong = |what: String| findings.add(RULE, TABLE, self.line, what);
        let (Some(text), Some(stem)) = (tree.get(self.file), self.file.strip_suffix(".rs")) else {
            return wrong(format!("{} is not there", self.file));
        };
        let Some(target) = self.target else { return };
        let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
        let beside = [format!("{stem}/tests.rs"), format!("{folder}/tests.rs")];
        let tests = beside.iter().filter_map(|path| tree.get(path)).chain([text]);
        if !tests.into_iter().any(|text| text.contains("proptest! {")) {
            wrong(format!("{} has no property test", self.file));
        }
        match tree.get(&format!("{TARGETS}{target}.rs")) {
            None => wrong(format!("there is no fuzz target `{target}`")),
            Some(text) if !text.contains(name) => wrong(format!("the target `{target}` does not name `{name}`")),
            Some(_) => {}
        }
    }
}

/// `` | `src/wire/pod.rs` | `pod` | ``
fn row(line: usize, text: &str) -> Option<Row<'_>> {
    let mut cells = text.strip_prefix('|')?.split('|').map(|cell| cell.trim().trim_matches('`'));
    let file = cells.next().filter(|file| file.starts_with("src/"))?;
    let target = cells.next().filter(|target| *target != "–");
    Some(Row { line, file, target })
}
