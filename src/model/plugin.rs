//! The device plugin as an operator sees it: how it stands with kubelet, what was asked of it, how long answers took.

use crate::claim::ContainerClaim;
use crate::guard::{AdmissionPolicy, PolicyGuard};
use crate::id::{GpuUuid, PodRef, PodUid};
use crate::unit::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Upper bounds of the buckets of [`Histogram`], in microseconds. `Allocate` takes tens of microseconds, a start that finds
/// everything known a few milliseconds, one that waits for the API server up to 25 s: each of these lies between some.
pub const BOUNDS_US: [u64; 21] = [
    25, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000, 20_000_000, 30_000_000,
];

/// How long calls took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Calls by the first of [`BOUNDS_US`] that they did not exceed; the last place is for those beyond all.
    pub counts: [u64; Histogram::PLACES],
    /// All of it together.
    pub sum: Duration,
}

impl Histogram {
    /// How many buckets there are.
    pub const PLACES: usize = BOUNDS_US.len() + 1;

    /// The place in [`Histogram::counts`] of a call that took so long.
    #[must_use]
    pub fn place(took: Duration) -> usize {
        BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < took)
    }

    /// How many calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// How it stands with kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// kubelet does not know us, and what is waited for.
    Waiting(Arc<str>),
    /// Another agent shares the GPUs of this node, and its end is waited for.
    Follows,
    /// We do not register yet, because it is not known when containers are to get their devices: what was asked, and why it is
    /// not known.
    Undecided(Arc<str>),
    /// kubelet watches our list; by which way it came.
    Registered(&'static str),
}

impl RegistrationState {
    /// What is said of [`RegistrationState::Follows`].
    pub const FOLLOWS: &str = "another agent shares the GPUs of this node, this one waits for its end";
}

/// What a kubelet does with a second connection for a resource that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondConnection {
    /// It keeps both, and the end of one changes nothing for the other.
    Kept,
    /// It serves the newer one, and drops that one when the older one ends.
    DroppedWithTheFirst,
}

/// Whether a container can be kept from GPUs that it was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceIsolation {
    /// It can.
    #[default]
    Holds,
    /// A pod's own variables open every GPU of the node, and an operator asked for that by name.
    GivenUp,
    /// They would, so no container gets any.
    Refused,
}

/// How a start of a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartOutcome {
    /// It got what it was promised.
    Filled,
    /// It holds ids of a plugin that ran here before us, and what that one gave.
    Foreign,
    /// It must not start: the code of the refusal.
    Refused(&'static str),
    /// It was waited for in vain: what was waited for.
    Late(&'static str),
    /// What it gets could not be written.
    Failed,
}

impl StartOutcome {
    /// A stable short word.
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

    /// Why, where there is a why.
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
    /// Slots that kubelet may hand out.
    pub free: u32,
    /// Slots that containers hold.
    pub used: u32,
    /// Slots that nobody holds and kubelet may not hand out.
    pub unhealthy: u32,
    /// Slots that containers hold and that are told as unhealthy.
    pub used_unhealthy: u32,
    /// Pods that were promised something of it and have not ended.
    pub claims: u32,
    /// Whether it can be trusted with new work.
    pub healthy: bool,
    /// Whether an operator keeps it from new containers.
    pub cordoned: bool,
}

/// Containers that have other devices than their claims named, with the same memory and SM time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimMoves {
    /// Another's, who has theirs: at `Allocate` one was expected and the other came.
    pub exchanged: u64,
    /// Devices with room for them: those that kubelet chose, or that were given for another.
    pub alone: u64,
}

/// What a pod has written into the folders that the limiter needs writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFiles {
    /// The pod.
    pub uid: PodUid,
    /// Its names.
    pub pod: PodRef,
    /// Room that it takes on the disk.
    pub bytes: Bytes,
    /// Files and folders.
    pub files: u64,
    /// Whether it is more than a pod may write. Then there may be more than the numbers say.
    pub over: bool,
}

/// The plugin, once it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginView {
    /// `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// How it stands with kubelet.
    pub standing: RegistrationState,
    /// How often kubelet came to know us.
    pub registrations: u64,
    /// Ordered by device.
    pub slots: Arc<[DeviceSlots]>,
    /// What containers of pods that have not ended were promised, ordered by pod and container.
    pub claims: Arc<[ContainerClaim]>,
    /// Containers that kubelet allocated.
    pub allocations: u64,
    /// Containers whose start was answered, by how; ordered.
    pub starts: Vec<(StartOutcome, u64)>,
    /// Starts that had to wait, by what for; ordered.
    pub waited: Vec<(&'static str, u64)>,
    /// Containers for which kubelet counts other devices than those of the claim.
    pub differing: u64,
    /// Pods that run and hold a GPU or MIG instance that this node does not list.
    pub without_gpu: u32,
    /// Containers whose claim moved.
    pub moves: ClaimMoves,
    /// Pods that have written something, ordered by UID.
    pub files: Arc<[PodFiles]>,
    /// Whether containers are kept from others' GPUs.
    pub isolation: DeviceIsolation,
    /// The chart's policies of which something is known; ordered.
    pub guards: Vec<(AdmissionPolicy, PolicyGuard)>,
    /// `Allocate`, from its request to its answer.
    pub allocate: Histogram,
    /// `PreStartContainer`, from its request to its answer.
    pub start: Histogram,
}

impl PluginView {
    /// What this container was promised.
    #[must_use]
    pub fn claim(&self, pod: &PodUid, container: &str) -> Option<&ContainerClaim> {
        let key = |claim: &ContainerClaim| (&claim.holder.pod, &*claim.holder.container).cmp(&(pod, container));
        self.claims.binary_search_by(key).ok().and_then(|at| self.claims.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_stands_in_the_first_bucket_that_holds_it() {
        for (micros, place) in [(0, 0), (25, 0), (26, 1), (1_000, 5), (30_000_000, 20), (30_000_001, 21)] {
            assert_eq!(Histogram::place(Duration::from_micros(micros)), place, "{micros}");
        }
        assert_eq!(Histogram::place(Duration::from_nanos(25_001)), 1);
        assert!(BOUNDS_US.is_sorted());
    }
}
