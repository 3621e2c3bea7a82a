//! The node view: all that the agent knows of the node at one moment. `decide` makes it, and it never changes
//! afterwards. Metrics, API, usage stream and `top` all read the same view, so they cannot disagree.

use crate::cgroup::{CgroupIdentity, CgroupSample, NetworkSample, Qos};
use crate::gpu::{Gpu, GpuSample, MissingGpu, UnidentifiedGpu, Xid};
use crate::host::{HostFacts, HostSample};
use crate::id::{ContainerId, GpuUuid, NodeName, PodRef, PodUid};
use crate::incident::GpuCondition;
use crate::infiniband::InfinibandPort;
use crate::limits::PodMemoryClaim;
use crate::observation::{ErrorCounter, GpuSourceState};
use crate::plugin::PluginView;
use crate::pod::{PodController, PodLabels, PodWatchState};
use crate::process::{GpuProcess, HostProcess};
use crate::reading::Reading;
use crate::switch::SwitchView;
use crate::tally::GpuTally;
use crate::time::Now;
use crate::unit::{Bytes, BytesPerSecond, Cores, Percent};
use std::sync::Arc;
use std::time::Duration;

/// The node.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Sequence number of the view; a larger number is newer. The count starts again when the agent starts.
    pub sequence: u64,
    /// When the view was made.
    pub now: Now,
    /// The node's name.
    pub name: NodeName,
    /// Whether and how the agent sees GPUs.
    pub gpu_source: GpuSourceState,
    /// Version of the driver that answered last. It stays while no driver answers, so that series keep their labels.
    pub driver: Option<Arc<str>>,
    /// Whether the call that waits for driver events hangs, so that XIDs come from the kernel log only.
    pub gpu_events_hang: bool,
    /// GPUs, ordered by index.
    pub gpus: Vec<GpuView>,
    /// GPUs that NVML counts but that could never be identified, ordered by index.
    pub gpus_unidentified: Vec<UnidentifiedGpu>,
    /// GPUs that the machine has and NVML does not list, ordered by PCI address.
    pub gpus_missing: Vec<MissingGpu>,
    /// NVSwitches that have reported errors, ordered by their PCI bus id.
    pub switches: Vec<SwitchView>,
    /// Facts of the machine.
    pub facts: HostFacts,
    /// The machine as a whole.
    pub host: HostSample,
    /// Rates of the machine.
    pub host_rates: HostRates,
    /// The node's InfiniBand ports, ordered by device and number.
    pub infiniband: Arc<[InfinibandPort]>,
    /// Pods, ordered by namespace, name, UID. Pods that have a GPU process but no cgroup report are included.
    pub pods: Vec<PodView>,
    /// Containers that belong to no pod, ordered by id.
    pub containers: Vec<ContainerView>,
    /// GPU memory that pods claim, if they claim an amount.
    pub memory_claims: Arc<[PodMemoryClaim]>,
    /// The controller of each pod, from the API server, by the UID that the kubelet uses for the pod.
    pub pod_owners: Arc<[(PodUid, PodController)]>,
    /// The labels of each pod that the operator wants to see (`--pod-labels`).
    pub pod_labels: Arc<[(PodUid, PodLabels)]>,
    /// GPU time and energy of pods, counted from the start of the agent.
    pub tallies: Arc<[GpuTally]>,
    /// Number of pairs of pod and GPU beyond the bound of the tallies.
    pub tallies_left_out: u32,
    /// Pods that have held more memory than they claim for a while, ordered by UID and device.
    pub over_uses: Vec<OverUse>,
    /// Host processes, the processes with the most CPU first.
    pub processes: Arc<[ProcessView]>,
    /// Number of host processes beyond the bound.
    pub processes_left_out: u32,
    /// State of the pod watch; `None` if the agent does not watch pods.
    pub pod_watch: Option<PodWatchView>,
    /// The device plugin; `None` if GPUs are not shared.
    pub plugin: Option<Arc<PluginView>>,
    /// Number of pods and containers beyond the bound.
    pub cgroups_left_out: u32,
    /// How long the last pass over cgroups took, in microseconds.
    pub pass_us: u64,
    /// Sampling deadlines missed since the start.
    pub deadlines_missed: u64,
    /// Errors since the agent's start, by kind.
    pub troubles: Vec<(ErrorCounter, u64)>,
}

/// The agent's list and watch of this node's pods at the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodWatchView {
    /// State of the watch.
    pub watch: PodWatchState,
    /// Number of pods in the list.
    pub pods: u32,
    /// Number of pods beyond the bound.
    pub left_out: u32,
    /// Number of pods whose newest version could not be parsed.
    pub unreadable: u32,
}

/// One GPU.
#[derive(Clone, Debug)]
pub struct GpuView {
    /// The GPU's facts.
    pub gpu: Arc<Gpu>,
    /// The GPU's last sample.
    pub sample: Arc<GpuSample>,
    /// The GPU's health.
    pub health: GpuHealth,
    /// The reasons why the GPU gets no new containers, if there are any, and when they end.
    pub condition: GpuCondition,
    /// The GPU's processes, or the reason why they are not known.
    pub processes: Reading<Arc<[GpuProcess]>>,
    /// Number of processes beyond the bound.
    pub processes_left_out: u32,
    /// Pods with at least one process on the GPU, and pods to which the kubelet gave it.
    pub holders: Vec<PodUid>,
    /// The pods whose names the GPU's values and its GPU instances' values can carry.
    pub sole_holders: SoleHolders,
    /// Number of processes on the GPU that belong to no pod: host processes, processes of containers without a pod, and
    /// processes without a known owner.
    pub strangers: u32,
    /// Bytes per second over all NVLinks, sent and received, between the last two readings of their counters.
    pub nvlink_rate: Reading<BytesPerSecond>,
    /// Memory in use by the newest reading. If processes have freed memory, the sample shows more until the next process
    /// list.
    pub memory_used_now: Reading<Bytes>,
    /// Memory that was in use when the process list was made.
    pub listed_memory: Reading<Bytes>,
    /// `memory_used` minus the sum of the pods' processes. It is never distributed over the pods.
    pub unattributed_memory: Reading<Bytes>,
    /// Sum of the SM use of the processes that belong to no pod; absent if it is absent for one of them.
    pub unattributed_sm: Reading<Percent>,
    /// The last XID since the agent's start.
    pub last_xid: Option<Xid>,
    /// Number of XIDs by code, ordered by code, for at most [`MAX_XID_CODES`] codes. Codes that make the GPU unfit are
    /// listed from the start, with 0.
    pub xids: Vec<(u32, u64)>,
    /// Number of all XIDs, including codes beyond the bound.
    pub xid_count: u64,
    /// Number of values outside the physical range of their reading, by reading, ordered; since the agent's start.
    pub implausible: Vec<(&'static str, u64)>,
}

/// The sole holders of one GPU and of its GPU instances. One process without an owner in one process list, a display
/// server and an MPS server do not change them, and the last known holders stay while the driver does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoleHolders {
    /// Sole holder of the whole GPU; `None` if the GPU is divided by MIG.
    pub gpu: Option<SoleHolder>,
    /// Sole holders of GPU instances, by GPU instance id.
    pub instances: Vec<(u32, SoleHolder)>,
}

/// A pod that has a whole GPU or a GPU instance to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoleHolder {
    /// The pod.
    pub pod: PodUid,
    /// The name of the container that holds the device; `None` if several containers of the pod hold it, or no source has
    /// reported the name.
    pub container: Option<Arc<str>>,
}

/// Upper bound on the XID codes counted on one GPU. NVIDIA's catalogue has fewer than 200; a faulty GPU shows a
/// handful.
pub const MAX_XID_CODES: usize = 64;

/// The health of a GPU, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuHealth {
    /// The GPU answers, and nothing is wrong.
    Healthy,
    /// The GPU answers, and nothing is wrong any longer, but it gets no new containers until the quiet period is over or,
    /// if an incident requires a reset, until that reset.
    Degraded,
    /// The GPU is lost or hangs, a row remapping is pending or failed, or NVML reports a recovery action. It gets no
    /// new containers.
    Unhealthy,
    /// Nothing has been read yet.
    Unknown,
}

impl GpuHealth {
    /// The word shown to people.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            GpuHealth::Healthy => "healthy",
            GpuHealth::Degraded => "degraded",
            GpuHealth::Unhealthy => "unhealthy",
            GpuHealth::Unknown => "unknown",
        }
    }
}

/// Rates of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostRates {
    /// Busy CPU cores.
    pub cpu: Reading<Cores>,
    /// Read from disks.
    pub disk_read: Reading<BytesPerSecond>,
    /// Written to disks.
    pub disk_write: Reading<BytesPerSecond>,
    /// Received from the network.
    pub net_rx: Reading<BytesPerSecond>,
    /// Sent to the network.
    pub net_tx: Reading<BytesPerSecond>,
}

/// One pod.
#[derive(Clone, Debug)]
pub struct PodView {
    /// The identity.
    pub uid: PodUid,
    /// Namespace and name, once a source has reported them.
    pub name: Option<PodRef>,
    /// Quality-of-service class.
    pub qos: Option<Qos>,
    /// The pod's own cgroup.
    pub cgroup: Option<Arc<CgroupIdentity>>,
    /// The last sample of the pod's cgroup.
    pub sample: CgroupSample,
    /// Rates, from the pod's samples.
    pub rates: ContainerRates,
    /// Network totals, or the reason why there are no totals.
    pub network: Reading<NetworkSample>,
    /// Containers, ordered by name, then id. The sandbox has no name and is marked as the sandbox.
    pub containers: Vec<ContainerView>,
    /// How much of each GPU the pod's processes use, ordered by GPU.
    pub gpus: Vec<GpuUse>,
}

/// One container.
#[derive(Clone, Debug)]
pub struct ContainerView {
    /// The identity.
    pub id: ContainerId,
    /// The container's cgroup.
    pub cgroup: Arc<CgroupIdentity>,
    /// The container's name in the pod, once a source has reported it.
    pub name: Option<Arc<str>>,
    /// Whether the container is the pod's sandbox.
    pub sandbox: bool,
    /// Image, once a source has reported it.
    pub image: Option<Arc<str>>,
    /// The last sample of the container's cgroup.
    pub sample: CgroupSample,
    /// Rates, from the container's samples.
    pub rates: ContainerRates,
    /// Network totals; a container of a pod shares the pod's network and shows no totals of its own.
    pub network: Reading<NetworkSample>,
    /// How much of each GPU the container's processes use.
    pub gpus: Vec<GpuUse>,
    /// Device ids that the container holds according to the kubelet.
    pub devices: Vec<Arc<str>>,
    /// GPUs and MIG instances that the container holds: the devices of its claim, or, without a claim, of the kubelet's ids. If the
    /// two differ, the container got the devices of its claim.
    pub holds: Vec<GpuUuid>,
}

/// Rates of a pod or container.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContainerRates {
    /// Busy CPU cores.
    pub cpu: Reading<Cores>,
    /// Read from block devices.
    pub io_read: Reading<BytesPerSecond>,
    /// Written to block devices.
    pub io_write: Reading<BytesPerSecond>,
    /// Received from the network.
    pub net_rx: Reading<BytesPerSecond>,
    /// Sent to the network.
    pub net_tx: Reading<BytesPerSecond>,
}

/// What one pod or container uses of one GPU: sums over its processes.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuUse {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The MIG instance, if the processes run in one.
    pub mig: Option<GpuUuid>,
    /// Number of processes.
    pub processes: u32,
    /// Sum of the memory that the processes hold; absent if it is absent for a process.
    pub memory_used: Reading<Bytes>,
    /// Sum of the SM use of the processes; absent if it is absent for a process.
    pub sm: Reading<Percent>,
}

/// Over-use: a pod has held more memory of a device than it claims for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct OverUse {
    /// The pod, by the UID that the kubelet uses.
    pub pod: PodUid,
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// Memory that the pod claims.
    pub claimed: Bytes,
    /// Memory that the pod holds.
    pub used: Reading<Bytes>,
    /// How long the over-use has lasted, in measured time.
    pub lasted: Duration,
}

/// A host process with its CPU use.
#[derive(Clone, Debug)]
pub struct ProcessView {
    /// The process as it was read.
    pub process: HostProcess,
    /// Busy CPU cores.
    pub cpu: Reading<Cores>,
}

impl GpuView {
    /// The pod that has this GPU to itself. Only then may values of the whole GPU carry a pod's name.
    #[must_use]
    pub fn sole_holder(&self) -> Option<&PodUid> {
        self.sole_holders.gpu.as_ref().map(|holder| &holder.pod)
    }
}

impl NodeView {
    /// The pod with this UID.
    #[must_use]
    pub fn pod(&self, uid: &PodUid) -> Option<&PodView> {
        self.pods.iter().find(|pod| &pod.uid == uid)
    }

    /// The empty view of an agent that has just started.
    #[must_use]
    pub fn empty(name: NodeName, now: Now) -> Self {
        NodeView {
            sequence: 0,
            now,
            name,
            gpu_source: GpuSourceState::Starting,
            driver: None,
            gpu_events_hang: false,
            gpus: Vec::new(),
            gpus_unidentified: Vec::new(),
            gpus_missing: Vec::new(),
            switches: Vec::new(),
            facts: HostFacts::default(),
            host: HostSample::default(),
            host_rates: HostRates::default(),
            infiniband: Arc::from([]),
            pods: Vec::new(),
            containers: Vec::new(),
            memory_claims: Arc::from([]),
            pod_owners: Arc::from([]),
            pod_labels: Arc::from([]),
            tallies: Arc::from([]),
            tallies_left_out: 0,
            over_uses: Vec::new(),
            processes: Arc::from([]),
            processes_left_out: 0,
            pod_watch: None,
            plugin: None,
            cgroups_left_out: 0,
            pass_us: 0,
            deadlines_missed: 0,
            troubles: Vec::new(),
        }
    }
}
