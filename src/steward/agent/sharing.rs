//! The tasks that share the GPUs of a node. The owner task (`owner.rs`, [`Sharing`](owner::Sharing)) holds the only state.
//! It answers the kubelet's calls (`allocation.rs`, `pre_start.rs`, `listing.rs`), has the files of containers written
//! (`prefetch.rs`, `ticket_writer.rs`) and sends events (`pod_status.rs`).
//!
//! ```text
//!   views (GPUs) ─┐
//!   pods ─────────┼─▶ Sharing ──list──▶ ListAndWatch
//!   kubelet ──────┘      └──verdict──▶ delivery ──▶ answer to the kubelet
//! ```

pub(crate) mod host;
pub(crate) mod devices;
mod container_limits;
mod config;
mod counts;
mod missing;
mod health;
mod topology;
mod binding_mode;
mod listing;
mod cdi_check;
mod waiting;
mod overuse;
mod pod_write;
mod sent_events;
mod late;
mod pod_status;
mod ticket_writer;
mod emptier;
mod file_counter;
mod gpu_pods;
mod prefetch;
mod owner;
mod isolation;
mod allocation;
mod pre_start;
mod turn;
mod serving;
mod start;

pub(crate) use config::check;
pub(crate) use pod_status::PodStatusWriter;
pub(crate) use serving::Run;
pub(crate) use start::open;
