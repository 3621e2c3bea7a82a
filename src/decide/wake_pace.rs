//! How often pods are woken, and what each wake has led to.
//!
//! A wake is a write to a pod that waits, which makes kube-scheduler try the pod again. kube-scheduler places one pod at a time,
//! so needless tries slow down all other pods:
//!
//! ```text
//!   all pods   20 wakes in any second
//!   one pod    a wake, then none for 10 s ──no room after all, or no call──▶ 20 s, 40 s … 5 min
//! ```

use model::id::PodUid;
use model::time::Monotonic;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Maximum number of wakes in any second. kube-scheduler places more than 30 pods a second in a cluster of 5,000 nodes, so it
/// also gets to the pods that were not woken.
pub(crate) const A_SECOND: usize = 20;
/// First pause between two wakes of one pod.
pub(crate) const FIRST: Duration = Duration::from_secs(10);
/// Longest pause between two wakes of one pod: kube-scheduler itself tries every pod again after five minutes.
pub(crate) const LONGEST: Duration = Duration::from_secs(300);
/// Time in which kube-scheduler asks about a pod that was woken: it does so within 0.1 s, unless others are before the pod.
pub(crate) const ASKED_WITHIN: Duration = Duration::from_secs(5);
/// If more pauses than this are remembered, the pauses that are over are forgotten. This is twice the number of pods that may
/// wait or are woken in the longest pause. With a lower number each step could go through the same pods again.
const KEPT: usize = 2 * (20_000 + A_SECOND * 300);

/// What wakes have led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeCounts {
    /// kube-scheduler asked about the pod, and a node fitted.
    pub passed: u64,
    /// kube-scheduler asked about the pod, and no node fitted.
    pub refused: u64,
    /// kube-scheduler did not ask about the pod in time.
    pub unanswered: u64,
    /// The pod was deleted, changed or bound before.
    pub gone: u64,
    /// The pod could not be written.
    pub failed: u64,
    /// Pods that were woken, and about which kube-scheduler has not asked yet.
    pub open: usize,
}

/// When pods may be woken.
#[derive(Clone, Debug, Default)]
pub(crate) struct WakePace {
    /// The newest wakes, oldest first, at most [`A_SECOND`].
    newest: VecDeque<Monotonic>,
    pods: HashMap<PodUid, PodPace>,
    /// The wakes without a result yet, oldest first, and older entries of pods that kube-scheduler has asked about since.
    open: VecDeque<(Monotonic, PodUid)>,
    counts: WakeCounts,
}

#[derive(Clone, Copy, Debug)]
struct PodPace {
    /// The last wake.
    woken: Monotonic,
    /// The pause after the last wake.
    pause: Duration,
    /// Whether the wake has led to nothing yet.
    is_open: bool,
}

impl WakePace {
    /// When the next pod may be woken; `None` if it may be now.
    pub(crate) fn waits(&self, now: Monotonic) -> Option<Monotonic> {
        let oldest = self.newest.front().filter(|_| self.newest.len() >= A_SECOND)?;
        Some(oldest.after(Duration::from_secs(1))).filter(|free| now < *free)
    }

    /// When this pod may be woken; `None` if it may be now.
    pub(crate) fn pod_waits(&self, uid: &PodUid, now: Monotonic) -> Option<Monotonic> {
        let pace = self.pods.get(uid)?;
        Some(pace.woken.after(pace.pause)).filter(|free| now < *free)
    }

    /// Whether a pod was woken and has not been forgotten since.
    pub(crate) fn has_woken(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// A pod is woken. [`WakePace::waits`] and [`WakePace::pod_waits`] allow it.
    pub(crate) fn wakes(&mut self, uid: &PodUid, now: Monotonic) {
        if self.newest.len() >= A_SECOND {
            self.newest.pop_front();
        }
        self.newest.push_back(now);
        let pause = self.pods.get(uid).map_or(FIRST, |pace| pace.pause);
        self.pods.insert(uid.clone(), PodPace { woken: now, pause, is_open: true });
        self.open.push_back((now, uid.clone()));
        self.counts.open += 1;
    }

    /// kube-scheduler has asked about a pod; `passes`: a node fits. Returns whether a wake of the pod was open.
    pub(crate) fn is_asked(&mut self, uid: &PodUid, passes: bool) -> bool {
        let Some(pace) = self.close(uid) else { return false };
        if passes {
            pace.pause = FIRST;
            self.counts.passed += 1;
        } else {
            pace.pause = (pace.pause * 2).min(LONGEST);
            self.counts.refused += 1;
        }
        true
    }

    /// A pod does not wait any more: it is bound, gone or changed.
    pub(crate) fn is_gone(&mut self, uid: &PodUid) {
        if self.close(uid).is_some() {
            self.counts.gone += 1;
        }
    }

    /// The write to a pod has failed. That says nothing about the pod, so its pause stays.
    pub(crate) fn has_failed(&mut self, uid: &PodUid) {
        if self.close(uid).is_some() {
            self.counts.failed += 1;
        }
    }

    /// Ends the wakes after which kube-scheduler has not asked in time. Returns their pods.
    pub(crate) fn late(&mut self, now: Monotonic) -> Vec<PodUid> {
        let mut late = Vec::new();
        while self.open.front().is_some_and(|(woken, _)| now.since(*woken) >= ASKED_WITHIN) {
            let Some((woken, uid)) = self.open.pop_front() else { break };
            if self.pods.get(&uid).is_some_and(|pace| pace.is_open && pace.woken == woken)
                && let Some(pace) = self.close(&uid)
            {
                pace.pause = (pace.pause * 2).min(LONGEST);
                self.counts.unanswered += 1;
                late.push(uid);
            }
        }
        late
    }

    /// Forgets pods that do not wait any more and could be woken again.
    pub(crate) fn forget(&mut self, now: Monotonic, waits: impl Fn(&PodUid) -> bool) {
        if self.pods.len() > KEPT {
            self.pods.retain(|uid, pace| now < pace.woken.after(pace.pause) || waits(uid));
        }
    }

    /// This process no longer learns the outcome of its wakes.
    pub(crate) fn forget_open(&mut self) {
        self.open.clear();
        self.pods.values_mut().for_each(|pace| pace.is_open = false);
        self.counts.open = 0;
    }

    /// What wakes have led to.
    pub(crate) fn counts(&self) -> WakeCounts {
        self.counts
    }

    /// The pod's last wake has led to something.
    fn close(&mut self, uid: &PodUid) -> Option<&mut PodPace> {
        let pace = self.pods.get_mut(uid).filter(|pace| pace.is_open)?;
        pace.is_open = false;
        self.counts.open = self.counts.open.saturating_sub(1);
        Some(pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uid(number: u64) -> PodUid {
        PodUid::parse(&format!("{number:032x}")).unwrap()
    }

    fn ms(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    #[test]
    fn a_pod_is_woken_ever_more_rarely_until_a_node_fits() {
        let (mut pace, pod) = (WakePace::default(), uid(1));
        let mut at = 0;
        let mut pauses = Vec::new();
        for passes in [false, false, false, false, false, false, true, false] {
            assert_eq!(pace.pod_waits(&pod, ms(at)), None);
            pace.wakes(&pod, ms(at));
            assert!(pace.is_asked(&pod, passes) && !pace.is_asked(&pod, passes), "each wake has one outcome");
            let next = pace.pod_waits(&pod, ms(at)).unwrap();
            assert_eq!(pace.pod_waits(&pod, Monotonic(next.0 - 1)), Some(next));
            pauses.push((next.0 / 1_000_000 - at) / 1000);
            at = next.0 / 1_000_000;
        }
        assert_eq!(pauses, [20, 40, 80, 160, 300, 300, 10, 20]);
        assert_eq!(pace.counts(), WakeCounts { passed: 1, refused: 7, ..WakeCounts::default() });
    }

    #[test]
    fn each_wake_is_counted_by_what_it_led_to() {
        let mut pace = WakePace::default();
        (1..=5).for_each(|number| pace.wakes(&uid(number), ms(0)));
        assert_eq!(pace.counts().open, 5);
        pace.is_asked(&uid(1), true);
        pace.is_asked(&uid(2), false);
        pace.is_gone(&uid(3));
        pace.has_failed(&uid(4));
        assert_eq!(pace.late(ms(4_999)), []);
        assert_eq!(pace.late(ms(5_000)), [uid(5)]);
        let counts = WakeCounts { passed: 1, refused: 1, unanswered: 1, gone: 1, failed: 1, open: 0 };
        assert_eq!(pace.counts(), counts);
        let waits = |number| pace.pod_waits(&uid(number), ms(0)).map(|at| at.0 / 1_000_000_000);
        assert_eq!([waits(1), waits(2), waits(4), waits(5)], [Some(10), Some(20), Some(10), Some(20)]);
        assert_eq!(waits(9), None, "a pod that was never woken");
    }

    #[test]
    fn an_old_wake_does_not_end_a_newer_one_of_the_same_pod() {
        let mut pace = WakePace::default();
        pace.wakes(&uid(1), ms(0));
        pace.is_asked(&uid(1), true);
        pace.wakes(&uid(1), ms(10_000));
        assert_eq!(pace.late(ms(10_001)), [], "only the first wake is old");
        assert_eq!(pace.late(ms(15_000)), [uid(1)]);
        pace.wakes(&uid(2), ms(20_000));
        pace.forget_open();
        assert_eq!((pace.late(ms(90_000)), pace.counts().open), (Vec::new(), 0), "another extender leads");
    }

    #[test]
    fn pods_that_are_gone_are_forgotten_once_their_pause_is_over() {
        let mut pace = WakePace::default();
        let most = u64::try_from(KEPT).unwrap() + 10;
        (0..most).for_each(|number| pace.wakes(&uid(number), ms(number * 50)));
        pace.forget(ms(0), |_| false);
        assert_eq!(pace.pods.len(), KEPT + 10, "a pod that comes back may not be woken at once");
        pace.forget(ms(most * 50 + 10_000), |pod| *pod == uid(3));
        assert_eq!(pace.pods.keys().collect::<Vec<_>>(), [&uid(3)]);
    }

    /// Otherwise the next step would go through all of them again.
    #[test]
    fn at_least_half_of_the_pods_are_forgotten_although_as_many_wait_as_may() {
        let mut pace = WakePace::default();
        let most = u64::try_from(KEPT).unwrap() + 1;
        (0..most).for_each(|number| pace.wakes(&uid(number), ms(number * 50)));
        let waiting: std::collections::HashSet<PodUid> = (0..20_000).map(uid).collect();
        pace.forget(ms(most * 50), |pod| waiting.contains(pod));
        assert!(pace.pods.len() > 20_000 && pace.pods.len() <= KEPT / 2, "{}", pace.pods.len());
    }

    proptest! {
        /// Whatever happens, no second has more than 20 wakes, and no pod has two within ten seconds.
        #[test]
        fn the_limits_hold(steps in prop::collection::vec((0..400_u64, 0..40_u64, 0..5_u8), 1..400)) {
            let (mut pace, mut now) = (WakePace::default(), 0);
            let mut woken: Vec<(u64, u64)> = Vec::new();
            for (pause, pod, what) in steps {
                now += pause / 8;
                let pod_uid = uid(pod);
                match what {
                    0 => drop(pace.is_asked(&pod_uid, pause % 2 == 0)),
                    1 => drop(pace.late(ms(now))),
                    _ if pace.waits(ms(now)).is_none() && pace.pod_waits(&pod_uid, ms(now)).is_none() => {
                        pace.wakes(&pod_uid, ms(now));
                        woken.push((now, pod));
                    }
                    _ => {}
                }
            }
            for (at, (first, pod)) in woken.iter().enumerate() {
                let within = woken[at..].iter().filter(|(later, _)| later - first < 1000).count();
                prop_assert!(within <= A_SECOND);
                let again = woken[at + 1..].iter().find(|(_, other)| other == pod);
                prop_assert!(again.is_none_or(|(later, _)| later - first >= 10_000));
            }
        }
    }
}
