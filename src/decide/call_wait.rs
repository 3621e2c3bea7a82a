//! How long a container start of the kubelet waits for information that is not known yet.
//!
//! ```text
//!   PreStartContainer  Waits ──▶ reads PodResources: at once, if the checkpoint cannot be read; after 1 s, if it can
//!                                be read and lacks the container; after 23 s, for the pod's name
//!                           └──25 s──▶ TooLate: refused with a reason
//! ```
//!
//! What must never happen here: a call waits until the kubelet's own timeout; a call is refused as too late before its
//! time is over.

use crate::allocator::WaitReason;
use model::time::Monotonic;
use std::time::Duration;

/// How long a start waits before it is refused with a reason. The kubelet gives a start 30 s and then tries it again.
pub const START_WITHIN: Duration = Duration::from_secs(25);
/// How long before [`START_WITHIN`] ends the agent reads in PodResources which pod holds the ids.
const LISTING_BEFORE: Duration = Duration::from_secs(2);
/// If the checkpoint is readable but lacks the row of a start for this long, the row itself counts as unreadable.
const UNREADABLE: Duration = Duration::from_secs(1);

/// How long one call of `PreStartContainer` waits.
#[derive(Clone, Copy, Debug)]
pub struct StartWait {
    since: Monotonic,
    waits: bool,
}

/// What happens to a start that cannot be judged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// The start waits.
    Waits {
        /// Whether the start has not waited before.
        first: bool,
    },
    /// The start has waited too long, and is refused.
    TooLate,
}

/// What the agent reads in PodResources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingUse {
    /// Nothing.
    Unused,
    /// The pod's name, in case the start must be refused as too late.
    Name,
    /// The container that holds the ids, in place of the checkpoint.
    Holder,
}

impl StartWait {
    /// The wait of a start that the kubelet requests now.
    #[must_use]
    pub fn new(now: Monotonic) -> StartWait {
        StartWait { since: now, waits: false }
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

    /// What the agent reads in PodResources, while the start waits for `what`.
    #[must_use]
    pub fn listing_use(&self, what: WaitReason, checkpoint_read: bool, now: Monotonic) -> ListingUse {
        let waited = self.waited(now);
        match what {
            WaitReason::Checkpoint if !checkpoint_read || waited > UNREADABLE => ListingUse::Holder,
            _ if waited + LISTING_BEFORE >= START_WITHIN => ListingUse::Name,
            WaitReason::Checkpoint | WaitReason::Pod => ListingUse::Unused,
        }
    }

    /// The start cannot be judged yet: returns whether it continues to wait.
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
    fn a_waiting_start_is_counted_once_and_is_too_late_after_its_time() {
        let mut wait = StartWait::new(at(1_000));
        for (millis, step) in [
            (1_000, StartStep::Waits { first: true }),
            (1_020, StartStep::Waits { first: false }),
            (25_999, StartStep::Waits { first: false }),
            (26_000, StartStep::TooLate),
            (27_000, StartStep::TooLate),
        ] {
            assert_eq!(wait.step(at(millis)), step, "{millis}");
        }
    }

    #[test]
    fn pod_resources_is_read_where_the_checkpoint_lacks_the_container_and_before_a_refusal() {
        use WaitReason::{Checkpoint, Pod};
        let wait = StartWait::new(at(0));
        for (what, read, millis, expected) in [
            (Checkpoint, true, 0, ListingUse::Unused),
            (Checkpoint, true, 1_000, ListingUse::Unused),
            (Checkpoint, true, 1_001, ListingUse::Holder),
            (Checkpoint, false, 0, ListingUse::Holder),
            (Checkpoint, false, 24_000, ListingUse::Holder),
            (Pod, false, 22_999, ListingUse::Unused),
            (Pod, true, 23_000, ListingUse::Name),
        ] {
            assert_eq!(wait.listing_use(what, read, at(millis)), expected, "{what:?} {read} {millis}");
        }
    }

    proptest! {
        /// However often and whenever a call is judged: it is never refused before its time, always answered before the
        /// kubelet's own timeout, and a refusal is final.
        #[test]
        fn no_call_is_refused_early_and_none_waits_as_long_as_the_kubelet(
            began in 0_u64..1_000_000,
            pauses in prop::collection::vec(0_u64..5_000, 1..40),
        ) {
            let mut start = StartWait::new(at(began));
            let (mut now, mut waits) = (began, 0);
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
            }
        }
    }
}
