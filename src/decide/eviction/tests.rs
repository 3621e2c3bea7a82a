//! Tests of evictions: when a pod gets an event, when it is evicted, and when that is tried again.

use super::*;
use model::id::PodRef;
use model::pod::PodPhase;
use model::reading::{Absence, Reading};
use model::time::WallTime;
use model::unit::Bytes;
use proptest::prelude::*;

fn uid(n: u32) -> PodUid {
    PodUid::parse(&format!("{n:032x}")).unwrap()
}

fn at(seconds: u64) -> Monotonic {
    Monotonic(seconds * 1_000_000_000)
}

fn pod(n: u32) -> Pod {
    Pod {
        uid: uid(n),
        mirror_of: None,
        name: PodRef { namespace: "ml".into(), name: format!("train-{n}").into() },
        node: None,
        phase: PodPhase::Running,
        created_at: None,
        version: None,
        arrival: None,
        deleted_at: None,
        annotations: Vec::new(),
        annotations_left_out: 0,
        system_keys_left_out: 0,
        annotation_bytes: 0,
        bytes: 0,
        status_bytes: 0,
        labels: Vec::new(),
        priority: None,
        controller: None,
        scheduler: None,
        request: None,
        host_network: false,
        nominated: None,
        gang: None,
        gated: false,
        prefers_nodes: false,
        runtime_class: None,
        restart: None,
        containers: Vec::new(),
        containers_left_out: None,
    }
}

fn list(pods: Vec<Pod>) -> PodList {
    PodList { pods: pods.into_iter().map(Arc::new).collect(), ..PodList::default() }
}

/// An over-use of one device that has lasted this long, and is measured now.
fn over(n: u32, lasted: u64) -> OverUse {
    OverUse {
        pod: uid(n),
        device: GpuUuid::parse("GPU-1").unwrap(),
        claimed: Bytes(1 << 30),
        used: Reading::Measured(Bytes(2 << 30), at(1)),
        lasted: Duration::from_secs(lasted),
    }
}

fn evictions() -> Evictions {
    let mut evictions = Evictions::default();
    evictions.switch(true);
    evictions
}

/// The events and the evictions among these steps.
fn count(steps: &[EvictionStep<'_>]) -> (usize, usize) {
    let evicted = steps.iter().filter(|step| matches!(step, EvictionStep::Evict(..))).count();
    (steps.len() - evicted, evicted)
}

#[test]
fn an_over_use_gives_an_event_at_once_and_an_eviction_after_each_minute() {
    let (mut evictions, pods) = (evictions(), list(vec![pod(1)]));
    for (seconds, lasted, expected) in [
        (100, Some(0), (1, 0)),
        (159, Some(59), (0, 0)),
        (160, Some(60), (0, 1)),
        (219, Some(119), (0, 0)),
        (220, Some(120), (0, 1)),
        (230, None, (0, 0)),
        (240, Some(60), (1, 1)),
    ] {
        let over: Vec<OverUse> = lasted.map(|lasted| over(1, lasted)).into_iter().collect();
        let steps = evictions.over_uses(&over, Some(&pods), at(seconds));
        assert_eq!(count(&steps), expected, "{seconds}");
    }
}

#[test]
fn only_a_pod_that_can_be_evicted_is() {
    let mirror = Pod { mirror_of: Some(uid(1)), uid: uid(9), ..pod(1) };
    let deleted = Pod { deleted_at: Some(WallTime(1)), ..pod(1) };
    let unmeasured = OverUse { used: Reading::Absent(Absence::GpuLost), ..over(1, 600) };
    for (on, pods, over, expected) in [
        (true, vec![pod(1)], over(1, 600), (1, 1)),
        (false, vec![pod(1)], over(1, 600), (1, 0)),
        (true, vec![mirror.clone()], over(1, 600), (1, 0)),
        (true, vec![deleted.clone()], over(1, 600), (0, 0)),
        (true, vec![], over(1, 600), (0, 0)),
        (true, vec![pod(1)], unmeasured, (1, 0)),
    ] {
        let (mut evictions, pods) = (Evictions::default(), list(pods));
        evictions.switch(on);
        let over = [over];
        assert_eq!(count(&evictions.over_uses(&over, Some(&pods), at(1))), expected, "{on} {pods:?}");
    }
    assert_eq!(count(&evictions().over_uses(&[over(1, 600)], None, at(1))), (0, 0), "no pod list yet");
    assert!(evictions().for_files(&pod(1)) && !Evictions::default().for_files(&pod(1)));
    assert!(!evictions().for_files(&mirror) && !evictions().for_files(&deleted));
}

proptest! {
    /// Whatever is measured and whenever: no pod is evicted that must not be, and none twice within the pause while its
    /// over-use lasts.
    #[test]
    fn no_pod_is_evicted_against_the_rules_or_before_the_pause_is_over(
        on in any::<bool>(),
        steps in prop::collection::vec((0_u64..90, prop::collection::btree_map(0_u32..4, 0_u64..200, 0..4)), 1..30),
    ) {
        // Pod 0 is unknown, pod 2 static, pod 3 is being deleted.
        let mirror = Pod { mirror_of: Some(uid(2)), uid: uid(9), ..pod(2) };
        let pods = list(vec![pod(1), mirror, Pod { deleted_at: Some(WallTime(1)), ..pod(3) }]);
        let mut evictions = Evictions::default();
        evictions.switch(on);
        let (mut now, mut last): (u64, Option<u64>) = (1_000, None);
        for (pause, over_uses) in steps {
            now += pause;
            let over: Vec<OverUse> = over_uses.iter().map(|(n, lasted)| over(*n, *lasted)).collect();
            if !over_uses.contains_key(&1) {
                last = None;
            }
            for step in evictions.over_uses(&over, Some(&pods), at(now)) {
                let EvictionStep::Evict(pod, over) = step else { continue };
                prop_assert!(on && pod.uid == uid(1) && over.lasted >= overuse::EVICTED_AFTER);
                prop_assert!(last.is_none_or(|last| now - last >= AGAIN.as_secs()), "{last:?} {now}");
                last = Some(now);
            }
        }
    }
}
