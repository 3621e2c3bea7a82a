//! `/proc` under a given root. Texts are read here and understood in `wire::proc_file`.
//!
//! ```text
//!   process      one process: its stat, its namespaces
//!   host         the machine as a whole
//!   network      totals of a pod's network namespace
//! ```
//!
//! What must never happen here: two files of one PID taken for one process without a look at its start time or its
//! namespace's number on both sides.

pub mod process;
pub mod host;
pub mod network;
