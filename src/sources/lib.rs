//! Data sources: this code reads the host, the API server and the GPU driver, and reports
//! [`model::observation::Observation`]s through bounded queues (`report`). A source that can block runs on a thread of
//! its own or in Tokio's blocking pool, so it never blocks a Tokio worker.
//!
//! ```text
//!   roots boot                  the roots of the kernel's file trees (each is a setting); the boot id
//!   series report               lossless series of samples for a subscriber; how observations reach the agent
//!   kernel_file                 reads the kernel's files without waiting and without allocating
//!   bounded_file                a file that another program wrote, up to a limit
//!   procfs cgroup               host and cgroup readings
//!   process_owner               the container that a process belongs to
//!   infiniband                  InfiniBand ports and their counters
//!   sampler                     the thread that reads host, cgroups, networks and processes by deadline
//!   names                       names of containers: CRI socket, log links, PodResources
//!   kubernetes                  the pods of this node at the API server
//!   toolkit_spec                the CDI spec of NVIDIA's container toolkit
//!   kubelet_config              the kubelet's configuration file
//!   device_config               HAMi's device configuration
//!   checkpoint                  the kubelet's file of allocated devices
//!   state_dir                   what an earlier agent process left in the state directory
//!   rival_plugin                another device plugin that runs on this node
//!   arrival                     whether a container has a file mounted
//!   source_failures             logs a failure once, counts it each time, and retries with growing pauses
//!   kernel_log nvml simulated   GPUs
//! ```
//!
//! What must never happen here: a decision, a write, a value that is invented because the true value could not be read,
//! a panic because of what the kernel, a driver or a socket returns.

pub mod roots;
pub mod boot;
pub mod series;
pub mod report;
mod source_failures;
pub mod kernel_file;
pub mod bounded_file;
pub mod procfs;
pub mod cgroup;
pub mod process_owner;
mod infiniband;
pub mod sampler;
pub mod names;
pub mod kubernetes;
pub mod toolkit_spec;
pub mod kubelet_config;
pub mod device_config;
pub mod state_dir;
pub mod checkpoint;
pub mod rival_plugin;
pub mod arrival;
pub mod kernel_log;
pub mod nvml;
pub mod simulated;
