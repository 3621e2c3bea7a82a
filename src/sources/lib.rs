//! The eyes: they read the world, change nothing in it, and report [`model::observation::Observation`]s into one bounded
//! queue. Each eye that can block is a named thread of its own; a late reader never blocks the async runtime.
//!
//! ```text
//!   clock roots boot       when and where to look (every root is a setting), and since which boot
//!   kernel_file            the kernel's files, read without waiting and without allocating
//!   procfs cgroup owner    what they say, whose process is whose
//!   sampler                the thread that looks at host, cgroups, networks, processes by deadline
//!   names                  who is who: CRI socket, log links, PodResources
//!   kubernetes             the API server: which pods this node has
//!   spell                  said once, counted always, tried again ever more rarely
//!   kernel_log nvml simulated   GPUs
//! ```
//!
//! What must never happen here: a decision, a write, a value made up for one that could not be read, a panic on what the
//! kernel, a driver or a socket says.

pub mod clock;
pub mod roots;
pub mod boot;
pub mod report;
mod backoff;
pub mod kernel_file;
pub mod procfs;
pub mod cgroup;
pub mod owner;
mod infiniband;
pub mod sampler;
pub mod names;
pub mod kubernetes;
pub mod checkpoint;
pub mod arrival;
pub mod kernel_log;
pub mod nvml;
pub mod simulated;
