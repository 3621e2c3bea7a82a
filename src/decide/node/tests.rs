use super::*;
use crate::fixtures::gpu;
use model::cgroup::{CgroupIdentity, CgroupKind, CgroupReport, ContainerName, NameSource, Qos, RuntimeKind};
use model::claim::{ContainerClaim, DeviceShare};
use model::gpu::{Gpu, GpuSample, MigInstance, Xid, XidSource};
use model::histogram::Histogram;
use model::id::{ContainerId, ContainerKey, GpuUuid, PodRef};
use model::observation::{CgroupPass, ContainerDevices, Fact, GpuSourceState, Sample, SourceEvent};
use model::plugin::{CdiState, RegistrationState};
use model::pod::{ContainerKind, ContainerState, Pod, PodContainer, PodList, PodPhase, PodWatchState};
use model::process::{GpuProcess, GpuProcessKind, GpuProcesses, ProcessOwner, ProcessPass};
use model::reading::Absence;
use model::time::{Monotonic, WallTime};
use model::unit::Percent;
use model::view::SoleHolder;
use proptest::prelude::*;

fn now(seconds: u64) -> Now {
    Now { monotonic: Monotonic(seconds * 1_000_000_000), wall: WallTime(1_700_000_000_000_000 + seconds * 1_000_000) }
}

fn uid(number: u8) -> PodUid {
    PodUid::parse(&format!("{number:032x}")).unwrap()
}

fn container_id(number: u8) -> ContainerId {
    ContainerId::parse(&format!("{number:064x}")).unwrap()
}

fn pod_cgroup(pod: u8) -> Arc<CgroupIdentity> {
    let kind = CgroupKind::Pod { uid: uid(pod), qos: Qos::Burstable };
    Arc::new(CgroupIdentity { path: format!("/kubepods/burstable/pod{pod}").into(), kind })
}

fn cgroup(pod: u8, container: u8) -> Arc<CgroupIdentity> {
    let pod_of = (pod > 0).then(|| (uid(pod), Qos::Burstable));
    let kind = CgroupKind::Container { pod: pod_of, id: container_id(container), runtime: RuntimeKind::Containerd };
    Arc::new(CgroupIdentity { path: format!("/kubepods/burstable/pod{pod}/{container}").into(), kind })
}

fn report(identity: Arc<CgroupIdentity>, cpu_seconds: u64, at: u64) -> CgroupReport {
    let mut report = CgroupReport::unread(identity);
    report.sample.cpu_total = Reading::Measured(Nanos(cpu_seconds * 1_000_000_000), now(at).monotonic);
    report
}

fn pass(reports: Vec<CgroupReport>) -> Observation {
    Observation::Sample(Sample::Cgroups(CgroupPass { reports, ..CgroupPass::default() }))
}

fn on_gpu(owner: ProcessOwner, mib: u64) -> GpuProcess {
    GpuProcess {
        pid: 4,
        key: None,
        command: "train".into(),
        owner,
        kind: GpuProcessKind::Compute,
        mig: None,
        memory_used: Reading::Measured(Bytes(mib << 20), now(1).monotonic),
        sm: Reading::Measured(Percent(25.0), now(1).monotonic),
        encoder: Reading::NOT_YET,
        decoder: Reading::NOT_YET,
    }
}

fn processes(list: Vec<GpuProcess>) -> Observation {
    let gpu = gpu(0).uuid;
    Observation::Sample(Sample::GpuProcesses(GpuProcesses {
        gpu,
        list: Reading::Measured(list, now(1).monotonic),
        memory_used: Reading::NOT_YET,
        stamp: None,
        left_out: 0,
    }))
}

fn name(container: u8, called: Option<&str>) -> ContainerName {
    ContainerName {
        id: container_id(container),
        uid: None,
        pod: PodRef { namespace: "ml".into(), name: "train-0".into() },
        container: called.map(Into::into),
        image: None,
    }
}

fn node(observations: Vec<Observation>) -> NodeState {
    let mut node = NodeState::new(NodeName::parse("n1").unwrap(), HealthPolicy::default(), &[], Monotonic::default());
    for observation in observations {
        node.apply(observation, now(1));
    }
    node
}

#[test]
fn containers_find_their_pod_their_names_and_their_rates() {
    let mut node = node(vec![
        Observation::Fact(Fact::Names { source: NameSource::Cri, names: vec![name(1, None), name(2, Some("main"))] }),
        pass(vec![report(cgroup(1, 1), 0, 1), report(cgroup(1, 2), 10, 1), report(pod_cgroup(1), 10, 1)]),
        pass(vec![report(cgroup(1, 1), 0, 3), report(cgroup(1, 2), 13, 3), report(pod_cgroup(1), 13, 3)]),
    ]);
    let view = node.view(now(3));
    let [pod] = &view.pods[..] else { panic!("one pod: {:?}", view.pods) };
    assert_eq!(pod.name.as_ref().unwrap().to_string(), "ml/train-0");
    assert_eq!(pod.rates.cpu.get(), Some(Cores(1.5)));
    let called: Vec<_> = pod.containers.iter().map(|c| (c.name.as_deref(), c.sandbox)).collect();
    assert_eq!(called, [(Some("main"), false), (None, true)]);
    assert_eq!(pod.containers[0].rates.cpu.get(), Some(Cores(1.5)));
}

/// Promise 8 in docs/specification.md.
#[test]
fn a_pod_that_is_missing_from_the_next_pass_is_gone_from_the_view() {
    let mut node = node(vec![
        Observation::Fact(Fact::Gpus(vec![gpu(0)])),
        pass(vec![report(pod_cgroup(1), 1, 1), report(cgroup(1, 2), 1, 1)]),
        processes(vec![on_gpu(ProcessOwner::Cgroup(cgroup(1, 2)), 100)]),
    ]);
    let view = node.view(now(1));
    assert_eq!(view.pods[0].gpus[0].memory_used.get(), Some(Bytes(100 << 20)));
    assert_eq!(view.gpus[0].sole_holder(), Some(&uid(1)));
    node.apply(pass(vec![]), now(2));
    let view = node.view(now(2));
    assert!(view.pods.is_empty());
    assert_eq!((view.gpus[0].holders.len(), view.gpus[0].strangers), (0, 1));
}

#[test]
fn a_gpu_with_a_process_of_no_pod_has_no_sole_holder() {
    let mut node = node(vec![
        Observation::Fact(Fact::Gpus(vec![gpu(0)])),
        pass(vec![report(cgroup(1, 2), 1, 1)]),
        processes(vec![on_gpu(ProcessOwner::Cgroup(cgroup(1, 2)), 100), on_gpu(ProcessOwner::Host, 10)]),
    ]);
    let view = node.view(now(1));
    assert_eq!(view.gpus[0].holders, [uid(1)]);
    assert_eq!(view.gpus[0].sole_holder(), None);
}

#[test]
fn a_pod_holds_the_gpu_that_the_kubelet_gave_it_before_it_computes() {
    let devices = ContainerDevices {
        namespace: "ml".into(),
        pod: "train-0".into(),
        container: "main".into(),
        resource: "nvidia.com/gpu".into(),
        ids: vec!["GPU-0".into()],
    };
    let mut node = node(vec![
        Observation::Fact(Fact::Gpus(vec![gpu(0), gpu(1)])),
        Observation::Fact(Fact::Names { source: NameSource::LogLinks, names: vec![name(2, Some("main"))] }),
        Observation::Fact(Fact::Devices(vec![devices])),
        pass(vec![report(cgroup(1, 2), 1, 1)]),
    ]);
    let view = node.view(now(1));
    assert_eq!(view.gpus[0].holders, [uid(1)]);
    assert_eq!(view.gpus[1].holders, []);
    assert_eq!(view.pods[0].containers[0].devices, ["GPU-0".into()]);
}

/// A plugin whose pods have these claims: container `main` of a pod on a device.
fn plugin(claims: &[(u8, &str)]) -> Arc<PluginView> {
    let claim = |(pod, device): &(u8, &str)| ContainerClaim {
        holder: ContainerKey { pod: uid(*pod), container: "main".into() },
        device_shares: vec![DeviceShare { device: GpuUuid::parse(device).unwrap(), memory: None, cores: None }],
    };
    Arc::new(PluginView {
        resource: "nvidia.com/gpu".into(),
        registration: RegistrationState::Waiting("a test".into()),
        registrations: 0,
        slots: Arc::default(),
        claims: claims.iter().map(claim).collect(),
        allocations: 0,
        starts: vec![],
        waited: vec![],
        differing: 0,
        without_gpu: 0,
        withheld: Arc::default(),
        files: Arc::default(),
        cdi: CdiState::default(),
        lacks: None,
        guards: Vec::new(),
        moved: 0,
        allocate: Histogram::default(),
        start: Histogram::default(),
    })
}

#[test]
fn a_pod_holds_the_gpu_of_its_claim_and_not_that_of_the_slot_that_the_kubelet_counts() {
    let slot = ContainerDevices {
        namespace: "ml".into(),
        pod: "train-0".into(),
        container: "main".into(),
        resource: "nvidia.com/gpu".into(),
        ids: vec!["GPU-0-3".into()],
    };
    let mut node = node(vec![
        Observation::Fact(Fact::Gpus(vec![gpu(0), gpu(1)])),
        Observation::Fact(Fact::Names { source: NameSource::LogLinks, names: vec![name(2, Some("main"))] }),
        Observation::Fact(Fact::Devices(vec![slot])),
        pass(vec![report(cgroup(1, 2), 1, 1)]),
        Observation::Fact(Fact::Plugin(plugin(&[(1, "GPU-1")]))),
    ]);
    let view = node.view(now(1));
    assert_eq!([&view.gpus[0].holders[..], &view.gpus[1].holders[..]], [&[][..], &[uid(1)]]);
    assert_eq!(view.pods[0].containers[0].holds, [gpu(1).uuid]);
    // A process shows which pod really uses the GPU.
    node.apply(processes(vec![on_gpu(ProcessOwner::Cgroup(cgroup(1, 2)), 10)]), now(2));
    assert_eq!(node.view(now(2)).gpus[0].holders, [uid(1)]);
    // Without a claim only the slot is known.
    node.apply(processes(vec![]), now(3));
    node.apply(Observation::Fact(Fact::Plugin(plugin(&[(2, "GPU-1")]))), now(3));
    let view = node.view(now(3));
    assert_eq!([&view.gpus[0].holders[..], &view.gpus[1].holders[..]], [&[uid(1)][..], &[]]);
}

#[test]
fn containers_without_a_pod_are_listed_separately() {
    let mut node = node(vec![pass(vec![report(cgroup(0, 7), 1, 1)])]);
    let view = node.view(now(1));
    assert_eq!((view.pods.len(), view.containers.len()), (0, 1));
}

/// A pod of the API server with one container; for a mirror pod the kubelet uses another UID.
fn api_pod(number: u8, name: &str, container: u8, mirror_of: Option<u8>) -> Arc<Pod> {
    let main = PodContainer {
        name: "main".into(),
        kind: ContainerKind::App,
        restart: None,
        image: Some("app:1".into()),
        limits: vec![],
        limits_left_out: 0,
        requests_left_out: false,
        id: Some(container_id(container)),
        state: ContainerState::Running,
        may_mount: false,
    };
    Arc::new(Pod {
        uid: uid(number),
        mirror_of: mirror_of.map(uid),
        name: PodRef { namespace: "api".into(), name: name.into() },
        node: None,
        phase: PodPhase::Running,
        created_at: None,
        version: None,
        arrival: None,
        deleted_at: None,
        annotations: vec![],
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
        containers: vec![main],
        containers_left_out: None,
    })
}

fn pods(pods: Vec<Arc<Pod>>) -> Observation {
    Observation::Fact(Fact::Pods(PodList { pods, ..PodList::default() }))
}

fn named(node: &mut NodeState) -> Vec<(String, Option<String>)> {
    let shown = |pod: &PodView| {
        let container = pod.containers.iter().find_map(|container| container.name.clone());
        (pod.name.as_ref().map(ToString::to_string).unwrap_or_default(), container.map(|name| name.to_string()))
    };
    node.view(now(9)).pods.iter().map(shown).collect()
}

#[test]
fn the_api_server_has_precedence_over_the_runtime_and_the_runtime_fills_its_gaps() {
    let mut node = node(vec![
        Observation::Fact(Fact::Names {
            source: NameSource::Cri,
            names: vec![name(2, Some("cri")), name(3, Some("only-cri"))],
        }),
        pods(vec![api_pod(1, "web-0", 2, None)]),
        pass(vec![report(pod_cgroup(1), 1, 1), report(cgroup(1, 2), 1, 1), report(cgroup(4, 3), 1, 1)]),
    ]);
    let main = ("api/web-0".to_owned(), Some("main".to_owned()));
    assert_eq!(named(&mut node), [main, ("ml/train-0".to_owned(), Some("only-cri".to_owned()))]);
}

#[test]
fn a_static_pod_is_found_by_the_hash_of_its_manifest() {
    let mut node = node(vec![pods(vec![api_pod(7, "etcd-n1", 2, Some(1))]), pass(vec![report(pod_cgroup(1), 1, 1)])]);
    assert_eq!(named(&mut node), [("api/etcd-n1".to_owned(), None)]);
}

#[test]
fn the_name_of_a_deleted_pod_stays_while_its_cgroup_exists() {
    let living = || pass(vec![report(pod_cgroup(1), 1, 1), report(cgroup(1, 2), 1, 1)]);
    let mut node = node(vec![pods(vec![api_pod(1, "web-0", 2, None)]), living(), pods(vec![]), living(), living()]);
    let expect = [("api/web-0".to_owned(), Some("main".to_owned()))];
    assert_eq!(named(&mut node), expect);
    node.apply(pods(vec![api_pod(3, "other", 4, None)]), now(2));
    assert_eq!(named(&mut node), expect, "another list changes nothing");
    node.apply(pass(vec![]), now(3));
    node.apply(living(), now(4));
    assert_eq!(named(&mut node), [(String::new(), None)], "the name is dropped with the cgroup");
}

#[test]
fn the_view_has_the_state_of_the_watch_and_its_pods_stay_while_it_is_broken() {
    let mut node = node(vec![pods(vec![api_pod(1, "web-0", 2, None)])]);
    assert_eq!(node.view(now(1)).pod_watch, None, "the agent does not watch pods");
    let watch = PodWatchState { last_received: Some(now(1).monotonic), broken: Some("away".into()) };
    node.apply(Observation::Fact(Fact::PodWatch(watch.clone())), now(2));
    let view = node.view(now(2)).pod_watch.unwrap();
    assert_eq!((view.watch, view.pods, view.left_out), (watch, 1, 0));
}

#[test]
fn pods_beyond_the_bound_give_one_event() {
    let mut node = node(vec![]);
    let list = |left_out| Observation::Fact(Fact::Pods(PodList { left_out, ..PodList::default() }));
    let remarked: Vec<usize> = [0, 3, 4, 0, 1].into_iter().map(|count| node.apply(list(count), now(1)).len()).collect();
    assert_eq!(remarked, [0, 1, 0, 0, 1]);
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let cgroups = prop::collection::vec((0u8..4, 0u8..6, 0u64..9), 0..12).prop_map(|list| {
        pass(list.into_iter().map(|(pod, container, cpu)| report(cgroup(pod, container), cpu, cpu)).collect())
    });
    let on_gpus = prop::collection::vec((0u8..4, 0u8..6, 0u64..99), 0..12).prop_map(|list| {
        processes(list.into_iter().map(|(pod, id, mib)| on_gpu(ProcessOwner::Cgroup(cgroup(pod, id)), mib)).collect())
    });
    prop_oneof![
        cgroups,
        on_gpus,
        prop::collection::vec(0u32..3, 0..4)
            .prop_map(|list| Observation::Fact(Fact::Gpus(list.into_iter().map(gpu).collect()))),
        Just(Observation::Fact(Fact::Names {
            source: NameSource::Cri,
            names: vec![name(1, Some("a")), name(1, None)]
        })),
        prop::collection::vec((0u8..4, 0u8..6), 0..4).prop_map(|list| {
            pods(list.into_iter().map(|(pod, container)| api_pod(pod, "any", container, None)).collect())
        }),
        Just(Observation::Sample(Sample::Processes(ProcessPass::default()))),
        Just(Observation::Sample(Sample::Gpu(gpu(0).uuid, Box::new(GpuSample::absent(Absence::GpuLost))))),
        Just(Observation::Event(SourceEvent::Trouble(ErrorCounter::QueueFull))),
    ]
}

proptest! {
    /// Against a naive model: the pods of the view are those of the last pass (and, before any pass, of the GPU list),
    /// each GPU is listed once, and every pod that uses a GPU is a holder of that GPU.
    #[test]
    fn the_view_agrees_with_the_last_report_of_each_source(events in prop::collection::vec(any_observation(), 0..20)) {
        let mut node = node(vec![]);
        let mut last_pass: Option<BTreeSet<PodUid>> = None;
        for event in events {
            if let Observation::Sample(Sample::Cgroups(pass)) = &event {
                last_pass = Some(pass.reports.iter().filter_map(|r| r.identity.pod().cloned()).collect());
            }
            node.apply(event, now(1));
            let view = node.view(now(1));
            let pods: BTreeSet<PodUid> = view.pods.iter().map(|pod| pod.uid.clone()).collect();
            prop_assert_eq!(pods.len(), view.pods.len());
            if let Some(expect) = &last_pass {
                prop_assert_eq!(&pods, expect);
            }
            let mut uuids: Vec<_> = view.gpus.iter().map(|gpu| &gpu.gpu.uuid).collect();
            uuids.dedup();
            prop_assert_eq!(uuids.len(), view.gpus.len());
            for pod in &view.pods {
                for share in &pod.gpus {
                    let gpu_view = view.gpus.iter().find(|gpu| gpu.gpu.uuid == share.gpu);
                    prop_assert!(gpu_view.is_some_and(|gpu_view| gpu_view.holders.contains(&pod.uid)));
                }
            }
        }
    }
}

fn sample(nvlink: u64, at: u64) -> Observation {
    let nvlink_bytes = Reading::Measured(Bytes(nvlink), now(at).monotonic);
    Observation::Sample(Sample::Gpu(gpu(0).uuid, Box::new(GpuSample { nvlink_bytes, ..GpuSample::default() })))
}

#[test]
fn nvlink_traffic_is_a_rate_between_two_readings_of_the_counters() {
    let mut node = node(vec![Observation::Fact(Fact::Gpus(vec![gpu(0)]))]);
    let rates: Vec<Reading<f64>> = [(1_000, 1), (1_000, 1), (31_000, 16), (31_000, 16), (500, 31), (2_000, 46)]
        .into_iter()
        .map(|(bytes, at)| {
            node.apply(sample(bytes, at), now(at));
            node.view(now(at)).gpus[0].nvlink_rate.map(|rate| rate.0)
        })
        .collect();
    let (none, reset) = (Reading::Absent(Absence::NotYet), Reading::Absent(Absence::CounterReset));
    let [first, second] = [(2_000.0, 16), (100.0, 46)].map(|(rate, at)| Reading::Measured(rate, now(at).monotonic));
    assert_eq!(rates, [none, none, first, first, reset, second]);
}

#[test]
fn xids_that_make_a_gpu_unfit_are_listed_with_0_and_others_from_their_first_occurrence() {
    let policy = HealthPolicy { fatal: [79, 48].into(), ..HealthPolicy::default() };
    let mut node = NodeState::new(NodeName::parse("n1").unwrap(), policy, &[], now(0).monotonic);
    node.apply(Observation::Fact(Fact::Gpus(vec![gpu(0)])), now(1));
    let shown = |node: &mut NodeState| (node.view(now(2)).gpus[0].xids.clone(), node.view(now(2)).gpus[0].xid_count);
    assert_eq!(shown(&mut node), (vec![(48, 0), (79, 0)], 0));
    for code in [79, 31, 79] {
        let xid = Xid {
            gpu: Some(gpu(0).uuid),
            mig: None,
            pci_bus_id: None,
            code,
            severity: None,
            pid: None,
            pod: None,
            at: now(2).monotonic,
            source: XidSource::Nvml,
        };
        node.apply(Observation::Event(SourceEvent::Xid(xid)), now(2));
    }
    assert_eq!(shown(&mut node), (vec![(31, 1), (48, 0), (79, 2)], 3));
}

#[test]
fn the_holder_of_a_gpu_and_its_driver_stay_known_while_the_source_does_not_answer() {
    let working =
        GpuSourceState::Working { driver: "570.86.15".into(), nvml: "12".into(), cuda: None, simulated: false };
    let why = Absence::DriverNotLoaded;
    let mut node = node(vec![
        Observation::Fact(Fact::GpuSource(working)),
        Observation::Fact(Fact::Gpus(vec![gpu(0)])),
        Observation::Fact(Fact::Names { source: NameSource::LogLinks, names: vec![name(2, Some("main"))] }),
        pass(vec![report(cgroup(1, 2), 1, 1)]),
        processes(vec![on_gpu(ProcessOwner::Cgroup(cgroup(1, 2)), 100)]),
    ]);
    let before = node.view(now(1));
    let holder = before.gpus[0].sole_holders.gpu.clone().unwrap();
    assert_eq!((&holder.pod, holder.container.as_deref()), (&uid(1), Some("main")));
    node.apply(Observation::Fact(Fact::GpuSource(GpuSourceState::Missing { why, advice: "load it".into() })), now(2));
    let view = node.view(now(2));
    assert_eq!(view.gpus[0].processes.absence(), Some(why));
    assert_eq!((&view.gpus[0].sole_holders, &view.driver), (&before.gpus[0].sole_holders, &before.driver));
    assert_eq!(view.driver.as_deref(), Some("570.86.15"));
    // When the pod is gone, its name is gone too.
    node.apply(pass(vec![]), now(3));
    assert_eq!(node.view(now(3)).gpus[0].sole_holders.gpu, None);
}

#[test]
fn an_idle_instance_belongs_to_the_pod_that_the_kubelet_gave_it_to() {
    let instance = |number: u32| MigInstance {
        uuid: GpuUuid::parse(&format!("MIG-{number}")).unwrap(),
        index: number,
        gpu_instance: number,
        compute_instance: 0,
        profile: "1g.10gb".into(),
        memory_total: Reading::NOT_YET,
    };
    let at = now(1).monotonic;
    let divided = Gpu {
        mig_mode: Reading::Measured(true, at),
        mig: Reading::Measured(vec![instance(1), instance(2)], at),
        ..gpu(0)
    };
    let devices = ContainerDevices {
        namespace: "ml".into(),
        pod: "train-0".into(),
        container: "main".into(),
        resource: "nvidia.com/mig-1g.10gb".into(),
        ids: vec!["MIG-2".into()],
    };
    // The process list cannot be read at all, as without the permission for it.
    let unread = GpuProcesses {
        gpu: gpu(0).uuid,
        list: Reading::Absent(Absence::NoPermission),
        memory_used: Reading::NOT_YET,
        stamp: None,
        left_out: 0,
    };
    let mut node = node(vec![
        Observation::Fact(Fact::Gpus(vec![divided])),
        Observation::Fact(Fact::Names { source: NameSource::LogLinks, names: vec![name(2, Some("main"))] }),
        Observation::Fact(Fact::Devices(vec![devices])),
        pass(vec![report(cgroup(1, 2), 1, 1)]),
        Observation::Sample(Sample::GpuProcesses(unread)),
    ]);
    let view = node.view(now(1));
    let holder = SoleHolder { pod: uid(1), container: Some("main".into()) };
    assert_eq!(view.gpus[0].sole_holders, SoleHolders { gpu: None, instances: vec![(2, holder)] });
    assert_eq!(view.gpus[0].holders, [uid(1)], "the pod is also a holder of the GPU");
}

#[test]
fn the_process_that_an_xid_names_is_joined_to_its_pod_if_the_pod_is_known() {
    let mut node = node(vec![
        Observation::Fact(Fact::Gpus(vec![gpu(0)])),
        pass(vec![report(cgroup(1, 2), 1, 1)]),
        processes(vec![on_gpu(ProcessOwner::Cgroup(cgroup(1, 2)), 100)]),
    ]);
    let error = |code, pid| Xid {
        gpu: Some(gpu(0).uuid),
        mig: None,
        pci_bus_id: None,
        code,
        severity: None,
        pid,
        pod: None,
        at: now(2).monotonic,
        source: XidSource::Nvml,
    };
    let pod_of_xid = |node: &mut NodeState| node.view(now(2)).gpus[0].last_xid.clone().and_then(|xid| xid.pod);
    node.apply(Observation::Event(SourceEvent::Xid(error(31, Some(5)))), now(2));
    assert_eq!(pod_of_xid(&mut node), None, "the process belongs to no pod");
    node.apply(Observation::Event(SourceEvent::Xid(error(31, Some(4)))), now(2));
    assert_eq!(pod_of_xid(&mut node), Some(uid(1)));
    // NVML names no process. The kernel log does a moment later; the process may be gone from the GPU's list by then.
    node.apply(Observation::Event(SourceEvent::Xid(error(13, None))), now(2));
    assert_eq!(pod_of_xid(&mut node), None);
    let events = node.apply(Observation::Event(SourceEvent::XidDetails(error(13, Some(4)))), now(2));
    assert!(matches!(&events[..], [NodeEvent::XidDetails(xid)] if xid.pod == Some(uid(1))), "{events:?}");
    assert_eq!(pod_of_xid(&mut node), Some(uid(1)));
    let counted: Vec<_> = node.view(now(2)).gpus[0].xids.iter().copied().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [(13, 1), (31, 2)], "the error itself is counted once");
}
