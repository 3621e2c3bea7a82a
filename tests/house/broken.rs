//! Tries each check on a small tree: it has no findings as it is, and each case below breaks it in one place.

use super::check;
use std::fs;
use std::path::Path;

const PLAN: &str = "\
| room | imports rooms | imports crates | tests import |
|---|---|---|---|
| `model` | – | `thiserror` | – |
| `sources` | `model` | `tokio` | `tempfile` |
";
const MODEL: &str = "[package]\nname = \"model\"\n[dependencies]\nthiserror.workspace = true\n";
const SOURCES: &str = "[package]\nname = \"sources\"\n[dependencies]\nmodel.workspace = true\ntokio.workspace = true\n\
                       [dev-dependencies]\ntempfile.workspace = true\n";

/// A tree without mistakes.
const CORRECT: [(&str, &str); 9] = [
    ("Cargo.toml", "[workspace]\n[workspace.dependencies]\ntokio = \"1\"\n"),
    ("docs/architecture.md", PLAN),
    ("docs/specification.md", "1. **Small.**\n2. **Fast**,\n   not tested.\n"),
    ("src/model/Cargo.toml", MODEL),
    ("src/model/lib.rs", "//! Promise 1.\nproptest! {}\n"),
    ("src/sources/Cargo.toml", SOURCES),
    ("tests/fuzz/README.md", "| `src/model/lib.rs` | `lib` |\n"),
    ("tests/fuzz/Cargo.toml", "path = \"fuzz_targets/lib.rs\"\n"),
    ("tests/fuzz/fuzz_targets/lib.rs", "fuzz_target!(|bytes: &[u8]| model::lib(bytes));\n"),
];

/// A file that replaces or joins those of the correct tree, and words of the finding.
const CASES: [(&str, &str, &str); 24] = [
    ("src/model/Cargo.toml", "[package]\nname = \"model\"\n[dependencies]\ntokio.workspace = true\n", "on `tokio`"),
    ("src/model/Cargo.toml", "[package]\nname = \"model\"\n[dev-dependencies]\nx.workspace = true\n", "[dev-dep"),
    (
        "src/model/Cargo.toml",
        "[package]\nname = \"model\"\n[target.a.dependencies]\nx.workspace = true\n",
        "[target.a.",
    ),
    ("src/model/Cargo.toml", "[package]\nname = \"model\"\n[build-dependencies]\nx.workspace = true\n", "build script"),
    ("src/model/Cargo.toml", "[package]\nname = \"model\"\n[dependencies]\nthiserror = \"2\"\n", "versions stand once"),
    ("src/model/Cargo.toml", "[package]\nname = \"model\"\n", "lists `thiserror` for `model`"),
    ("src/model/Cargo.toml", "[package\n", "src/model/Cargo.toml: door: "),
    ("Cargo.toml", "[workspace.dependencies]\na = { package = \"b\", version = \"1\" }\n", "under another name"),
    ("src/extra/Cargo.toml", "[package]\nname = \"extra\"\n", "`extra` is no room"),
    ("docs/architecture.md", "# Nothing\n", "`model` is no room"),
    ("docs/architecture.md", "| room | r |\n|---|---|\n| `lost` | – | – | – |\n", "has a room `lost`"),
    ("docs/architecture.md", "| room | r |\n|---|---|\n| `model` | – | `tokio` | – |\n", "it is pure"),
    ("docs/architecture.md", "| room | r |\n|---|---|\n| `effects` | `sources` | – | – |\n", "may never import"),
    ("docs/architecture.md", "| room | r |\n|---|---|\n| `pprof` | `pprof` | – | – |\n", "shares no code"),
    ("tests/node/start.rs", "use decide::node::Node;\n", "tests/node/start.rs:1: door: imports `decide`"),
    ("src/model/pod_types.rs", "", "src/model/pod_types.rs: forbidden-name: `types` says nothing"),
    ("src/helpers/a.rs", "", "forbidden-name"),
    ("src/model/a.rs", "pub(crate) mod utils {\n", "src/model/a.rs:1: forbidden-name"),
    ("README.md", concat!("\nsee `/wo", "rk/main/x`\n"), "README.md:2: machine-path"),
    ("docs/specification.md", "1. **Small.**\n3. **New.**\n", "docs/specification.md:2: promise: no test"),
    ("docs/specification.md", "1. **Small**, not tested.\n", "but src/model/lib.rs names it"),
    ("docs/specification.md", "3. **Other**, not tested.\n", "src/model/lib.rs:1: promise: names promise 1"),
    ("tests/fuzz/fuzz_targets/lost.rs", "", "lost.rs: decoder: no row"),
    ("tests/fuzz/Cargo.toml", "", "no [[bin]]"),
];

const DECODERS: [(&str, &str, &str); 5] = [
    ("src/wire/lib.rs", "pub mod pod;\n", "src/wire/lib.rs:1: decoder: `pod` has no row"),
    ("src/model/lib.rs", "//! Promise 1.\n", "src/model/lib.rs has no property test"),
    ("tests/fuzz/README.md", "| `src/model/lib.rs` | `other` |\n", "there is no fuzz target `other`"),
    ("tests/fuzz/README.md", "| `src/model/gone.rs` | – |\n", "src/model/gone.rs is not there"),
    ("tests/fuzz/fuzz_targets/lib.rs", "fuzz_target!();\n", "does not name `lib`"),
];

fn findings(changed: &str, text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let rest = CORRECT.iter().copied().filter(|(path, _)| *path != changed);
    for (path, text) in rest.chain((!changed.is_empty()).then_some((changed, text))) {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a folder can be made");
        fs::write(path, text).expect("a file can be written");
    }
    check(folder.path())
}

#[test]
fn a_correct_tree_has_no_findings() {
    assert_eq!(findings("", ""), [""; 0]);
    for (path, text) in [
        ("README.md", "a cgroup `/kubepods/work/x` and `$HOME/x`, `~/root/x`\n"),
        ("src/model/a.rs", "// mod types {\nmod typed {\n"),
        ("tests/node/start.rs", "// use decide::node\nuse lab::Agent;\n"),
    ] {
        assert_eq!(findings(path, text), [""; 0], "{text}");
    }
}

#[test]
fn each_check_finds_the_mistake_in_its_broken_tree() {
    for (path, text, words) in CASES.into_iter().chain(DECODERS) {
        let found = findings(path, text);
        assert!(
            found.iter().any(|finding| finding.contains(words)),
            "no finding about {words:?} in {path}: {found:#?}"
        );
    }
}
