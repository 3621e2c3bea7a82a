//! Everything an eye may report. Sources send these and nothing else; the node's state takes them in one at a time.

use crate::cgroup::{CgroupReport, ContainerName, NameSource};
use crate::gpu::{Gpu, GpuSample, UnidentifiedGpu, Xid};
use crate::host::{HostFacts, HostSample};
use crate::id::GpuUuid;
use crate::infiniband::InfinibandPort;
use crate::limits::PodMemoryClaim;
use crate::plugin::PluginView;
use crate::pod::{PodList, PodWatchState};
use crate::process::{GpuProcesses, ProcessPass, SlurmJob};
use crate::reading::Absence;
use crate::switch::Sxid;
use crate::tally::GpuTally;
use crate::time::Monotonic;
use std::sync::Arc;

/// One report from one source.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one a second of the large one: a box each would cost more than it saves"
)]
pub enum Observation {
    /// The state of the GPU source changed: library, driver, or all GPUs hanging.
    GpuSource(GpuSourceState),
    /// The driver was replaced under the program, whose library will never match it again: only a new process can.
    GpuDriverReplaced,
    /// Which loading of the driver's kernel module NVML works with: a number that another loading in the same boot has not. Told
    /// whenever NVML begins to work, where it can be known.
    GpuDriverLoaded(u64),
    /// Whether the wait for the driver's events hangs, whenever that changes.
    GpuEventsHang(bool),
    /// Whether waits for the driver's events fail one after the other, whenever that changes.
    GpuEventsFail(bool),
    /// The list of GPUs, at start and whenever it changes (hot-plug, MIG, loss). GPUs that are known and cannot be read
    /// stay in the list.
    Gpus(Vec<Gpu>),
    /// The GPUs that are counted and could never be identified, all of them, whenever that changes.
    GpusUnidentified(Vec<UnidentifiedGpu>),
    /// A call that counts against this GPU took too long, once for each such call.
    GpuStalled(GpuUuid),
    /// Readings of one GPU.
    GpuSample(GpuUuid, Box<GpuSample>),
    /// Processes of one GPU.
    GpuProcesses(GpuProcesses),
    /// Jobs of Slurm with a process on this GPU, all of them, whenever that changes.
    SlurmJobs(GpuUuid, Vec<SlurmJob>),
    /// A driver error.
    Xid(Xid),
    /// The process behind a driver error that was told already, without it.
    XidProcess(Xid),
    /// An error of an NVSwitch.
    Sxid(Sxid),
    /// Facts of the machine, at start.
    HostFacts(HostFacts),
    /// The machine as a whole.
    Host(HostSample),
    /// The machine's InfiniBand ports, all of them.
    Infiniband(Arc<[InfinibandPort]>),
    /// A whole pass over pods and containers: what is not in it is gone.
    Cgroups(CgroupPass),
    /// A whole pass over the host's processes.
    Processes(ProcessPass),
    /// Names from one source. `complete` means that what is not in it has no name there any more.
    Names {
        /// Who tells.
        source: NameSource,
        /// What it tells.
        names: Vec<ContainerName>,
    },
    /// Devices that kubelet says a container holds, by namespace, pod and container name.
    Devices(Vec<ContainerDevices>),
    /// The pods of this node at the API server, all of them, whenever one of them changed.
    Pods(PodList),
    /// How the watch of these pods fares, whenever the server said something or stopped to answer.
    PodWatch(PodWatchState),
    /// How the device plugin fares, whenever that changed, at most once a second.
    Plugin(Arc<PluginView>),
    /// What the pods of this node were promised of GPU memory, all of it, whenever that changes.
    Promises(Arc<[PodMemoryClaim]>),
    /// What pods have had of GPUs, as an earlier life kept it; told once, at the start.
    TalliesRecalled(Arc<[GpuTally]>),
    /// The same as it is kept now.
    TalliesKept(Arc<[GpuTally]>),
    /// Something a source could not do, for the counters shown at `/metrics`; it was logged where it happened.
    Trouble(ErrorCounter),
}

/// What becomes of an observation that the owner of the node's state has no time for yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryClass {
    /// A state, reported only when it changes: it is never lost. A newer one of the same kind takes its place.
    Fact,
    /// Something that happened: it is kept in order, up to a bound.
    Event,
    /// A reading that the next one outdates: it may be dropped.
    Sample,
}

impl Observation {
    /// How it has to be delivered.
    #[must_use]
    pub fn delivery(&self) -> DeliveryClass {
        match self {
            Observation::GpuSource(_)
            | Observation::GpuDriverReplaced
            | Observation::GpuDriverLoaded(_)
            | Observation::GpuEventsHang(_)
            | Observation::GpuEventsFail(_)
            | Observation::Gpus(_)
            | Observation::GpusUnidentified(_)
            | Observation::SlurmJobs(..)
            | Observation::HostFacts(_)
            | Observation::Infiniband(_)
            | Observation::Names { .. }
            | Observation::Devices(_)
            | Observation::Pods(_)
            | Observation::PodWatch(_)
            | Observation::Plugin(_)
            | Observation::Promises(_)
            | Observation::TalliesRecalled(_)
            | Observation::TalliesKept(_) => DeliveryClass::Fact,
            Observation::GpuStalled(_)
            | Observation::Xid(_)
            | Observation::XidProcess(_)
            | Observation::Sxid(_)
            | Observation::Trouble(_) => DeliveryClass::Event,
            Observation::GpuSample(..)
            | Observation::GpuProcesses(_)
            | Observation::Host(_)
            | Observation::Cgroups(_)
            | Observation::Processes(_) => DeliveryClass::Sample,
        }
    }

    /// Whether this fact takes the place of an older one: the same kind, of the same GPU or from the same source of names.
    #[must_use]
    pub fn replaces(&self, older: &Observation) -> bool {
        match (self, older) {
            (Observation::SlurmJobs(gpu, _), Observation::SlurmJobs(other, _)) => gpu == other,
            (Observation::Names { source, .. }, Observation::Names { source: other, .. }) => source == other,
            _ => {
                self.delivery() == DeliveryClass::Fact && std::mem::discriminant(self) == std::mem::discriminant(older)
            }
        }
    }
}

/// One pass over pods and containers.
#[derive(Clone, Debug, Default)]
pub struct CgroupPass {
    /// At most [`crate::cgroup::MAX_CGROUPS`].
    pub reports: Vec<CgroupReport>,
    /// Cgroups beyond that bound.
    pub left_out: u32,
    /// How long the pass took, in microseconds.
    pub took_us: u64,
    /// Deadlines that were missed since the last pass because a pass took too long.
    pub missed: u32,
}

/// From kubelet's `PodResources`: which devices a named container holds.
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
    /// Device ids as the plugin named them.
    pub ids: Vec<Arc<str>>,
}

/// Whether GPUs can be seen at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSourceState {
    /// `--gpus none`.
    SwitchedOff,
    /// Not asked yet.
    Starting,
    /// NVML answers.
    Working {
        /// Driver version.
        driver: Arc<str>,
        /// NVML version.
        nvml: Arc<str>,
        /// CUDA version that the driver brings, such as `12.4`.
        cuda: Option<Arc<str>>,
        /// Whether the values are made up by `--gpus simulated`.
        simulated: bool,
    },
    /// NVML cannot be used; tried again with back-off.
    Missing {
        /// The reason of every GPU reading meanwhile.
        why: Absence,
        /// What was tried, on what, and what to do: one sentence for people.
        advice: Arc<str>,
    },
    /// The replacement poller hangs as well.
    Hanging,
    /// The driver is let go of because an operator asked for it. What is known of GPUs stays as it is.
    Released {
        /// When it is opened again, at the latest.
        until: Monotonic,
    },
}

impl GpuSourceState {
    /// Whether the GPU values are made up.
    #[must_use]
    pub fn simulated(&self) -> bool {
        matches!(self, GpuSourceState::Working { simulated: true, .. })
    }
}

/// What went wrong, by source; each is a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCounter {
    /// A `/proc` file was torn or could not be parsed.
    ProcUnreadable,
    /// A cgroup file could not be parsed.
    CgroupUnreadable,
    /// The CRI socket failed or was slow.
    CriFailed,
    /// The PodResources socket failed or was slow.
    PodResourcesFailed,
    /// The API server could not be asked for pods, or the watch of them broke.
    PodWatchFailed,
    /// A pod of the API server could not be read.
    PodUnreadable,
    /// An NVML call failed with an error that is not one of the expected absences.
    NvmlFailed,
    /// A kernel log line could not be read.
    KernelLogFailed,
    /// A message was dropped because its queue was full.
    QueueFull,
    /// kubelet's checkpoint and PodResources name different holders of the same devices.
    HoldersDisagree,
    /// Entries of our resource in kubelet's checkpoint cannot be read.
    CheckpointUnreadable,
    /// A container may never start: it was given what is another's.
    StartMistaken,
    /// A container started without the edits that the runtime was to make.
    EditsNotApplied,
    /// Files of a pod that is gone cannot be removed.
    NotRemoved,
    /// What a pod has written cannot be counted.
    NotCounted,
}
