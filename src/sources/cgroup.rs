//! Cgroups under a given root: which exist, which processes are in them, what they use.
//!
//! ```text
//!   layout     v1, v2 or both; which tree has which controller; whether a namespace hides the beginning of paths
//!   walk       finds pods and containers in the mounted hierarchy
//!   members    the processes in one cgroup and below it
//!   kernel     reads their files: files that stay open, files below an open directory, or files by path
//!   tracked    one cgroup: its open files, its last readings
//!   table      all cgroups: finds, reads, forgets and reports them
//! ```
//!
//! Cost, measured on real v1 cgroups and 2 cores with other work on them (debug build, thread CPU time): 300 cgroups
//! (100 pods of 2 containers) every second cost 1.5 ms a pass when all are idle (0.15 % of a core) and 3.4 ms when all
//! are busy (0.34 %); the first pass costs 36 ms. `sampler::truth` tests this.
//!
//! What must never happen here: a value although the kernel does not count, an open file of a cgroup that is gone, a
//! pass without a limit on its cost.

pub mod layout;
pub mod walk;
pub mod members;
pub mod kernel;
pub mod tracked;
pub mod table;
