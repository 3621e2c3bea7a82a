//! The tasks that share the GPUs of a node: they answer the kubelet from one state and write the files of containers.
//!
//! ```text
//!   views (GPUs) ─┐
//!   pods ─────────┼─▶ Sharing ──list──▶ ListAndWatch
//!   kubelet ──────┘      └──verdict──▶ delivery ──▶ answer to the kubelet
//! ```

pub(crate) mod host;
pub(crate) mod devices;
mod promise;
mod config;
mod counts;
mod missing;
mod health;
mod kubelet_config;
mod topology;
mod binding_mode;
mod listing;
mod arrival;
mod waiting;
mod overuse;
mod writing;
mod sent_events;
mod late;
mod pod_status;
mod keeper;
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
