//! A `libnvidia-ml.so.1` that has no GPU: the real wrapper loads it, and a scenario file says what it answers. It uses
//! nothing of the program it tests, so a mistake there cannot hide in here.
//!
//! ```text
//!   code value trace        NVML's error numbers, numbers that change with time, recorded traces
//!   profile scenario        cards as they are sold, and the file that a tester writes
//!   card                    one card of the running scenario: every reading is a function of time
//!   state                   the running scenario, its clock, the gate that each call enters by
//!   answer call             the C functions: what they have in common, and each
//! ```
//!
//! The format of the file is told in `README.md` beside this file.

pub mod code;
pub mod trace;
pub mod value;
pub mod profile;
pub mod scenario;
mod card;
mod state;
mod answer;
mod call;
