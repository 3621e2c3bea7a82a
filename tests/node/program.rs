//! The path of the program under test.

/// The build that cargo made for these tests.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_gpu-steward");
