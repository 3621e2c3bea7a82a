//! Why a node does not fit: HAMi's reason codes, counted by GPU, and the GPU that came nearest.

use super::rules::CheckResult;
use model::request::MemoryRequest;
use model::unit::{Bytes, CorePercent};
use std::fmt;

/// HAMi's documents have one code for a node that is not for this pod: its devices are not known, or are not of the kind that the pod
/// accepts. It stands before the code that says which case it is.
const UNFIT: &str = "NodeUnfitPod: ";

/// Why a GPU, or a whole node, cannot take a pod. The names are the names in HAMi's table of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RefusalReason {
    /// The GPU is not fit for new containers.
    CardNotHealth,
    /// An operator keeps the GPU from new containers.
    CardCordoned,
    /// Processes of a pod without a claim use the GPU, such as a pod that has ended.
    CardInUse,
    /// The pod does not accept the product or the sharing mode.
    CardTypeMismatch,
    /// The pod does not accept the UUID.
    CardUuidMismatch,
    /// The GPUs that fit are on different NUMA nodes.
    NumaNotFit,
    /// The largest allowed number of containers share the GPU already.
    CardTimeSlicingExhausted,
    /// The pod needs the GPU for itself and another pod uses it, or another pod has the GPU for itself.
    ExclusiveDeviceAllocateConflict,
    /// Too little memory is left.
    CardInsufficientMemory,
    /// Too little SM time is left.
    CardInsufficientCore,
    /// All SM time is claimed, so not even a container that requests no amount of SM time fits.
    CardComputeUnitsExhausted,
    /// Some GPUs fit, but fewer than the container requests.
    AllocatedCardsInsufficientRequest,
    /// The node has fewer GPUs than the container requests.
    NodeInsufficientDevice,
    /// The node registers no GPUs, or its register cannot be read.
    NodeUnregistered,
    /// The node takes no new claims now.
    NodeClosed,
    /// The pod is placed on another node: its claim is written or is being written.
    PodPlacedElsewhere,
}

impl RefusalReason {
    /// Every reason, in the order of the tests.
    pub const ALL: [RefusalReason; 16] = [
        RefusalReason::CardNotHealth,
        RefusalReason::CardCordoned,
        RefusalReason::CardInUse,
        RefusalReason::CardTypeMismatch,
        RefusalReason::CardUuidMismatch,
        RefusalReason::NumaNotFit,
        RefusalReason::CardTimeSlicingExhausted,
        RefusalReason::ExclusiveDeviceAllocateConflict,
        RefusalReason::CardInsufficientMemory,
        RefusalReason::CardInsufficientCore,
        RefusalReason::CardComputeUnitsExhausted,
        RefusalReason::AllocatedCardsInsufficientRequest,
        RefusalReason::NodeInsufficientDevice,
        RefusalReason::NodeUnregistered,
        RefusalReason::NodeClosed,
        RefusalReason::PodPlacedElsewhere,
    ];

    /// The code, without `UNFIT`.
    #[must_use]
    pub fn code(self) -> &'static str {
        self.text().trim_start_matches(UNFIT)
    }

    /// The code as answers, events and logs write it: HAMi's code if HAMi has one, after `UNFIT` if the node is not for this pod,
    /// whatever is free there.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            RefusalReason::CardNotHealth => "CardNotHealth",
            RefusalReason::CardCordoned => "CardCordoned",
            RefusalReason::CardInUse => "CardInUse",
            RefusalReason::CardTypeMismatch => "NodeUnfitPod: CardTypeMismatch",
            RefusalReason::CardUuidMismatch => "NodeUnfitPod: CardUuidMismatch",
            RefusalReason::NumaNotFit => "NumaNotFit",
            RefusalReason::CardTimeSlicingExhausted => "CardTimeSlicingExhausted",
            RefusalReason::ExclusiveDeviceAllocateConflict => "ExclusiveDeviceAllocateConflict",
            RefusalReason::CardInsufficientMemory => "CardInsufficientMemory",
            RefusalReason::CardInsufficientCore => "CardInsufficientCore",
            RefusalReason::CardComputeUnitsExhausted => "CardComputeUnitsExhausted",
            RefusalReason::AllocatedCardsInsufficientRequest => "AllocatedCardsInsufficientRequest",
            RefusalReason::NodeInsufficientDevice => "NodeInsufficientDevice",
            RefusalReason::NodeUnregistered => "NodeUnfitPod: NodeUnregistered",
            RefusalReason::NodeClosed => "NodeUnfitPod: NodeClosed",
            RefusalReason::PodPlacedElsewhere => "NodeUnfitPod: PodPlacedElsewhere",
        }
    }

    /// Whether the reason stays when other pods end: then preemption cannot help, as far as GPUs are concerned.
    #[must_use]
    pub fn is_lasting(self) -> bool {
        matches!(
            self,
            RefusalReason::CardTypeMismatch
                | RefusalReason::CardUuidMismatch
                | RefusalReason::NodeInsufficientDevice
                | RefusalReason::NodeUnregistered
        )
    }

    /// Whether the reason is about the node as a whole, and not about one of its GPUs.
    #[must_use]
    pub fn is_of_node(self) -> bool {
        matches!(
            self,
            RefusalReason::NodeInsufficientDevice
                | RefusalReason::NodeUnregistered
                | RefusalReason::NodeClosed
                | RefusalReason::PodPlacedElsewhere
        )
    }

    fn place(self) -> usize {
        usize::from(self as u8)
    }
}

/// How far the nearest GPU was from fitting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearestMiss {
    /// The GPU had this much memory left, and the container requests more.
    Memory {
        /// The request as the pod states it; `None` if it names no memory, and so requests all memory of a GPU.
        asked: Option<MemoryRequest>,
        /// Requested of each GPU.
        requested: Bytes,
        /// Left by the claims on the GPU with the most.
        free: Bytes,
        /// Memory that is really free on that GPU; `None` if not checked.
        really_free: Option<Bytes>,
        /// Memory of that GPU.
        total: Bytes,
        /// NVML's index of that GPU.
        index: u32,
    },
    /// The GPU had this much SM time left, and the container requests more.
    Cores {
        /// Requested of each GPU.
        requested: CorePercent,
        /// Left on the GPU with the most.
        free: CorePercent,
        /// NVML's index of that GPU.
        index: u32,
    },
    /// This many GPUs fit, and the container requests more.
    Count {
        /// Requested.
        requested: u32,
        /// GPUs that fit.
        fitting: u32,
    },
    /// The node has this many GPUs, and the container requests more.
    Devices {
        /// Requested.
        requested: u32,
        /// GPUs of the node.
        there: u32,
    },
}

/// Why one node does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRefusal {
    /// GPUs that failed first at each test, in the order of [`RefusalReason::ALL`].
    counts: [u16; RefusalReason::ALL.len()],
    /// The tests at which a GPU failed: a bit for each test, in the order of [`RefusalReason::ALL`].
    bits: u16,
    /// GPUs that failed for a temporary reason, but are too small for the container even without any claim.
    too_small: u16,
    /// GPUs of the node.
    pub gpus: u16,
    /// The nearest miss.
    pub nearest: Option<NearestMiss>,
    /// [`CheckResult::Refused`] if the claims on a GPU leave room and less memory is really free.
    pub check: CheckResult,
}

impl NodeRefusal {
    /// A refusal of the node as a whole.
    #[must_use]
    pub fn whole(reason: RefusalReason) -> NodeRefusal {
        let mut refusal = NodeRefusal::default();
        refusal.count(reason);
        refusal
    }

    /// A refusal of a node with this many GPUs, before they are tested.
    pub(crate) fn of(gpus: u16) -> NodeRefusal {
        NodeRefusal { gpus, ..NodeRefusal::default() }
    }

    /// Counts one GPU.
    pub(crate) fn count(&mut self, reason: RefusalReason) {
        if let Some(count) = self.counts.get_mut(reason.place()) {
            *count = count.saturating_add(1);
            self.bits |= 1 << reason.place();
        }
    }

    /// Counts one GPU whose whole capacity is less than the container requests.
    pub(crate) fn count_too_small(&mut self, reason: RefusalReason) {
        self.count(reason);
        if !reason.is_lasting() {
            self.too_small = self.too_small.saturating_add(1);
        }
    }

    /// The reasons with the number of GPUs.
    pub fn reasons(&self) -> impl Iterator<Item = (RefusalReason, u16)> {
        // A call about thousands of nodes needs the reasons of each node, and most nodes have one reason.
        let mut bits = self.bits;
        std::iter::from_fn(move || {
            let place = usize::try_from(bits.trailing_zeros()).ok()?;
            bits &= bits.wrapping_sub(1);
            Some((*RefusalReason::ALL.get(place)?, *self.counts.get(place)?))
        })
    }

    /// The set of reasons as bits, in the order of [`RefusalReason::ALL`]: nodes with equal sets have equal texts.
    #[must_use]
    pub fn bits(&self) -> u16 {
        self.bits
    }

    /// Whether the refusal stays when other pods end.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        let (mut lasting, mut passing) = (self.too_small, 0u16);
        for (reason, gpus) in self.reasons() {
            if reason.is_lasting() {
                lasting = lasting.saturating_add(gpus);
            } else if reason != RefusalReason::AllocatedCardsInsufficientRequest {
                passing = passing.saturating_add(gpus);
            }
        }
        lasting > 0 && passing <= self.too_small
    }

    /// Keeps the nearer of two misses.
    pub(crate) fn missed(&mut self, miss: NearestMiss) {
        if let NearestMiss::Memory { requested, free, .. } = miss
            && requested.0 <= free.0
        {
            self.check = CheckResult::Refused;
        }
        if self.nearest.is_none_or(|other| miss.is_nearer_than(other)) {
            self.nearest = Some(miss);
        }
    }
}

impl NearestMiss {
    /// Whether this miss is nearer than another miss: more was left of the scarce resource.
    #[must_use]
    pub fn is_nearer_than(self, other: NearestMiss) -> bool {
        match (other, self) {
            (
                NearestMiss::Memory { free: old, really_free: old_really, .. },
                NearestMiss::Memory { free, really_free, .. },
            ) => really_free.unwrap_or(free) > old_really.unwrap_or(old),
            (NearestMiss::Cores { free: old, .. }, NearestMiss::Cores { free, .. }) => free > old,
            (NearestMiss::Count { fitting: old, .. }, NearestMiss::Count { fitting, .. }) => fitting > old,
            (NearestMiss::Devices { there: old, .. }, NearestMiss::Devices { there, .. }) => there > old,
            _ => self.rank() > other.rank(),
        }
    }

    /// For the user, too few fitting GPUs matter more than memory, and memory matters more than SM time. A node that has too few GPUs
    /// comes last, because no ending pod changes that.
    fn rank(self) -> u8 {
        match self {
            NearestMiss::Devices { .. } => 0,
            NearestMiss::Cores { .. } => 1,
            NearestMiss::Memory { .. } => 2,
            NearestMiss::Count { .. } => 3,
        }
    }
}

/// The reasons without numbers, in alphabetical order, so that kube-scheduler can count nodes with the same text.
impl fmt::Display for NodeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut codes: Vec<&str> = self.reasons().map(|(reason, _)| reason.text()).collect();
        codes.sort_unstable();
        f.write_str(&codes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_code_leads_the_reasons_for_which_the_node_is_not_for_the_pod() {
        let led: Vec<&str> =
            RefusalReason::ALL.into_iter().filter(|one| one.text() != one.code()).map(RefusalReason::code).collect();
        let expected = ["CardTypeMismatch", "CardUuidMismatch", "NodeUnregistered", "NodeClosed", "PodPlacedElsewhere"];
        assert_eq!(led, expected);
        assert!(RefusalReason::ALL.iter().all(|one| one.text().ends_with(one.code()) && !one.code().contains(':')));
        let mut mixed = NodeRefusal::of(3);
        let reasons = [RefusalReason::CardTypeMismatch, RefusalReason::CardInsufficientMemory];
        reasons.into_iter().for_each(|reason| mixed.count(reason));
        assert_eq!(mixed.to_string(), "CardInsufficientMemory, NodeUnfitPod: CardTypeMismatch");
    }
}
