//! A test node for `top`. It is a [`NodeView`], converted by the API's own code, so the snapshot is the same as an
//! agent's answer.

mod load;

use crate::top::state::{Input, State};
use model::cgroup::{CgroupIdentity, CgroupKind, CgroupSample, NetworkSample, Qos, RuntimeKind};
use model::gpu::{GpmSample, Gpu, GpuSample, MigInstance, MigSample};
use model::host::{HostFacts, HostSample};
use model::id::{ContainerId, GpuUuid, NodeName, PodRef, PodUid, ProcessKey};
use model::limits::PodMemoryClaim;
use model::observation::GpuSourceState;
use model::process::{GpuProcess, GpuProcessKind, HostProcess, ProcessOwner};
use model::time::{Monotonic, Now, WallTime};
use model::unit::{Bytes, BytesPerSecond, Celsius, Cores, Count, Megahertz, Nanos, Percent, Ratio, Watts};
use model::view::{
    ContainerRates, ContainerView, GpuHealth, GpuUse, GpuView, HostRates, NodeView, PodView, ProcessView, SoleHolders,
};
use model::{Absence, Reading};
use std::sync::Arc;
use std::time::Duration;
use wire::api::Snapshot;
use wire::api::process_owner::OwnerNames;
use wire::api::reading::ReadingAges;
use wire::api::{ViewHeadJson, gpus, node, pods, processes};

const NOW: Now = Now { monotonic: Monotonic(1_000_400_000_000), wall: WallTime(1_760_000_000_000_000) };
const GIB: u64 = 1 << 30;

fn read<T>(value: T) -> Reading<T> {
    Reading::Measured(value, Monotonic(1_000_000_000_000))
}

fn uuid(text: &str) -> GpuUuid {
    GpuUuid::parse(text).unwrap()
}

/// The UID of pod `n`.
fn uid(n: u8) -> PodUid {
    PodUid::parse(&format!("0000000{n}-0000-4000-8000-00000000000{n}")).unwrap()
}

fn identity(pod: u8, container: Option<char>) -> Arc<CgroupIdentity> {
    let kind = match container {
        None => CgroupKind::Pod { uid: uid(pod), qos: Qos::Burstable },
        Some(c) => CgroupKind::Container {
            pod: Some((uid(pod), Qos::Burstable)),
            id: ContainerId::parse(&c.to_string().repeat(64)).unwrap(),
            runtime: RuntimeKind::Containerd,
        },
    };
    Arc::new(CgroupIdentity { path: Arc::from(format!("/kubepods/{pod}")), kind })
}

fn gpu(index: u32, model: &str) -> Gpu {
    Gpu {
        uuid: uuid(&format!("GPU-{index}")),
        index,
        minor: read(index),
        model: Arc::from(model),
        pci_bus_id: Reading::NOT_YET,
        numa_node: Reading::NOT_YET,
        architecture: Reading::NOT_YET,
        compute: Reading::NOT_YET,
        memory_total: read(Bytes(80 * GIB)),
        memory_kind: model::gpu::MemoryKind::Own,
        power_limit: read(Watts(700.0)),
        mig_mode: read(false),
        mig: read(Vec::new()),
        links: Vec::new(),
        nvlinks_active: Reading::NOT_YET,
        board: model::hardware::Board::default(),
    }
}

fn busy(use_percent: f64, used_gib: u64) -> GpuSample {
    GpuSample {
        memory_used: read(Bytes(used_gib * GIB)),
        utilization: read(Percent(use_percent)),
        power: read(Watts(100.0 + use_percent * 5.5)),
        clock_sm: read(Megahertz(1980)),
        temperature: read(Celsius(54)),
        ..GpuSample::absent(Absence::NotSupported)
    }
}

fn process(pid: u32, command: &str, owner: ProcessOwner, memory: u64, sm: Reading<Percent>) -> GpuProcess {
    GpuProcess {
        pid,
        key: Some(ProcessKey { pid, start_ticks: 7 }),
        command: Arc::from(command),
        owner,
        kind: GpuProcessKind::Compute,
        mig: None,
        memory_used: read(Bytes(memory * GIB)),
        sm,
        encoder: Reading::NOT_YET,
        decoder: Reading::NOT_YET,
    }
}

fn seen(gpu: Gpu, sample: GpuSample, list: Vec<GpuProcess>, holders: Vec<PodUid>) -> GpuView {
    GpuView {
        gpu: Arc::new(gpu),
        sample: Arc::new(sample),
        health: GpuHealth::Healthy,
        condition: model::incident::GpuCondition::default(),
        processes: read(Arc::from(list)),
        processes_left_out: 0,
        holders,
        sole_holders: SoleHolders::default(),
        nvlink_rate: Reading::NOT_YET,
        strangers: 0,
        memory_used_now: Reading::NOT_YET,
        listed_memory: read(Bytes(0)),
        unattributed_memory: read(Bytes(0)),
        unattributed_sm: read(Percent(0.0)),
        last_xid: None,
        xids: Vec::new(),
        xid_count: 0,
        implausible: Vec::new(),
    }
}

fn gpus() -> Vec<GpuView> {
    let train = ProcessOwner::Cgroup(identity(1, Some('a')));
    let resnet = ProcessOwner::Cgroup(identity(2, Some('b')));
    let first = vec![
        process(4021, "python", train, 60, read(Percent(71.0))),
        process(4077, "python", resnet.clone(), 8, read(Percent(20.0))),
        process(911, "nvidia-persist", ProcessOwner::Host, 1, Reading::Absent(Absence::NotSupported)),
    ];
    let mut zero = seen(gpu(0, "NVIDIA H100 80GB HBM3"), busy(93.0, 71), first, vec![uid(1), uid(2)]);
    zero.strangers = 1;
    zero.unattributed_memory = read(Bytes(3 * GIB));
    zero.unattributed_sm = Reading::Absent(Absence::NotSupported);
    let second = vec![process(4077, "python", resnet, 30, read(Percent(35.0)))];
    let one = seen(gpu(1, "NVIDIA H100 80GB HBM3"), busy(35.0, 30), second, vec![uid(2)]);

    let mut divided = gpu(2, "NVIDIA A100-SXM4-80GB");
    divided.mig_mode = read(true);
    divided.mig = read(vec![MigInstance {
        uuid: uuid("MIG-1"),
        index: 0,
        gpu_instance: 1,
        compute_instance: 0,
        profile: Arc::from("3g.40gb"),
        memory_total: read(Bytes(40 * GIB)),
    }]);
    let mut sample = busy(0.0, 5);
    sample.utilization = Reading::Absent(Absence::MigEnabled);
    sample.mig = vec![MigSample {
        uuid: uuid("MIG-1"),
        memory_used: read(Bytes(5 * GIB)),
        memory_free: read(Bytes(35 * GIB)),
        memory_reserved: read(Bytes(0)),
        gpm: GpmSample { sm_active: read(Ratio(0.5)), ..GpmSample::absent(Absence::NotThisArchitecture) },
    }];
    let two = seen(divided, sample, Vec::new(), Vec::new());

    let mut lost = seen(gpu(3, "NVIDIA H100 80GB HBM3"), GpuSample::absent(Absence::GpuLost), Vec::new(), Vec::new());
    lost.health = GpuHealth::Unhealthy;
    lost.processes = Reading::Absent(Absence::GpuLost);
    vec![zero, one, two, lost]
}

fn cgroup(memory_gib: u64) -> CgroupSample {
    CgroupSample {
        cpu_total: read(Nanos(90_000_000_000)),
        memory_working_set: read(Bytes(memory_gib * GIB)),
        memory_limit: read(Some(Bytes(64 * GIB))),
        oom_kills: read(Count(0)),
        tasks: read(Count(31)),
        io_read: Reading::Absent(Absence::KernelDoesNotCount),
        ..CgroupSample::default()
    }
}

fn rates(cores: f64) -> ContainerRates {
    ContainerRates {
        cpu: read(Cores(cores)),
        io_read: Reading::Absent(Absence::KernelDoesNotCount),
        io_write: Reading::Absent(Absence::KernelDoesNotCount),
        net_rx: read(BytesPerSecond(1.5e6)),
        net_tx: read(BytesPerSecond(2e3)),
    }
}

fn pod(n: u8, name: Option<(&str, &str)>, use_of: (f64, u64), gpus: Vec<GpuUse>) -> PodView {
    let letter = char::from(b'a' + n - 1);
    let identity = identity(n, Some(letter));
    let container = ContainerView {
        id: identity.container().unwrap().clone(),
        cgroup: Arc::clone(&identity),
        name: name.map(|_| Arc::from("main")),
        sandbox: false,
        image: Some(Arc::from("registry.example/work:1")),
        sample: cgroup(use_of.1),
        rates: rates(use_of.0),
        network: Reading::NOT_YET,
        gpus: gpus.clone(),
        devices: Vec::new(),
        holds: Vec::new(),
    };
    PodView {
        uid: uid(n),
        name: name.map(|(namespace, name)| PodRef { namespace: Arc::from(namespace), name: Arc::from(name) }),
        qos: Some(Qos::Burstable),
        cgroup: None,
        sample: cgroup(use_of.1),
        rates: rates(use_of.0),
        network: if n == 3 { Reading::Absent(Absence::HostNetwork) } else { read(NetworkSample::default()) },
        containers: vec![container],
        gpus,
    }
}

fn on(gpu: u32, memory: u64, sm: f64) -> GpuUse {
    let memory_used = read(Bytes(memory * GIB));
    GpuUse { gpu: uuid(&format!("GPU-{gpu}")), mig: None, processes: 1, memory_used, sm: read(Percent(sm)) }
}

fn host_process(pid: u32, command: &str, owner: Option<Arc<CgroupIdentity>>, cores: f64, rss_gib: u64) -> ProcessView {
    let process = HostProcess {
        key: ProcessKey { pid, start_ticks: 7 },
        command: Arc::from(command),
        owner: owner.map_or(ProcessOwner::Host, ProcessOwner::Cgroup),
        cpu_user: Nanos(1),
        cpu_system: Nanos(1),
        rss: Bytes(rss_gib * GIB),
        threads: Count(12),
        read_bytes: Reading::Absent(Absence::NeedsPtrace),
        write_bytes: Reading::Absent(Absence::NeedsPtrace),
        at: Monotonic(980_000_000_000),
    };
    ProcessView { process, cpu: read(Cores(cores)) }
}

fn view() -> NodeView {
    let mut view = NodeView::empty(NodeName::parse("node-a").unwrap(), NOW);
    view.gpu_source = GpuSourceState::Working {
        driver: Arc::from("570.86"),
        nvml: Arc::from("12.570"),
        cuda: None,
        simulated: false,
    };
    view.gpus = gpus();
    view.facts = HostFacts::default();
    view.host = HostSample {
        processors: read(Count(64)),
        load: read([9.1, 8.25, 7.0]),
        memory_total: read(Bytes(512 * GIB)),
        memory_available: read(Bytes(400 * GIB)),
        ..HostSample::default()
    };
    view.host_rates = HostRates {
        cpu: read(Cores(9.42)),
        disk_read: read(BytesPerSecond(3e6)),
        disk_write: read(BytesPerSecond(0.0)),
        net_rx: read(BytesPerSecond(1.25e8)),
        net_tx: read(BytesPerSecond(4e5)),
    };
    view.pods = vec![
        pod(3, Some(("kube-system", "coredns-5d78c9869d-x2x7k")), (0.01, 1), Vec::new()),
        pod(1, Some(("nlp", "train-0")), (7.5, 24), vec![on(0, 60, 71.0)]),
        pod(2, Some(("vision", "resnet-7f9c")), (1.25, 40), vec![on(0, 8, 20.0), on(1, 30, 35.0)]),
        pod(4, None, (0.0, 2), Vec::new()),
    ];
    let claim = |pod: u8, device: &str, gib: u64| PodMemoryClaim {
        pod: uid(pod),
        device: uuid(device),
        memory: Bytes(gib * GIB),
    };
    view.memory_claims =
        Arc::from([claim(1, "GPU-0", 64), claim(2, "GPU-0", 10), claim(2, "GPU-1", 40), claim(4, "MIG-1", 5)]);
    view.processes = Arc::from(vec![
        host_process(4021, "python", Some(identity(1, Some('a'))), 7.4, 23),
        host_process(4077, "python", Some(identity(2, Some('b'))), 1.2, 39),
        host_process(911, "nvidia-persist", None, 0.0, 1),
        host_process(1, "\u{1b}[31minit", None, 0.0, 1),
    ]);
    view
}

/// The answer of the test node's agent.
pub(crate) fn snapshot() -> Snapshot {
    let view = view();
    let names = OwnerNames::of(&view);
    let ages = ReadingAges(NOW.monotonic);
    let head = ViewHeadJson::of(&view, NOW);
    let rows = processes::rows(&view);
    let listing = processes::ProcessesListing {
        view: head.clone(),
        left_out: 0,
        rows: rows.iter().collect(),
        names: &names,
        ages,
    };
    let unidentified = view.gpus_unidentified.iter();
    let gpus = gpus::GpusJson {
        view: head.clone(),
        gpus: view.gpus.iter().map(|gpu| gpus::GpuJson::of(gpu, &names, ages)).collect(),
        gpus_unidentified: unidentified.map(|gpu| gpus::UnidentifiedGpuJson::of(gpu, ages)).collect(),
        gpus_missing: Vec::new(),
    };
    Snapshot {
        node: node::NodeJson::of(&view, NOW),
        gpus: serde_json::from_value(serde_json::to_value(gpus).unwrap()).unwrap(),
        profile: Some(load::profiles(head.clone())),
        pods: pods::PodsJson {
            view: head,
            left_out: 0,
            pods: view.pods.iter().map(|pod| pods::PodJson::of(pod, &view.memory_claims, ages)).collect(),
            containers: Vec::new(),
        },
        processes: serde_json::from_value(serde_json::to_value(listing).unwrap()).unwrap(),
    }
}

/// The state with this answer.
pub(crate) fn state() -> State {
    let mut state = State::new(Duration::from_secs(1));
    state.apply(Input::Snapshot(Arc::new(snapshot())), Duration::ZERO);
    state
}
