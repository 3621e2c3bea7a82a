//! Mistakes that a test plants into the decisions about bindings, to show that the simulated cluster of the extender finds them.
//! Without the feature `simulation` no mistake can be planted, and the compiler leaves out the code of all mistakes.
//!
//! What must never happen here: a mistake in a program that is not a test.

use crate::ledger::DeviceDemand;
use crate::placement::PlacementNode;
use model::id::GpuUuid;
use std::borrow::Cow;

#[cfg(all(feature = "simulation", not(debug_assertions)))]
compile_error!("mistakes are planted by tests only: a release build must not have the feature `simulation`");

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedMistake {
    /// A binding without an answer counts as refused, and the pod is placed again.
    LostAnswerIsRefusal,
    /// A pod that is read without a node counts as never bound, although it still has the version that a write without an
    /// answer names.
    UnboundReadIsEvidence,
    /// A bind takes the GPUs that the filter has proposed, whatever was claimed since.
    BindTrustsFilter,
    /// A node that was closed by a claim that could not be read stays closed once the claim can be read.
    ReadableClaimStaysUnknown,
    /// A pod is woken only once, whatever the wake led to.
    WokenOnce,
}

#[cfg(feature = "simulation")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedMistake>> = const { std::cell::Cell::new(None) };
}

/// Plants a mistake into the decisions of this thread, in place of an earlier mistake.
#[cfg(feature = "simulation")]
pub fn plant(mistake: Option<PlantedMistake>) {
    PLANTED.set(mistake);
}

/// Whether this mistake is planted.
#[cfg(feature = "simulation")]
pub(super) fn planted(mistake: PlantedMistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Whether this mistake is planted: never.
#[cfg(not(feature = "simulation"))]
pub(super) const fn planted(_: PlantedMistake) -> bool {
    false
}

/// The devices among which a bind chooses. With the mistake [`PlantedMistake::BindTrustsFilter`] they are the devices of the
/// pod's proposal, as if nothing was claimed of them.
pub(super) fn devices_of_bind<'a>(
    devices: &'a PlacementNode,
    proposal: Option<&[(GpuUuid, DeviceDemand)]>,
) -> Cow<'a, PlacementNode> {
    let Some(proposal) = proposal.filter(|_| planted(PlantedMistake::BindTrustsFilter)) else {
        return Cow::Borrowed(devices);
    };
    let mut devices = PlacementNode { devices: devices.devices.clone(), ..PlacementNode::default() };
    devices.devices.retain(|device| proposal.iter().any(|(proposed, _)| *proposed == device.uuid));
    devices.devices.iter_mut().for_each(|device| device.claimed = DeviceDemand::default());
    Cow::Owned(devices)
}
