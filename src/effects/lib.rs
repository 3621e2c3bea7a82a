//! The hands: they serve and write, and decide nothing. Every server shows the same [`model::view::NodeView`].
//!
//! ```text
//!   exposition metrics     the view as Prometheus text: ours, and the names of dcgm-exporter, HAMi, cAdvisor
//!   api                    the view as JSON
//!   caller                 who asks: Host and bearer token
//!   http                   :9410, everything that is open to the cluster
//!   socket                 the file of a unix socket: stale is replaced, living is respected, ours goes with us
//!   usage                  the unix socket's gRPC stream
//!   pprof admin            the loopback port: profiles of this process, log level
//!   plugin                 the device plugin that kubelet calls
//!   delivery               what a container finds when it starts: CDI spec, limits
//!   state_file             a file that the agent writes and reads again, in the state directory
//!   incidents              what has happened to GPUs, kept over a restart
//!   tallies                what pods have had of GPUs, kept over a restart
//!   failpoint              places where a test ends the process; empty in what is shipped
//! ```
//!
//! What must never happen here: a decision, a reading of the world, a queue or connection count without a bound.

#[cfg(test)]
mod sample_view;
pub mod failpoint;
pub mod exposition;
pub mod metrics;
pub mod api;
pub mod caller;
pub mod http;
#[cfg(test)]
mod prometheus;
mod socket;
pub mod usage;
pub mod pprof;
pub mod admin;
pub mod plugin;
pub mod delivery;
pub mod state_file;
pub mod incidents;
pub mod tallies;
pub mod apiserver;
