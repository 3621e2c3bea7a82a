//! Output: this crate serves HTTP and gRPC, answers the kubelet and writes files. It decides nothing. Every server
//! shows the same [`model::view::NodeView`].
//!
//! ```text
//!   metrics                    the view as Prometheus text: our metrics, and names of dcgm-exporter, HAMi, cAdvisor
//!   api                    the view as JSON
//!   http                   :9410, everything that is open to the cluster
//!   socket                 the file of a unix socket: replaces a stale one, keeps one in use, removes its own
//!   usage                  the gRPC stream on the unix socket
//!   plugin                 the device plugin that the kubelet calls
//!   delivery               the CDI spec and the limits of a container that starts
//!   state_file             a file in the state directory that the agent writes, and reads after a restart
//!   incidents              incidents of GPUs, kept over a restart
//!   profile_store          histories of GPUs and pods, kept for five weeks
//!   binding_file           whether the container runtime supports CDI, kept over a restart
//!   failpoint              places where a test kills or holds the process; not in a release build
//!   sample_view            for tests: views of nodes
//!   prometheus             for tests: reads the metrics with promtool and a Prometheus server
//! ```
//!
//! What must never happen here: a decision, a reading of the host or the driver, a queue or connection count without a
//! bound.

#[cfg(test)]
mod sample_view;
pub mod failpoint;
pub mod metrics;
pub mod api;
pub mod http;
#[cfg(test)]
mod prometheus;
mod socket;
pub mod usage;
pub mod plugin;
pub mod delivery;
pub mod state_file;
pub mod incidents;
pub mod profile_store;
pub mod binding_file;
