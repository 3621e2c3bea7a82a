//! The reasons why there is no profile.

use crate::heap_dump::HeapDumpError;
use crate::order::SUBCOMMAND;
use std::io;

/// The reason why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another profile runs: there is one timer and one set of slots.
    #[error("another profile is using the sampler; only one can, try again when it has ended")]
    Busy,
    /// The sampler could not be set up.
    #[error("setting up the sampler: {what}")]
    Setup {
        /// The step that failed.
        what: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// jemalloc was started without profiling.
    #[error("the allocator does not sample: it was started without `prof:true` (is MALLOC_CONF set?)")]
    HeapSamplingOff,
    /// jemalloc refused to write its samples.
    #[error("reading the heap profile of jemalloc: {0}")]
    HeapDumpRefused(String),
    /// The in-memory file for jemalloc's samples failed.
    #[error("jemalloc's heap profile in a memory file")]
    HeapDumpFile(#[source] io::Error),
    /// The dump that jemalloc wrote cannot be parsed.
    #[error(transparent)]
    HeapDumpUnreadable(#[from] HeapDumpError),
    /// The program could not be started a second time.
    #[error("starting /proc/self/exe {SUBCOMMAND}, the child that names functions and lines")]
    Start(#[source] io::Error),
    /// The child does not take orders, or does not answer.
    #[error("the child that names functions and lines: {what}")]
    Child {
        /// The step that failed.
        what: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The child ended without an answer.
    #[error("the child that names functions and lines ended without an answer")]
    NoAnswer,
    /// The profile was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
}
