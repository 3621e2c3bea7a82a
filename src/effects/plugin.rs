//! The device plugin: kubelet's questions are passed on to the one who owns the state, and its answers are passed back.
//!
//! ```text
//!   kubelet ──▶ service ──Call──▶ owner (steward)          list: watch channel ──▶ ListAndWatch
//!      ▲           ▲                    │ answer
//!      └─ register └────────────────────┘
//! ```
//!
//! `Allocate` is kubelet's admission of pods, one after the other: where the owner has said that a ticket is all that is given,
//! it is answered at once, and the owner hears of it before anything that follows.
//!
//! What must never happen here: nothing is decided; no call is answered from anything but the owner's word; two
//! registrations of one resource never stand beside each other, because kubelet then drops the newer with the older.

mod meter;
mod journal;
mod one_at_disk;
mod under_way;
mod call;
mod service;
mod notice;
mod line;
mod site;
mod socket_name;
mod rival;
mod settings;
mod register;

pub use call::{
    AllocateAnswer, CallRefused, ContainerField, PluginCall, PluginCallReceiver, PluginCallSender, PluginDevice,
    new_ticket,
};
pub use journal::TicketJournal;
pub use meter::CallMeter;
pub use one_at_disk::OneAtDisk;
pub use register::serve;
pub use rival::{RivalPlugin, SecondAgent, find as find_rival, find_second};
pub use settings::{RegistrationCourse, RegistrationMethod, RegistrationStart, Settings};

#[cfg(test)]
mod tests;
