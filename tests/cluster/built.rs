//! Which build of the program the tests run.

/// The test build of the program, which has the failpoints.
pub(crate) const TEST_BUILD: &str = env!("CARGO_BIN_EXE_gpu-steward");

/// The path of the release build if `GPU_STEWARD_SHIPPED` names it, so that measurements and records are of the shipped
/// program; else the path of the test build.
pub(crate) fn binary() -> String {
    std::env::var("GPU_STEWARD_SHIPPED").unwrap_or_else(|_| TEST_BUILD.to_owned())
}
