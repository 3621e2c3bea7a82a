//! Reads `/proc` under a given root. `wire::proc_file` parses the files of a process, `host_file` the files of the
//! machine.
//!
//! ```text
//!   process      one process: its stat, its namespaces
//!   visibility   whether `/proc` shows the machine's processes or only those of the agent's container
//!   host_file    files of the machine, parsed by procfs-core
//!   carried      sums over disks and interfaces that are added and removed
//!   interfaces   which interfaces of the machine are counted, so that each byte counts once
//!   host         the machine as a whole
//!   network      totals of a pod's network namespace
//! ```
//!
//! What must never happen here: two files of one PID count as files of one process without a comparison of the start
//! time or the number of a namespace before and after reading them.

pub mod process;
pub mod visibility;
pub mod host_file;
pub(crate) mod carried;
pub(crate) mod interfaces;
pub mod host;
pub mod network;
