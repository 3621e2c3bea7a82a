//! Makes the report of an agent from the node view and from the start stages of the pods.
//!
//! A pod is in the report while its containers exist, even if the API server has forgotten it: it may start a process on its GPUs at
//! any moment. If no container of a pod got a GPU, the report leaves out its processes and containers: they count like the host's.

use crate::gone_pods::has_containers;
use model::agent_stream::{
    AgentPhase, AgentReport, MAX_REPORTED_GPUS, MAX_REPORTED_PODS, MAX_REPORTED_USERS, MAX_REPORTED_USES,
    MAX_USER_NAME, MemoryUser, PodStage, ReportedGpu, ReportedPod, ReportedUse, ReportedUses,
};
use model::gpu::{MemoryKind, MigInstance};
use model::id::{GpuUuid, PodUid};
use model::process::{GpuProcess, ProcessOwner};
use model::reading::{Absence, Reading};
use model::reported_reading::ReportedReading;
use model::time::Monotonic;
use model::unit::{Bytes, Percent};
use model::view::{GpuHealth, GpuUse, GpuView, NodeView};
use std::collections::{BTreeMap, BTreeSet};

/// How far the node and its pods have come, from the code that shares the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharingStages {
    /// Whether the agent is registered with the kubelet, and containers get their devices by CDI.
    pub serves: bool,
    /// Whether the agent refuses to start pods that have no claim.
    pub refuses_unclaimed: bool,
    /// How far each GPU pod that has not finished has come.
    pub pods: BTreeMap<PodUid, PodStage>,
    /// Pods of which a container is starting.
    pub starting: BTreeSet<PodUid>,
    /// Pods that have ended or are gone, with the devices of their claims. Not all of them have containers.
    pub gone: BTreeMap<PodUid, BTreeSet<GpuUuid>>,
    /// Pods of which no container got a GPU, until their containers are gone.
    pub without_gpus: BTreeSet<PodUid>,
    /// Devices that pods claim, that this node has or had, and that it does not offer.
    pub withdrawn: BTreeSet<GpuUuid>,
}

impl SharingStages {
    /// Whether GPUs of the node are, or were, meant for the pod.
    fn may_hold_gpus(&self, uid: &PodUid) -> bool {
        (self.pods.contains_key(uid) && !self.without_gpus.contains(uid)) || self.gone.contains_key(uid)
    }
}

/// The report at this moment. Pods and GPUs beyond the bounds are left out. Pods for which the kubelet has not called
/// `Allocate` come first, because the leader waits for them.
#[must_use]
pub fn report(view: &NodeView, stages: &SharingStages, leaving: bool) -> AgentReport {
    let mut report = AgentReport::of(view.name.clone());
    report.phase = match (leaving, stages.serves) {
        (true, _) => AgentPhase::Leaving,
        (false, true) => AgentPhase::Serving,
        (false, false) => AgentPhase::Starting,
    };
    report.refuses_unclaimed = stages.refuses_unclaimed;
    let now = view.now.monotonic;
    let gpus = view
        .gpus
        .iter()
        .map(|gpu| (gpu.gpu.uuid.clone(), ReportedGpu { users: users(gpu, view, stages), ..gpu_of(gpu, now) }));
    let instances = view.gpus.iter().flat_map(|gpu| gpu.gpu.instances().iter().map(move |own| (gpu, own)));
    let instances = instances.map(|(gpu, own)| (own.uuid.clone(), instance_of(gpu, own, now)));
    report.gpus = gpus.chain(instances).take(MAX_REPORTED_GPUS).collect();
    report.withdrawn.clone_from(&stages.withdrawn);
    let starts = |uid: &PodUid| stages.starting.contains(uid);
    let listed = |(uid, stage): (&PodUid, &PodStage)| {
        (uid.clone(), ReportedPod { stage: *stage, has_containers: starts(uid), uses: ReportedUses::default() })
    };
    let mut pods: Vec<(PodUid, ReportedPod)> = stages.pods.iter().map(listed).collect();
    // By stage, waiting pods come before started pods. Refused pods come last: if one is left out, the leader closes the node.
    pods.sort_by_key(|(_, pod)| (pod.stage == PodStage::Refused, pod.stage));
    report.pods = pods.into_iter().take(MAX_REPORTED_PODS).collect();
    add_running(&mut report, view, stages);
    report
}

/// Adds what runs on the node: the containers and the use of GPU pods, and other running pods that may hold GPUs.
fn add_running(report: &mut AgentReport, view: &NodeView, stages: &SharingStages) {
    let starts = |uid: &PodUid| stages.starting.contains(uid);
    // A pod that is starting may have no cgroup yet.
    let starting = stages.starting.iter().map(|uid| (uid, true, &[][..]));
    let seen = view.pods.iter().map(|pod| (&pod.uid, has_containers(pod, view) || starts(&pod.uid), &pod.gpus[..]));
    let may_hold = |(uid, ..): &(&PodUid, bool, &[GpuUse])| !stages.without_gpus.contains(*uid);
    let mut others = BTreeMap::new();
    for (uid, has_containers, gpus) in starting.chain(seen).filter(may_hold) {
        let uses = uses(gpus, view.now.monotonic);
        if let Some(reported) = report.pods.get_mut(uid) {
            (reported.has_containers, reported.uses) = (has_containers, uses.into());
        } else if has_containers || !uses.is_empty() {
            // The pod is no longer a GPU pod of this node, never was, or is not known yet.
            others.insert(uid.clone(), (has_containers, uses));
        }
    }
    let room = MAX_REPORTED_PODS.saturating_sub(report.pods.len());
    let mut others: Vec<_> = others.into_iter().collect();
    // If there is no room for all, pods that hold GPUs come first.
    others.sort_by_key(|(uid, (_, uses))| uses.is_empty() && !stages.gone.contains_key(uid));
    for (uid, (has_containers, mut uses)) in others.into_iter().take(room) {
        // A leader that does not know the claim learns from these which GPUs the containers may use.
        for device in stages.gone.get(&uid).into_iter().flatten().take(MAX_REPORTED_USES - uses.len()) {
            let unused = ReportedUse { processes: 0, memory_used: ReportedReading::UNKNOWN };
            uses.entry(device.clone()).or_insert(unused);
        }
        report.pods.insert(uid, ReportedPod { stage: PodStage::Ended, has_containers, uses: uses.into() });
    }
}

/// The number of processes that `counted` finds in the process list of a GPU. It is absent while there is no list, so that the
/// leader does not place pods on GPUs that ended pods may still use. If the driver never lists processes, the number is 0:
/// waiting for a list would never end.
fn processes(gpu: &GpuView, now: Monotonic, counted: impl FnOnce(&[GpuProcess]) -> usize) -> ReportedReading<u32> {
    let number = |list: &[GpuProcess]| u32::try_from(counted(list)).unwrap_or(u32::MAX);
    match &gpu.processes {
        Reading::Measured(list, at) => ReportedReading::of(&Reading::Measured(number(list), *at), now),
        Reading::Absent(Absence::NotSupported | Absence::NotInThisDriver | Absence::NoPermission) => {
            ReportedReading::Measured(number(&[]), None)
        }
        Reading::Absent(why) => ReportedReading::Absent(Some(*why)),
    }
}

/// A MIG instance; claims name it like a GPU.
fn instance_of(gpu: &GpuView, own: &MigInstance, now: Monotonic) -> ReportedGpu {
    let sample = gpu.sample.mig.iter().find(|sample| sample.uuid == own.uuid);
    let inside = |list: &[GpuProcess]| list.iter().filter(|process| process.mig.as_ref() == Some(&own.uuid)).count();
    ReportedGpu {
        healthy: gpu.health == GpuHealth::Healthy,
        memory_total: ReportedReading::of(&own.memory_total, now),
        memory_used: sample.map_or(ReportedReading::UNKNOWN, |sample| ReportedReading::of(&sample.memory_used, now)),
        // The driver gives no list for an instance and its memory at one moment.
        memory_listed: ReportedReading::UNKNOWN,
        memory_unattributed: ReportedReading::UNKNOWN,
        processes: processes(gpu, now, inside),
        ..ReportedGpu::default()
    }
}

fn gpu_of(gpu: &GpuView, now: Monotonic) -> ReportedGpu {
    let listed = processes(gpu, now, <[GpuProcess]>::len);
    // In the other kinds it contains more than the memory of processes, and an empty GPU would never have room for a whole request.
    let used = match gpu.gpu.memory_kind {
        MemoryKind::Own => gpu.memory_used_now,
        MemoryKind::OwnWithReserved => Reading::Absent(Absence::NotInThisDriver),
        MemoryKind::Host => Reading::Absent(Absence::NotThisArchitecture),
    };
    ReportedGpu {
        healthy: gpu.health == GpuHealth::Healthy,
        memory_total: ReportedReading::of(&gpu.gpu.memory_total, now),
        memory_used: ReportedReading::of(&used, now),
        memory_listed: ReportedReading::of(&gpu.listed_memory, now),
        memory_unattributed: ReportedReading::of(&gpu.unattributed_memory, now),
        processes: listed.map(|listed| listed.saturating_add(gpu.processes_left_out)),
        utilization: ReportedReading::of(&gpu.sample.utilization.map(whole_percent), now),
        users: Box::default(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a percentage; a float is converted with saturation"
)]
fn whole_percent(percent: Percent) -> u32 {
    percent.0.round() as u32
}

/// Who uses most of a GPU's memory without being a GPU pod of this node.
fn users(gpu: &GpuView, view: &NodeView, stages: &SharingStages) -> Box<[MemoryUser]> {
    let mut users: BTreeMap<Box<str>, Bytes> = BTreeMap::new();
    for process in gpu.processes.value().map_or(&[][..], |list| list) {
        let Some(memory) = process.memory_used.get() else { continue };
        let pod = match &process.owner {
            ProcessOwner::Cgroup(identity) => identity.pod(),
            ProcessOwner::Host | ProcessOwner::Unknown => None,
        };
        if pod.is_some_and(|uid| stages.may_hold_gpus(uid)) {
            continue;
        }
        let name = match pod {
            Some(uid) => match view.pods.iter().find(|pod| pod.uid == *uid).and_then(|pod| pod.name.as_ref()) {
                Some(name) => format!("pod {name}"),
                None => format!("pod {uid}"),
            },
            None => format!("process {} {}", process.pid, process.command),
        };
        let name = name.get(..name.floor_char_boundary(MAX_USER_NAME)).unwrap_or_default();
        let sum = users.entry(name.into()).or_default();
        *sum = sum.plus(memory);
    }
    let mut users: Vec<MemoryUser> = users.into_iter().map(|(name, memory)| MemoryUser { name, memory }).collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.memory.0));
    users.truncate(MAX_REPORTED_USERS);
    users.into()
}

/// The use of one pod, by the device that its processes run on. A sum is absent if one of its parts is absent.
fn uses(gpus: &[GpuUse], now: Monotonic) -> BTreeMap<GpuUuid, ReportedUse> {
    let mut uses: BTreeMap<GpuUuid, ReportedUse> = BTreeMap::new();
    for used in gpus.iter().filter(|used| used.processes > 0).take(MAX_REPORTED_USES) {
        let device = used.mig.as_ref().unwrap_or(&used.gpu).clone();
        let memory = ReportedReading::of(&used.memory_used, now);
        uses.entry(device)
            .and_modify(|sum| {
                sum.processes = sum.processes.saturating_add(used.processes);
                sum.memory_used = sum.memory_used.sum(memory, Bytes::plus);
            })
            .or_insert(ReportedUse { processes: used.processes, memory_used: memory });
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use model::gpu::{GpmSample, Gpu, GpuSample, MigSample};
    use model::id::NodeName;
    use model::reported_reading::ReadingAge;
    use model::time::Now;
    use model::view::PodView;
    use std::sync::Arc;

    fn uid(n: usize) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    fn used(mig: Option<&str>, processes: u32, memory: Option<u64>) -> GpuUse {
        let absent = Reading::Absent(Absence::NotSupported);
        GpuUse {
            gpu: GpuUuid::parse("GPU-0").unwrap(),
            mig: mig.map(|mig| GpuUuid::parse(mig).unwrap()),
            processes,
            memory_used: memory.map_or(absent, |bytes| Reading::Measured(Bytes(bytes), Monotonic(1))),
            sm: Reading::Absent(Absence::NotSupported),
        }
    }

    fn view(pods: Vec<(PodUid, Vec<GpuUse>)>) -> NodeView {
        let mut view = NodeView::empty(NodeName::parse("n1").unwrap(), Now::default());
        let pod = |(uid, gpus)| PodView { gpus, ..crate::pods::bare(&uid) };
        view.pods = pods.into_iter().map(pod).collect();
        view
    }

    #[test]
    fn the_phase_follows_from_whether_the_agent_serves_and_the_stop() {
        let phase = |serves, leaving| {
            report(&view(Vec::new()), &SharingStages { serves, ..SharingStages::default() }, leaving).phase
        };
        assert_eq!([phase(false, false), phase(true, false)], [AgentPhase::Starting, AgentPhase::Serving]);
        assert_eq!([phase(false, true), phase(true, true)], [AgentPhase::Leaving; 2]);
        for refuses_unclaimed in [false, true] {
            let stages = SharingStages { refuses_unclaimed, ..SharingStages::default() };
            assert_eq!(report(&view(Vec::new()), &stages, false).refuses_unclaimed, refuses_unclaimed);
        }
    }

    #[test]
    fn a_pod_with_processes_is_reported_after_its_end_and_one_without_is_not() {
        let stages = SharingStages {
            pods: BTreeMap::from([(uid(1), PodStage::Started), (uid(2), PodStage::Waiting)]),
            withdrawn: BTreeSet::from([GpuUuid::parse("GPU-9").unwrap()]),
            ..SharingStages::default()
        };
        let view = view(vec![
            (uid(1), vec![used(None, 2, Some(5)), used(Some("MIG-1"), 1, None)]),
            (uid(3), vec![used(None, 1, Some(7)), used(None, 1, None)]),
            (uid(4), vec![used(None, 0, Some(0))]),
        ]);
        let report = report(&view, &stages, false);
        assert_eq!(report.withdrawn, stages.withdrawn);
        let shown: Vec<(PodUid, PodStage, usize, u32)> = report
            .pods
            .iter()
            .map(|(uid, pod)| (uid.clone(), pod.stage, pod.uses.iter().len(), pod.processes()))
            .collect();
        assert_eq!(
            shown,
            [(uid(1), PodStage::Started, 2, 3), (uid(2), PodStage::Waiting, 0, 0), (uid(3), PodStage::Ended, 1, 2)]
        );
        let sum = report.pods[&uid(3)].uses.iter().next().unwrap().1;
        let why = ReportedReading::Absent(Some(Absence::NotSupported));
        assert_eq!(sum.memory_used, why, "one part is not known");
    }

    #[test]
    fn a_pod_is_reported_until_its_containers_are_gone_with_the_devices_of_its_claim() {
        let device = GpuUuid::parse("GPU-1").unwrap();
        let stages = SharingStages {
            pods: BTreeMap::from([(uid(1), PodStage::Started), (uid(2), PodStage::Started)]),
            starting: BTreeSet::from([uid(2), uid(6)]),
            gone: BTreeMap::from([3, 5, 6].map(|n| (uid(n), BTreeSet::from([device.clone()])))),
            ..SharingStages::default()
        };
        let mut view = view(Vec::new());
        view.pods = vec![
            fixtures::container_of(&uid(1), false),
            fixtures::container_of(&uid(3), false),
            fixtures::container_of(&uid(4), true),
            fixtures::container_of(&uid(5), true),
        ];
        let report = report(&view, &stages, false);
        let shown = |(uid, pod): (&PodUid, &ReportedPod)| {
            (uid.clone(), pod.stage, pod.has_containers, pod.processes(), pod.uses.get(&device).is_some())
        };
        let expected = [
            (uid(1), PodStage::Started, true, 0, false),
            (uid(2), PodStage::Started, true, 0, false),
            (uid(3), PodStage::Ended, true, 0, true),
            (uid(6), PodStage::Ended, true, 0, true),
        ];
        assert_eq!(report.pods.iter().map(shown).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_pod_that_is_gone_is_reported_while_containers_of_it_may_be_left_out() {
        let stages = SharingStages { gone: BTreeMap::from([(uid(1), BTreeSet::new())]), ..SharingStages::default() };
        let mut view = view(vec![(uid(1), Vec::new()), (uid(2), Vec::new())]);
        view.pods[0].cgroup = Some(Arc::clone(&fixtures::container_of(&uid(1), false).containers[0].cgroup));
        for (left_out, reported) in [(0, vec![]), (1, vec![&uid(1)])] {
            view.cgroups_left_out = left_out;
            let report = report(&view, &stages, false);
            assert_eq!(report.pods.keys().collect::<Vec<_>>(), reported);
            assert!(report.pods.values().all(|pod| pod.has_containers));
        }
    }

    /// The leader would give a GPU to no other pod while a pod that is gone uses it, even if the pod never requested one.
    #[test]
    fn a_pod_that_holds_no_gpu_is_not_reported_even_if_it_uses_one() {
        let stages = SharingStages {
            pods: BTreeMap::from([(uid(3), PodStage::Refused)]),
            without_gpus: BTreeSet::from([uid(1), uid(3)]),
            ..SharingStages::default()
        };
        let view = view([1, 2, 3].map(|n| (uid(n), vec![used(None, 1, None)])).into());
        let report = report(&view, &stages, false);
        let shown = report.pods.iter().map(|(uid, pod)| (uid.clone(), pod.processes())).collect::<Vec<_>>();
        assert_eq!(
            shown,
            [(uid(2), 1), (uid(3), 0)],
            "a container of the third one is refused, and another one uses the GPU"
        );
    }

    #[test]
    fn a_list_that_is_missing_is_unknown_and_one_that_the_driver_never_has_is_empty() {
        let processes = |list: Reading<Arc<[GpuProcess]>>| {
            let mut view = view(Vec::new());
            view.gpus = vec![GpuView { processes: list, ..fixtures::view(fixtures::gpu(1)) }];
            report(&view, &SharingStages::default(), false).gpus.values().next().unwrap().processes
        };
        let listed = processes(Reading::Measured(Arc::from([]), Monotonic(1)));
        assert_eq!(listed, ReportedReading::Measured(0, Some(ReadingAge(0))));
        for why in [Absence::NotYet, Absence::CallHangs, Absence::DriverNotLoaded, Absence::Nvml(999)] {
            assert_eq!(processes(Reading::Absent(why)), ReportedReading::Absent(Some(why)), "{why}");
        }
        for why in [Absence::NotSupported, Absence::NotInThisDriver, Absence::NoPermission] {
            assert_eq!(processes(Reading::Absent(why)), ReportedReading::Measured(0, None), "{why}");
        }
    }

    #[test]
    fn mig_instances_are_reported_beside_their_gpu_and_have_a_list_when_it_has_one() {
        let instance = |n: u32| MigInstance {
            uuid: GpuUuid::parse(&format!("MIG-{n}")).unwrap(),
            index: n,
            gpu_instance: n,
            compute_instance: 0,
            profile: "1g.10gb".into(),
            memory_total: Reading::Measured(Bytes(10 << 30), Monotonic(1)),
        };
        let mut gpu = fixtures::gpu(1);
        gpu.mig = Reading::Measured(vec![instance(1), instance(2)], Monotonic(1));
        let mut view = view(Vec::new());
        view.gpus = vec![fixtures::view(gpu)];
        let shown = |view: &NodeView| -> Vec<(String, Option<u32>)> {
            let gpus = report(view, &SharingStages::default(), false).gpus;
            gpus.into_iter().map(|(uuid, gpu)| (uuid.to_string(), gpu.processes.get())).collect()
        };
        let all = |processes| ["GPU-1", "MIG-1", "MIG-2"].map(|uuid| (uuid.to_owned(), processes));
        assert_eq!(shown(&view), all(None));
        view.gpus[0].processes = Reading::Measured(Arc::from([]), Monotonic(1));
        assert_eq!(shown(&view), all(Some(0)));
        let sample = MigSample {
            uuid: instance(2).uuid,
            memory_used: Reading::Measured(Bytes(3 << 30), Monotonic(1)),
            memory_free: Reading::NOT_YET,
            memory_reserved: Reading::NOT_YET,
            gpm: GpmSample::default(),
        };
        view.gpus[0].sample = Arc::new(GpuSample { mig: vec![sample], ..GpuSample::default() });
        let gpus = report(&view, &SharingStages::default(), false).gpus;
        let memory = |n: u32| gpus[&instance(n).uuid].memory_used.get();
        assert_eq!([memory(1), memory(2)], [None, Some(Bytes(3 << 30))]);
    }

    #[test]
    fn used_memory_is_reported_only_where_it_is_memory_of_processes() {
        let used = |memory_kind| {
            let mut view = view(Vec::new());
            let memory_used_now = Reading::Measured(Bytes(7), Monotonic(1));
            let gpu = Gpu { memory_kind, ..fixtures::gpu(1) };
            view.gpus = vec![GpuView { memory_used_now, ..fixtures::view(gpu) }];
            report(&view, &SharingStages::default(), false).gpus.values().next().unwrap().memory_used
        };
        assert_eq!(used(MemoryKind::Own).get(), Some(Bytes(7)));
        let absent = |why| ReportedReading::Absent(Some(why));
        assert_eq!(used(MemoryKind::OwnWithReserved), absent(Absence::NotInThisDriver));
        assert_eq!(used(MemoryKind::Host), absent(Absence::NotThisArchitecture));
    }

    #[test]
    fn beyond_the_bound_pods_that_wait_are_reported_first() {
        let stage = |n| if n == MAX_REPORTED_PODS + 4 { PodStage::Waiting } else { PodStage::Started };
        let pods = (0..MAX_REPORTED_PODS + 5).map(|n| (uid(n), stage(n))).collect();
        let stages = SharingStages { pods, ..SharingStages::default() };
        let report = report(&view(vec![(uid(99_999), vec![used(None, 1, None)])]), &stages, false);
        assert_eq!(report.pods.len(), MAX_REPORTED_PODS);
        assert_eq!(report.pods.get(&uid(MAX_REPORTED_PODS + 4)).map(|pod| pod.stage), Some(PodStage::Waiting));
    }
}
