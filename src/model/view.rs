//! One node as one believes it at one moment. Made by `decide`, never changed afterwards, shown by every server: metrics,
//! API, usage stream and `top` all read the same view, so they cannot disagree.

use crate::cgroup::{CgroupIdentity, CgroupSample, NetworkSample, Qos};
use crate::gpu::{Gpu, GpuSample, UnidentifiedGpu, Xid};
use crate::host::{HostFacts, HostSample};
use crate::id::{ContainerId, GpuUuid, NodeName, PodRef, PodUid};
use crate::incident::GpuCondition;
use crate::infiniband::InfinibandPort;
use crate::limits::PodMemoryClaim;
use crate::observation::{ErrorCounter, GpuSourceState};
use crate::plugin::PluginView;
use crate::pod::{PodController, PodLabels, PodWatchState};
use crate::process::{GpuProcess, HostProcess, SlurmJob};
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
    /// Counts views; a larger one is newer. Starts again with the program.
    pub sequence: u64,
    /// When it was made.
    pub now: Now,
    /// The node's name.
    pub name: NodeName,
    /// Whether and how GPUs are seen.
    pub gpu_source: GpuSourceState,
    /// Version of the driver that answered last; it stays while none answers, so that nothing is named otherwise meanwhile.
    pub driver: Option<Arc<str>>,
    /// Whether the wait for the driver's events hangs, so that XIDs come from the kernel log only.
    pub gpu_events_hang: bool,
    /// Ordered by index.
    pub gpus: Vec<GpuView>,
    /// GPUs that are there and could never be identified, ordered by index.
    pub gpus_unidentified: Vec<UnidentifiedGpu>,
    /// Jobs of Slurm by the GPU that they have a process on.
    pub slurm_jobs: Vec<(GpuUuid, SlurmJob)>,
    /// NVSwitches that told of errors, ordered by their PCI bus id.
    pub switches: Vec<SwitchView>,
    /// Facts of the machine.
    pub facts: HostFacts,
    /// The machine as a whole.
    pub host: HostSample,
    /// Rates of the machine.
    pub host_rates: HostRates,
    /// Its InfiniBand ports, ordered by device and number.
    pub infiniband: Arc<[InfinibandPort]>,
    /// Ordered by namespace, name, UID. Pods that own a GPU process but no cgroup report are in it too.
    pub pods: Vec<PodView>,
    /// Containers that belong to no pod, ordered by id.
    pub containers: Vec<ContainerView>,
    /// What pods were promised of GPU memory, where something was.
    pub promises: Arc<[PodMemoryClaim]>,
    /// Who made which pod, as the API server tells it, by the UID that the kubelet knows the pod by.
    pub pod_owners: Arc<[(PodUid, PodController)]>,
    /// The labels of each pod that the operator wants to see (`--pod-labels`).
    pub pod_labels: Arc<[(PodUid, PodLabels)]>,
    /// GPU time and energy of pods, as kept on disk.
    pub tallies: Arc<[GpuTally]>,
    /// The same as of now, to be kept; shown to nobody.
    pub tallies_to_keep: Arc<[GpuTally]>,
    /// Pods and GPUs beyond the bound of those.
    pub tallies_left_out: u32,
    /// Pods that have held more than that for a while, ordered by UID and device.
    pub over_uses: Vec<OverUse>,
    /// Host processes, those with the most CPU first.
    pub processes: Arc<[ProcessView]>,
    /// Host processes beyond the bound.
    pub processes_left_out: u32,
    /// What is known of the API server's pods; `None` where it is not asked.
    pub pod_watch: Option<PodWatchView>,
    /// The device plugin; `None` where GPUs are not shared.
    pub plugin: Option<Arc<PluginView>>,
    /// Pods and containers beyond the bound.
    pub cgroups_left_out: u32,
    /// How long the last pass over cgroups took, in microseconds.
    pub pass_us: u64,
    /// Sampling deadlines missed since the start.
    pub deadlines_missed: u64,
    /// What went wrong since the start, by kind.
    pub troubles: Vec<(ErrorCounter, u64)>,
}

/// What is known of this node's pods at the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodWatchView {
    /// How the watch fares.
    pub watch: PodWatchState,
    /// Pods that are known.
    pub pods: u32,
    /// Pods beyond the bound.
    pub left_out: u32,
    /// Pods whose newest version could not be read.
    pub unreadable: u32,
}

/// One GPU.
#[derive(Clone, Debug)]
pub struct GpuView {
    /// Who.
    pub gpu: Arc<Gpu>,
    /// What was read.
    pub sample: Arc<GpuSample>,
    /// Whether it can be trusted with work.
    pub health: GpuHealth,
    /// Why it gets no new containers, if it does not, and until when.
    pub condition: GpuCondition,
    /// Its processes, or why they are not known.
    pub processes: Reading<Arc<[GpuProcess]>>,
    /// Processes beyond the bound.
    pub processes_left_out: u32,
    /// Pods with at least one process on it, and pods that kubelet gave it to.
    pub holders: Vec<PodUid>,
    /// Which pod may be named beside what is measured of it and of its GPU instances.
    pub whose: SoleHolders,
    /// Processes on it that belong to no pod: the host's, those of containers without a pod, and those that could not be
    /// tied to anything.
    pub strangers: u32,
    /// Bytes a second over all NVLinks, both ways, between the last two readings of their counters.
    pub nvlink_rate: Reading<BytesPerSecond>,
    /// What `memory_used` holds beyond the sum of the pods' processes: never spread over the pods.
    pub unattributed_memory: Reading<Bytes>,
    /// Sum of the SM use of the strangers; absent if it is absent for one of them.
    pub unattributed_sm: Reading<Percent>,
    /// XIDs since the start: the last one, and how many of each code (at most [`MAX_XID_CODES`] codes).
    pub last_xid: Option<Xid>,
    /// Count by code, in order of the codes. Those that condemn the GPU are in it from the beginning, with 0.
    pub xids: Vec<(u32, u64)>,
    /// Count of all, also of codes beyond the bound.
    pub xid_count: u64,
}

/// Who has a GPU, or a GPU instance in it, to itself. One process without an owner for one round, a display server and an MPS
/// server change nothing here, and what was known stays while the driver does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoleHolders {
    /// Of the whole GPU; nobody has one that is divided by MIG.
    pub card: Option<SoleHolder>,
    /// Of GPU instances, by their id.
    pub instances: Vec<(u32, SoleHolder)>,
}

/// A pod that has something to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoleHolder {
    /// The pod.
    pub pod: PodUid,
    /// The name of its container that has it; none where several have it, or where nobody has told the name.
    pub container: Option<Arc<str>>,
}

/// Codes of XIDs counted on one GPU; NVIDIA's catalogue has fewer than 200, a sick card shows a handful.
pub const MAX_XID_CODES: usize = 64;

/// What one may expect of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuHealth {
    /// Answers, and nothing is wrong.
    Healthy,
    /// Answers, and nothing is wrong any more; it gets no new containers until it has been so for the quiet period.
    Degraded,
    /// Lost, hanging, a row remapping is pending or failed, or NVML advises an action. It gets no new containers.
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
    /// Busy cores.
    pub cpu: Reading<Cores>,
    /// From disks.
    pub disk_read: Reading<BytesPerSecond>,
    /// To disks.
    pub disk_write: Reading<BytesPerSecond>,
    /// From the network.
    pub net_rx: Reading<BytesPerSecond>,
    /// To the network.
    pub net_tx: Reading<BytesPerSecond>,
}

/// One pod.
#[derive(Clone, Debug)]
pub struct PodView {
    /// The identity.
    pub uid: PodUid,
    /// Its names, once somebody told them.
    pub name: Option<PodRef>,
    /// Class.
    pub qos: Option<Qos>,
    /// The pod's own cgroup.
    pub cgroup: Option<Arc<CgroupIdentity>>,
    /// What was read of it.
    pub sample: CgroupSample,
    /// Rates of it.
    pub rates: ContainerRates,
    /// Network totals, or why there are none.
    pub network: Reading<NetworkSample>,
    /// Containers, ordered by name then id; the sandbox has no name and says so.
    pub containers: Vec<ContainerView>,
    /// What its processes do on each GPU, ordered by GPU.
    pub gpus: Vec<GpuUse>,
}

/// One container.
#[derive(Clone, Debug)]
pub struct ContainerView {
    /// The identity.
    pub id: ContainerId,
    /// Its cgroup.
    pub cgroup: Arc<CgroupIdentity>,
    /// Its name in the pod, once somebody told it.
    pub name: Option<Arc<str>>,
    /// Whether it is the pod's sandbox.
    pub sandbox: bool,
    /// Image, once somebody told it.
    pub image: Option<Arc<str>>,
    /// What was read of it.
    pub sample: CgroupSample,
    /// Rates of it.
    pub rates: ContainerRates,
    /// Network totals; a container of a pod shares its pod's and shows none of its own.
    pub network: Reading<NetworkSample>,
    /// What its processes do on each GPU.
    pub gpus: Vec<GpuUse>,
    /// Ids that kubelet says it holds.
    pub devices: Vec<Arc<str>>,
    /// GPUs and MIG instances that it holds: those of its claim; without a claim, those of kubelet's ids. Where the two
    /// differ the claim is what the container got.
    pub holds: Vec<GpuUuid>,
}

/// Rates of a pod or container.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContainerRates {
    /// Busy cores.
    pub cpu: Reading<Cores>,
    /// From block devices.
    pub io_read: Reading<BytesPerSecond>,
    /// To block devices.
    pub io_write: Reading<BytesPerSecond>,
    /// From the network.
    pub net_rx: Reading<BytesPerSecond>,
    /// To the network.
    pub net_tx: Reading<BytesPerSecond>,
}

/// What one pod or container does on one GPU: sums over its processes.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuUse {
    /// Which card.
    pub gpu: GpuUuid,
    /// The MIG instance, if the processes run in one.
    pub mig: Option<GpuUuid>,
    /// How many processes.
    pub processes: u32,
    /// Sum of what they hold; absent if it is absent for one of them.
    pub memory_used: Reading<Bytes>,
    /// Sum of their SM use; absent if it is absent for one of them.
    pub sm: Reading<Percent>,
}

/// A pod that holds more memory of a device than it was promised, and has for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct OverUse {
    /// The pod, as kubelet calls it.
    pub pod: PodUid,
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// What it may hold.
    pub promised: Bytes,
    /// What it holds.
    pub used: Reading<Bytes>,
    /// How long it has counted as over-use, in time that was measured.
    pub lasted: Duration,
}

/// A host process with its use of the processor.
#[derive(Clone, Debug)]
pub struct ProcessView {
    /// What was read.
    pub process: HostProcess,
    /// Busy cores.
    pub cpu: Reading<Cores>,
}

impl GpuView {
    /// The pod that has this GPU to itself. Only then may what is measured of the whole GPU be shown under a pod's name.
    #[must_use]
    pub fn sole_holder(&self) -> Option<&PodUid> {
        self.whose.card.as_ref().map(|holder| &holder.pod)
    }
}

impl NodeView {
    /// A pod by its identity.
    #[must_use]
    pub fn pod(&self, uid: &PodUid) -> Option<&PodView> {
        self.pods.iter().find(|pod| &pod.uid == uid)
    }

    /// The empty view of a program that has just begun.
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
            slurm_jobs: Vec::new(),
            switches: Vec::new(),
            facts: HostFacts::default(),
            host: HostSample::default(),
            host_rates: HostRates::default(),
            infiniband: Arc::from([]),
            pods: Vec::new(),
            containers: Vec::new(),
            promises: Arc::from([]),
            pod_owners: Arc::from([]),
            pod_labels: Arc::from([]),
            tallies: Arc::from([]),
            tallies_to_keep: Arc::from([]),
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
