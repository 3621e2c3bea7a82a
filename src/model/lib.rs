//! The nouns: what is true of a node, its GPUs and what runs on it, in units that cannot be mixed up.
//!
//! ```text
//!   time unit id        the alphabet: when, how much, who
//!   share               sharing: slots that kubelet counts, portions that pods were promised, who holds what
//!   reading             a value that was measured at a time, or the reason why there is none
//!   upkeep              a card's plate and limits, its slot, worn memory, links, fabric: what is read rarely
//!   switch              NVSwitches, as far as the kernel's log tells of them
//!   gpu cgroup pod process host   one thing each: who it is, and what was read of it (raw, exactly as the world told it)
//!   infiniband          the machine's ports, and which GPUs are near them
//!   usage               what follows from two raw samples: rates, shares
//!   xid                 NVIDIA's catalogue of driver errors: what each asks for, and which of them condemn a GPU
//!   incident            what makes a GPU unfit for new containers, and what to do about it
//!   request registered claim promise   sharing: what a container asks for, what a node offers, what was given, what is owed
//!   tally               GPU time and energy of pods, counted over the lives of the program
//!   guard               the chart's policies, as this agent found them
//!   plugin              the device plugin: how it stands with kubelet, what was asked of it
//!   hold                whether the GPU driver is held open
//!   observation         everything an eye (`sources`) may report
//!   view                one node as one believes it at one moment; what every server shows
//! ```
//!
//! What must never happen here: no file, no clock, no socket, no async, no serialisation format. Time is an argument.
//! A value that could not be read is [`Reading::Absent`] with its reason, never zero.

// A pure room answers every input; what cannot be is an error or a type, not an end of the program.
#![deny(clippy::expect_used)]

pub mod time;
pub mod unit;
pub mod id;
pub mod reading;
pub mod upkeep;
pub mod switch;
pub mod gpu;
pub mod cgroup;
pub mod pod;
pub mod process;
pub mod host;
pub mod infiniband;
pub mod usage;
pub mod xid;
pub mod incident;
pub mod slot;
pub mod request;
pub mod registered;
pub mod claim;
pub mod gpu_pod;
pub mod checkpoint;
pub mod ticket;
pub mod limits;
pub mod tally;
pub mod guard;
pub mod plugin;
pub mod driver_hold;
pub mod observation;
pub mod view;

pub use reading::{Absence, Reading};
