//! The test harness: everything that tests need to run the built program and to observe it from outside.
//!
//! ```text
//!   eventually   waits for a condition, never for a fixed time
//!   http         a small HTTP client
//!   scenario     the fake NVML library and its scenario file (feature `nvml`)
//!   agent        the built program in an empty directory
//!   extender     the same as an extender
//!   tokens       tokens of service accounts, as an API server signs them
//!   api_server   a fake Kubernetes API server with faults on demand
//!   pass_through a scheduler extender that decides nothing, for benches to compare with
//!   pods         real cgroups with real processes, under kubelet's paths (needs root)
//!   kubectl      real `kubectl` calls with given credentials
//!   bearer       single requests with a bearer token
//!   cluster      a real cluster on this machine (needs root)
//!   vm           a virtual machine as a node of that cluster (needs root and QEMU)
//!   relay        a TCP relay that delays answers, or drops connections silently
//!   slow_reader  clients that read nothing of an answer
//!   prometheus   a real Prometheus server, and queries to it
//! ```
//!
//! What must never happen here: a type of the program's own crates. A test that shares code with the program shares its
//! mistakes.

pub mod eventually;
pub mod http;
#[cfg(feature = "nvml")]
pub mod scenario;
pub mod tokens;
pub mod api_server;
pub mod pass_through;
pub mod agent;
pub mod extender;
pub mod pods;
pub mod object_reads;
pub mod kubectl;
pub mod bearer;
pub mod cluster;
pub mod vm;
pub mod relay;
pub mod slow_reader;
pub mod prometheus;
