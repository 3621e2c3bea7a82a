//! The task that owns what is shared: answers kubelet from the state, and keeps the files of containers.
//!
//! ```text
//!   views (GPUs) ─┐
//!   pods ─────────┼─▶ Share ──list──▶ ListAndWatch
//!   kubelet ──────┘     └──verdict──▶ delivery ──▶ answer to kubelet
//! ```

pub(crate) mod host;
pub(crate) mod cards;
mod promise;
mod config;
mod counts;
mod missing;
mod health;
mod kubelet_config;
mod topology;
mod binding;
mod listing;
mod arrival;
mod waiting;
mod overuse;
mod writing;
mod told;
mod late;
mod tell;
mod keeper;
mod emptier;
mod file_counter;
mod tenants;
mod ahead;
mod owner;
mod isolation;
mod allocation;
mod pre_start;
mod turn;
mod serving;
mod start;

pub(crate) use config::check;
pub(crate) use serving::Run;
pub(crate) use start::open;
pub(crate) use tell::Teller;
