//! When an over-use begins, and when it ends.

use super::*;
use crate::fixtures;
use model::cgroup::CgroupSample;
use model::reading::Absence;
use model::view::{ContainerRates, GpuUse};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const CLAIMED: u64 = 4 * GIB;
const HIGH: u64 = 6 * GIB;

fn device() -> GpuUuid {
    GpuUuid::parse("GPU-1").unwrap()
}

fn uid() -> PodUid {
    PodUid::parse(&"1".repeat(32)).unwrap()
}

fn at(seconds: u64) -> Monotonic {
    Monotonic(seconds * 1_000_000_000)
}

fn gpu_view(list: Reading<()>) -> GpuView {
    GpuView { processes: list.map(|()| Arc::from([])), ..fixtures::view(fixtures::gpu(1)) }
}

fn pod(used: Option<Reading<Bytes>>) -> PodView {
    let share = |memory_used| GpuUse { gpu: device(), mig: None, processes: 1, memory_used, sm: Reading::NOT_YET };
    PodView {
        uid: uid(),
        name: None,
        qos: None,
        cgroup: None,
        sample: CgroupSample::default(),
        rates: ContainerRates::default(),
        network: Reading::NOT_YET,
        containers: Vec::new(),
        gpus: used.map(share).into_iter().collect(),
    }
}

fn over_uses() -> OverUses {
    let mut over = OverUses::default();
    over.set_memory_claims(Arc::from([PodMemoryClaim { pod: uid(), device: device(), memory: Bytes(CLAIMED) }]));
    over
}

/// A process list at this second, in which the pod holds this much.
fn measure(over: &mut OverUses, second: u64, used: u64) -> Vec<OverUse> {
    over.judge(&[pod(Some(Reading::Measured(Bytes(used), at(second))))], &[gpu_view(Reading::Measured((), at(second)))])
}

#[test]
fn an_over_use_begins_and_ends_after_half_a_minute_and_a_peak_does_neither() {
    let mut over = over_uses();
    for second in [0, 5, 10] {
        assert_eq!(measure(&mut over, second, HIGH), []);
    }
    assert_eq!(measure(&mut over, 15, CLAIMED), [], "a peak");
    for second in (20..50).step_by(5) {
        assert_eq!(measure(&mut over, second, HIGH), [], "{second}");
    }
    let reported = measure(&mut over, 50, HIGH + 1);
    let used = Reading::Measured(Bytes(HIGH + 1), at(50));
    let expect = OverUse { pod: uid(), device: device(), claimed: Bytes(CLAIMED), used, lasted: Duration::ZERO };
    assert_eq!(reported, [expect]);
    assert_eq!(measure(&mut over, 55, 0).len(), 1, "one low reading does not end it");
    assert_eq!(measure(&mut over, 60, HIGH)[0].lasted, Duration::from_secs(10));
    for second in (65..95).step_by(5) {
        assert_eq!(measure(&mut over, second, CLAIMED).len(), 1, "{second}");
    }
    assert_eq!(measure(&mut over, 95, CLAIMED), []);
    assert_eq!(measure(&mut over, 100, HIGH), [], "a new over-use begins");
}

/// Views without a measurement: the pod's memory is not known, the GPU's process list cannot be read, or the GPU is
/// missing.
fn blind(over: &mut OverUses, second: u64) -> [Vec<OverUse>; 3] {
    let absent = Reading::Absent(Absence::NotSupported);
    [
        over.judge(&[pod(Some(absent))], &[gpu_view(Reading::Measured((), at(second)))]),
        over.judge(&[pod(None)], &[gpu_view(Reading::Absent(Absence::CallHangs))]),
        over.judge(&[pod(None)], &[]),
    ]
}

#[test]
fn a_pass_without_measurements_neither_ends_an_over_use_nor_brings_an_eviction_nearer() {
    let mut over = over_uses();
    for second in (0..=30).step_by(5) {
        measure(&mut over, second, HIGH);
    }
    let reported = measure(&mut over, 60, HIGH);
    assert_eq!((reported.len(), reported[0].lasted), (1, Duration::from_secs(30)));
    for second in (65..=300).step_by(5) {
        for still in blind(&mut over, second) {
            assert_eq!((still.len(), still[0].lasted), (1, Duration::from_secs(30)), "the same over-use");
            assert!(still[0].used.value().is_none() && !to_evict(&still[0]));
        }
    }
    // What happened in the gap is not known, so it counts neither for nor against.
    let back = measure(&mut over, 305, HIGH);
    assert_eq!((back.len(), back[0].lasted), (1, Duration::from_secs(30)));
    assert!(!to_evict(&measure(&mut over, 334, HIGH)[0]));
    assert!(to_evict(&measure(&mut over, 335, HIGH)[0]));
    for absent in blind(&mut over, 340) {
        assert!(!to_evict(&absent[0]), "without a current measurement no pod is evicted");
    }
    for second in (340..370).step_by(5) {
        assert_eq!(measure(&mut over, second, 0).len(), 1);
    }
    assert_eq!(measure(&mut over, 370, 0), []);
    assert!(blind(&mut over, 375).iter().all(Vec::is_empty));
}

#[test]
fn a_cuda_context_beside_the_claimed_memory_is_no_over_use() {
    let mut over = over_uses();
    for second in (0..200).step_by(5) {
        assert_eq!(measure(&mut over, second, CLAIMED + MARGIN.0), []);
    }
}

#[test]
fn time_without_a_measurement_does_not_count() {
    let mut over = over_uses();
    measure(&mut over, 0, HIGH);
    // The same reading repeated counts as one measurement.
    for _ in 0..100 {
        assert_eq!(measure(&mut over, 0, HIGH), []);
    }
    for second in (5..200).step_by(5) {
        let absent = Reading::Absent(Absence::NotSupported);
        assert_eq!(over.judge(&[pod(Some(absent))], &[gpu_view(Reading::Measured((), at(second)))]), []);
        assert_eq!(over.judge(&[pod(None)], &[gpu_view(Reading::Absent(Absence::NotSupported))]), []);
    }
    assert_eq!(measure(&mut over, 200, HIGH), [], "the gap was not measured");
    assert_eq!(measure(&mut over, 225, HIGH), []);
    assert_eq!(measure(&mut over, 230, HIGH).len(), 1);
    // Processes that have ended hold nothing.
    for second in (235..=270).step_by(5) {
        over.judge(&[pod(None)], &[gpu_view(Reading::Measured((), at(second)))]);
    }
    assert_eq!(over.judge(&[], &[gpu_view(Reading::Measured((), at(275)))]), []);
}

#[test]
fn without_a_claim_there_is_no_over_use() {
    let mut over = over_uses();
    for second in (0..=60).step_by(5) {
        measure(&mut over, second, HIGH);
    }
    assert_eq!(measure(&mut over, 65, HIGH).len(), 1);
    over.set_memory_claims(Arc::from([]));
    assert_eq!(measure(&mut over, 70, HIGH), []);
    assert!(over.uses.is_empty(), "pods that are gone are forgotten");
}

proptest! {
    /// An over-use is reported only if all measurements of the whole span before it were above claim plus margin.
    #[test]
    fn no_over_use_is_reported_within_half_a_minute(
        measurements in prop::collection::vec((1_u64..90, any::<bool>()), 1..60),
    ) {
        let mut over = over_uses();
        let (mut second, mut row) = (0, None::<u64>);
        let mut was = false;
        for (step, high) in measurements {
            second += step;
            row = match (high, row) {
                (true, Some(since)) if step <= 60 => Some(since),
                (true, _) => Some(second),
                (false, _) => None,
            };
            let is = !measure(&mut over, second, if high { HIGH } else { 0 }).is_empty();
            if is && !was {
                prop_assert!(row.is_some_and(|since| second - since >= 30), "{} {:?}", second, row);
            }
            was = is;
        }
    }
}
