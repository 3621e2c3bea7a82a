//! The C functions. Each enters by the gate, sees one view of the scenario, and writes where its pointers say.
//!
//! What must never happen here: a state of its own (that is `state`), an answer that the scenario does not give.

mod system;
mod identity;
mod reading;
mod process;
mod mig;
mod event;
mod gpm;
mod link;
