//! Chooses the GPUs of one node for one pod, says why a node does not fit, and compares nodes that fit.
//!
//! ```text
//!   PlacementRequest ─┐                ┌─▶ Placement     the claim, and how full the node is with it ──▶ score
//!   GPUs of a node   ─┼──▶ place() ────┤
//!   PlacementRules   ─┘                └─▶ NodeRefusal   the first failed test of each GPU, and the nearest miss
//! ```
//!
//! Containers are placed in the order in which they start: init containers first. An init container runs together with
//! the sidecars that have started before it; after the init containers, all sidecars and app containers run together.
//! For each container the GPUs are tried in the order of the pod's policy, and the first GPUs that pass every test are
//! taken. The tests, their order and the names of the reasons are the same as in HAMi 2.10.0.
//!
//! What must never happen here: a placement that takes more of a GPU at any moment than it has left; a result that
//! depends on the order in which nodes, GPUs or other pods became known.

mod reason;
mod score;
mod rules;
mod reality;
mod device;
mod order;
mod fit;

pub use device::{DeviceFitness, DeviceKind, PlacementDevice, PlacementNode};
pub use fit::place;
pub(crate) use fit::{AcceptedDevices, accepts_kind, requested};
pub use reality::{BeyondClaims, ClaimedUse, MemoryBasis, ReportedMemory};
pub use reason::{NearestMiss, NodeRefusal, RefusalReason};
pub use rules::{CheckResult, CountedClaims, Placement, PlacementRules};
pub use score::{Capacity, Fill, FillTerms, ScoreTerm};

#[cfg(test)]
pub(crate) mod tests;
