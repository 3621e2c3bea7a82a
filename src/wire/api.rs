//! `/api/v1` as JSON: what the node's port answers and `top` reads back.
//!
//! ```text
//!   reading     {"value": 3, "age_seconds": 0.4}  or  {"absent": "call_hangs", "reason": "call hangs"}
//!   head        which node, which view, how old, whether the GPUs are made up
//!   owner       whose a process is: pod and container by name
//!   gpus pods processes node     one document each
//! ```
//!
//! Numbers are in base units and say so in their names: bytes, seconds, joules, hertz, shares of one. Fields may be added;
//! none changes its meaning. The largest lists are converted one item at a time while they are written
//! ([`pods::Listing`], [`processes::Listing`]), so an answer costs its text and not a second copy of the view.
//!
//! What must never happen here: a clock (ages are counted from an argument), a value for something that is absent.

pub mod reading;
pub mod head;
pub mod owner;
pub mod gpus;
pub mod pods;
pub mod processes;
pub mod node;

pub use head::Head;
pub use reading::Reading;
