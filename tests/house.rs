//! Checks what cargo, clippy and cargo-deny cannot: dependencies against `docs/architecture.md`, promises against tests,
//! decoders against fuzz targets and property tests, names, paths of a machine. `house/broken.rs` tries each check on a
//! tree that breaks it.
//!
//! ```text
//!   files ─Tree─▶ texts ──doors, names, promises, decoders──▶ findings (file:line: rule: what to do)
//! ```

mod house {
    mod broken;
    mod decoders;
    mod doors;
    mod names;
    mod promises;

    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    /// Names that are skipped: git's own, the output of cargo and fuzzers, and records.
    const LEFT_OUT: [&str; 6] = ["target", ".git", "corpus", "artifacts", "proptest-regressions", "runs"];
    /// Larger files are data and are skipped.
    const MAX_TEXT: u64 = 1 << 20;

    /// Every text file by its path below the root.
    pub(crate) type Tree = BTreeMap<String, String>;

    /// The broken rules, each with its place.
    #[derive(Debug, Default)]
    pub(crate) struct Findings(pub(crate) Vec<String>);

    impl Findings {
        /// Adds a finding; line 0 stands for the whole file.
        fn add(&mut self, rule: &str, file: &str, line: usize, what: impl AsRef<str>) {
            let place = if line == 0 { file.to_owned() } else { format!("{file}:{line}") };
            self.0.push(format!("{place}: {rule}: {}", what.as_ref()));
        }
    }

    /// All broken rules of the repository at `root`.
    pub(crate) fn check(root: &Path) -> Vec<String> {
        let mut tree = Tree::new();
        read(root, "", &mut tree);
        let mut findings = Findings::default();
        doors::check(&tree, &mut findings);
        names::check(&tree, &mut findings);
        promises::check(&tree, &mut findings);
        decoders::check(&tree, &mut findings);
        findings.0.sort();
        findings.0
    }

    fn read(root: &Path, below: &str, tree: &mut Tree) {
        let folder = root.join(below);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
            let Ok(kind) = entry.file_type() else { continue };
            if LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            if kind.is_dir() {
                read(root, &path, tree);
            } else if kind.is_file() && entry.metadata().is_ok_and(|meta| meta.len() <= MAX_TEXT) {
                let bytes = fs::read(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
                if let Ok(text) = String::from_utf8(bytes) {
                    tree.insert(path, text);
                }
            }
        }
    }

    /// Whether the path is that of a Rust file.
    fn is_rust(path: &str) -> bool {
        Path::new(path).extension().is_some_and(|ending| ending == "rs")
    }
}

use std::path::Path;

#[test]
fn the_repository_keeps_every_rule() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let findings = house::check(package.parent().unwrap_or(package));
    assert!(
        findings.is_empty(),
        "{} broken rules (see docs/architecture.md):\n{}",
        findings.len(),
        findings.join("\n")
    );
}

#[test]
fn the_chart_and_the_readme_require_the_same_kubernetes() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(package.join("..").join(path)).expect(path);
    let chart = read("charts/gpu-steward/Chart.yaml");
    let least = chart.lines().find_map(|line| line.strip_prefix("kubeVersion: \">=")).expect("kubeVersion");
    let minor = least.rsplit_once(".0-0").expect("a version with a suffix").0;
    assert!(
        read("README.md").contains(&format!("| Kubernetes | {minor} or later;")),
        "README.md and Chart.yaml: {minor}"
    );
}
