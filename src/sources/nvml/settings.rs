//! What the host is like, and how long a call may take.

use crate::nvml::gate::DriverGate;
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
    /// How long calls may take.
    pub patience: DriverPatience,
    /// `/dev/kmsg`, `syslog` for the system call, or `None` to leave the kernel log alone.
    pub kernel_log: Option<PathBuf>,
    /// Whether the library may be open.
    pub gate: DriverGate,
}

/// How long the driver is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverPatience {
    /// A call that takes longer makes the readings that wait for it absent. Condemns nothing: where many programs ask the
    /// driver at a time, calls wait for its lock for seconds.
    pub absent_after: Duration,
    /// A call that takes longer hangs: what it asks cannot be trusted until it returns.
    pub hang_after: Duration,
    /// The same for opening the library: without persistence mode the driver sets up every GPU meanwhile.
    pub open_hangs_after: Duration,
    /// Pause before the library is opened again when that failed; doubles each time up to [`DriverPatience::LAST_RETRY`].
    pub first_retry: Duration,
}

impl DriverPatience {
    /// The longest pause before the library is opened again: a driver that was loaded is seen within a minute.
    pub const LAST_RETRY: Duration = Duration::from_secs(60);
}

impl Default for DriverPatience {
    fn default() -> Self {
        DriverPatience {
            absent_after: Duration::from_secs(2),
            hang_after: Duration::from_secs(30),
            open_hangs_after: Duration::from_secs(60),
            first_retry: Duration::from_secs(1),
        }
    }
}
