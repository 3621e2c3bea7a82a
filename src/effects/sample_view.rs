//! Node views for the tests of this crate: a small view with every kind of object, and large views.

pub(crate) mod profiles;

use model::cgroup::{CgroupIdentity, CgroupKind, CgroupSample, NetworkSample, Pressure, ProcessIo, Qos, RuntimeKind};
use model::claim::{ContainerClaim, DeviceShare};
use model::gpu::{
    EccErrors, GpmSample, Gpu, GpuSample, MigInstance, MigSample, MissingGpu, RemappedRows, UnidentifiedGpu,
    Violations, Xid, XidSource,
};
use model::guard::{AdmissionPolicy, PolicyGuard};
use model::hardware::{Board, Fabric, FabricHealth, FabricState, HardwareState, NvLink, PcieErrors, RetiredPages};
use model::histogram::Histogram;
use model::host::{CgroupVersion, HostFacts, HostPressure, HostSample};
use model::id::{ContainerId, ContainerKey, GpuUuid, NodeName, PodRef, PodUid, ProcessKey};
use model::incident::{GpuCondition, Incident};
use model::infiniband::InfinibandPort;
use model::limits::PodMemoryClaim;
use model::observation::{ErrorCounter, GpuSourceState};
use model::plugin::{CdiState, DeviceSlots, PluginView, PodFiles, RegistrationState, StartOutcome};
use model::pod::{PodController, PodWatchState};
use model::process::{GpuProcess, GpuProcessKind, HostProcess, ProcessOwner};
use model::reading::{MakeReading, Readings};
use model::recovery::RecoveryAction;
use model::switch::SwitchView;
use model::tally::GpuTally;
use model::time::{Monotonic, Now, WallTime};
use model::unit::*;
use model::view::{
    ContainerRates, ContainerView, GpuHealth, GpuUse, GpuView, NodeView, OverUse, PodView, PodWatchView, ProcessView,
    SoleHolder, SoleHolders,
};
use model::withheld::{WithheldDevice, WithheldReason};
use model::{Absence, Reading};
use std::sync::Arc;

/// The time of the view.
pub(crate) const NOW: Now = Now { monotonic: Monotonic(100_000_000_000), wall: WallTime(1_800_000_000_000_000) };
/// The time of the readings, half a second before [`NOW`].
const AT: Monotonic = Monotonic(99_500_000_000);
const GIB: u64 = 1 << 30;

fn m<T>(value: T) -> Reading<T> {
    Reading::Measured(value, AT)
}

/// Makes measured zeros, so that a reading that gets no value below is shown too.
struct Zero;

impl MakeReading for Zero {
    fn reading<T: Default>(&self) -> Reading<T> {
        m(T::default())
    }
}

/// A clock that always shows [`NOW`].
#[allow(dead_code, reason = "not every importer uses the time")]
pub(crate) fn clock() -> Now {
    NOW
}

/// Four GPUs: the first is held by one pod, the second is shared by two pods and a process of no pod, the third is in
/// MIG mode, and the fourth is lost. Pods with and without names, a pod on the host's network, and a container of no
/// pod.
pub(crate) fn small() -> NodeView {
    let mut train = pod(1, Some(("ml", "train-0")), Qos::Guaranteed);
    train.containers = vec![container(Some(&train), 11, Some("main"), 0), container(Some(&train), 10, None, 0)];
    train.containers[1].sandbox = true;
    hold(&mut train, (0, None), (2, 40 * GIB, 80.0));
    let mut serve_a = pod(2, Some(("ml", "serve-a")), Qos::Burstable);
    serve_a.containers = vec![container(Some(&serve_a), 21, Some("server"), 1)];
    hold(&mut serve_a, (1, None), (1, 10 * GIB, 20.0));
    let mut serve_b = pod(3, Some(("web", "serve-b")), Qos::BestEffort);
    serve_b.containers =
        vec![container(Some(&serve_b), 31, Some("server"), 2), container(Some(&serve_b), 32, Some("side\"car"), 3)];
    hold(&mut serve_b, (1, None), (1, 20 * GIB, 30.0));
    let mut mig_a = pod(4, Some(("ml", "mig-a")), Qos::Guaranteed);
    mig_a.containers = vec![container(Some(&mig_a), 41, Some("main"), 4)];
    hold(&mut mig_a, (2, Some(0)), (1, 5 * GIB, 0.0));
    mig_a.containers[0].gpus[0].sm = Reading::Absent(Absence::MigEnabled);
    mig_a.gpus[0].sm = Reading::Absent(Absence::MigEnabled);
    let mut host_network = pod(5, Some(("kube-system", "proxy")), Qos::BestEffort);
    host_network.network = Reading::Absent(Absence::HostNetwork);
    host_network.containers = vec![container(Some(&host_network), 51, Some("proxy"), 5)];
    host_network.containers[0].image = None;
    let mut nameless = pod(6, None, Qos::BestEffort);
    nameless.containers = vec![container(Some(&nameless), 61, None, 6)];

    let mut view = empty();
    view.gpus = vec![
        with_gpu(0, vec![process(&train, 1001, 25 * GIB, 50.0), process(&train, 1002, 15 * GIB, 30.0)]),
        with_gpu(
            1,
            vec![process(&serve_a, 2001, 10 * GIB, 20.0), process(&serve_b, 3001, 20 * GIB, 30.0), stranger(4001)],
        ),
        divided(2, &mig_a),
        lost(3),
    ];
    add_unlisted_gpus(&mut view);
    add_other_objects(&mut view, [&train, &serve_a, &serve_b]);
    view.gpus[0].holders = vec![train.uid.clone()];
    view.gpus[0].sole_holders.gpu = Some(sole(&train));
    view.gpus[2].sole_holders.instances = vec![(7, sole(&mig_a))];
    view.gpus[1].holders = vec![serve_a.uid.clone(), serve_b.uid.clone()];
    view.gpus[1].strangers = 1;
    view.gpus[1].health = GpuHealth::Degraded;
    view.gpus[1].condition = GpuCondition {
        incidents: vec![(Incident::Xid(48), AT)],
        fit_at: Some(Monotonic(NOW.monotonic.0 + 90_000_000_000)),
        awaits_reset: false,
    };
    view.gpus[1].unattributed_memory = m(Bytes(2 * GIB));
    view.gpus[1].unattributed_sm = m(Percent(5.0));
    view.gpus[2].holders = vec![mig_a.uid.clone()];
    view.plugin = Some(Arc::new(plugin(&view)));
    view.processes = Arc::from([
        host_process(1001, train.containers[0].cgroup.clone()),
        host_process(1002, train.containers[0].cgroup.clone()),
    ]);
    view.containers = vec![container(None, 99, None, 7)];
    view.containers[0].network = m(network(7));
    add_claims(&mut view, &serve_a, &mig_a);
    // Ordered by namespace, name, UID; pods without a name first.
    view.pods = vec![nameless, host_network, mig_a, serve_a, train, serve_b];
    view
}

/// Adds a GPU that cannot be identified, and a GPU that NVML does not list.
fn add_unlisted_gpus(view: &mut NodeView) {
    view.gpus_unidentified =
        vec![UnidentifiedGpu { index: 4, pci_bus_id: m("0000:c1:00.0".into()), why: Absence::GpuLost }];
    view.gpus_missing =
        vec![MissingGpu { pci_bus_id: "0000:c2:00.0".into(), on_bus: true, in_driver: false, bound_to: None }];
}

/// The pod as the only holder, with its container `main`.
fn sole(pod: &PodView) -> SoleHolder {
    SoleHolder { pod: pod.uid.clone(), container: Some("main".into()) }
}

/// Adds all objects except GPUs and pods: InfiniBand ports, owners, labels, tallies and NVSwitches.
fn add_other_objects(view: &mut NodeView, [train, serve_a, serve_b]: [&PodView; 3]) {
    view.infiniband = ports();
    let owner = |kind: &str, name: &str| PodController {
        api_version: "batch/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: "u".into(),
    };
    view.pod_owners = Arc::from([
        (train.uid.clone(), owner("Job", "train")),
        (serve_a.uid.clone(), owner("ReplicaSet", "serve-5d4f")),
    ]);
    view.pod_labels = Arc::from([(
        train.uid.clone(),
        vec![("app.kubernetes.io/name".into(), "train".into()), ("team".into(), "vision".into())],
    )]);
    view.tallies = Arc::from([tally(train, 0, 7200), tally(serve_a, 1, 90), tally(serve_b, 1, 45)]);
    view.switches =
        vec![SwitchView { pci_bus_id: "00000000:C4:00.0".into(), sxids: vec![(22_013, false, 3), (20_034, true, 1)] }];
}

fn tally(pod: &PodView, gpu: u32, seconds: u64) -> GpuTally {
    let (held, energy) = (Nanos(seconds * 1_000_000_000 + 500_000_000), Millijoules(seconds * 300_250));
    GpuTally { pod: pod.uid.clone(), gpu: uuid(gpu), held, energy }
}

/// Adds memory claims of two pods. The first pod holds more memory than it claims, the second does not.
fn add_claims(view: &mut NodeView, over: &PodView, within: &PodView) {
    let add_claims = |pod: &PodView, device: &GpuUuid, memory: u64| PodMemoryClaim {
        pod: pod.uid.clone(),
        device: device.clone(),
        memory: Bytes(memory),
    };
    let (with_gpu, instance) = (over.gpus[0].gpu.clone(), within.gpus[0].mig.clone().unwrap());
    view.memory_claims = Arc::from([add_claims(over, &with_gpu, 8 * GIB), add_claims(within, &instance, 10 * GIB)]);
    let pod = over.uid.clone();
    view.over_uses = vec![OverUse {
        pod,
        device: with_gpu,
        claimed: Bytes(8 * GIB),
        used: Reading::Measured(Bytes(10 * GIB), AT),
        lasted: std::time::Duration::ZERO,
    }];
}

/// `gpus` healthy GPUs and `pods` pods with `containers` containers each. Every pod uses one GPU; the pods are spread
/// over the GPUs in turn.
#[allow(dead_code, reason = "not every importer needs a large view")]
pub(crate) fn large(gpus: u32, pods: u32, containers: u32) -> NodeView {
    let mut view = empty();
    let mut lists: Vec<Vec<GpuProcess>> = (0..gpus).map(|_| Vec::new()).collect();
    let mut holders: Vec<Vec<PodUid>> = (0..gpus).map(|_| Vec::new()).collect();
    for number in 0..pods {
        let mut pod = pod(number, Some(("load", &format!("pod-{number:05}"))), Qos::Burstable);
        pod.containers = (0..containers)
            .map(|index| container(Some(&pod), 1000 + number * containers + index, Some(&format!("c{index}")), index))
            .collect();
        if gpus > 0 && containers > 0 {
            let gpu = number % gpus;
            hold(&mut pod, (gpu, None), (1, GIB, 2.0));
            lists[gpu as usize].push(process(&pod, 10_000 + number, GIB, 2.0));
            holders[gpu as usize].push(pod.uid.clone());
        }
        view.pods.push(pod);
    }
    view.gpus = (0..gpus).zip(lists).map(|(index, list)| with_gpu(index, list)).collect();
    for (gpu, holders) in view.gpus.iter_mut().zip(holders) {
        gpu.holders = holders;
    }
    view
}

/// The view of the device plugin. The first GPU is healthy, the second cordoned, the last lost; another owner holds the
/// last GPU.
fn plugin(view: &NodeView) -> PluginView {
    let claim = |pod: u32, container: &str, device: &GpuUuid, gib: Option<u64>| ContainerClaim {
        holder: ContainerKey { pod: pod_uid(pod), container: container.into() },
        device_shares: vec![DeviceShare {
            device: device.clone(),
            memory: gib.map(|gib| Bytes(gib * GIB)),
            cores: Some(model::unit::CorePercent(30)),
        }],
    };
    let slots = |gpu: usize, free, used, unhealthy, used_unhealthy| DeviceSlots {
        device: view.gpus[gpu].gpu.uuid.clone(),
        free,
        used,
        unhealthy,
        used_unhealthy,
        claims: used + used_unhealthy,
        healthy: gpu != 3,
        cordoned: gpu == 1,
        taken: gpu == 3,
    };
    let mut start = Histogram { sum: std::time::Duration::from_millis(21), ..Histogram::default() };
    start.counts[6] = 3;
    PluginView {
        resource: "nvidia.com/gpu".into(),
        registration: RegistrationState::Registered,
        registrations: 2,
        slots: [slots(0, 9, 1, 0, 0), slots(1, 0, 2, 8, 0), slots(3, 0, 0, 9, 1)].into(),
        claims: [
            claim(1, "main", &uuid(0), Some(48)),
            claim(2, "server", &uuid(1), Some(16)),
            claim(3, "server", &uuid(1), Some(24)),
            claim(3, "side\"car", &uuid(0), None),
            claim(4, "main", &mig_uuid(0), Some(10)),
            claim(9, "waiting", &uuid(1), Some(8)),
        ]
        .into(),
        allocations: 4,
        starts: vec![(StartOutcome::Filled, 3), (StartOutcome::Refused("DoesNotFit"), 1)],
        waited: vec![("Checkpoint", 1)],
        differing: 1,
        without_gpu: 1,
        withheld: Arc::from([WithheldDevice {
            index: 3,
            device: Some(uuid(3)),
            why: WithheldReason::NoMemorySize(Absence::NotSupported),
        }]),
        moved: 2,
        files: [PodFiles {
            uid: pod_uid(1),
            pod: PodRef { namespace: "ml".into(), name: "train-0".into() },
            bytes: Bytes(2 << 20),
            files: 3,
            over: false,
        }]
        .into(),
        cdi: CdiState::Works,
        lacks: None,
        guards: vec![(AdmissionPolicy::Nodes, PolicyGuard::InForce), (AdmissionPolicy::Pods, PolicyGuard::Open)],
        allocate: Histogram { sum: std::time::Duration::from_micros(80), ..start },
        start,
    }
}

fn empty() -> NodeView {
    let mut view = NodeView::empty(NodeName::parse("node-a").unwrap(), NOW);
    view.sequence = 7;
    view.driver = Some("570.86.15".into());
    view.gpu_source = GpuSourceState::Working {
        driver: "570.86.15".into(),
        nvml: "12.570.86.15".into(),
        cuda: Some("12.8".into()),
        simulated: false,
    };
    view.facts =
        HostFacts { kernel: "6.12.0".into(), cgroups: m(CgroupVersion::V2), private_cgroup_namespace: m(false) };
    view.host = host();
    view.pass_us = 12_200;
    view.deadlines_missed = 1;
    view.troubles = vec![(ErrorCounter::ProcUnreadable, 2), (ErrorCounter::CriFailed, 1)];
    let watch = PodWatchState { last_received: Some(Monotonic(NOW.monotonic.0 - 12_000_000_000)), broken: None };
    view.pod_watch = Some(PodWatchView { watch, pods: 3, ..PodWatchView::default() });
    view
}

fn host() -> HostSample {
    HostSample {
        cpu_user: m(Nanos(5_000_000_000_000)),
        cpu_system: m(Nanos(1_000_000_000_000)),
        cpu_idle: m(Nanos(90_000_000_000_000)),
        cpu_iowait: m(Nanos(10_000_000_000)),
        cpu_steal: m(Nanos(0)),
        processors: m(Count(64)),
        load: m([1.5, 1.25, 1.0]),
        memory_total: m(Bytes(512 * GIB)),
        memory_available: m(Bytes(400 * GIB)),
        memory_working_set: m(Bytes(112 * GIB)),
        memory_rss: m(Bytes(90 * GIB)),
        memory_cache: m(Bytes(50 * GIB)),
        swap_used: m(Bytes(0)),
        oom_kills: m(Count(3)),
        disk_read: m(Bytes(10 * GIB)),
        disk_write: m(Bytes(20 * GIB)),
        disk_reads: m(Count(1000)),
        disk_writes: m(Count(2000)),
        network: m(NetworkSample {
            rx_bytes: Bytes(30 * GIB),
            tx_bytes: Bytes(40 * GIB),
            rx_packets: Count(3000),
            tx_packets: Count(4000),
            ..NetworkSample::default()
        }),
        tasks: m(Count(1234)),
        processes: m(Count(321)),
        pressure: m(HostPressure {
            cpu_waiting: Nanos(5_000_000_000),
            memory_waiting: Nanos(4_000_000_000),
            memory_stalled: Nanos(3_000_000_000),
            io_waiting: Nanos(2_000_000_000),
            io_stalled: Nanos(1_000_000_000),
        }),
    }
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0000000{index:x}-1111-2222-3333-444444444444")).unwrap()
}

fn gpu(index: u32, model: &str) -> Gpu {
    Gpu {
        uuid: uuid(index),
        index,
        minor: m(index),
        model: model.into(),
        pci_bus_id: m(format!("00000000:{:02X}:00.0", 0x18 + index).into()),
        numa_node: m(index / 2),
        architecture: m("Hopper".into()),
        compute: Reading::NOT_YET,
        memory_total: m(Bytes(80 * GIB)),
        memory_kind: model::gpu::MemoryKind::Own,
        power_limit: m(Watts(700.0)),
        mig_mode: m(false),
        mig: m(Vec::new()),
        links: Vec::new(),
        nvlinks_active: m(18),
        board: board(index),
    }
}

fn board(index: u32) -> Board {
    Board {
        serial: m(format!("165002300000{index}").into()),
        vbios: m("96.00.89.00.01".into()),
        power_default: m(Watts(650.0)),
        power_least: m(Watts(200.0)),
        power_most: m(Watts(750.0)),
        pcie_generation_most: m(5),
        pcie_width_most: m(16),
        pci_path: m(format!("pci0000:15/0000:15:01.0/0000:{:02x}:00.0", 0x18 + index).into()),
    }
}

/// Two ports: the first shares a PCIe switch with all GPUs, and the second is near no GPU.
fn ports() -> Arc<[InfinibandPort]> {
    let port = |device: &str, path: &str, from: u64| {
        let count = |more: u64| m(Count(from + more));
        InfinibandPort {
            device: device.into(),
            number: 1,
            pci_path: m(path.into()),
            numa_node: m(9),
            active: m(from < 200),
            received: m(Bytes(from * 1000)),
            sent: m(Bytes(from * 2000)),
            packets_received: count(1),
            packets_sent: count(2),
            receive_errors: count(3),
            send_discards: count(4),
            symbol_errors: count(5),
            recoveries: count(6),
            downs: count(7),
        }
    };
    Arc::from([
        port("mlx5_0", "pci0000:15/0000:15:01.0/0000:20:00.0", 100),
        port("mlx5_1", "pci0000:97/0000:97:01.0/0000:98:00.0", 200),
    ])
}

/// Rare readings with two NVLinks, the second of which is down. The GPU counts all kinds of link errors, which no
/// real GPU does.
fn hardware() -> HardwareState {
    let errors = |from: u64| std::array::from_fn(|place| m(Count(from + place as u64)));
    let fabric = Fabric {
        state: FabricState::Completed,
        outcome: 0,
        cluster: 0xc1_05_7e_12,
        clique: 7,
        health: 0b10_1001 | 1 << 8,
        summary: Some(FabricHealth::LimitedCapacity),
    };
    HardwareState {
        pcie_generation: m(4),
        pcie_width: m(8),
        pcie_errors: PcieErrors { correctable: m(Count(31)), nonfatal: m(Count(1)), fatal: m(Count(0)) },
        retired: RetiredPages { corrected: m(Count(2)), uncorrected: m(Count(1)), pending: m(true) },
        nvlinks: m(Arc::from([
            NvLink { number: 0, up: true, errors: errors(10) },
            NvLink { number: 1, up: false, errors: errors(20) },
        ])),
        fabric: m(fabric),
    }
}

fn with_gpu(index: u32, processes: Vec<GpuProcess>) -> GpuView {
    let held: u64 = processes.iter().filter_map(|process| process.memory_used.get()).map(|bytes| bytes.0).sum();
    let ecc = EccErrors { corrected: m(Count(3)), uncorrected: m(Count(0)) };
    let sample = GpuSample {
        memory_used: m(Bytes(held)),
        memory_reserved: m(Bytes(GIB / 2)),
        memory_free: m(Bytes((80 * GIB).saturating_sub(GIB / 2 + held))),
        utilization: m(Percent(85.0)),
        memory_copy: m(Percent(40.0)),
        encoder: m(Percent(12.0)),
        decoder: m(Percent(7.0)),
        power: m(Watts(512.5)),
        energy: m(Millijoules(1_234_567_890)),
        clock_sm: m(Megahertz(1980)),
        clock_memory: m(Megahertz(2619)),
        throttle_reasons: m(4),
        violations: violations(),
        temperature: m(Celsius(61)),
        temperature_memory: m(Celsius(70)),
        pcie_tx: m(BytesPerSecond(1.5e9)),
        pcie_rx: m(BytesPerSecond(2.5e9)),
        pcie_replays: m(Count(0)),
        ecc_volatile: ecc,
        ecc_aggregate: ecc,
        remapped: RemappedRows {
            correctable: m(Count(1)),
            uncorrectable: m(Count(0)),
            pending: m(false),
            failed: m(false),
        },
        recovery: m(RecoveryAction::None),
        persistence: m(true),
        nvlink_bytes: m(Bytes(7 * GIB)),
        gpm: gpm(0.75),
        hardware: if index == 0 { hardware() } else { HardwareState::absent(Absence::NotSupported) },
        ..GpuSample::made_by(&Zero)
    };
    let view = view_of(gpu(index, "NVIDIA H100 80GB HBM3"), sample, GpuHealth::Healthy, m(processes.into()));
    GpuView { nvlink_rate: m(BytesPerSecond(2.048e9)), ..view }
}

/// Violations with a different value in every field.
fn violations() -> Violations {
    Violations {
        power: m(Nanos(1_500_000_000)),
        thermal: m(Nanos(2_500_000_000)),
        sync_boost: m(Nanos(3_500_000_000)),
        board_limit: m(Nanos(4_500_000_000)),
        low_utilization: m(Nanos(5_500_000_000)),
        reliability: m(Nanos(6_500_000_000)),
        application_clocks: m(Nanos(7_500_000_000)),
        base_clocks: m(Nanos(8_500_000_000)),
    }
}

fn view_of(gpu: Gpu, sample: GpuSample, health: GpuHealth, processes: Reading<Arc<[GpuProcess]>>) -> GpuView {
    GpuView {
        gpu: Arc::new(gpu),
        sample: Arc::new(sample),
        health,
        condition: GpuCondition::default(),
        processes,
        processes_left_out: 0,
        holders: Vec::new(),
        sole_holders: SoleHolders::default(),
        nvlink_rate: Reading::NOT_YET,
        strangers: 0,
        memory_used_now: Reading::NOT_YET,
        listed_memory: m(Bytes(0)),
        unattributed_memory: m(Bytes(0)),
        unattributed_sm: m(Percent(0.0)),
        last_xid: None,
        xids: Vec::new(),
        xid_count: 0,
        implausible: Vec::new(),
    }
}

/// A GPM sample with a different value in every field, so that a test fails if two metrics are swapped.
fn gpm(active: f64) -> GpmSample {
    GpmSample {
        graphics_active: m(Ratio(active)),
        sm_active: m(Ratio(active / 2.0)),
        sm_occupancy: m(Ratio(active / 4.0)),
        tensor_active: m(Ratio(active / 3.0)),
        dram_active: m(Ratio(active / 5.0)),
        fp64_active: m(Ratio(active / 8.0)),
        fp32_active: m(Ratio(active / 6.0)),
        fp16_active: m(Ratio(active / 10.0)),
        pcie_tx: m(BytesPerSecond(active * 1.0e9)),
        pcie_rx: m(BytesPerSecond(active * 2.0e9)),
        nvlink_tx: m(BytesPerSecond(active * 3.0e9)),
        nvlink_rx: m(BytesPerSecond(active * 4.0e9)),
    }
}

fn mig_uuid(slice: u32) -> GpuUuid {
    GpuUuid::parse(&format!("MIG-aaaaaaa{slice}-1111-2222-3333-444444444444")).unwrap()
}

fn divided(index: u32, holder: &PodView) -> GpuView {
    let mut view = with_gpu(index, vec![GpuProcess { mig: Some(mig_uuid(0)), ..process(holder, 5001, 5 * GIB, 0.0) }]);
    let mut known = gpu(index, "NVIDIA A100-SXM4-80GB");
    known.mig_mode = m(true);
    known.mig = m(vec![instance(0, 7, "1g.10gb", 10 * GIB), instance(1, 3, "2g.20gb", 20 * GIB)]);
    let mut sample = (*view.sample).clone();
    sample.utilization = Reading::Absent(Absence::MigEnabled);
    sample.gpm = GpmSample::absent(Absence::NotThisArchitecture);
    sample.mig = vec![slice(0, 5 * GIB, 10 * GIB), slice(1, 0, 20 * GIB)];
    sample.mig[1].gpm = GpmSample::absent(Absence::NotThisArchitecture);
    view.gpu = Arc::new(known);
    view.sample = Arc::new(sample);
    view
}

fn instance(number: u32, gpu_instance: u32, profile: &str, total: u64) -> MigInstance {
    MigInstance {
        uuid: mig_uuid(number),
        index: number,
        gpu_instance,
        compute_instance: 0,
        profile: profile.into(),
        memory_total: m(Bytes(total)),
    }
}

fn slice(number: u32, used: u64, total: u64) -> MigSample {
    MigSample {
        uuid: mig_uuid(number),
        memory_used: m(Bytes(used)),
        memory_free: m(Bytes(total - used)),
        memory_reserved: m(Bytes(0)),
        gpm: gpm(0.5),
    }
}

fn lost(index: u32) -> GpuView {
    let mut known = gpu(index, "Tesla T4");
    known.power_limit = Reading::Absent(Absence::GpuLost);
    known.nvlinks_active = Reading::Absent(Absence::NotSupported);
    let why = Absence::GpuLost;
    let mut view = view_of(known, GpuSample::absent(why), GpuHealth::Unhealthy, Reading::Absent(why));
    view.nvlink_rate = Reading::Absent(why);
    view.unattributed_memory = Reading::Absent(why);
    view.unattributed_sm = Reading::Absent(why);
    (view.xids, view.xid_count) = (vec![(48, 1), (79, 2), (95, 0)], 3);
    view.implausible = vec![("power_watts", 2), ("utilization_ratio", 5)];
    view.condition.incidents = vec![(Incident::Silent(why), AT), (Incident::Xid(79), AT)];
    view.last_xid = Some(Xid {
        gpu: Some(uuid(index)),
        pci_bus_id: None,
        mig: None,
        code: 79,
        severity: None,
        pid: None,
        pod: None,
        at: AT,
        source: XidSource::Nvml,
    });
    view
}

fn process(pod: &PodView, pid: u32, memory: u64, sm: f64) -> GpuProcess {
    GpuProcess {
        pid,
        key: Some(ProcessKey { pid, start_ticks: 4000 }),
        command: "python3".into(),
        owner: ProcessOwner::Cgroup(pod.containers[0].cgroup.clone()),
        kind: GpuProcessKind::Compute,
        mig: None,
        memory_used: m(Bytes(memory)),
        sm: m(Percent(sm)),
        encoder: m(Percent(0.0)),
        decoder: m(Percent(0.0)),
    }
}

fn stranger(pid: u32) -> GpuProcess {
    GpuProcess {
        pid,
        key: Some(ProcessKey { pid, start_ticks: 10 }),
        command: "Xorg".into(),
        owner: ProcessOwner::Host,
        kind: GpuProcessKind::Graphics,
        mig: None,
        memory_used: m(Bytes(2 * GIB)),
        sm: m(Percent(5.0)),
        encoder: m(Percent(0.0)),
        decoder: m(Percent(0.0)),
    }
}

fn host_process(pid: u32, cgroup: Arc<CgroupIdentity>) -> ProcessView {
    ProcessView {
        process: HostProcess {
            key: ProcessKey { pid, start_ticks: 4000 },
            command: "python3".into(),
            owner: ProcessOwner::Cgroup(cgroup),
            cpu_user: Nanos(3_000_000_000),
            cpu_system: Nanos(500_000_000),
            rss: Bytes(3 * GIB),
            threads: Count(42),
            read_bytes: m(Bytes(1000)),
            write_bytes: Reading::Absent(Absence::NeedsPtrace),
            at: AT,
        },
        cpu: m(Cores(0.75)),
    }
}

fn pod_uid(number: u32) -> PodUid {
    PodUid::parse(&format!("{number:08x}-0d2c-4b7f-9a51-2f1f6a1f8d11")).unwrap()
}

fn pod(number: u32, name: Option<(&str, &str)>, qos: Qos) -> PodView {
    let uid = pod_uid(number);
    let path = format!("/kubepods.slice/kubepods-pod{}.slice", uid.as_str().replace('-', "_"));
    PodView {
        cgroup: Some(Arc::new(CgroupIdentity { path: path.into(), kind: CgroupKind::Pod { uid: uid.clone(), qos } })),
        uid,
        name: name.map(|(namespace, name)| PodRef { namespace: namespace.into(), name: name.into() }),
        qos: Some(qos),
        sample: counted(number + 100),
        rates: ContainerRates::default(),
        network: m(network(number)),
        containers: Vec::new(),
        gpus: Vec::new(),
    }
}

fn container(pod: Option<&PodView>, number: u32, name: Option<&str>, spread: u32) -> ContainerView {
    let id = ContainerId::parse(&format!("{number:012x}{:052x}", 7)).unwrap();
    let parent = pod.and_then(|pod| pod.cgroup.as_ref()).map_or("/system.slice", |cgroup| &cgroup.path);
    let kind = CgroupKind::Container {
        pod: pod.map(|pod| (pod.uid.clone(), pod.qos.unwrap_or(Qos::BestEffort))),
        id: id.clone(),
        runtime: RuntimeKind::Containerd,
    };
    ContainerView {
        cgroup: Arc::new(CgroupIdentity { path: format!("{parent}/cri-containerd-{id}.scope").into(), kind }),
        id,
        name: name.map(Into::into),
        sandbox: false,
        image: Some("registry.example/team/app:1.2".into()),
        sample: counted(spread),
        rates: ContainerRates::default(),
        network: Reading::Absent(Absence::NotSupported),
        gpus: Vec::new(),
        devices: Vec::new(),
        holds: Vec::new(),
    }
}

/// Makes the pod's first container use a GPU, or a MIG instance of it, with these processes, memory and SM use.
fn hold(pod: &mut PodView, (gpu, mig): (u32, Option<u32>), (processes, memory, sm): (u32, u64, f64)) {
    let share =
        GpuUse { gpu: uuid(gpu), mig: mig.map(mig_uuid), processes, memory_used: m(Bytes(memory)), sm: m(Percent(sm)) };
    pod.gpus.push(share.clone());
    pod.containers[0].gpus.push(share);
}

fn counted(spread: u32) -> CgroupSample {
    let spread = u64::from(spread);
    CgroupSample {
        cpu_total: m(Nanos(10_000_000_000 + spread * 1_000_000_000)),
        cpu_user: m(Nanos(7_000_000_000 + spread * 1_000_000_000)),
        cpu_system: m(Nanos(3_000_000_000)),
        cfs_periods: m(Count(100)),
        cfs_throttled_periods: m(Count(5)),
        cfs_throttled: m(Nanos(250_000_000)),
        cpu_limit: m(Some(2.5)),
        memory_usage: m(Bytes(600 << 20)),
        memory_working_set: m(Bytes((500 + spread) << 20)),
        memory_rss: m(Bytes(400 << 20)),
        memory_cache: m(Bytes(150 << 20)),
        memory_swap: m(Bytes(30 << 20)),
        memory_limit: m(if spread % 2 == 0 { Some(Bytes(GIB)) } else { None }),
        oom_kills: m(Count(0)),
        io_read: m(Bytes(4096 * spread)),
        io_write: m(Bytes(8192)),
        io_reads: m(Count(spread)),
        io_writes: m(Count(2)),
        process_io: m(ProcessIo { read: Bytes(4096), write: Bytes(8192) }),
        tasks: m(Count(12)),
        processes: m(Count(3)),
        pressure: m(Pressure { cpu_waiting: Nanos(1_500_000_000), ..Pressure::default() }),
    }
}

fn network(spread: u32) -> NetworkSample {
    NetworkSample {
        rx_bytes: Bytes(1_000_000 + u64::from(spread)),
        tx_bytes: Bytes(2_000_000),
        rx_packets: Count(1000),
        tx_packets: Count(2000),
        rx_errors: Count(1),
        tx_errors: Count(2),
        rx_dropped: Count(3),
        tx_dropped: Count(4),
    }
}
