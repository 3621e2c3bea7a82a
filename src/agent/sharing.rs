//! The tasks that share the GPUs of a node. The sharing task (`sharing_task.rs`, [`Sharing`](sharing_task::Sharing))
//! holds all the state, in parts that each have one job. The task answers the kubelet's calls (`pre_start.rs`) and
//! passes the results of one part to the others. `decide` makes the decisions, including how long a call waits.
//!
//! ```text
//!   views (GPUs) ─▶ offer ───┐                       ┌─list────▶ ListAndWatch
//!   pods ─────────▶ pods ────┤                       ├─verdict─▶ files ──▶ answer to the kubelet
//!   kubelet ──────▶ calls ───┼─▶ Sharing: allocator ─┼─ticket──▶ tickets ─▶ state directory, prefetch
//!   checkpoint ───▶ holders ─┤                       └─news────▶ status ──▶ events and annotations on pods
//!   runtime ──────▶ cdi ─────┘
//! ```

pub(crate) mod host;
pub(crate) mod devices;
mod config;
mod counts;
mod missing;
mod health;
mod topology;
mod cdi_finder;
mod listing;
mod holders;
mod cdi_check;
mod runtime_cdi;
mod calls;
mod event_notes;
mod overuse;
mod pod_write;
mod late;
mod pod_status;
mod ticket_writer;
mod emptier;
mod file_counter;
mod container_files;
mod gpu_pods;
mod node_pods;
mod offer;
mod prefetch;
mod ticket_issuer;
mod sharing_task;
mod cdi_state;
mod pre_start;
mod turn;
mod serving;
mod start;

pub(crate) use config::read;
pub(crate) use pod_status::PodStatusWriter;
pub(crate) use serving::Run;
pub(crate) use start::open;
