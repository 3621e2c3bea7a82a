//! What is wrong, where, and by which rule.

use std::fmt;

/// The rules of the house. Each has a sentence in `docs/architecture.md` and a broken tree in `tests/house/broken.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A dependency that the plan does not list for this room.
    Door,
    /// The plan lists a room, door or file that is not there.
    StalePlan,
    /// A file imports a file that is not listed above it.
    UpwardImport,
    /// A name that says nothing, or one that cargo claims.
    ForbiddenName,
    /// `unsafe` in a file that is not listed for it.
    Unsafe,
    /// A path of somebody's machine.
    MachinePath,
    /// A source file that no crate reaches.
    Orphan,
    /// A room without its picture.
    Picture,
    /// A test of the built program that looks inside it.
    Outside,
    /// A promise without a test, or a test of no promise.
    Promise,
    /// Bytes of others are read without a property test or a fuzz target.
    Decoder,
    /// Two public types of one name.
    PublicName,
    /// A row of the glossary that names no type, or one that stands twice.
    Glossary,
    /// A file that could not be read or understood.
    Unreadable,
}

impl Rule {
    /// All of them, so that a test can ask for a broken tree of each.
    pub(crate) const ALL: [Rule; 14] = [
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
        Rule::Glossary,
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
            Rule::Glossary => "glossary",
            Rule::Unreadable => "unreadable",
        })
    }
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path below the root of the tree.
    pub(crate) file: String,
    /// Line, from 1; 0 when the whole file is meant.
    pub(crate) line: usize,
    /// Which rule.
    pub(crate) rule: Rule,
    /// What is wrong and what to do.
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
