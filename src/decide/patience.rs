//! How long the kubelet's calls wait for what is not known yet.
//!
//! ```text
//!   Allocate           Strangers ──1 s──▶ Claims ──4 s──▶ Over: answered with what is known, or refused
//!   PreStartContainer  Waits ──▶ asks PodResources: after 1 s, if the checkpoint can be read and lacks the container;
//!                                after 23 s, for the pod's name ──25 s──▶ TooLate: refused with a reason
//! ```
//!
//! What must never happen here: a call waits for as long as the kubelet itself does; a call is refused as too late
//! before its time is over.

use crate::allocator::WaitReason;
use model::time::Monotonic;
use std::time::Duration;

/// How long an `Allocate` waits: as long as our pod watch may lag behind the kubelet's. The kubelet never retries a
/// failed `Allocate`, so the pod fails; a slow one holds up every other pod.
pub const ALLOCATE_WITHIN: Duration = Duration::from_secs(4);
/// How much of that time the agent waits for pods that the kubelet has admitted and our pod watch has not shown.
const FOR_STRANGERS: Duration = Duration::from_secs(1);
/// How long a start waits before it is refused with a reason. The kubelet gives a start 30 s and then tries it again.
pub const START_WITHIN: Duration = Duration::from_secs(25);
/// How long before that the agent asks PodResources which pod holds the ids.
const ASK: Duration = Duration::from_secs(2);
/// If a readable checkpoint lacks the row of a start for this long, the row itself cannot be read.
const UNREADABLE: Duration = Duration::from_secs(1);

/// The patience with one call of `Allocate`.
#[derive(Clone, Copy, Debug)]
pub struct AllocatePatience {
    since: Monotonic,
}

/// What an `Allocate` may still wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllocateStage {
    /// For everything, also for pods that our pod watch has not shown.
    Strangers,
    /// For the binding mode, the checkpoint, and the claim of a pod that our pod watch has shown.
    Claims,
    /// For nothing: the call is answered with what is known, or refused.
    Over,
}

impl AllocatePatience {
    /// The patience with a call that comes now.
    #[must_use]
    pub fn new(now: Monotonic) -> AllocatePatience {
        AllocatePatience { since: now }
    }

    /// What the call may still wait for.
    #[must_use]
    pub fn stage(&self, now: Monotonic) -> AllocateStage {
        match now.since(self.since) {
            waited if waited < FOR_STRANGERS => AllocateStage::Strangers,
            waited if waited < ALLOCATE_WITHIN => AllocateStage::Claims,
            _ => AllocateStage::Over,
        }
    }
}

/// The patience with one call of `PreStartContainer`.
#[derive(Clone, Copy, Debug)]
pub struct StartPatience {
    since: Monotonic,
    waits: bool,
}

/// What becomes of a start that cannot be judged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// It waits.
    Waits {
        /// Whether it has not waited before.
        first: bool,
    },
    /// It has waited too long, and is refused.
    TooLate,
}

/// What the agent asks PodResources for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingUse {
    /// Nothing.
    Unused,
    /// For the pod's name, in case the start must be refused as too late.
    Name,
    /// For the container that holds the ids, in place of the checkpoint.
    Holder,
}

impl StartPatience {
    /// The patience with a start that comes now.
    #[must_use]
    pub fn new(now: Monotonic) -> StartPatience {
        StartPatience { since: now, waits: false }
    }

    /// The time of the call.
    #[must_use]
    pub fn since(&self) -> Monotonic {
        self.since
    }

    /// How long the start has waited.
    #[must_use]
    pub fn waited(&self, now: Monotonic) -> Duration {
        now.since(self.since)
    }

    /// What the agent asks PodResources for, while the start waits for `what`.
    #[must_use]
    pub fn listing_use(&self, what: WaitReason, checkpoint_read: bool, now: Monotonic) -> ListingUse {
        let waited = self.waited(now);
        match what {
            WaitReason::Checkpoint if !checkpoint_read || waited > UNREADABLE => ListingUse::Holder,
            _ if waited + ASK >= START_WITHIN => ListingUse::Name,
            WaitReason::Checkpoint | WaitReason::Pod => ListingUse::Unused,
        }
    }

    /// The start cannot be judged yet: whether it waits on.
    #[must_use]
    pub fn step(&mut self, now: Monotonic) -> StartStep {
        if self.waited(now) >= START_WITHIN {
            return StartStep::TooLate;
        }
        StartStep::Waits { first: !std::mem::replace(&mut self.waits, true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The kubelet's own timeout of `PreStartContainer`, `pluginapi.KubeletPreStartContainerRPCTimeoutInSecs`.
    const KUBELET: Duration = Duration::from_secs(30);

    fn at(millis: u64) -> Monotonic {
        Monotonic(millis * 1_000_000)
    }

    #[test]
    fn an_allocate_waits_for_strangers_first_and_then_for_claims_only() {
        let patience = AllocatePatience::new(at(10_000));
        for (millis, stage) in [
            (9_000, AllocateStage::Strangers),
            (10_000, AllocateStage::Strangers),
            (10_999, AllocateStage::Strangers),
            (11_000, AllocateStage::Claims),
            (13_999, AllocateStage::Claims),
            (14_000, AllocateStage::Over),
            (99_000, AllocateStage::Over),
        ] {
            assert_eq!(patience.stage(at(millis)), stage, "{millis}");
        }
    }

    #[test]
    fn a_start_waits_once_for_the_count_and_is_too_late_after_its_time() {
        let mut patience = StartPatience::new(at(1_000));
        for (millis, step) in [
            (1_000, StartStep::Waits { first: true }),
            (1_020, StartStep::Waits { first: false }),
            (25_999, StartStep::Waits { first: false }),
            (26_000, StartStep::TooLate),
            (27_000, StartStep::TooLate),
        ] {
            assert_eq!(patience.step(at(millis)), step, "{millis}");
        }
    }

    #[test]
    fn pod_resources_is_asked_where_the_checkpoint_says_nothing_and_for_the_name_before_a_refusal() {
        use WaitReason::{Checkpoint, Pod};
        let patience = StartPatience::new(at(0));
        for (what, read, millis, expected) in [
            (Checkpoint, true, 0, ListingUse::Unused),
            (Checkpoint, true, 1_000, ListingUse::Unused),
            (Checkpoint, true, 1_001, ListingUse::Holder),
            (Checkpoint, false, 0, ListingUse::Holder),
            (Checkpoint, false, 24_000, ListingUse::Holder),
            (Pod, false, 22_999, ListingUse::Unused),
            (Pod, true, 23_000, ListingUse::Name),
        ] {
            assert_eq!(patience.listing_use(what, read, at(millis)), expected, "{what:?} {read} {millis}");
        }
    }

    proptest! {
        /// However often and whenever a call is looked at: it is never refused before its time, never held for as long
        /// as the kubelet waits, and a refusal stands.
        #[test]
        fn no_call_is_refused_early_and_none_waits_for_as_long_as_kubelet(
            began in 0_u64..1_000_000,
            pauses in prop::collection::vec(0_u64..5_000, 1..40),
        ) {
            let (mut start, allocate) = (StartPatience::new(at(began)), AllocatePatience::new(at(began)));
            let (mut now, mut waits, mut stage) = (began, 0, AllocateStage::Strangers);
            let mut is_late = false;
            for pause in pauses {
                now += pause;
                let waited = Duration::from_millis(now - began);
                match start.step(at(now)) {
                    StartStep::Waits { first } => {
                        prop_assert!(!is_late && waited < START_WITHIN && waited < KUBELET);
                        waits += u32::from(first);
                    }
                    StartStep::TooLate => {
                        prop_assert!(waited >= START_WITHIN);
                        is_late = true;
                    }
                }
                prop_assert!(waits <= 1, "counted once");
                let next = allocate.stage(at(now));
                prop_assert!(next >= stage, "an allocate never waits for more than before");
                prop_assert_eq!(next == AllocateStage::Over, waited >= ALLOCATE_WITHIN);
                stage = next;
            }
        }
    }
}
