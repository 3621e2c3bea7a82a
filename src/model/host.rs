//! The node itself.

use crate::reading::Reading;
use crate::unit::{Bytes, Count, Nanos};
use std::sync::Arc;

/// What is read of the whole machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostSample {
    /// Time in user mode (with nice), over all processors since boot.
    pub cpu_user: Reading<Nanos>,
    /// Time in the kernel (with interrupts).
    pub cpu_system: Reading<Nanos>,
    /// Time with nothing to do.
    pub cpu_idle: Reading<Nanos>,
    /// Time with nothing to do but wait for storage.
    pub cpu_iowait: Reading<Nanos>,
    /// Time taken by the hypervisor.
    pub cpu_steal: Reading<Nanos>,
    /// Processors that are on line.
    pub processors: Reading<Count>,
    /// Load over 1, 5 and 15 minutes.
    pub load: Reading<[f64; 3]>,
    /// Installed memory.
    pub memory_total: Reading<Bytes>,
    /// What could be given to new work without swapping.
    pub memory_available: Reading<Bytes>,
    /// Page cache and buffers.
    pub memory_cache: Reading<Bytes>,
    /// Swap in use.
    pub swap_used: Reading<Bytes>,
    /// Bytes read from whole disks (not partitions, not loop, ram or device-mapper devices, which would count twice).
    pub disk_read: Reading<Bytes>,
    /// Bytes written to whole disks.
    pub disk_write: Reading<Bytes>,
    /// Bytes received on physical and other interfaces of the host, without `lo`, bridges and pod ends of veth pairs.
    pub net_rx: Reading<Bytes>,
    /// Bytes sent on them.
    pub net_tx: Reading<Bytes>,
    /// Processes.
    pub processes: Reading<Count>,
}

/// What does not change while the machine runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: Arc<str>,
    /// How cgroups are mounted: `v1`, `v2` or `hybrid`.
    pub cgroups: Reading<CgroupVersion>,
    /// Whether the kernel's cgroup view is the host's (a private cgroup namespace hides names above ours).
    pub private_cgroup_namespace: Reading<bool>,
}

/// Layout of the cgroup hierarchies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One tree a controller.
    V1,
    /// One tree.
    V2,
    /// v1 controllers with a v2 tree beside them.
    Hybrid,
}

impl CgroupVersion {
    /// The word shown to people.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "v1",
            CgroupVersion::V2 => "v2",
            CgroupVersion::Hybrid => "hybrid",
        }
    }
}
