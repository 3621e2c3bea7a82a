//! Tests of placement on one node: each reason, each policy, and that no moment takes more than there is.

use super::*;
use crate::ledger::{ALL_CORES, DeviceDemand, demand_of};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::{GpuUuid, PodRef, PodUid};
use model::placement::{GpuOrder, GpuPolicy, GpuSelection, PlacementPreference, PlacementRequest, ScoreWeights};
use model::request::{ContainerRequest, ContainerRole, MemoryRequest};
use model::unit::{Bytes, CorePercent, Mib};
use proptest::prelude::*;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

pub(crate) fn uuid(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{n}")).unwrap()
}

/// An H100 with 10 slots and 80 GiB; two of them share a NUMA node.
pub(crate) fn gpu(n: u32) -> PlacementDevice {
    PlacementDevice {
        uuid: uuid(n),
        index: n,
        numa: n / 2,
        capacity: Capacity { slots: 10, cores: 100, memory: 80 * GIB },
        kind: Arc::new(DeviceKind { product: "nvidia h100 80gb hbm3".into(), mode: "hami-core".into() }),
        fitness: DeviceFitness::Fit,
        claimed: DeviceDemand::default(),
        proposed: DeviceDemand::default(),
        beyond: BeyondClaims::UNKNOWN,
    }
}

fn node(devices: Vec<PlacementDevice>) -> PlacementNode {
    PlacementNode { devices, ..PlacementNode::default() }
}

fn taken(gib: u64, cores: u64, containers: u64) -> DeviceDemand {
    DeviceDemand { memory: gib * GIB, cores, containers, exclusive: u64::from(cores >= u64::from(ALL_CORES)) }
}

pub(crate) fn container(role: ContainerRole, slots: u32, mib: u64, cores: u32) -> ContainerRequest {
    ContainerRequest {
        container: "main".into(),
        role,
        slots,
        memory: (mib > 0).then_some(MemoryRequest::Amount(Mib(mib))),
        cores: (cores > 0).then_some(CorePercent(cores)),
        priority: None,
    }
}

pub(crate) fn pod(n: u32, requests: Vec<ContainerRequest>) -> PlacementRequest {
    PlacementRequest {
        uid: PodUid::parse(&format!("{n:08x}-0000-4000-8000-000000000000")).unwrap(),
        pod: PodRef { namespace: "ml".into(), name: format!("pod-{n}").into() },
        version: Some(1),
        created: None,
        requests,
        selection: GpuSelection::default(),
        preference: PlacementPreference::default(),
        priority: 0,
        gang: None,
        realtime: None,
        prefers_nodes: false,
    }
}

fn app(slots: u32, mib: u64, cores: u32) -> PlacementRequest {
    pod(1, vec![container(ContainerRole::App, slots, mib, cores)])
}

fn placed(request: &PlacementRequest, node: &PlacementNode) -> Result<Placement, NodeRefusal> {
    place(request, node, &PlacementRules::default(), CountedClaims::Claims)
}

/// The GPUs of the first container.
fn chosen(request: &PlacementRequest, node: &PlacementNode) -> Vec<String> {
    let claim = placed(request, node).unwrap().claim;
    claim.first().unwrap().iter().map(|share| share.device.to_string()).collect()
}

#[test]
fn each_test_that_fails_has_its_reason() {
    let with = |change: &dyn Fn(&mut PlacementDevice)| {
        let mut gpu = gpu(0);
        change(&mut gpu);
        node(vec![gpu])
    };
    let select = |change: &dyn Fn(&mut GpuSelection)| {
        let mut request = app(1, 1000, 10);
        change(&mut request.selection);
        request
    };
    let mut mutex = app(1, 1000, 10);
    mutex.preference.gpu_policy = Some(GpuPolicy { idle_only: true, ..GpuPolicy::default() });
    let cases: [(PlacementRequest, PlacementNode, &str); 15] = [
        (app(1, 1000, 10), with(&|gpu| gpu.fitness = DeviceFitness::Unhealthy), "CardNotHealth"),
        (app(1, 1000, 10), with(&|gpu| gpu.fitness = DeviceFitness::Cordoned), "CardCordoned"),
        (app(1, 1000, 10), with(&|gpu| gpu.fitness = DeviceFitness::InUse), "CardInUse"),
        (
            select(&|selection| selection.use_types = vec!["a100".into()]),
            with(&|_| {}),
            "NodeUnfitPod: CardTypeMismatch",
        ),
        (
            select(&|selection| selection.avoid_types = vec!["h100".into()]),
            with(&|_| {}),
            "NodeUnfitPod: CardTypeMismatch",
        ),
        (select(&|selection| selection.modes = Some("mig".into())), with(&|_| {}), "NodeUnfitPod: CardTypeMismatch"),
        (select(&|selection| selection.use_uuids = vec![uuid(9)]), with(&|_| {}), "NodeUnfitPod: CardUuidMismatch"),
        (select(&|selection| selection.avoid_uuids = vec![uuid(0)]), with(&|_| {}), "NodeUnfitPod: CardUuidMismatch"),
        (app(1, 1000, 10), with(&|gpu| gpu.claimed = taken(1, 0, 10)), "CardTimeSlicingExhausted"),
        (mutex, with(&|gpu| gpu.claimed = taken(1, 0, 1)), "ExclusiveDeviceAllocateConflict"),
        (app(1, 80 * 1024, 10), with(&|gpu| gpu.claimed = taken(1, 0, 1)), "CardInsufficientMemory"),
        (app(1, 1000, 41), with(&|gpu| gpu.claimed = taken(1, 60, 1)), "CardInsufficientCore"),
        (app(1, 1000, 100), with(&|gpu| gpu.claimed = taken(1, 0, 1)), "ExclusiveDeviceAllocateConflict"),
        (app(1, 1000, 0), with(&|gpu| gpu.claimed = taken(1, 100, 1)), "CardComputeUnitsExhausted"),
        (app(2, 1000, 10), with(&|_| {}), "NodeInsufficientDevice"),
    ];
    for (request, node, reason) in cases {
        assert_eq!(placed(&request, &node).map_err(|why| why.to_string()), Err(reason.to_owned()));
    }
}

#[test]
fn a_refusal_counts_gpus_and_names_the_nearest_miss() {
    let mut gpus: Vec<PlacementDevice> = (0..4).map(gpu).collect();
    gpus[0].claimed = taken(74, 0, 1);
    gpus[1].claimed = taken(76, 0, 1);
    gpus[2].fitness = DeviceFitness::Unhealthy;
    let why = placed(&app(2, 8192, 0), &node(gpus)).unwrap_err();
    assert_eq!(why.to_string(), "AllocatedCardsInsufficientRequest, CardInsufficientMemory, CardNotHealth");
    let counts: Vec<(&str, u16)> = why.reasons().map(|(reason, count)| (reason.code(), count)).collect();
    assert_eq!(counts, [("CardNotHealth", 1), ("CardInsufficientMemory", 2), ("AllocatedCardsInsufficientRequest", 1)]);
    assert_eq!((why.gpus, why.nearest), (4, Some(NearestMiss::Count { requested: 2, fitting: 1 })));
    assert!(!why.is_lasting(), "memory may become free");

    let mut gpus: Vec<PlacementDevice> = (0..2).map(gpu).collect();
    gpus[0].claimed = taken(74, 0, 1);
    gpus[1].claimed = taken(76, 0, 1);
    let why = placed(&app(1, 8192, 0), &node(gpus)).unwrap_err();
    let asked = Some(MemoryRequest::Amount(Mib(8192)));
    let (requested, free, total) = (Bytes(8 * GIB), Bytes(6 * GIB), Bytes(80 * GIB));
    assert_eq!(
        why.nearest,
        Some(NearestMiss::Memory { asked, requested, free, really_free: Some(free), total, index: 0 })
    );
    let why = placed(&app(4, 8192, 0), &node(vec![gpu(0), gpu(1)])).unwrap_err();
    assert_eq!(why.nearest, Some(NearestMiss::Devices { requested: 4, there: 2 }));
}

#[test]
fn a_refusal_that_no_ending_pod_changes_is_lasting() {
    let mut request = app(1, 1000, 0);
    request.selection.use_types = vec!["a100".into()];
    assert!(placed(&request, &node(vec![gpu(0)])).unwrap_err().is_lasting());
    assert!(placed(&app(2, 1000, 0), &node(vec![gpu(0)])).unwrap_err().is_lasting());
    assert!(NodeRefusal::whole(RefusalReason::NodeUnregistered).is_lasting());
    assert!(!NodeRefusal::whole(RefusalReason::NodeClosed).is_lasting());
    // The request is larger than any GPU, so the current claims and the health of the GPUs do not matter.
    let mut gpus: Vec<PlacementDevice> = (0..4).map(gpu).collect();
    gpus[1].claimed = taken(70, 0, 10);
    gpus[2].fitness = DeviceFitness::Unhealthy;
    assert!(placed(&app(1, 80 * 1024 + 1, 0), &node(gpus.clone())).unwrap_err().is_lasting());
    gpus[3].capacity.memory *= 2;
    gpus[3].claimed = taken(120, 0, 1);
    assert!(!placed(&app(1, 80 * 1024 + 1, 0), &node(gpus.clone())).unwrap_err().is_lasting(), "one is large enough");
    // One GPU fits and two are requested: the other GPUs never fit.
    gpus[3].claimed = taken(0, 0, 0);
    assert!(placed(&app(2, 80 * 1024 + 1, 0), &node(gpus)).unwrap_err().is_lasting());
}

/// Otherwise one pod with very many containers would make a filter call for thousands of nodes take seconds.
#[test]
fn many_containers_are_not_placed_where_the_largest_of_them_finds_no_gpu() {
    let mut gpus: Vec<PlacementDevice> = (0..2).map(gpu).collect();
    gpus[0].claimed = taken(20, 60, 1);
    gpus[1].claimed = taken(20, 60, 1);
    let with = |last| {
        // The first one only waits for SM time that is claimed now.
        let mut containers = vec![container(ContainerRole::Init, 1, 1000, 50)];
        containers.extend((0..4).map(|_| container(ContainerRole::Init, 1, 1000, 1)));
        containers.push(last);
        pod(1, containers)
    };
    for (last, is_lasting) in [
        (container(ContainerRole::App, 1, 1 << 20, 1), true),
        (container(ContainerRole::App, 1, 1000, 101), true),
        (container(ContainerRole::App, 3, 1000, 1), true),
        (container(ContainerRole::App, 2, 1000, 1), false),
    ] {
        let why = placed(&with(last.clone()), &node(gpus.clone())).unwrap_err();
        assert_eq!(why.is_lasting(), is_lasting, "{last:?}: {why}");
    }
    // The largest ones take nothing away from the others.
    let beside = (0..8).map(|_| container(ContainerRole::App, 1, 15 * 1024, 10)).collect();
    let claim = placed(&pod(1, beside), &node(gpus)).unwrap().claim;
    assert_eq!(claim.shares().count(), 8);
}

#[test]
fn policies_order_the_gpus() {
    let mut gpus: Vec<PlacementDevice> = (0..4).map(gpu).collect();
    gpus[1].claimed = taken(40, 50, 3);
    gpus[2].claimed = taken(10, 10, 1);
    let node = node(gpus);
    let by = |order: &[GpuOrder]| {
        let mut request = app(2, 1000, 10);
        request.preference.gpu_policy = Some(GpuPolicy { order: order.to_vec(), ..GpuPolicy::default() });
        chosen(&request, &node)
    };
    assert_eq!(by(&[GpuOrder::Binpack]), ["GPU-1", "GPU-2"]);
    assert_eq!(by(&[GpuOrder::Spread]), ["GPU-0", "GPU-3"]);
    assert_eq!(by(&[GpuOrder::Numa, GpuOrder::Binpack]), ["GPU-1", "GPU-0"]);
    let mut mutex = app(2, 1000, 10);
    let order = vec![GpuOrder::Binpack];
    mutex.preference.gpu_policy = Some(GpuPolicy { order, idle_only: true, topology: false });
    assert_eq!(chosen(&mutex, &node), ["GPU-0", "GPU-3"]);
}

#[test]
fn numa_bind_keeps_the_gpus_of_a_container_on_one_numa_node() {
    let mut gpus: Vec<PlacementDevice> = (0..4).map(gpu).collect();
    gpus[0].claimed = taken(80, 0, 1);
    let mut request = app(2, 1000, 10);
    assert_eq!(chosen(&request, &node(gpus.clone())), ["GPU-1", "GPU-2"], "both are empty");
    request.selection.numa_bind = true;
    assert_eq!(chosen(&request, &node(gpus.clone())), ["GPU-2", "GPU-3"]);
    gpus[3].claimed = taken(80, 0, 1);
    let why = placed(&request, &node(gpus)).unwrap_err();
    assert_eq!(why.to_string(), "CardInsufficientMemory, NumaNotFit");
}

#[test]
fn a_topology_aware_pod_gets_the_gpus_with_the_best_links() {
    // Pairs 0-2 and 1-3 have NVLink, all others PCIe.
    let link = |one: u32, other: u32| if (one + 2) % 4 == other { 300 } else { 10 };
    let links: Box<[u32]> = (0..4).flat_map(|one| (0..4).map(move |other| link(one, other))).collect();
    let mut node = PlacementNode { devices: (0..4).map(gpu).collect(), links, ..PlacementNode::default() };
    let mut request = app(2, 1000, 10);
    request.preference.gpu_policy = Some(GpuPolicy { topology: true, ..GpuPolicy::default() });
    assert_eq!(chosen(&request, &node), ["GPU-0", "GPU-2"]);
    node.devices[0].claimed = taken(80, 0, 1);
    assert_eq!(chosen(&request, &node), ["GPU-1", "GPU-3"]);
    // A single GPU is chosen so that the pair that is still whole stays together.
    let mut one = app(1, 1000, 10);
    one.preference.gpu_policy = Some(GpuPolicy { topology: true, ..GpuPolicy::default() });
    assert_eq!(chosen(&one, &node), ["GPU-2"]);
    node.links = Box::default();
    assert_eq!(chosen(&request, &node).len(), 2, "without links any two GPUs are taken");
}

#[test]
fn init_containers_share_their_moment_with_sidecars_only() {
    use ContainerRole::{App, Init, Sidecar};
    let parts = |sidecar, init, app| {
        let of = |role, gib: u64| container(role, 1, gib * 1024, 0);
        pod(1, vec![of(Sidecar, sidecar), of(Init, init), of(App, app)])
    };
    let one = node(vec![gpu(0)]);
    assert!(placed(&parts(20, 60, 60), &one).is_ok(), "20 + 60 at any moment");
    assert!(placed(&parts(20, 61, 10), &one).is_err(), "the init container runs alongside the sidecar");
    assert!(placed(&parts(20, 10, 61), &one).is_err(), "the app container runs alongside the sidecar");
    // The fill counts the largest use at any moment.
    let fill = placed(&parts(20, 60, 10), &one).unwrap().fill;
    let terms = FillTerms { slots: 200_000, cores: 0, memory: 1_000_000 };
    assert_eq!(fill, terms.fill(ScoreWeights::default()));
}

#[test]
fn a_share_is_whole_mib_of_what_the_gpu_offers_and_never_unlimited_by_rounding() {
    let mut request = app(1, 0, 0);
    request.requests[0].memory = Some(MemoryRequest::Percent(33));
    let share = |request: &PlacementRequest, node: &PlacementNode| {
        placed(request, node).unwrap().claim.shares().next().unwrap().memory
    };
    assert_eq!(share(&request, &node(vec![gpu(0)])), Some(Mib(27_033).bytes()));
    let mut small = gpu(0);
    small.capacity.memory = 50 << 20;
    request.requests[0].memory = Some(MemoryRequest::Percent(1));
    assert_eq!(share(&request, &node(vec![small])), Some(Mib(1).bytes()));
    assert_eq!(share(&app(1, 0, 0), &node(vec![gpu(0)])), Some(Bytes(80 * GIB)), "no amount is the whole GPU");
}

#[test]
fn proposals_count_in_the_fill_always_and_in_the_fit_only_if_asked() {
    let mut gpu = gpu(0);
    gpu.proposed = taken(60, 0, 1);
    let node = node(vec![gpu]);
    let request = app(1, 30 * 1024, 0);
    let rules = PlacementRules::default();
    assert!(place(&request, &node, &rules, CountedClaims::ClaimsAndProposals).is_err());
    let tight = place(&request, &node, &rules, CountedClaims::Claims).unwrap();
    let terms = FillTerms { slots: 200_000, cores: 0, memory: 1_125_000 };
    assert_eq!(tight.fill, terms.fill(ScoreWeights::default()));
}

#[test]
fn weights_say_what_a_fill_is_made_of() {
    let terms = FillTerms { slots: 100, cores: 200, memory: 600 };
    let fill = |slots, cores, memory| terms.fill(ScoreWeights { slots, cores, memory }).0;
    assert_eq!([fill(1, 1, 1), fill(0, 0, 5), fill(2, 1, 0), fill(0, 0, 0)], [300, 600, 133, 0]);
    let huge = DeviceDemand { memory: u64::MAX, ..DeviceDemand::default() };
    let capacity = Capacity { slots: 0, cores: 0, memory: u64::MAX };
    assert_eq!(FillTerms::of(huge, capacity), FillTerms { slots: 0, cores: 0, memory: 1_000_000 });
}

#[test]
fn mig_instances_are_devices_of_their_own() {
    let instance = |n: u32| PlacementDevice {
        uuid: GpuUuid::parse(&format!("MIG-{n}")).unwrap(),
        capacity: Capacity { slots: 1, cores: 14, memory: 10 * GIB },
        kind: Arc::new(DeviceKind { product: "nvidia h100 80gb hbm3 mig 1g.10gb".into(), mode: "mig".into() }),
        ..gpu(n)
    };
    let node = node((0..3).map(instance).chain([gpu(3)]).collect());
    let mut request = app(2, 8000, 0);
    request.selection.modes = Some("mig".into());
    assert_eq!(chosen(&request, &node), ["MIG-0", "MIG-1"]);
    request.selection.modes = Some("hami-core".into());
    let why = placed(&request, &node).unwrap_err().to_string();
    assert_eq!(why, "AllocatedCardsInsufficientRequest, NodeUnfitPod: CardTypeMismatch");
    request.selection = GpuSelection { use_types: vec!["1g.10gb".into()], ..GpuSelection::default() };
    assert_eq!(chosen(&request, &node), ["MIG-0", "MIG-1"]);
    request.requests[0].slots = 4;
    assert!(placed(&request, &node).unwrap_err().to_string().contains("AllocatedCardsInsufficientRequest"));
}

#[test]
fn scaled_memory_and_sm_time_are_what_a_gpu_offers() {
    let mut scaled = gpu(0);
    scaled.capacity = Capacity { slots: 10, cores: 200, memory: 160 * GIB };
    scaled.claimed = taken(80, 100, 1);
    let one = node(vec![scaled]);
    assert!(placed(&app(1, 80 * 1024, 100), &one).is_ok(), "all SM time is not exclusive where SM time is scaled");
    assert_eq!(placed(&app(1, 80 * 1024 + 1, 0), &one).unwrap_err().to_string(), "CardInsufficientMemory");
    assert_eq!(placed(&app(1, 1000, 101), &one).unwrap_err().to_string(), "CardInsufficientCore");
    let mut half = app(1, 0, 0);
    half.requests[0].memory = Some(MemoryRequest::Percent(50));
    assert_eq!(placed(&half, &one).unwrap().claim.shares().next().unwrap().memory, Some(Bytes(80 * GIB)));
}

fn roles() -> impl Strategy<Value = ContainerRole> {
    prop_oneof![Just(ContainerRole::Init), Just(ContainerRole::Sidecar), Just(ContainerRole::App)]
}

fn requests() -> impl Strategy<Value = Vec<ContainerRequest>> {
    let one = (roles(), 0..4_u32, 0..90_000_u64, 0..=100_u32);
    proptest::collection::vec(one.prop_map(|(role, slots, mib, cores)| container(role, slots, mib, cores)), 1..5)
}

fn devices() -> impl Strategy<Value = Vec<PlacementDevice>> {
    let one = (0..90_u64, 0..=100_u64, 0..11_u64, 0..60_u64, any::<bool>());
    proptest::collection::vec(one, 0..6).prop_map(|all| {
        let make = |(n, (gib, cores, containers, proposed, fit)): (usize, (u64, u64, u64, u64, bool))| {
            let mut device = gpu(u32::try_from(n).unwrap());
            device.claimed = taken(gib.min(80), cores, containers);
            device.proposed = taken(proposed, 0, 1);
            device.fitness = if fit { DeviceFitness::Fit } else { DeviceFitness::Unhealthy };
            device
        };
        all.into_iter().enumerate().map(make).collect()
    })
}

proptest! {
    #[test]
    fn a_placement_never_takes_more_than_is_left_at_any_moment(
        requests in requests(), devices in devices(), order in 0..3_usize, numa in any::<bool>(), topology in any::<bool>()
    ) {
        let mut request = pod(1, requests);
        request.selection.numa_bind = numa;
        let order = vec![[GpuOrder::Binpack, GpuOrder::Spread, GpuOrder::Numa][order]];
        request.preference.gpu_policy = Some(GpuPolicy { order, idle_only: false, topology });
        let node = node(devices);
        if let Ok(Placement { claim, .. }) = placed(&request, &node) {
            let pod = GpuPod {
                uid: request.uid.clone(),
                pod: request.pod.clone(),
                arrival: None,
                requests: request.requests.clone(),
                claim: PodClaim::None,
                chooses_gpus: false,
                placed_here: false,
                started: false,
                finished: false,
            };
            prop_assert!(pod.is_whole(&claim));
            for shares in &claim {
                let mut seen: Vec<&GpuUuid> = shares.iter().map(|share| &share.device).collect();
                seen.sort();
                seen.dedup();
                prop_assert_eq!(seen.len(), shares.len(), "no GPU twice in one container");
            }
            for device in &node.devices {
                let own = demand_of(&pod, &claim, &device.uuid);
                if own.containers > 0 {
                    prop_assert!(device.fitness == DeviceFitness::Fit);
                    prop_assert!(device.claimed.memory + own.memory <= device.capacity.memory);
                    prop_assert!(device.claimed.cores + own.cores <= device.capacity.cores);
                    prop_assert!(device.claimed.containers + own.containers <= device.capacity.slots);
                    prop_assert!(!device.claimed.clashes_with(own, ALL_CORES));
                }
            }
        }
    }

    #[test]
    fn a_refusal_has_a_reason_and_placement_is_the_same_each_time(requests in requests(), devices in devices()) {
        let (request, node) = (pod(1, requests), node(devices));
        let first = placed(&request, &node);
        prop_assert_eq!(&first, &placed(&request, &node));
        if let Err(why) = first {
            prop_assert!(!why.to_string().is_empty());
            prop_assert!(why.bits() != 0);
        }
    }
}
