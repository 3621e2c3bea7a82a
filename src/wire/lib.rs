//! The bytes: how others write things, read into nouns. One file per format; total functions, no I/O.
//!
//! ```text
//!   bytes of a file, line or message ──parse──▶ nouns of `model`   (every known form is read)
//!   nouns ──write──▶ one canonical form                            (what we emit)
//! ```
//!
//! What must never happen here: no file, socket, clock or log; no panic on any input (each decoder has a property test and
//! a fuzz target under `tests/fuzz`); no guess: what cannot be understood is an error that says what and where.

// A pure room answers every input; what cannot be is an error or a type, not an end of the program.
#![deny(clippy::expect_used)]

pub mod decode_error;
mod kept_file;
mod base64;
mod protobuf;
pub mod key;
pub mod timestamp;
pub mod cgroup_path;
pub mod cgroup_file;
pub mod proc_file;
pub mod proc_line;
pub mod kernel_log;
pub mod log_link;
pub mod sysfs_file;
pub mod quantity;
pub mod pod;
pub mod watch;
pub mod node;
pub mod labels;
pub mod heap_dump;
pub mod register;
pub mod handshake;
pub mod cordon;
pub mod node_lock;
pub mod bind;
pub mod claim;
pub mod resource;
pub mod gpu_pod;
pub mod device_config;
pub mod ticket;
pub mod cdi;
pub mod runtime_config;
pub mod checkpoint;
pub mod limits;
pub mod issued_ticket;
pub mod tally;
pub mod incidents;
pub mod versions;
pub mod api;

#[cfg(test)]
mod golden;
