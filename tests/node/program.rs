//! The program under test.

/// Where cargo put it.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_gpu-steward");
