//! Observations: everything that a source may report. Sources send nothing else, and the node state takes them in one
//! at a time.
//!
//! An observation is a fact, an event or a sample. A fact is a state and is never lost, an event is kept up to a bound,
//! and a sample may be lost.

use crate::cgroup::{CgroupReport, ContainerName, NameSource};
use crate::gpu::{Gpu, GpuSample, MissingGpu, UnidentifiedGpu, Xid};
use crate::host::{HostFacts, HostSample};
use crate::id::GpuUuid;
use crate::infiniband::InfinibandPort;
use crate::limits::PodMemoryClaim;
use crate::plugin::PluginView;
use crate::pod::{PodList, PodWatchState};
use crate::process::{GpuProcesses, ProcessPass};
use crate::reading::Absence;
use crate::switch::Sxid;
use crate::time::Monotonic;
use std::sync::Arc;

/// One report from one source. Its class says how it is delivered when the owner of the node state cannot take it in at
/// once.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are few samples in a second: a box for each would cost more than it saves"
)]
pub enum Observation {
    /// A state. It is never lost.
    Fact(Fact),
    /// Something that happened.
    Event(SourceEvent),
    /// A reading. It may be lost.
    Sample(Sample),
}

/// A state, reported only when it changes. It is never lost: until the owner takes it, a newer fact of the same kind,
/// GPU and source replaces it.
#[derive(Clone, Debug)]
pub enum Fact {
    /// The state of the GPU source: library, driver, or all GPUs hanging.
    GpuSource(GpuSourceState),
    /// The driver was replaced while the agent runs. The loaded library never matches it again: only a new process can
    /// use it.
    GpuDriverReplaced,
    /// Identifies the current load of the driver's kernel module: a number that no other load in the same boot has.
    /// Reported whenever NVML starts to work, if the number is known.
    GpuDriverLoaded(u64),
    /// Whether the call that waits for driver events hangs.
    GpuEventsHang(bool),
    /// Whether the calls that wait for driver events fail repeatedly.
    GpuEventsFail(bool),
    /// The list of GPUs, at start and whenever it changes (hot-plug, MIG, loss). Known GPUs that cannot be read stay in
    /// the list.
    Gpus(Vec<Gpu>),
    /// All GPUs that NVML counts but that could never be identified.
    GpusUnidentified(Vec<UnidentifiedGpu>),
    /// All GPUs that the machine has and NVML does not list.
    GpusMissing(Vec<MissingGpu>),
    /// Facts of the machine, at start.
    HostFacts(HostFacts),
    /// All InfiniBand ports of the machine.
    Infiniband(Arc<[InfinibandPort]>),
    /// All names that one source has now; a name that is not in it no longer exists there.
    Names {
        /// The source.
        source: NameSource,
        /// Its names.
        names: Vec<ContainerName>,
    },
    /// Devices that containers hold according to the kubelet, by namespace, pod and container name.
    Devices(Vec<ContainerDevices>),
    /// All pods of this node at the API server; reported when one of them changes.
    Pods(PodList),
    /// The state of the pod watch; reported when the server sends something or stops answering.
    PodWatch(PodWatchState),
    /// The state of the device plugin; reported when it changes, at most once a second.
    Plugin(Arc<PluginView>),
    /// All GPU memory that the pods of this node claim.
    MemoryClaims(Arc<[PodMemoryClaim]>),
}

/// Something that happened. Events are kept in order, up to a bound.
#[derive(Clone, Debug)]
pub enum SourceEvent {
    /// A driver call that counts against this GPU has stalled; reported once for each such call.
    GpuStalled(GpuUuid),
    /// A driver error (XID).
    Xid(Xid),
    /// The driver says, without an XID, that the GPU at this PCI address has fallen off the bus.
    GpuFellOff(Arc<str>),
    /// The process behind a driver error, or its severity, or both: the error was already reported without them.
    XidDetails(Xid),
    /// An error of an NVSwitch.
    Sxid(Sxid),
    /// An error of a source, for the counters in `/metrics`; the source has already logged it.
    Trouble(ErrorCounter),
    /// Number of samples and events that were dropped since the last such report, because too many waited for the owner.
    Dropped(u64),
}

/// A reading that the next reading makes obsolete. It may be dropped.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one large sample in a second: a box would cost more than it saves"
)]
pub enum Sample {
    /// Readings of one GPU.
    Gpu(GpuUuid, Box<GpuSample>),
    /// Processes of one GPU.
    GpuProcesses(GpuProcesses),
    /// The machine as a whole.
    Host(HostSample),
    /// A whole pass over pods and containers: anything that is not in it is gone.
    Cgroups(CgroupPass),
    /// A whole pass over the host's processes.
    Processes(ProcessPass),
}

impl Fact {
    /// Whether this fact replaces an older fact: same kind, and for names the same source.
    #[must_use]
    pub fn replaces(&self, older: &Fact) -> bool {
        match (self, older) {
            (Fact::Names { source, .. }, Fact::Names { source: other, .. }) => source == other,
            _ => std::mem::discriminant(self) == std::mem::discriminant(older),
        }
    }
}

impl From<Fact> for Observation {
    fn from(fact: Fact) -> Observation {
        Observation::Fact(fact)
    }
}

impl From<SourceEvent> for Observation {
    fn from(event: SourceEvent) -> Observation {
        Observation::Event(event)
    }
}

impl From<Sample> for Observation {
    fn from(sample: Sample) -> Observation {
        Observation::Sample(sample)
    }
}

/// One pass over pods and containers.
#[derive(Clone, Debug, Default)]
pub struct CgroupPass {
    /// The cgroups, at most [`crate::cgroup::MAX_CGROUPS`] and [`crate::cgroup::MAX_POD_CGROUPS`] together.
    pub reports: Vec<CgroupReport>,
    /// Number of cgroups beyond that bound.
    pub left_out: u32,
    /// How long the pass took, in microseconds.
    pub took_us: u64,
    /// Number of sampling deadlines missed since the last pass, because a pass took too long.
    pub missed: u32,
}

/// The devices that a named container holds, from the kubelet's `PodResources` API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDevices {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub pod: Arc<str>,
    /// Name of the container.
    pub container: Arc<str>,
    /// Resource, such as `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// Device ids, as the plugin named them.
    pub ids: Vec<Arc<str>>,
}

/// Whether the agent can see GPUs at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSourceState {
    /// `--gpus none`.
    SwitchedOff,
    /// NVML was not called yet.
    Starting,
    /// NVML answers.
    Working {
        /// Driver version.
        driver: Arc<str>,
        /// NVML version.
        nvml: Arc<str>,
        /// CUDA version of the driver, such as `12.4`.
        cuda: Option<Arc<str>>,
        /// Whether the values are simulated (`--gpus simulated`).
        simulated: bool,
    },
    /// NVML cannot be used; the agent tries again with backoff.
    Missing {
        /// The reason that every GPU reading shows until then.
        why: Absence,
        /// One sentence for the operator: what was tried, where, and what to do.
        advice: Arc<str>,
    },
    /// The replacement poller hangs as well.
    Hanging,
    /// The agent has released the driver at the request of an operator. The known GPUs stay listed.
    Released {
        /// The latest time at which the agent opens the driver again.
        until: Monotonic,
    },
}

impl GpuSourceState {
    /// Whether the GPU values are simulated.
    #[must_use]
    pub fn simulated(&self) -> bool {
        matches!(self, GpuSourceState::Working { simulated: true, .. })
    }
}

/// The kinds of errors that the agent counts, by source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCounter {
    /// A `/proc` file was incomplete or could not be parsed.
    ProcUnreadable,
    /// A cgroup file could not be parsed.
    CgroupUnreadable,
    /// The CRI socket failed or was slow.
    CriFailed,
    /// The PodResources socket failed or was slow.
    PodResourcesFailed,
    /// The API server could not list pods, or the pod watch broke.
    PodWatchFailed,
    /// A pod from the API server could not be parsed.
    PodUnreadable,
    /// An NVML call failed with an error that is not an expected absence.
    NvmlFailed,
    /// A kernel log line could not be read.
    KernelLogFailed,
    /// A message was dropped because its queue was full.
    QueueFull,
    /// The kubelet's checkpoint and its PodResources API name different holders of the same devices.
    HoldersDisagree,
    /// Entries of the agent's resource in the kubelet's checkpoint cannot be parsed.
    CheckpointUnreadable,
    /// A container started without the CDI edits that the runtime had to make.
    EditsNotApplied,
    /// The files of a pod that is gone cannot be removed.
    NotRemoved,
    /// The files that a pod has written cannot be counted.
    NotCounted,
    /// A change of the profiles on the Node had to wait, because the number of such writes is limited.
    ProfileWriteDelayed,
}
