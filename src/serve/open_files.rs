//! The limit of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit of open files to the hard limit. If the kernel refuses, the limit stays as it is.
/// Returns the limit in force; `None` if there is no limit.
#[must_use]
pub fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current }
}
