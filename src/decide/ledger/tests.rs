//! Compares the ledger's sums with sums that are computed from scratch, for any order of changes.

use super::*;
use model::claim::{DeviceShare, PodClaim};
use model::id::PodRef;
use model::request::ContainerRequest;
use model::unit::CorePercent;
use proptest::prelude::*;

fn device(n: u8) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{n}")).unwrap()
}

fn uid(n: u8) -> PodUid {
    PodUid::parse(&format!("{n:08x}-0000-4000-8000-000000000000")).unwrap()
}

fn share(n: u8, memory: u64, cores: u32) -> DeviceShare {
    DeviceShare { device: device(n), memory: Some(Bytes(memory)), cores: Some(CorePercent(cores)) }
}

fn gpu_pod(n: u8, roles: &[ContainerRole]) -> GpuPod {
    let request = |role: &ContainerRole| ContainerRequest {
        container: "main".into(),
        role: *role,
        slots: 1,
        memory: None,
        cores: None,
        priority: None,
    };
    GpuPod {
        uid: uid(n),
        pod: PodRef { namespace: "ml".into(), name: "train".into() },
        arrival: None,
        requests: roles.iter().map(request).collect(),
        claim: PodClaim::None,
        chooses_gpus: false,
        placed_here: false,
        started: false,
        finished: false,
    }
}

#[test]
fn init_containers_run_one_after_the_other_and_sidecars_run_together() {
    use ContainerRole::{App, Init, Sidecar};
    let pod = gpu_pod(1, &[Sidecar, Init, Init, App]);
    let claim = Claim([10, 40, 50, 20].map(|memory| vec![share(0, memory, 0)]).to_vec());
    assert_eq!(demand_of(&pod, &claim, &device(0)).memory, 60, "the sidecar and the larger init container");
    assert_eq!(demand_of(&pod, &claim, &device(1)), DeviceDemand::default());
}

#[test]
fn a_claim_counts_once_in_the_state_that_it_was_set_to_last() {
    let (pod, other) = (gpu_pod(1, &[ContainerRole::App]), gpu_pod(2, &[ContainerRole::App]));
    let claim = Claim(vec![vec![share(0, 7, 100)]]);
    let mut ledger = Ledger::default();
    for state in [ClaimState::Assumed, ClaimState::Bound] {
        ledger.set(&pod, state, &claim);
        assert_eq!(ledger.claimed(&device(0)).memory, 7);
        assert_eq!(ledger.started_beside(&device(0), &other.uid), DeviceDemand::default(), "{state:?}");
    }
    ledger.set(&pod, ClaimState::Started, &claim);
    let seven = DeviceDemand { memory: 7, cores: 100, containers: 1, exclusive: 1 };
    assert_eq!(ledger.started_beside(&device(0), &other.uid), seven);
    assert_eq!(
        ledger.started_beside(&device(0), &pod.uid),
        DeviceDemand::default(),
        "a pod is not counted alongside itself"
    );
    assert_eq!(ledger.pods_on(&device(0)).collect::<Vec<_>>(), [&pod.uid]);
    ledger.remove(&pod.uid);
    assert_eq!(ledger, Ledger::default(), "nothing is left of it");
}

#[test]
fn an_exclusive_claim_clashes_only_with_a_neighbour_and_only_where_a_device_is_not_scaled() {
    let one = DeviceDemand { containers: 1, cores: 100, exclusive: 1, memory: 1 };
    let free = DeviceDemand { containers: 1, ..DeviceDemand::default() };
    assert!(one.clashes_with(free, 100) && free.clashes_with(one, 100) && one.clashes_with(one, 100));
    assert!(!one.clashes_with(DeviceDemand::default(), 100) && !free.clashes_with(free, 100));
    assert!(!one.clashes_with(free, 200));
}

/// A change: the pod, its new state (`None` removes the claim), and its device shares.
type Change = (u8, Option<u8>, Vec<Vec<(u8, u64, u32)>>);

fn change() -> impl Strategy<Value = Change> {
    let shares = prop::collection::vec((0_u8..3, prop_oneof![0_u64..100, Just(u64::MAX)], 0_u32..=100), 0..3);
    (0_u8..4, prop::option::of(0_u8..3), prop::collection::vec(shares, 0..3))
}

proptest! {
    #[test]
    fn the_sums_are_those_of_the_claims_after_any_changes(changes in prop::collection::vec(change(), 0..40)) {
        let roles = [ContainerRole::Init, ContainerRole::Sidecar, ContainerRole::App];
        let mut ledger = Ledger::default();
        let mut now: BTreeMap<u8, (ClaimState, Claim)> = BTreeMap::new();
        for (n, state, shares) in changes {
            let claim: Claim = shares.into_iter()
                .map(|own| own.into_iter().map(|(gpu, memory, cores)| share(gpu, memory, cores)).collect())
                .collect();
            match state {
                None => {
                    ledger.remove(&uid(n));
                    now.remove(&n);
                }
                Some(state) => {
                    let state = [ClaimState::Assumed, ClaimState::Bound, ClaimState::Started][usize::from(state)];
                    ledger.set(&gpu_pod(n, &roles), state, &claim);
                    now.insert(n, (state, claim));
                }
            }
            for gpu in 0..3 {
                let sum = |counts: &dyn Fn(&u8, ClaimState) -> bool| {
                    let mut sum = DeviceDemand::default();
                    for (n, (_, claim)) in now.iter().filter(|(n, (state, _))| counts(n, *state)) {
                        sum.add(demand_of(&gpu_pod(*n, &roles), claim, &device(gpu)));
                    }
                    sum
                };
                prop_assert_eq!(ledger.claimed(&device(gpu)), sum(&|_, _| true));
                let beside = ledger.started_beside(&device(gpu), &uid(0));
                prop_assert_eq!(beside, sum(&|n, state| *n != 0 && state == ClaimState::Started));
                let on: Vec<PodUid> = ledger.pods_on(&device(gpu)).cloned().collect();
                let named = |claim: &Claim| claim.shares().any(|share| share.device == device(gpu));
                let expect: Vec<PodUid> =
                    now.iter().filter(|(_, (_, claim))| named(claim)).map(|(n, _)| uid(*n)).collect();
                prop_assert_eq!(on, expect);
            }
        }
    }
}
