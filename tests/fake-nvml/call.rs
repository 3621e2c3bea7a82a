//! The C functions. Each calls `state::enter` first, reads one view of the scenario, and writes its answer through its
//! pointers.
//!
//! What must never happen here: a state of its own (the state is in `state`), an answer that the scenario does not give.

mod system;
mod identity;
mod reading;
mod process;
mod mig;
mod event;
mod gpm;
mod link;
