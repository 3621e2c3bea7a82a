//! Pods and containers as the kernel sees them: cgroups and their samples.

use crate::id::{ContainerId, PodRef, PodUid};
use crate::reading::{Absence, Reading};
use crate::unit::{Bytes, Count, Nanos};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Upper bound on the pods and containers that are sampled. The kubelet's default limit is 110 pods per node, and the largest
/// supported setup has about 500. 8,192 cgroups leave room for ten containers in each of 500 pods and take at most about 12 MiB.
pub const MAX_CGROUPS: usize = 8192;
/// Upper bound on the pods that are sampled in addition: as many as the agent keeps of the API server. Anyone who may create pods
/// can start many containers in each. While the cgroup of a pod is sampled, it is known that the pod runs.
pub const MAX_POD_CGROUPS: usize = crate::pod::MAX_POD_OBJECTS;

/// The identity of a cgroup, made once when the agent first sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupIdentity {
    /// Path below the hierarchy's root, beginning with `/`, as the host sees it.
    pub path: Arc<str>,
    /// What the cgroup belongs to.
    pub kind: CgroupKind,
}

/// Hashes the path alone, because the path determines the rest: tables look up hundreds of identities every second.
impl Hash for CgroupIdentity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.path.hash(state);
    }
}

/// What a cgroup belongs to, read from its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CgroupKind {
    /// A pod's own cgroup: the sum of its containers.
    Pod {
        /// The pod.
        uid: PodUid,
        /// The pod's quality-of-service class.
        qos: Qos,
    },
    /// A container of a pod, or a container without a pod (Docker, Podman). A pod's sandbox also counts as a container
    /// until a name source identifies it.
    Container {
        /// The pod that the container belongs to.
        pod: Option<(PodUid, Qos)>,
        /// The container.
        id: ContainerId,
        /// The container runtime.
        runtime: RuntimeKind,
    },
}

/// Quality-of-service class, read from the kubelet's cgroup path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qos {
    /// Requests equal limits.
    Guaranteed,
    /// Some requests.
    Burstable,
    /// No requests.
    BestEffort,
}

/// Container runtime, read from the cgroup path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuntimeKind {
    /// containerd (`cri-containerd-…`).
    Containerd,
    /// CRI-O (`crio-…`).
    CriO,
    /// Docker (`docker-…` or `/docker/…`).
    Docker,
    /// Podman (`libpod-…`).
    Podman,
    /// The path does not name the runtime: the cgroupfs driver leaves it out.
    Unnamed,
}

impl CgroupIdentity {
    /// The pod that the cgroup belongs to.
    #[must_use]
    pub fn pod(&self) -> Option<&PodUid> {
        match &self.kind {
            CgroupKind::Pod { uid, .. } => Some(uid),
            CgroupKind::Container { pod, .. } => pod.as_ref().map(|(uid, _)| uid),
        }
    }

    /// The container, if the cgroup is a container.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerId> {
        match &self.kind {
            CgroupKind::Pod { .. } => None,
            CgroupKind::Container { id, .. } => Some(id),
        }
    }

    /// The pod's quality-of-service class.
    #[must_use]
    pub fn qos(&self) -> Option<Qos> {
        match &self.kind {
            CgroupKind::Pod { qos, .. } => Some(*qos),
            CgroupKind::Container { pod, .. } => pod.as_ref().map(|(_, qos)| *qos),
        }
    }
}

/// The sample of one cgroup: the kernel's counters unchanged, each with its own time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupSample {
    /// CPU time since the cgroup was created.
    pub cpu_total: Reading<Nanos>,
    /// CPU time in user mode.
    pub cpu_user: Reading<Nanos>,
    /// CPU time in the kernel.
    pub cpu_system: Reading<Nanos>,
    /// CFS enforcement periods in which the cgroup had something to run.
    pub cfs_periods: Reading<Count>,
    /// CFS periods in which the cgroup reached its quota.
    pub cfs_throttled_periods: Reading<Count>,
    /// Time that the cgroup was throttled until the next period.
    pub cfs_throttled: Reading<Nanos>,
    /// CPU limit in cores (quota divided by period); `Measured(None)` when there is no limit.
    pub cpu_limit: Reading<Option<f64>>,
    /// All memory charged to it, page cache included.
    pub memory_usage: Reading<Bytes>,
    /// Usage minus inactive file pages, at least 0. The kubelet evicts pods by this value.
    pub memory_working_set: Reading<Bytes>,
    /// Anonymous memory.
    pub memory_rss: Reading<Bytes>,
    /// Page cache.
    pub memory_cache: Reading<Bytes>,
    /// Memory in swap; absent if the kernel does not account for swap.
    pub memory_swap: Reading<Bytes>,
    /// Memory limit; `Measured(None)` when there is no limit.
    pub memory_limit: Reading<Option<Bytes>>,
    /// Processes of the cgroup that the kernel has killed for lack of memory.
    pub oom_kills: Reading<Count>,
    /// Bytes read from block devices.
    pub io_read: Reading<Bytes>,
    /// Bytes written to block devices.
    pub io_write: Reading<Bytes>,
    /// Reads from block devices.
    pub io_reads: Reading<Count>,
    /// Writes to block devices.
    pub io_writes: Reading<Count>,
    /// Sums of `/proc/<pid>/io` over the living processes, for kernels that do not count block I/O by cgroup. The I/O
    /// of exited processes is missing from these sums, so they are kept apart from [`CgroupSample::io_read`].
    pub process_io: Reading<ProcessIo>,
    /// Processes and threads (`pids.current`).
    pub tasks: Reading<Count>,
    /// Processes in the cgroup and below it.
    pub processes: Reading<Count>,
    /// Pressure stall: time for which tasks waited (cgroup v2 only).
    pub pressure: Reading<Pressure>,
}

/// Bytes that the living processes of a cgroup have read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessIo {
    /// Bytes read from storage.
    pub read: Bytes,
    /// Bytes written to storage.
    pub write: Bytes,
}

/// Pressure stall information: totals since the cgroup was created.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Some task waited for a CPU.
    pub cpu_waiting: Nanos,
    /// All tasks waited for a CPU.
    pub cpu_stalled: Nanos,
    /// Some task waited for memory.
    pub memory_waiting: Nanos,
    /// All tasks waited for memory.
    pub memory_stalled: Nanos,
    /// Some task waited for I/O.
    pub io_waiting: Nanos,
    /// All tasks waited for I/O.
    pub io_stalled: Nanos,
}

/// Totals over all interfaces of a pod's network namespace except `lo`. They do not start again when the namespace is
/// created again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkSample {
    /// Bytes received.
    pub rx_bytes: Bytes,
    /// Bytes sent.
    pub tx_bytes: Bytes,
    /// Packets received.
    pub rx_packets: Count,
    /// Packets sent.
    pub tx_packets: Count,
    /// Received packets with errors.
    pub rx_errors: Count,
    /// Sent packets with errors.
    pub tx_errors: Count,
    /// Received packets dropped.
    pub rx_dropped: Count,
    /// Sent packets dropped.
    pub tx_dropped: Count,
}

impl NetworkSample {
    /// A sample from counters in the order of the fields: bytes, packets, errors, drops, each received and sent.
    #[must_use]
    pub fn of(counters: [u64; 8]) -> NetworkSample {
        let [rx_bytes, tx_bytes, rx_packets, tx_packets, rx_errors, tx_errors, rx_dropped, tx_dropped] = counters;
        NetworkSample {
            rx_bytes: Bytes(rx_bytes),
            tx_bytes: Bytes(tx_bytes),
            rx_packets: Count(rx_packets),
            tx_packets: Count(tx_packets),
            rx_errors: Count(rx_errors),
            tx_errors: Count(tx_errors),
            rx_dropped: Count(rx_dropped),
            tx_dropped: Count(tx_dropped),
        }
    }

    /// The counters in the order of [`NetworkSample::of`], so that callers can add them up.
    #[must_use]
    pub fn counters(&self) -> [u64; 8] {
        [
            self.rx_bytes.0,
            self.tx_bytes.0,
            self.rx_packets.0,
            self.tx_packets.0,
            self.rx_errors.0,
            self.tx_errors.0,
            self.rx_dropped.0,
            self.tx_dropped.0,
        ]
    }

    /// The sum, counter by counter.
    #[must_use]
    pub fn plus(&self, other: &NetworkSample) -> NetworkSample {
        let mut sum = self.counters();
        for (counter, more) in sum.iter_mut().zip(other.counters()) {
            *counter = counter.saturating_add(more);
        }
        NetworkSample::of(sum)
    }
}

/// What one sampling pass read of one cgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct CgroupReport {
    /// The cgroup.
    pub identity: Arc<CgroupIdentity>,
    /// The sample of the cgroup.
    pub sample: CgroupSample,
    /// Network totals; set on the pod's own cgroup and on containers that belong to no pod.
    pub network: Reading<NetworkSample>,
}

impl CgroupReport {
    /// A cgroup before its first sample.
    #[must_use]
    pub fn unread(identity: Arc<CgroupIdentity>) -> Self {
        CgroupReport { identity, sample: CgroupSample::default(), network: Reading::Absent(Absence::NotYet) }
    }
}

/// The names of a container, from one of the sources in [`NameSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerName {
    /// The container.
    pub id: ContainerId,
    /// The pod's UID, if the source has it (log links do not).
    pub uid: Option<PodUid>,
    /// Namespace and name of the container's pod.
    pub pod: PodRef,
    /// The container's name in the pod; `None` for the sandbox.
    pub container: Option<Arc<str>>,
    /// Image, if the source has it.
    pub image: Option<Arc<str>>,
}

/// The source of a name; a source earlier in this list has precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameSource {
    /// The API server.
    PodWatch,
    /// The container runtime's own socket.
    Cri,
    /// The links in `/var/log/containers`.
    LogLinks,
}
