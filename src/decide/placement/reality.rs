//! How much memory of a GPU is in use beyond what pods claim of it.
//!
//! ```text
//!   used ─┬─ of pods with a claim ──▶ up to the claim: counted as the claim     more than the claim: over-use
//!         └─ the rest ─────────────▶ strangers: processes of the host, of pods without a claim, of nobody
//!   reserved by the driver ────────▶ never in `used`
//! ```
//!
//! The process list and `listed` belong to one moment: `listed` is `used` at that moment. Until the next list, memory that was added
//! since counts as memory of the pods, up to the unused part of their claims, and the rest as memory of strangers.
//!
//! What must never happen here: memory that a pod with a claim uses inside its claim keeps another pod away; a reading that is absent
//! counts as zero.

use model::unit::Bytes;

/// What an agent has reported of the memory of one GPU or MIG instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedMemory {
    /// The device's memory.
    pub total: Option<Bytes>,
    /// Memory in use now, without what the driver reserves.
    pub used: Option<Bytes>,
    /// Memory that was in use when the newest process list was made; `None` without a list.
    pub listed: Option<Bytes>,
}

/// A pod with a claim on the GPU, or with processes on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedUse {
    /// Bytes that the pod claims.
    pub claimed: u64,
    /// Bytes that the pod's processes used when the newest list was made; `None` if not known.
    pub used: Option<u64>,
}

/// What the numbers rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBasis {
    /// The memory of each process is known.
    Processes,
    /// Only the memory of the whole GPU is known.
    Sums,
    /// Nothing but the claims is known.
    Claims,
}

/// Memory in use beyond the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondClaims {
    /// How much of the memory that pods may claim is taken: no pod may be placed there.
    pub taken: Bytes,
    /// Memory of strangers; zero if only sums are known.
    pub strangers: Bytes,
    /// What the numbers rest on.
    pub basis: MemoryBasis,
}

impl ReportedMemory {
    /// What would be in use without this pod. Without a list or its processes' use, the pod counts with at least its claim, with
    /// which memory in use was compared. Of memory added since the list, it counts with at most the unused part of its claim.
    #[must_use]
    pub fn without(self, pod: ClaimedUse) -> ReportedMemory {
        let (own, grown) = match (pod.used, self.used.zip(self.listed)) {
            (Some(own), Some((used, listed))) => (own, used.less(listed).0.min(pod.claimed.saturating_sub(own))),
            (own, _) => (own.unwrap_or(0).max(pod.claimed), 0),
        };
        ReportedMemory {
            used: self.used.map(|used| used.less(Bytes(own.saturating_add(grown)))),
            listed: self.listed.map(|listed| listed.less(Bytes(own))),
            ..self
        }
    }
}

impl BeyondClaims {
    /// Nothing is known beyond the claims.
    pub const UNKNOWN: BeyondClaims = BeyondClaims { taken: Bytes(0), strangers: Bytes(0), basis: MemoryBasis::Claims };

    /// The memory in use beyond the claims of these pods. `capacity` is what pods may claim of the GPU: its memory times the agent's
    /// scaling factor. If strangers use at most `margin`, their memory does not count; if more, it counts plus `margin`, because it
    /// may grow.
    #[must_use]
    pub fn of(
        capacity: Bytes,
        memory: ReportedMemory,
        pods: impl Iterator<Item = ClaimedUse> + Clone,
        margin: Bytes,
    ) -> BeyondClaims {
        let (Some(total), Some(used)) = (memory.total.filter(|total| total.0 > 0), memory.used) else {
            return BeyondClaims::UNKNOWN;
        };
        let sum = |of: &dyn Fn(ClaimedUse) -> u64| pods.clone().map(of).fold(0, u64::saturating_add);
        let known = pods.clone().all(|pod| pod.used.is_some());
        let Some(listed) = memory.listed.filter(|_| known) else {
            let beyond = used.0.saturating_sub(sum(&|pod| pod.claimed));
            // An idle MIG instance uses some MiB, and has room for a pod that requests all of it.
            let taken = Bytes(if beyond > margin.0 { beyond } else { 0 });
            return BeyondClaims { taken, strangers: Bytes(0), basis: MemoryBasis::Sums };
        };
        let own = |pod: ClaimedUse| pod.used.unwrap_or(0);
        let unused = sum(&|pod| pod.claimed.saturating_sub(own(pod)));
        let grown = used.0.saturating_sub(listed.0);
        let strangers = listed.0.saturating_sub(sum(&own)).saturating_add(grown.saturating_sub(unused)).min(used.0);
        let counted = if strangers > margin.0 { strangers.saturating_add(margin.0) } else { 0 };
        let left = u128::from(capacity.0) * u128::from(total.0.saturating_sub(counted)) / u128::from(total.0);
        let lost = capacity.0.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX));
        let over_use = sum(&|pod| own(pod).saturating_sub(pod.claimed));
        let taken = Bytes(lost.saturating_add(over_use));
        BeyondClaims { taken, strangers: Bytes(strangers), basis: MemoryBasis::Processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    const MARGIN: Bytes = Bytes(100 * MIB);

    fn pod(claimed: u64, used: u64) -> ClaimedUse {
        ClaimedUse { claimed, used: Some(used) }
    }

    /// What is taken of a GPU of 80 GiB, scaled by this factor.
    fn taken(factor: u64, used: u64, listed: Option<u64>, pods: &[ClaimedUse]) -> (u64, MemoryBasis) {
        let memory =
            ReportedMemory { total: Some(Bytes(80 * GIB)), used: Some(Bytes(used)), listed: listed.map(Bytes) };
        let beyond = BeyondClaims::of(Bytes(factor * 80 * GIB), memory, pods.iter().copied(), MARGIN);
        (beyond.taken.0, beyond.basis)
    }

    #[test]
    fn what_is_taken_beyond_the_claims() {
        use MemoryBasis::{Processes, Sums};
        let unknown = ClaimedUse { claimed: 10 * GIB, used: None };
        for (name, factor, used, listed, pods, expected) in [
            ("an empty GPU", 1, 0, Some(0), vec![], (0, Processes)),
            ("contexts of the driver", 1, 90 * MIB, Some(90 * MIB), vec![], (0, Processes)),
            ("a stranger", 1, 2 * GIB, Some(2 * GIB), vec![], (2 * GIB + 100 * MIB, Processes)),
            ("a pod without a claim", 1, 6 * GIB, Some(6 * GIB), vec![], (6 * GIB + 100 * MIB, Processes)),
            ("ten strangers of 60 MiB", 1, 600 * MIB, Some(600 * MIB), vec![], (700 * MIB, Processes)),
            ("a pod inside its claim", 1, 8 * GIB, Some(8 * GIB), vec![pod(10 * GIB, 8 * GIB)], (0, Processes)),
            ("growing inside its claim", 1, 9 * GIB, Some(8 * GIB), vec![pod(10 * GIB, 8 * GIB)], (0, Processes)),
            ("beyond its claim", 1, 12 * GIB, Some(12 * GIB), vec![pod(10 * GIB, 12 * GIB)], (2 * GIB, Processes)),
            (
                "growing beyond its claim, as far as is known",
                1,
                12 * GIB,
                Some(8 * GIB),
                vec![pod(10 * GIB, 8 * GIB)],
                (2 * GIB + 100 * MIB, Processes),
            ),
            ("a stranger on scaled memory", 2, 2 * GIB, Some(2 * GIB), vec![], (4 * GIB + 200 * MIB, Processes)),
            ("a stranger that has left", 1, 0, Some(2 * GIB), vec![], (0, Processes)),
            ("no list", 1, 12 * GIB, None, vec![pod(10 * GIB, 0)], (2 * GIB, Sums)),
            ("a process without its memory", 1, 12 * GIB, Some(12 * GIB), vec![unknown], (2 * GIB, Sums)),
            ("an idle MIG instance", 1, 32 * MIB, None, vec![], (0, Sums)),
            ("used less than claimed", 1, 4 * GIB, None, vec![unknown], (0, Sums)),
        ] {
            assert_eq!(taken(factor, used, listed, &pods), expected, "{name}");
        }
    }

    #[test]
    fn without_a_reading_only_claims_count() {
        for memory in [
            ReportedMemory { used: Some(Bytes(GIB)), ..ReportedMemory::default() },
            ReportedMemory { total: Some(Bytes(80 * GIB)), ..ReportedMemory::default() },
            ReportedMemory { total: Some(Bytes(0)), used: Some(Bytes(GIB)), listed: Some(Bytes(GIB)) },
        ] {
            let beyond = BeyondClaims::of(Bytes(80 * GIB), memory, std::iter::empty(), MARGIN);
            assert_eq!(beyond, BeyondClaims::UNKNOWN);
        }
    }

    proptest! {
        /// A pod that stays inside its claim changes nothing for others, whatever the driver reports of it.
        #[test]
        fn use_inside_a_claim_is_never_counted_twice(claimed in 0..80 * GIB, listed in 0..80 * GIB, more in 0..80 * GIB) {
            let own = listed.min(claimed);
            let now = own.saturating_add(more).min(claimed);
            prop_assert_eq!(taken(1, now, Some(own), &[pod(claimed, own)]).0, 0);
        }

        #[test]
        fn no_numbers_panic(
            capacity: u64, total: Option<u64>, used: Option<u64>, listed: Option<u64>, margin: u64,
            pods in prop::collection::vec((any::<u64>(), any::<Option<u64>>()), 0..4),
        ) {
            let memory = ReportedMemory { total: total.map(Bytes), used: used.map(Bytes), listed: listed.map(Bytes) };
            let pods = pods.iter().map(|(claimed, used)| ClaimedUse { claimed: *claimed, used: *used });
            let _ = BeyondClaims::of(Bytes(capacity), memory, pods, Bytes(margin));
        }
    }
}
