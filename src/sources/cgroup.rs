//! Cgroups under a given root: which there are, who is in them, what they used.
//!
//! ```text
//!   layout     v1, v2 or both; which tree counts what; whether our namespace hides the beginning of paths
//!   walk       finds pods and containers in the mounted hierarchy
//!   members    the processes in one cgroup and below it
//!   tracked    one cgroup: its kept-open files, its last readings
//!   table      all of them: finds, reads, forgets, reports
//! ```
//!
//! What must never happen here: a value where the kernel does not count, a file kept open of a cgroup that is gone, a
//! pass whose cost has no bound.

pub mod layout;
pub mod walk;
pub mod members;
pub mod tracked;
pub mod table;
