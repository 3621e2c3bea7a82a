//! `/proc` under a given root. Texts are read here and understood in `wire::proc_file`.
//!
//! ```text
//!   process      one process: its stat, its namespaces
//!   sight        whether what is shown there are the machine's processes or our container's
//!   carried      sums over disks and interfaces that come and go
//!   interfaces   which interfaces of the machine are counted, each byte once
//!   host         the machine as a whole
//!   network      totals of a pod's network namespace
//! ```
//!
//! What must never happen here: two files of one PID taken for one process without a look at its start time or its
//! namespace's number on both sides.

pub mod process;
pub mod visibility;
pub(crate) mod carried;
pub(crate) mod interfaces;
pub mod host;
pub mod network;
