//! A broken rule, with its place.

use std::fmt;

/// The rules. Each has a sentence in `docs/architecture.md` and a tree that breaks it in `tests/house/broken.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A dependency that the plan does not list for this room.
    Door,
    /// The plan lists a room, door or file that does not exist.
    StalePlan,
    /// A file imports a file that is not listed above it.
    UpwardImport,
    /// A name without meaning, or one that cargo uses itself.
    ForbiddenName,
    /// `unsafe` in a file that is not listed for it.
    Unsafe,
    /// A path of a developer's machine.
    MachinePath,
    /// A source file that belongs to no crate.
    Orphan,
    /// A room without a diagram in its head comment.
    Picture,
    /// A test of the built program that imports its code.
    Outside,
    /// A promise without a test, or a test that names a promise that does not exist.
    Promise,
    /// A decoder without a property test or a fuzz target.
    Decoder,
    /// Two public types with the same name.
    PublicName,
    /// A struct with many fields and no reason for it.
    Fields,
    /// A row of the glossary that names a missing type, or repeats a term or type.
    Glossary,
    /// A source file that is too long to be read as one.
    Length,
    /// A file that cannot be read or parsed.
    Unreadable,
}

impl Rule {
    /// All rules, so that a test can check that each has a tree that breaks it.
    pub(crate) const ALL: [Rule; 16] = [
        Rule::Door,
        Rule::StalePlan,
        Rule::UpwardImport,
        Rule::ForbiddenName,
        Rule::Unsafe,
        Rule::MachinePath,
        Rule::Orphan,
        Rule::Picture,
        Rule::Outside,
        Rule::Promise,
        Rule::Decoder,
        Rule::PublicName,
        Rule::Fields,
        Rule::Glossary,
        Rule::Length,
        Rule::Unreadable,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Door => "door",
            Rule::StalePlan => "stale-plan",
            Rule::UpwardImport => "upward-import",
            Rule::ForbiddenName => "forbidden-name",
            Rule::Unsafe => "unsafe",
            Rule::MachinePath => "machine-path",
            Rule::Orphan => "orphan",
            Rule::Picture => "picture",
            Rule::Outside => "outside",
            Rule::Promise => "promise",
            Rule::Decoder => "decoder",
            Rule::PublicName => "public-name",
            Rule::Fields => "fields",
            Rule::Glossary => "glossary",
            Rule::Length => "length",
            Rule::Unreadable => "unreadable",
        })
    }
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path below the root of the tree.
    pub(crate) file: String,
    /// Line, from 1; 0 for the whole file.
    pub(crate) line: usize,
    /// The broken rule.
    pub(crate) rule: Rule,
    /// The mistake, and what to do.
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn new(rule: Rule, file: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { file: file.to_owned(), line, rule, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}: {}", self.file, self.rule, self.what),
            line => write!(f, "{}:{line}: {}: {}", self.file, self.rule, self.what),
        }
    }
}
