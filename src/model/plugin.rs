//! The state of the device plugin as an operator sees it: registration with the kubelet, calls, and how long they took.

use crate::claim::ContainerClaim;
use crate::guard::{AdmissionPolicy, PolicyGuard};
use crate::histogram::Histogram;
use crate::id::{GpuUuid, PodRef, PodUid};
use crate::unit::Bytes;
use crate::withheld::WithheldDevice;
use std::sync::Arc;

/// Whether the kubelet knows the agent as the device plugin of its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// Not registered; the text names what the agent waits for.
    Waiting(Arc<str>),
    /// Not registered: another agent serves the GPUs of this node, and this agent waits until it ends.
    Follows,
    /// Not registered, because it is not known yet whether containers get their GPUs by CDI; the text names what the agent
    /// requested and why it has no answer.
    Undecided(Arc<str>),
    /// Registered: the kubelet watches the agent's list of devices.
    Registered,
}

impl RegistrationState {
    /// The code for the only way to register (the call `Register`); metrics and JSON still show it.
    pub const WAY: &str = "classic";
    /// The text for [`RegistrationState::Follows`].
    pub const FOLLOWS: &str = "another agent shares the GPUs of this node; this agent waits until it ends";
}

/// What the kubelet does with a second connection for a resource that already has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondConnection {
    /// The kubelet keeps both connections, and the end of one does not affect the other.
    Kept,
    /// The kubelet uses the newer connection, and drops it too when the older connection ends.
    DroppedWithTheFirst,
}

/// Whether containers of this node get their GPUs by CDI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CdiState {
    /// Not known yet.
    #[default]
    Unknown,
    /// Containers get their GPUs by CDI.
    Works,
    /// Containers do not get their GPUs by CDI, so no GPU is offered.
    Missing {
        /// What is missing, and what to change.
        why: Arc<str>,
        /// Number of pods here that an earlier release gave their GPUs without CDI. They keep them.
        earlier_pods: u32,
    },
}

/// How a start of a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartOutcome {
    /// The container got its device shares.
    Filled,
    /// The container holds ids of a plugin that ran here earlier, and uses the devices that this plugin gave it.
    Foreign,
    /// The agent refused the start, with this code.
    Refused(&'static str),
    /// The start waited too long; the code names what it waited for.
    Late(&'static str),
    /// The agent could not write the container's files.
    Failed,
}

impl StartOutcome {
    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            StartOutcome::Filled => "filled",
            StartOutcome::Foreign => "foreign",
            StartOutcome::Refused(_) => "refused",
            StartOutcome::Late(_) => "late",
            StartOutcome::Failed => "failed",
        }
    }

    /// The reason, or an empty text if there is no reason.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            StartOutcome::Refused(why) | StartOutcome::Late(why) => why,
            StartOutcome::Filled | StartOutcome::Foreign | StartOutcome::Failed => "",
        }
    }
}

/// Slots and claims of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSlots {
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// Slots that the kubelet may allocate.
    pub free: u32,
    /// Slots that containers hold.
    pub used: u32,
    /// Slots that no container holds and that the kubelet may not allocate.
    pub unhealthy: u32,
    /// Slots that containers hold and that the agent reports as unhealthy.
    pub used_unhealthy: u32,
    /// Number of pods that claim a share of the device and have not ended.
    pub claims: u32,
    /// Whether the device is fit for new containers.
    pub healthy: bool,
    /// Whether an operator has cordoned the device, so that it gets no new containers.
    pub cordoned: bool,
    /// Whether another owner holds the device, so that it gets no new containers: a pod got it from another plugin, or has a claim
    /// that cannot be mapped to a device.
    pub taken: bool,
}

/// The files that a pod has written into the folders that the limiter needs writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFiles {
    /// The pod.
    pub uid: PodUid,
    /// Namespace and name.
    pub pod: PodRef,
    /// Disk space that the files take.
    pub bytes: Bytes,
    /// Number of files and folders.
    pub files: u64,
    /// Whether the pod has written more than the limit. Then the real numbers can be higher.
    pub over: bool,
}

/// The device plugin, once it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginView {
    /// The resource, such as `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// The plugin's registration with the kubelet.
    pub registration: RegistrationState,
    /// Number of registrations.
    pub registrations: u64,
    /// Slots of the devices, ordered by device.
    pub slots: Arc<[DeviceSlots]>,
    /// Claims of the containers of pods that have not ended, ordered by pod and container.
    pub claims: Arc<[ContainerClaim]>,
    /// Number of containers for which the kubelet called `Allocate`.
    pub allocations: u64,
    /// Number of answered container starts by outcome, ordered.
    pub starts: Vec<(StartOutcome, u64)>,
    /// Number of starts that had to wait, by the thing they waited for, ordered.
    pub waited: Vec<(&'static str, u64)>,
    /// Number of containers for which the kubelet counts other devices than the claim names.
    pub differing: u64,
    /// Number of running pods that hold a GPU or MIG instance that this node does not list.
    pub without_gpu: u32,
    /// The devices that the driver lists and the agent does not offer, with the reasons, ordered by index.
    pub withheld: Arc<[WithheldDevice]>,
    /// Number of containers whose claim moved to the devices that the kubelet chose.
    pub moved: u64,
    /// Files of pods in the limiter's writable folders, ordered by UID.
    pub files: Arc<[PodFiles]>,
    /// Whether containers get their GPUs by CDI.
    pub cdi: CdiState,
    /// What containers with a GPU lack on this host, and what to do about it.
    pub lacks: Option<Arc<str>>,
    /// The chart's admission policies whose state is known, ordered.
    pub guards: Vec<(AdmissionPolicy, PolicyGuard)>,
    /// Duration of `Allocate`, from request to answer.
    pub allocate: Histogram,
    /// Duration of `PreStartContainer`, from request to answer.
    pub start: Histogram,
}

impl PluginView {
    /// The claim of this container.
    #[must_use]
    pub fn claim(&self, pod: &PodUid, container: &str) -> Option<&ContainerClaim> {
        let key = |claim: &ContainerClaim| (&claim.holder.pod, &*claim.holder.container).cmp(&(pod, container));
        self.claims.binary_search_by(key).ok().and_then(|at| self.claims.get(at))
    }
}
