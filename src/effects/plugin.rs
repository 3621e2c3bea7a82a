//! The device plugin: passes each call of the kubelet to the sharing task in `agent`, which owns the node allocator,
//! and passes the answer back.
//!
//! ```text
//!   kubelet ──▶ service ──PluginCall──▶ sharing task (agent)       list: watch channel ──▶ ListAndWatch
//!      ▲           ▲                        │ answer
//!      └─ register └────────────────────────┘
//! ```
//!
//! The kubelet admits pods one after the other, and waits for each `Allocate`. The gRPC service answers `Allocate` at
//! once, because the answer holds only a ticket. It queues a message about the ticket before it answers, so the sharing
//! task gets this message before every later call.
//!
//! What must never happen here: a decision; an answer before the sharing task runs; two registrations of one resource
//! at the same time that make the kubelet drop the newer registration when the older one ends.

mod meter;
mod journal;
mod one_at_disk;
mod under_way;
mod call;
mod service;
mod connection;
mod served_socket;
mod socket_name;
mod second_agent;
mod settings;
mod register;

pub use call::{CallRefused, PluginCall, PluginCallReceiver, PluginCallSender, PluginDevice};
pub use journal::TicketJournal;
pub use meter::CallMeter;
pub use one_at_disk::OneAtDisk;
pub use register::serve;
pub use second_agent::{SecondAgent, find_second};
pub use settings::{RegistrationCourse, RegistrationStart, Settings};

#[cfg(test)]
mod tests;
