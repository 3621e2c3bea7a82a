//! HAMi's phases of a pod's binding. The agent reports them to HAMi's scheduler in an annotation of a pod that this
//! scheduler has placed. The scheduler binds a pod with phase `allocating` and takes the node lock. It places no other
//! pod on this node until the agent has written the next phase and released the lock.
//!
//! ```text
//!   allocating ──all containers have their GPUs──▶ success, release the lock
//!       └────────a container may not start───────▶ failed, release the lock ──a later try succeeds──▶ success
//! ```
//!
//! What must never happen here: a pod that no scheduler of HAMi has placed gets a phase; a pod that has its GPUs gets
//! another phase; a phase is written without a release of the lock.

use model::claim::BindPhase;
use model::id::PodUid;
use model::time::Monotonic;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long after an `Allocate` the agent reads the kubelet's checkpoint to find a pod that is admitted with all its
/// containers. The kubelet writes the checkpoint within milliseconds, and then calls `Allocate` for the next container
/// of the pod at once.
const ADMITS: Duration = Duration::from_secs(2);

/// A phase to write on a pod. The node lock is released with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseWrite {
    /// Every container has its GPUs: nothing is left to allocate.
    Success,
    /// A container may not start.
    Failed,
}

/// The phases that the agent has written for HAMi's scheduler.
#[derive(Debug, Default)]
pub struct BindPhases {
    /// The pods with phase `success`.
    served: BTreeSet<PodUid>,
    reads_until: Monotonic,
}

impl BindPhases {
    /// Whether HAMi's scheduler waits for this pod, whose phase on the API server is `phase`: the scheduler placed it,
    /// and the agent has not written `success` yet. A pod in phase `failed` may still get its GPUs.
    #[must_use]
    pub fn is_awaited(&self, uid: &PodUid, phase: Option<BindPhase>) -> bool {
        matches!(phase, Some(BindPhase::Allocating | BindPhase::Failed)) && !self.served.contains(uid)
    }

    /// Records that the kubelet has called `Allocate`, or that the pod list has a pod that the scheduler waits for. The
    /// checkpoint may soon show that the pod is admitted.
    pub fn expect(&mut self, now: Monotonic) {
        self.reads_until = now.after(ADMITS);
    }

    /// The scheduler waits for no pod.
    pub fn expect_nothing(&mut self, now: Monotonic) {
        self.reads_until = now;
    }

    /// Whether the agent reads the checkpoint now to find pods that are admitted with all their containers.
    #[must_use]
    pub fn reads_checkpoint(&self, now: Monotonic) -> bool {
        now < self.reads_until
    }

    /// Records that all containers of the pod have their GPUs. The kubelet admits a pod as a whole, so one write covers
    /// all containers. Returns what to write, the first time.
    pub fn filled(&mut self, uid: &PodUid, phase: Option<BindPhase>) -> Option<PhaseWrite> {
        if !self.is_awaited(uid, phase) {
            return None;
        }
        self.served.insert(uid.clone());
        Some(PhaseWrite::Success)
    }

    /// A container of the pod may not start. Returns what to write.
    #[must_use]
    pub fn refused(&self, uid: &PodUid, phase: Option<BindPhase>) -> Option<PhaseWrite> {
        (phase == Some(BindPhase::Allocating) && !self.served.contains(uid)).then_some(PhaseWrite::Failed)
    }

    /// Forgets pods that are gone.
    pub fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.served.retain(|uid| here.contains(uid));
    }
}

impl PhaseWrite {
    /// The phase.
    #[must_use]
    pub fn phase(self) -> BindPhase {
        match self {
            PhaseWrite::Success => BindPhase::Success,
            PhaseWrite::Failed => BindPhase::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uid(n: u32) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    fn at(millis: u64) -> Monotonic {
        Monotonic(millis * 1_000_000)
    }

    #[test]
    fn success_is_written_once_also_after_a_refusal() {
        let mut phases = BindPhases::default();
        let (pod, allocating) = (uid(1), Some(BindPhase::Allocating));
        assert!(phases.is_awaited(&pod, allocating));
        assert_eq!(phases.refused(&pod, allocating), Some(PhaseWrite::Failed));
        assert_eq!(phases.refused(&pod, Some(BindPhase::Failed)), None, "the phase is already failed");
        assert_eq!(phases.filled(&pod, Some(BindPhase::Failed)), Some(PhaseWrite::Success));
        // The pod watch lags behind.
        for phase in [allocating, Some(BindPhase::Failed)] {
            assert!(!phases.is_awaited(&pod, phase));
            assert_eq!((phases.filled(&pod, phase), phases.refused(&pod, phase)), (None, None));
        }
        phases.forget(&BTreeSet::new());
        assert!(phases.is_awaited(&pod, allocating), "another pod with this UID, such as a static pod");
    }

    #[test]
    fn the_checkpoint_is_read_for_two_seconds_after_an_allocate() {
        let mut phases = BindPhases::default();
        assert!(!phases.reads_checkpoint(at(5_000)));
        phases.expect(at(5_000));
        assert!(
            phases.reads_checkpoint(at(5_000))
                && phases.reads_checkpoint(at(6_999))
                && !phases.reads_checkpoint(at(7_000))
        );
        phases.expect_nothing(at(5_500));
        assert!(!phases.reads_checkpoint(at(5_500)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Filled(u32),
        Refused(u32),
        /// The pod watch shows what was written last.
        Shown(u32),
        Gone(u32),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        (0_u32..4, 0_u32..3).prop_map(|(what, pod)| match what {
            0 => Step::Filled(pod),
            1 => Step::Refused(pod),
            2 => Step::Shown(pod),
            _ => Step::Gone(pod),
        })
    }

    proptest! {
        /// Whatever the order in which the kubelet, the pod watch and the API server act: a pod's phase may be `failed`
        /// several times and then `success` at most once, and a pod without a scheduler (pod 0) gets no phase.
        #[test]
        fn no_phase_is_written_after_success_or_on_a_pod_without_a_scheduler(
            steps in prop::collection::vec(any_step(), 0..60),
        ) {
            let placed = |pod: u32| (pod > 0).then_some(BindPhase::Allocating);
            let mut phases = BindPhases::default();
            let mut shown: Vec<Option<BindPhase>> = (0..3).map(placed).collect();
            let mut written: Vec<Vec<BindPhase>> = vec![Vec::new(); 3];
            for step in steps {
                let (pod, write) = match step {
                    Step::Filled(pod) => (pod, phases.filled(&uid(pod), shown[pod as usize])),
                    Step::Refused(pod) => (pod, phases.refused(&uid(pod), shown[pod as usize])),
                    Step::Shown(pod) => {
                        if let Some(last) = written[pod as usize].last() {
                            shown[pod as usize] = Some(*last);
                        }
                        (pod, None)
                    }
                    Step::Gone(pod) => {
                        let here: Vec<PodUid> = (0..3).filter(|other| *other != pod).map(uid).collect();
                        phases.forget(&here.iter().collect());
                        (shown[pod as usize], written[pod as usize]) = (placed(pod), Vec::new());
                        (pod, None)
                    }
                };
                let Some(write) = write else { continue };
                let before = &mut written[pod as usize];
                prop_assert!(pod > 0, "no scheduler placed it");
                prop_assert!(!before.contains(&BindPhase::Success), "it has its GPUs: {before:?} {write:?}");
                before.push(write.phase());
            }
        }
    }
}
