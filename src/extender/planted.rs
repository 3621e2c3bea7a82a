//! Mistakes that a test plants into the extender, to show that the simulation finds them. Only the tests of this crate use
//! them, so they are under `cfg(test)`. `decide` and `apiserver` need the cargo feature `simulation` for their mistakes,
//! because tests of another crate plant them. Outside tests no mistake can be planted, and the compiler leaves out the code of
//! all mistakes.
//!
//! What must never happen here: a mistake in a program that is not a test.

#[cfg(test)]
use decide::cluster::planted::PlantedMistake as InBindings;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant a mistake"))]
pub(super) enum PlantedMistake {
    /// A new leader decides before it has read the lists that were begun after its win.
    NoListAfterWin,
    /// The list that a new leader reads comes from a cache of the API server.
    StaleRelist,
    /// A new leader treats a mark that it has written as if its pod watch had shown the mark.
    WrittenMarkIsSeen,
    /// A leader decides although its term is over by its own clock.
    EndlessTerm,
    /// An epoch on a pod does not raise this process's own epoch.
    EpochRepeats,
    /// A reservation is released when kube-scheduler gets no answer in time.
    ReleaseAtDeadline,
    /// A binding without an answer counts as refused, and the pod is placed again.
    LostAnswerIsRefusal,
    /// A bind reserves nothing.
    NoReservation,
    /// A reservation is released when the pod watch shows the pod without a node.
    UnboundIsEvidence,
    /// A pod that is read without a node counts as never bound, although it still has the version that a write without an
    /// answer names.
    UnboundReadIsEvidence,
    /// A pod that is gone keeps its claim.
    GonePodHolds,
    /// A pod that is being deleted counts as gone.
    DeletionMarkIsGone,
    /// A pod that has ended keeps its claim.
    EndedPodHolds,
    /// What init containers claim is not counted.
    ForgottenInitContainer,
    /// A pod that holds GPUs without a claim does not close its node.
    UnknownClaimIgnored,
    /// The end of an agent's older stream counts as the end of its newest stream.
    OldEndClosesNewStream,
    /// The end of an agent's stream closes nothing.
    StreamEndUnseen,
    /// A claim whose pod an agent does not report is released.
    UnreportedIsGone,
    /// The processes in the reports of agents keep no claim.
    ProcessesIgnored,
    /// An extender that no longer leads keeps what agents have reported to it.
    ReportsOutliveTerm,
    /// Pods are evicted although that makes no room.
    EvictionsAlwaysHelp,
    /// Pods are evicted for a pod although its nominated node gets room soon.
    NominationIgnored,
    /// A bind takes the GPUs that the filter has proposed, whatever was claimed since.
    BindTrustsFilter,
    /// Pods that request no GPU are not taken over, so nothing explains their processes.
    PlainPodIsUnknown,
    /// A static pod is known by the UID of its mirror only.
    HashIgnored,
    /// A node that was closed by a claim that could not be read stays closed once the claim can be read.
    ReadableClaimStaysUnknown,
    /// A pod is woken only once, whatever the wake led to.
    WokenOnce,
    /// A new leader wakes no pod about which it was not asked.
    WaitingPodsAreForgotten,
    /// An extender that no longer leads wakes pods.
    OldLeaderWakes,
    /// An agent that says nothing about the real-time check counts as if it switched the check off.
    UnsetCheckIsOff,
    /// Memory of a GPU counts as used although a newer report shows that it is free.
    FreedMemoryStays,
}

#[cfg(test)]
impl PlantedMistake {
    /// All mistakes.
    pub(super) const ALL: [PlantedMistake; 31] = [
        PlantedMistake::NoListAfterWin,
        PlantedMistake::StaleRelist,
        PlantedMistake::WrittenMarkIsSeen,
        PlantedMistake::EndlessTerm,
        PlantedMistake::EpochRepeats,
        PlantedMistake::ReleaseAtDeadline,
        PlantedMistake::LostAnswerIsRefusal,
        PlantedMistake::NoReservation,
        PlantedMistake::UnboundIsEvidence,
        PlantedMistake::UnboundReadIsEvidence,
        PlantedMistake::GonePodHolds,
        PlantedMistake::DeletionMarkIsGone,
        PlantedMistake::EndedPodHolds,
        PlantedMistake::ForgottenInitContainer,
        PlantedMistake::UnknownClaimIgnored,
        PlantedMistake::OldEndClosesNewStream,
        PlantedMistake::StreamEndUnseen,
        PlantedMistake::UnreportedIsGone,
        PlantedMistake::ProcessesIgnored,
        PlantedMistake::ReportsOutliveTerm,
        PlantedMistake::EvictionsAlwaysHelp,
        PlantedMistake::NominationIgnored,
        PlantedMistake::BindTrustsFilter,
        PlantedMistake::PlainPodIsUnknown,
        PlantedMistake::HashIgnored,
        PlantedMistake::ReadableClaimStaysUnknown,
        PlantedMistake::WokenOnce,
        PlantedMistake::WaitingPodsAreForgotten,
        PlantedMistake::OldLeaderWakes,
        PlantedMistake::UnsetCheckIsOff,
        PlantedMistake::FreedMemoryStays,
    ];
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedMistake>> = const { std::cell::Cell::new(None) };
}

/// Plants a mistake into all extenders of this thread, in place of an earlier mistake.
#[cfg(test)]
pub(super) fn plant(mistake: Option<PlantedMistake>) {
    PLANTED.set(mistake);
    apiserver::follow::plant_stale_lists(mistake == Some(PlantedMistake::StaleRelist));
    decide::cluster::planted::plant(match mistake {
        Some(PlantedMistake::LostAnswerIsRefusal) => Some(InBindings::LostAnswerIsRefusal),
        Some(PlantedMistake::UnboundReadIsEvidence) => Some(InBindings::UnboundReadIsEvidence),
        Some(PlantedMistake::BindTrustsFilter) => Some(InBindings::BindTrustsFilter),
        Some(PlantedMistake::ReadableClaimStaysUnknown) => Some(InBindings::ReadableClaimStaysUnknown),
        Some(PlantedMistake::WokenOnce) => Some(InBindings::WokenOnce),
        _ => None,
    });
}

/// Whether this mistake is planted.
#[cfg(test)]
pub(super) fn planted(mistake: PlantedMistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Whether this mistake is planted: never.
#[cfg(not(test))]
pub(super) const fn planted(_: PlantedMistake) -> bool {
    false
}
