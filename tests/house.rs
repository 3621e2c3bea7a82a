//! Checks the structure of the repository: compares every manifest and every source file with the rooms and doors in
//! `docs/architecture.md`. It also checks each rule with a tree that breaks it.
//!
//! ```text
//!   files ─tree──▶ texts, outlines ──doors, order, names──▶ findings (file:line: rule: what to do)
//!   docs/architecture.md ─plan──▶ tables ───┘
//! ```
//!
//! The test reads text only: `use` paths, manifests, names. It does not see the output of macros; for doors the
//! compiler does.

mod house {
    pub(crate) mod finding;
    mod lexer;
    mod declared;
    mod imports;
    mod tree;
    mod plan;
    mod doors;
    mod order;
    mod names;
    mod public_names;
    mod fields;
    mod glossary;
    mod promises;
    mod decoders;
    #[cfg(test)]
    mod broken;

    use finding::Finding;
    use std::path::Path;

    /// All broken rules of the tree at `root`, in order of file and line.
    pub(crate) fn check(root: &Path) -> Vec<Finding> {
        let mut findings = Vec::new();
        let tree = tree::Tree::read(root, &mut findings);
        let plan = plan::Plan::read(&tree, &mut findings);
        let manifests = doors::manifests(&tree, &mut findings);
        doors::check(&manifests, &plan, &tree, &mut findings);
        order::check(&manifests, &tree, &mut findings);
        order::fuzz_targets(&tree, &mut findings);
        order::outside(&tree, &mut findings);
        names::names(&tree, &mut findings);
        names::unsafe_code(&tree, &plan, &mut findings);
        names::machine_paths(&tree, &mut findings);
        names::pictures(&tree, &mut findings);
        names::examples(&tree, &mut findings);
        names::lengths(&tree, &mut findings);
        let types = public_names::types(&tree, &order::test_only_files(&manifests, &tree));
        public_names::check(&types, &plan, &mut findings);
        fields::check(&types, &tree, &mut findings);
        glossary::check(&types, &tree, &mut findings);
        promises::check(&tree, &mut findings);
        decoders::check(&tree, &mut findings);
        findings.sort();
        findings
    }
}

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().map_or_else(|| package.to_owned(), Path::to_owned)
}

#[test]
fn the_repository_keeps_every_rule() {
    let findings = house::check(&root());
    let list: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
    assert!(findings.is_empty(), "{} broken rules (docs/architecture.md has the plan):\n{list}", findings.len());
}
