//! Settings of the NVML source: paths of the host, periods, and how long a call may take.

use crate::nvml::gate::DriverGate;
use crate::roots::HostRoots;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of the NVML source.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The library; `None` lets the dynamic linker find `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// Where the host's `/proc`, `/sys` and cgroup tree are mounted.
    pub roots: HostRoots,
    /// Time between two rounds of the cheap calls.
    pub period: Duration,
    /// Time between two rounds that read the process lists; slower readings are made in every nth of these rounds.
    pub process_period: Duration,
    /// How long calls may take.
    pub patience: DriverPatience,
    /// `/dev/kmsg`, `syslog` for the system call, or `None` to leave the kernel log alone.
    pub kernel_log: Option<PathBuf>,
    /// Whether the library may be open.
    pub gate: DriverGate,
}

/// How long the agent waits for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverPatience {
    /// A call that takes longer stalls: the readings that wait for it become absent. The GPU stays fit: when many
    /// programs call the driver at once, calls wait seconds for its lock.
    pub absent_after: Duration,
    /// A call that takes longer hangs: the GPU that it reads cannot be trusted until it returns.
    pub hang_after: Duration,
    /// Like `hang_after`, for opening the library: without persistence mode, the driver initialises every GPU first.
    pub open_hangs_after: Duration,
    /// Pause before the library is opened again after a failure; doubles each time up to
    /// [`DriverPatience::LAST_RETRY`].
    pub first_retry: Duration,
}

impl DriverPatience {
    /// Longest pause before the library is opened again: the agent notices a newly loaded driver within a minute.
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
