//! The text of a value before it is parsed, and where it was set.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Flag,
    /// The environment variable of this name.
    Environment(String),
    /// The configuration file.
    File {
        /// The path of the file.
        path: Arc<Path>,
        /// Line, from 1.
        line: u64,
    },
    /// The built-in default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Environment(name) => f.write_str(name),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The text of a value, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawValue {
    /// The text.
    pub text: String,
    /// Where the value was set.
    pub origin: Origin,
}
