//! The version of this program.

use std::sync::LazyLock;

/// The version, with the commit if the build got one (`GPU_STEWARD_COMMIT=… cargo build`).
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| match option_env!("GPU_STEWARD_COMMIT") {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    });
    &TEXT
}
