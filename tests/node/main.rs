//! The built program from outside, one module a subject. Tests that need root or installed programs are ignored here
//! and run by `tests/run`.

mod life;
mod config;

/// The program under test.
const BINARY: &str = env!("CARGO_BIN_EXE_gpu-steward");
