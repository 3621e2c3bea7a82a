//! The node itself.

use crate::cgroup::NetworkSample;
use crate::reading::Reading;
use crate::unit::{Bytes, Count, Nanos};
use std::sync::Arc;

/// The readings of the whole machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostSample {
    /// Time in user mode (with nice), over all CPUs since boot.
    pub cpu_user: Reading<Nanos>,
    /// Time in the kernel (with interrupts).
    pub cpu_system: Reading<Nanos>,
    /// Time with nothing to do.
    pub cpu_idle: Reading<Nanos>,
    /// Time with nothing to do except wait for storage.
    pub cpu_iowait: Reading<Nanos>,
    /// Time that the hypervisor took from this machine.
    pub cpu_steal: Reading<Nanos>,
    /// Online CPUs.
    pub processors: Reading<Count>,
    /// Load over 1, 5 and 15 minutes.
    pub load: Reading<[f64; 3]>,
    /// Installed memory.
    pub memory_total: Reading<Bytes>,
    /// Memory available to new processes without swapping.
    pub memory_available: Reading<Bytes>,
    /// Installed memory minus available memory.
    pub memory_working_set: Reading<Bytes>,
    /// Anonymous memory.
    pub memory_rss: Reading<Bytes>,
    /// Page cache and buffers.
    pub memory_cache: Reading<Bytes>,
    /// Swap in use.
    pub swap_used: Reading<Bytes>,
    /// Processes that the kernel has killed for lack of memory since boot, in any cgroup.
    pub oom_kills: Reading<Count>,
    /// Bytes read from whole disks. Partitions, loop, ram and device-mapper devices are left out, because they would
    /// count the same bytes twice. When a disk disappears, its bytes stay in the total.
    pub disk_read: Reading<Bytes>,
    /// Bytes written to whole disks.
    pub disk_write: Reading<Bytes>,
    /// Reads from whole disks.
    pub disk_reads: Reading<Count>,
    /// Writes to whole disks.
    pub disk_writes: Reading<Count>,
    /// Totals of the host's network interfaces that have a device behind them, so that each byte counts once. `lo`,
    /// bonds, VLANs, bridges, tunnels and the pod ends of veth pairs are left out. When an interface disappears, its
    /// bytes stay in the totals.
    pub network: Reading<NetworkSample>,
    /// Processes and threads.
    pub tasks: Reading<Count>,
    /// Processes.
    pub processes: Reading<Count>,
    /// Pressure stall.
    pub pressure: Reading<HostPressure>,
}

/// Pressure stall information of the machine: totals since boot. "All tasks wait for a CPU" is not defined for a whole
/// machine (the kernel writes 0), so there is no such field.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostPressure {
    /// Some task waited for a CPU.
    pub cpu_waiting: Nanos,
    /// Some task waited for memory.
    pub memory_waiting: Nanos,
    /// All tasks waited for memory.
    pub memory_stalled: Nanos,
    /// Some task waited for I/O.
    pub io_waiting: Nanos,
    /// All tasks waited for I/O.
    pub io_stalled: Nanos,
}

/// The facts that do not change while the machine runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: Arc<str>,
    /// How cgroups are mounted: `v1`, `v2` or `hybrid`.
    pub cgroups: Reading<CgroupVersion>,
    /// Whether the agent runs in a private cgroup namespace, which hides the path components above its own cgroup.
    pub private_cgroup_namespace: Reading<bool>,
}

/// Layout of the cgroup hierarchies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One tree for each controller.
    V1,
    /// One tree.
    V2,
    /// v1 controllers with a v2 tree alongside them.
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
