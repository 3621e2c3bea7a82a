//! A fake `libnvidia-ml.so.1` without GPUs: the real NVML wrapper loads it, and a scenario file defines its answers. It
//! uses no code of the program under test, so it cannot repeat a mistake of the program.
//!
//! ```text
//!   code value trace        NVML's error numbers, numbers that change with time, recorded traces
//!   profile scenario        the GPU models, and the scenario file that a tester writes
//!   gpu                    one GPU of the running scenario: every reading is a function of time
//!   state                   the running scenario, its clock, and the checks at the start of each call
//!   answer call             the C functions: their common code, and each function
//! ```
//!
//! `README.md` in this folder describes the format of the scenario file.

pub mod code;
pub mod trace;
pub mod value;
pub mod profile;
pub mod scenario;
mod gpu;
mod state;
mod answer;
mod call;
