//! Pods and containers as the kernel knows them: cgroups, and what is read of each.

use crate::id::{ContainerId, PodRef, PodUid};
use crate::reading::{Absence, Reading};
use crate::unit::{Bytes, Count, Nanos};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// At most this many pods and containers are sampled. kubelet's default limit is 110 pods a node and the largest
/// supported is about 500; 8,192 cgroups leave room for ten containers in each and cost at most about 12 MiB.
pub const MAX_CGROUPS: usize = 8192;

/// Who a cgroup is; made once when it is first seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupIdentity {
    /// Path below the hierarchy's root, beginning with `/`, as the host sees it.
    pub path: Arc<str>,
    /// What it is.
    pub kind: CgroupKind,
}

/// By the path alone, which tells all the rest: tables are asked for hundreds of these every second.
impl Hash for CgroupIdentity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.path.hash(state);
    }
}

/// What a cgroup is, read from its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CgroupKind {
    /// A pod's own cgroup: the sum of its containers.
    Pod {
        /// Whose.
        uid: PodUid,
        /// Its class.
        qos: Qos,
    },
    /// A container, of a pod or (Docker, Podman) of none. A pod's sandbox is one as well until it is recognised by name.
    Container {
        /// The pod it belongs to.
        pod: Option<(PodUid, Qos)>,
        /// Which.
        id: ContainerId,
        /// Who runs it.
        runtime: RuntimeKind,
    },
}

/// Quality of service as kubelet's cgroups tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qos {
    /// Requests equal limits.
    Guaranteed,
    /// Some requests.
    Burstable,
    /// None.
    BestEffort,
}

/// Container runtime, as the path tells it.
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
    /// The cgroupfs driver does not say.
    Unnamed,
}

impl CgroupIdentity {
    /// The pod this belongs to.
    #[must_use]
    pub fn pod(&self) -> Option<&PodUid> {
        match &self.kind {
            CgroupKind::Pod { uid, .. } => Some(uid),
            CgroupKind::Container { pod, .. } => pod.as_ref().map(|(uid, _)| uid),
        }
    }

    /// The container, if it is one.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerId> {
        match &self.kind {
            CgroupKind::Pod { .. } => None,
            CgroupKind::Container { id, .. } => Some(id),
        }
    }

    /// The pod's class.
    #[must_use]
    pub fn qos(&self) -> Option<Qos> {
        match &self.kind {
            CgroupKind::Pod { qos, .. } => Some(*qos),
            CgroupKind::Container { pod, .. } => pod.as_ref().map(|(_, qos)| *qos),
        }
    }
}

/// What was read of one cgroup: counters exactly as the kernel keeps them, each with its own time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupSample {
    /// CPU time since the cgroup was made.
    pub cpu_total: Reading<Nanos>,
    /// In user mode.
    pub cpu_user: Reading<Nanos>,
    /// In the kernel.
    pub cpu_system: Reading<Nanos>,
    /// Enforcement periods that passed while there was something to run.
    pub cfs_periods: Reading<Count>,
    /// Periods in which it ran into its quota.
    pub cfs_throttled_periods: Reading<Count>,
    /// Time spent waiting for the next period.
    pub cfs_throttled: Reading<Nanos>,
    /// CPU limit, as cores (quota divided by period); `Measured(None)` when there is none.
    pub cpu_limit: Reading<Option<f64>>,
    /// All memory charged to it, page cache included.
    pub memory_usage: Reading<Bytes>,
    /// Usage without inactive file pages, at least 0: what kubelet evicts by.
    pub memory_working_set: Reading<Bytes>,
    /// Anonymous memory.
    pub memory_rss: Reading<Bytes>,
    /// Page cache.
    pub memory_cache: Reading<Bytes>,
    /// Memory that was swapped out; absent where the kernel does not account for swap.
    pub memory_swap: Reading<Bytes>,
    /// Limit; `Measured(None)` when there is none.
    pub memory_limit: Reading<Option<Bytes>>,
    /// Processes the kernel killed here for memory.
    pub oom_kills: Reading<Count>,
    /// Bytes read from block devices.
    pub io_read: Reading<Bytes>,
    /// Bytes written to block devices.
    pub io_write: Reading<Bytes>,
    /// Reads from block devices.
    pub io_reads: Reading<Count>,
    /// Writes to block devices.
    pub io_writes: Reading<Count>,
    /// Sums of `/proc/<pid>/io` over the living processes: what is left where the kernel does not count block I/O by
    /// cgroup. It loses what exited processes did, so it is kept apart from [`CgroupSample::io_read`].
    pub process_io: Reading<ProcessIo>,
    /// Processes and threads (`pids.current`).
    pub tasks: Reading<Count>,
    /// Processes in it and below it.
    pub processes: Reading<Count>,
    /// Pressure stall: time some tasks waited (v2 only).
    pub pressure: Reading<Pressure>,
}

/// What the living processes of a cgroup read and wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessIo {
    /// Bytes read from storage.
    pub read: Bytes,
    /// Bytes written to storage.
    pub write: Bytes,
}

/// Pressure stall information: totals since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Some task waited for a processor.
    pub cpu_waiting: Nanos,
    /// All tasks waited for a processor.
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

/// Totals of a pod's network namespace over all interfaces but `lo`, carried on when the namespace is made anew.
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
    /// Packets dropped before they were sent.
    pub tx_dropped: Count,
}

impl NetworkSample {
    /// From the counters in the order of the fields: bytes, packets, errors, drops, each received and sent.
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

    /// The counters in that order, for what adds them up.
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

/// One cgroup in one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct CgroupReport {
    /// Who.
    pub identity: Arc<CgroupIdentity>,
    /// What.
    pub sample: CgroupSample,
    /// The network, on the pod's own entry (and on containers that belong to no pod).
    pub network: Reading<NetworkSample>,
}

impl CgroupReport {
    /// A cgroup of which nothing has been read yet.
    #[must_use]
    pub fn unread(identity: Arc<CgroupIdentity>) -> Self {
        CgroupReport { identity, sample: CgroupSample::default(), network: Reading::Absent(Absence::NotYet) }
    }
}

/// Names of a container, from whoever knew them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerName {
    /// Which.
    pub id: ContainerId,
    /// The pod's UID, where the source tells it (log links do not).
    pub uid: Option<PodUid>,
    /// Namespace and name of its pod.
    pub pod: PodRef,
    /// The container's name in the pod; `None` for the sandbox.
    pub container: Option<Arc<str>>,
    /// Image, where the source tells it.
    pub image: Option<Arc<str>>,
}

/// Who told a name; the earlier in this list, the more it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameSource {
    /// The API server.
    PodWatch,
    /// The container runtime's own socket.
    Cri,
    /// The links in `/var/log/containers`.
    LogLinks,
}
