use super::*;
use crate::fixtures;
use model::claim::{ContainerClaim, DeviceShare};
use model::gpu::GpuSample;
use model::histogram::Histogram;
use model::id::ContainerKey;
use model::plugin::{CdiState, RegistrationState};
use model::unit::{Bytes, CorePercent, Percent};
use model::view::GpuUse;
use proptest::prelude::*;

fn at(seconds: u64) -> Monotonic {
    Monotonic(seconds * 1_000_000_000)
}

fn uid(number: u8) -> PodUid {
    PodUid::parse(&format!("{number:032x}")).unwrap()
}

fn gpu_uuid() -> GpuUuid {
    GpuUuid::parse("GPU-0").unwrap()
}

/// A GPU with this energy counter and these holders; `strangers` is the SM use of its strangers.
fn gpu(joules: Option<u64>, holders: &[u8], strangers: f64) -> GpuView {
    let energy = joules.map_or(Reading::NOT_YET, |joules| Reading::Measured(Millijoules(joules * 1000), at(1)));
    GpuView {
        sample: Arc::new(GpuSample { energy, ..GpuSample::default() }),
        holders: holders.iter().map(|number| uid(*number)).collect(),
        strangers: u32::from(strangers > 0.0),
        unattributed_sm: Reading::Measured(Percent(strangers), at(1)),
        ..fixtures::view(fixtures::gpu(0))
    }
}

/// A pod whose processes use this much of the GPU.
fn pod(number: u8, sm: f64) -> PodView {
    let mut pod = crate::pods::bare(&uid(number));
    let sm = Reading::Measured(Percent(sm), at(1));
    pod.gpus = vec![GpuUse { gpu: gpu_uuid(), mig: None, processes: 1, memory_used: Reading::NOT_YET, sm }];
    pod
}

/// Claims on the GPU: pod, memory, cores.
fn claims(of: &[(u8, Option<u64>, Option<u32>)]) -> PluginView {
    let claim = |(pod, memory, cores): &(u8, Option<u64>, Option<u32>)| ContainerClaim {
        holder: ContainerKey { pod: uid(*pod), container: "main".into() },
        device_shares: vec![DeviceShare {
            device: gpu_uuid(),
            memory: memory.map(Bytes),
            cores: cores.map(CorePercent),
        }],
    };
    PluginView {
        resource: "nvidia.com/gpu".into(),
        registration: RegistrationState::Follows,
        registrations: 0,
        slots: Arc::default(),
        claims: of.iter().map(claim).collect(),
        allocations: 0,
        starts: Vec::new(),
        waited: Vec::new(),
        differing: 0,
        without_gpu: 0,
        withheld: Arc::default(),
        moved: 0,
        files: Arc::default(),
        cdi: CdiState::Works,
        lacks: None,
        guards: Vec::new(),
        allocate: Histogram::default(),
        start: Histogram::default(),
    }
}

/// Seconds and joules of each pod.
fn seconds_and_joules(tallies: &Tallies) -> Vec<(PodUid, u64, u64)> {
    let whole = |tally: &GpuTally| (tally.pod.clone(), tally.held.0 / 1_000_000_000, tally.energy.0 / 1000);
    tallies.sums().iter().map(whole).collect()
}

fn begun(gpus: &[GpuView]) -> Tallies {
    let mut tallies = Tallies::default();
    tallies.pass(gpus, &[], None, at(1));
    tallies
}

#[test]
fn time_is_divided_by_claims_and_energy_by_use() {
    let pods = [pod(1, 60.0), pod(2, 20.0)];
    let gpus = |joules| [gpu(Some(joules), &[1, 2], 20.0)];
    for (name, claims, seconds) in [
        ("by cores", claims(&[(1, Some(10), Some(75)), (2, Some(10), Some(25))]), [30, 10]),
        ("by memory where one has no cores", claims(&[(1, Some(10), None), (2, Some(30), Some(25))]), [10, 30]),
        ("equally where one has neither", claims(&[(1, None, None), (2, Some(30), None)]), [20, 20]),
        ("equally without claims", claims(&[]), [20, 20]),
    ] {
        let mut tallies = begun(&gpus(1000));
        tallies.pass(&gpus(2000), &pods, Some(&claims), at(41));
        // A fifth of the energy is the stranger's, so no pod gets it.
        let expected = [(uid(1), seconds[0], 600), (uid(2), seconds[1], 200)];
        assert_eq!(seconds_and_joules(&tallies), expected, "{name}");
    }
}

#[test]
fn the_energy_of_an_idle_gpu_is_divided_by_the_claims_of_its_pods() {
    let claims = claims(&[(1, None, Some(75)), (2, None, Some(25))]);
    let gpus = |joules| [gpu(Some(joules), &[1, 2], 0.0)];
    let mut tallies = begun(&gpus(0));
    tallies.pass(&gpus(400), &[pod(1, 0.0), pod(2, 0.0)], Some(&claims), at(5));
    assert_eq!(seconds_and_joules(&tallies), [(uid(1), 3, 300), (uid(2), 1, 100)]);
    // The use of a holder that the view does not have is not known either.
    tallies.pass(&gpus(800), &[pod(1, 50.0)], Some(&claims), at(9));
    assert_eq!(seconds_and_joules(&tallies), [(uid(1), 6, 600), (uid(2), 2, 200)]);
}

#[test]
fn use_that_was_not_observed_belongs_to_no_pod() {
    let held = |joules| [gpu(joules, &[1], 0.0)];
    let pods = [pod(1, 10.0)];
    let mut tallies = begun(&held(Some(1000)));
    tallies.pass(&held(Some(500)), &pods, None, at(2));
    assert_eq!(seconds_and_joules(&tallies), [(uid(1), 1, 0)], "the driver was loaded again");
    tallies.pass(&held(None), &pods, None, at(3));
    tallies.pass(&held(Some(900)), &pods, None, at(4));
    assert_eq!(seconds_and_joules(&tallies), [(uid(1), 3, 0)], "the span has no first reading");
    tallies.pass(&held(Some(9000)), &pods, None, at(4000));
    assert_eq!(seconds_and_joules(&tallies), [(uid(1), 3, 0)], "the machine slept");
    tallies.pass(&[gpu(Some(9900), &[], 0.0)], &pods, None, at(4001));
    assert_eq!(seconds_and_joules(&tallies), [(uid(1), 3, 0)], "no pod held the GPU");
}

#[test]
fn a_pod_that_is_gone_is_forgotten_after_a_while() {
    let held = [gpu(Some(0), &[1], 0.0)];
    let mut tallies = begun(&held);
    tallies.pass(&held, &[pod(1, 0.0)], None, at(2));
    let free = [gpu(Some(0), &[], 0.0)];
    tallies.pass(&free, &[], None, at(3));
    tallies.pass(&free, &[], None, at(600));
    assert_eq!(seconds_and_joules(&tallies).len(), 1, "an agent that has just started does not see the pod yet either");
    tallies.pass(&free, &[], None, at(604));
    assert!(seconds_and_joules(&tallies).is_empty());
}

#[test]
fn the_number_of_sums_is_bounded() {
    let holders = (0..MAX_TALLIES + 3).map(|number| PodUid::parse(&format!("{number:032x}")).unwrap());
    let crowded = [GpuView { holders: holders.collect(), ..gpu(None, &[], 0.0) }];
    let mut tallies = begun(&crowded);
    tallies.pass(&crowded, &[], None, at(2));
    assert_eq!((tallies.sums().len(), tallies.left_out()), (MAX_TALLIES, 3));
}

proptest! {
    /// Whatever the GPUs report: no sum falls, and all holders together never get more than there was.
    #[test]
    fn sums_never_fall_and_never_exceed_the_time_and_energy_of_the_gpu(
        steps in proptest::collection::vec((0u64..100, any::<Option<u16>>(), 0u8..4, -10.0f64..200.0, 0.0f64..100.0), 1..40),
    ) {
        let mut tallies = begun(&[gpu(Some(0), &[], 0.0)]);
        let (mut now, mut drawn, mut before) = (1u64, 0u64, Vec::new());
        let mut last = Some(0u64);
        for (pause, joules, holders, sm, strangers) in steps {
            now += pause;
            let joules = joules.map(u64::from);
            let holders: Vec<u8> = (1..=holders).collect();
            let pods: Vec<PodView> = holders.iter().map(|number| pod(*number, sm)).collect();
            tallies.pass(&[gpu(joules, &holders, strangers)], &pods, None, at(now));
            drawn += joules.zip(last).map_or(0, |(joules, last)| joules.saturating_sub(last));
            last = joules;
            let sums = tallies.sums();
            let find = |tally: &GpuTally| sums.iter().find(|other| other.pod == tally.pod);
            for tally in &before {
                // A pod whose sum was forgotten starts again at 0.
                if let Some(after) = find(tally) {
                    prop_assert!(after.held.0 >= tally.held.0 && after.energy.0 >= tally.energy.0);
                }
            }
            prop_assert!(sums.iter().map(|tally| tally.held.0).sum::<u64>() <= (now - 1) * 1_000_000_000);
            prop_assert!(sums.iter().map(|tally| tally.energy.0).sum::<u64>() <= drawn * 1000);
            before = sums.to_vec();
        }
    }
}
