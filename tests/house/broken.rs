//! Broken trees: each rule must find the mistake in its tree, and name file and rule.

use super::check;
use super::finding::{Finding, Rule};
use super::names::MOST_LINES;
use std::fs;
use std::io;
use std::path::Path;
use tempfile::TempDir;

const PLAN: &str = "\
| room | imports rooms | imports crates | tests import |
|---|---|---|---|
| `model` | – | `thiserror` | – |
| `sources` | `model` | `tokio` | `tempfile` |

| file with `unsafe` | why |
|---|---|
| `src/sources/raw.rs` | calls C |

| name of several types | why |
|---|---|
| `Error` | each module has one |
";
/// A struct with eleven fields and no reason for it.
const ELEVEN: &str = "\
/// Too much.
#[derive(Debug)]
pub struct A {
    /// One.
    pub a: u8,
    pub(crate) b: Vec<u8>,
    c: std::cell::Cell<u8>,
    d: u8,
    e: u8,
    f: u8,
    g: u8,
    h: u8,
    i: u8,
    j: u8,
    k: (u8, u8),
}
";
/// A file with one line more than a file may have.
const LONG: &str = match std::str::from_utf8(&[b'\n'; MOST_LINES + 1]) {
    Ok(lines) => lines,
    Err(_) => "",
};
/// One term; the type is in `src/sources/lib.rs`.
const TERMS: &str = "| term | x | y | type |\n|---|---|---|---|\n| a | x | y | `sources::Term` |\n";
const HEAD: &str = "//! Room.\n//! ```text\n//! a -> b\n//! ```\n//! What must never happen here: a circle.\n";

/// A tree without mistakes. `changes` replace or add files; `None` removes a file.
fn tree(changes: &[(&str, Option<&str>)]) -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let model = format!("{HEAD}pub mod a;\npub mod b;\npub use a::A;\n");
    let types = "pub struct Term;\npub struct Error;\nmod inner { pub struct Error; }\n";
    let sources = format!("{HEAD}mod clock;\nmod raw;\nmod nvml;\n{types}");
    let good = [
        ("Cargo.toml", "[workspace]\n[workspace.dependencies]\ntokio = \"1\"\n"),
        ("docs/architecture.md", PLAN),
        ("docs/glossary.md", TERMS),
        (
            "src/model/Cargo.toml",
            "[package]\nname = \"model\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nthiserror.workspace = true\n",
        ),
        ("src/model/lib.rs", &model),
        ("src/model/a.rs", "pub struct A;\n#[cfg(test)]\nmod tests { use super::*; use crate::b::B; }\n"),
        (
            "src/model/b.rs",
            "// Promise 1 in docs/specification.md.\nuse crate::a::A;\nuse crate::A as Same;\npub struct B(A);\n",
        ),
        (
            "src/sources/Cargo.toml",
            "[package]\nname = \"sources\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nmodel.workspace = true\n\
             tokio.workspace = true\n[dev-dependencies]\ntempfile.workspace = true\n",
        ),
        ("src/sources/lib.rs", &sources),
        ("src/sources/clock.rs", "// crate::nvml is named in a comment only\n"),
        ("src/sources/raw.rs", "use crate::clock;\nfn f() { unsafe { g() } }\n"),
        ("src/sources/nvml.rs", "mod read;\nmod thread;\nuse self::thread::run;\nuse read::Reader;\n"),
        ("src/sources/nvml/read.rs", "use crate::{clock, raw::f};\n"),
        ("tests/fuzz/README.md", "| `src/model/a.rs` | – |\n"),
        ("src/sources/nvml/thread.rs", "use super::read::Reader;\nuse super::Reader as Again;\n"),
    ];
    let replaced = |path: &str| changes.iter().any(|(changed, _)| *changed == path);
    for (path, text) in good.iter().filter(|(path, _)| !replaced(path)).map(|(path, text)| (*path, *text)) {
        write(folder.path(), path, text)?;
    }
    for (path, text) in changes.iter().filter_map(|(path, text)| text.map(|text| (*path, text))) {
        write(folder.path(), path, text)?;
    }
    Ok(folder)
}

fn write(root: &Path, path: &str, text: &str) -> io::Result<()> {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap_or(root))?;
    fs::write(path, text)
}

fn findings(changes: &[(&str, Option<&str>)]) -> Vec<Finding> {
    let folder = tree(changes).expect("a temporary folder can be written");
    check(folder.path())
}

const MODEL: &str = "src/model/Cargo.toml";
const SOURCES: &str = "src/sources/Cargo.toml";
const DOCS: &str = "docs/architecture.md";
const TERMS_FILE: &str = "docs/glossary.md";

/// The rule, the file of the finding, words of the message, and the file (path and text) that breaks the tree.
type Case = (Rule, &'static str, &'static str, &'static str, &'static str);

const CASES: [Case; 52] = [
    (
        Rule::Door,
        MODEL,
        "`tokio`",
        MODEL,
        "[package]\nname = \"model\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nthiserror.workspace = true\ntokio.workspace = true\n",
    ),
    (
        Rule::Door,
        MODEL,
        "dev-dependencies",
        MODEL,
        "[package]\nname = \"model\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nthiserror.workspace = true\n[dev-dependencies]\nsources.workspace = true\n",
    ),
    (
        Rule::Door,
        MODEL,
        "target.cfg(unix)",
        MODEL,
        "[package]\nname = \"model\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nthiserror.workspace = true\n[target.'cfg(unix)'.dependencies]\nlibc.workspace = true\n",
    ),
    (
        Rule::Door,
        MODEL,
        "build script",
        MODEL,
        "[package]\nname = \"model\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nthiserror.workspace = true\n[build-dependencies]\ncc.workspace = true\n",
    ),
    (
        Rule::Door,
        MODEL,
        "versions stand once",
        MODEL,
        "[package]\nname = \"model\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nthiserror = \"2\"\n",
    ),
    (
        Rule::Door,
        "Cargo.toml",
        "another name",
        "Cargo.toml",
        "[workspace.dependencies]\nthiserror = { package = \"tokio\", version = \"1\" }\n",
    ),
    (
        Rule::Door,
        "src/extra/Cargo.toml",
        "no room of the plan",
        "src/extra/Cargo.toml",
        "[package]\nname = \"extra\"\n",
    ),
    (
        Rule::Door,
        DOCS,
        "pure",
        DOCS,
        "| room | r | c | t |\n|---|---|---|---|\n| `model` | – | `thiserror`, `tokio` | – |\n| `sources` | `model` | `tokio` | `tempfile` |\n",
    ),
    (
        Rule::Door,
        DOCS,
        "never import `sources`",
        DOCS,
        "| room | r | c | t |\n|---|---|---|---|\n| `model` | `sources` | `thiserror` | – |\n| `sources` | `model` | `tokio` | `tempfile` |\n",
    ),
    (
        Rule::StalePlan,
        DOCS,
        "does not have",
        SOURCES,
        "[package]\nname = \"sources\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nmodel.workspace = true\n",
    ),
    (Rule::StalePlan, DOCS, "no table", DOCS, "# Nothing\n"),
    (Rule::StalePlan, DOCS, "has none", "src/sources/raw.rs", "// calm\n"),
    (Rule::UpwardImport, "src/model/a.rs", "lists `b` below `a`", "src/model/a.rs", "use crate::b::B;\n"),
    (Rule::UpwardImport, "src/model/a.rs", "lists `b` below `a`", "src/model/a.rs", "use crate::{b::{self, B}};\n"),
    (Rule::UpwardImport, "src/model/a.rs", "lists `b` below `a`", "src/model/a.rs", "fn f() { super::b::g() }\n"),
    (
        Rule::UpwardImport,
        "src/model/a.rs",
        "lists `b` below `a`",
        "src/model/a.rs",
        "macro_rules! m { () => { $crate::b::B } }\n",
    ),
    (
        Rule::UpwardImport,
        "src/sources/clock.rs",
        "lists `nvml` below `clock`",
        "src/sources/clock.rs",
        "use crate::nvml::read::Reader;\n",
    ),
    (
        Rule::UpwardImport,
        "src/sources/nvml/read.rs",
        "lists `thread` below `read`",
        "src/sources/nvml/read.rs",
        "use super::thread::run;\n",
    ),
    (
        Rule::UpwardImport,
        "src/sources/nvml/read.rs",
        "lists `thread` below `read`",
        "src/sources/nvml/read.rs",
        "use super::run;\n",
    ),
    (Rule::UpwardImport, "src/sources/nvml/read.rs", "a circle", "src/sources/nvml/read.rs", "use super::Settings;\n"),
    (
        Rule::UpwardImport,
        "src/sources/nvml/read.rs",
        "a circle",
        "src/sources/nvml/read.rs",
        "mod inner { use super::super::*; }\n",
    ),
    (Rule::ForbiddenName, "src/model/utils.rs", "says nothing", "src/model/utils.rs", ""),
    (Rule::ForbiddenName, "src/model/pod_types.rs", "says nothing", "src/model/pod_types.rs", ""),
    (Rule::ForbiddenName, "src/model/a/mod.rs", "never `foo/mod.rs`", "src/model/a/mod.rs", ""),
    (Rule::ForbiddenName, "src/model/build.rs", "cargo claims", "src/model/build.rs", ""),
    (Rule::ForbiddenName, "src/model/a.rs", "says nothing", "src/model/a.rs", "mod helpers {}\n"),
    (Rule::Unsafe, "src/model/a.rs", "does not list", "src/model/a.rs", "fn f() { unsafe { g() } }\n"),
    (Rule::MachinePath, "README.md", "somebody's machine", "README.md", concat!("see `/wo", "rk/main/x`\n")),
    (
        Rule::Picture,
        "src/model/lib.rs",
        "must draw",
        "src/model/lib.rs",
        "//! Nouns.\npub mod a;\npub mod b;\npub use a::A;\n",
    ),
    (Rule::Picture, "src/model/b.rs", "no run tries", "src/model/b.rs", "/// ```\n/// f();\n/// ```\npub struct B;\n"),
    (Rule::Orphan, "tests/fuzz/fuzz_targets/x.rs", "no [[bin]]", "tests/fuzz/fuzz_targets/x.rs", ""),
    (Rule::Promise, "docs/specification.md", "no test says", "docs/specification.md", "1. **Small.**\n2. **Fast.**\n"),
    (
        Rule::Promise,
        "docs/specification.md",
        "but src/model/b.rs names it",
        "docs/specification.md",
        "1. **Small.** Not much,\n   not tested.\n",
    ),
    (Rule::Promise, "src/model/b.rs", "does not have", "docs/specification.md", "3. **Other**, not tested.\n"),
    (Rule::Outside, "tests/node/start.rs", "from outside", "tests/node/start.rs", "use decide::node::Node;\n"),
    (Rule::Decoder, "src/wire/lib.rs", "`pod` has no row", "src/wire/lib.rs", "pub mod pod;\npub mod key;\n"),
    (
        Rule::Decoder,
        "tests/fuzz/fuzz_targets/lost.rs",
        "no row",
        "tests/fuzz/fuzz_targets/lost.rs",
        "fuzz_target!(|bytes: &[u8]| {});\n",
    ),
    (
        Rule::Decoder,
        "tests/fuzz/README.md",
        "src/model/a.rs has no property test",
        "tests/fuzz/README.md",
        "| `src/model/a.rs` | `a` |\n",
    ),
    (
        Rule::Decoder,
        "tests/fuzz/README.md",
        "no fuzz target `a`",
        "tests/fuzz/README.md",
        "| `src/model/a.rs` | `a` |\n",
    ),
    (
        Rule::PublicName,
        "src/sources/nvml/thread.rs",
        "`A` is also declared in src/model/a.rs:1",
        "src/sources/nvml/thread.rs",
        "pub struct A;\n",
    ),
    (Rule::PublicName, "tests/lab/a.rs", "rename one", "tests/lab/a.rs", "\npub type B = u8;\n"),
    (
        Rule::PublicName,
        "src/model/b.rs",
        "src/model/a.rs:2",
        "src/model/a.rs",
        "macro_rules! name { ($n:ident) => { pub struct $n; } }\nname!(B);\npub struct A;\n",
    ),
    (Rule::Fields, "src/model/a.rs", "`A` has 11 fields", "src/model/a.rs", ELEVEN),
    (Rule::StalePlan, DOCS, "no two public types have the name `Error`", "src/sources/lib.rs", "pub struct Error;\n"),
    (
        Rule::Glossary,
        TERMS_FILE,
        "declares no type `C`",
        TERMS_FILE,
        "| term | x | y | type |\n| a | x | y | `model::C` |\n",
    ),
    (
        Rule::Glossary,
        TERMS_FILE,
        "declares no type `A` (it is declared in src/model/a.rs)",
        TERMS_FILE,
        "| term | x | y | type |\n| a | x | y | `sources::A` |\n",
    ),
    (Rule::Glossary, TERMS_FILE, "names no type", TERMS_FILE, "| term | x | y | type |\n| a | x | y | `A` |\n"),
    (Rule::Glossary, TERMS_FILE, "declares no type `Term`", "src/sources/lib.rs", "#[cfg(test)]\npub struct Term;\n"),
    (
        Rule::Glossary,
        TERMS_FILE,
        "the term `A` also stands in line 2",
        TERMS_FILE,
        "| term | x | y | type |\n| a | x | y | `model::A` |\n| A | x | y | – |\n",
    ),
    (
        Rule::Glossary,
        TERMS_FILE,
        "`model::A` is also named in line 2",
        TERMS_FILE,
        "| term | x | y | type |\n| a | x | y | `model::A` |\n| b | x | y | `model::B`, `model::A` |\n",
    ),
    (Rule::Length, "src/model/b.rs", "has 801 lines, and 800 are the most", "src/model/b.rs", LONG),
    (Rule::Glossary, TERMS_FILE, "has 3 columns", TERMS_FILE, "| term | x | type |\n| a | x | `model::A` |\n"),
];

#[test]
fn a_correct_tree_has_no_findings() {
    assert_eq!(findings(&[]), []);
}

#[test]
fn every_rule_finds_the_mistake_in_its_broken_tree() {
    for (rule, file, words, path, text) in CASES {
        let found = findings(&[(path, Some(text))]);
        let caught = found.iter().find(|finding| finding.rule == rule && finding.what.contains(words));
        let finding = caught.unwrap_or_else(|| panic!("{rule} about {words:?} was not caught in {path}: {found:#?}"));
        let message = finding.to_string();
        assert!(message.starts_with(file) && message.contains(&rule.to_string()), "{message}");
    }
}

#[test]
fn an_unreachable_file_and_an_unreadable_file_are_found() {
    let found = findings(&[("src/model/lost.rs", Some("pub struct Lost;\n"))]);
    assert!(found.iter().any(|f| f.rule == Rule::Orphan && f.file == "src/model/lost.rs"), "{found:#?}");
    let found = findings(&[(MODEL, Some("[package\n"))]);
    assert!(found.iter().any(|f| f.rule == Rule::Unreadable && f.file == MODEL), "{found:#?}");
    let found = findings(&[(TERMS_FILE, None)]);
    assert!(found.iter().any(|f| f.rule == Rule::Glossary && f.what.contains("is not there")), "{found:#?}");
    let found = findings(&[(MODEL, None)]);
    assert!(found.iter().any(|f| f.rule == Rule::StalePlan && f.what.contains("`model`")), "{found:#?}");
}

#[test]
fn every_rule_has_a_broken_tree() {
    let elsewhere = [Rule::Unreadable];
    for rule in Rule::ALL {
        assert!(elsewhere.contains(&rule) || CASES.iter().any(|case| case.0 == rule), "{rule} has no broken tree");
    }
}

#[test]
fn code_that_only_looks_like_a_mistake_passes() {
    let with_reason = ELEVEN.replace("Too much.", "One field for each letter.");
    let ten = ELEVEN.replace("    j: u8,\n", "");
    for (path, text) in [
        ("src/model/a.rs", with_reason.as_str()),
        ("src/model/a.rs", &ten),
        ("src/model/a.rs", "// use crate::b::B;\n/* unsafe */ const S: &str = \"unsafe { crate::b }\";\n"),
        ("src/model/a.rs", "#![deny(unsafe_code)]\npub(in crate::a) struct A;\n"),
        ("src/model/a.rs", "fn f() { g() }\n#[cfg(test)]\nuse crate::b::B;\n"),
        ("README.md", "a cgroup `/kubepods/work/x` and `$HOME/x`, `~/root/x`\n"),
        ("src/sources/nvml/read.rs", "mod inner { use super::f; }\nfn f() {}\n"),
        ("src/sources/raw.rs", "pub(crate) struct A;\nstruct B;\nunsafe fn f() {}\n"),
        ("src/sources/raw.rs", "#[cfg(test)]\nmod tests { pub struct A; }\nunsafe fn f() {}\n"),
        (
            "src/model/b.rs",
            "// Promise 1.\nimpl Iterator for X { type A = u8; }\n#[cfg(test)]\nmod a { pub struct A; }\n",
        ),
        ("tests/fuzz/source.rs", "pub struct A;\n"),
        (TERMS_FILE, "| file | x |\n|---|---|\n| `model::C` | x |\n\n| term | x | y | type |\n| a | x | y | – |\n"),
    ] {
        assert_eq!(findings(&[(path, Some(text))]), [], "{text}");
    }
}
