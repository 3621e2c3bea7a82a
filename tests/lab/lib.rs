//! The laboratory's bench: everything the tests need to run the built program and look at it from outside.
//!
//! ```text
//!   eventually   waits for a condition, never for a time
//!   http         a client that speaks just enough HTTP
//!   scenario     the fake NVML library and what it answers
//!   agent        the built program in an empty directory of its own
//!   api_server   a Kubernetes API server that fails when it is told to
//!   pods         real cgroups with real processes, under kubelet's paths (needs root)
//!   kubectl      real `kubectl` calls, as somebody
//!   bearer       single requests with a token and nothing else
//!   cluster      a real cluster on this machine (needs root)
//!   vm           a machine of its own as a node of that cluster (needs root and QEMU)
//!   relay        a slow line to a server
//!   prometheus   a real server that scrapes, and questions to it
//! ```
//!
//! What must never happen here: a type of the program's own rooms. A test that shares code with what it tests shares
//! its mistakes.

pub mod eventually;
pub mod http;
pub mod scenario;
pub mod api_server;
pub mod agent;
pub mod pods;
pub mod kubectl;
pub mod bearer;
pub mod cluster;
pub mod vm;
pub mod relay;
pub mod prometheus;
