//! What the host is like.

use crate::nvml::gate::Gate;
use crate::roots::HostRoots;
use std::path::PathBuf;
use std::time::Duration;

/// What the NVML source needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The library; `None` asks the dynamic linker for `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// Where processes are looked up.
    pub roots: HostRoots,
    /// Time between two polls of the cheap calls.
    pub period: Duration,
    /// Time between two process lists; what is read more seldom still is read every so many of these.
    pub process_period: Duration,
    /// A call that takes longer hangs.
    pub hang_after: Duration,
    /// `/dev/kmsg`, or `None` to leave the kernel log alone.
    pub kernel_log: Option<PathBuf>,
    /// Whether the library may be open.
    pub gate: Gate,
}
