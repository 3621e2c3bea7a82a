//! What an agent reports to the leading extender, and what the leader answers.

use crate::id::{GpuUuid, NodeName, PodUid};
use crate::realtime::NodeCheck;
use crate::reported_reading::ReportedReading;
use crate::unit::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound on the GPUs and MIG instances of a report: 64 GPUs, and seven MIG instances on each of 16 GPUs.
pub const MAX_REPORTED_GPUS: usize = 176;
/// Upper bound on the pods of a report: the kubelet allows 110 by default and some 500 in the largest set-ups, and each may
/// have a successor while it ends.
pub const MAX_REPORTED_PODS: usize = 1024;
/// Upper bound on the GPUs that one pod uses in a report: the largest hosts have 16, and a pod may use all instances of two.
pub const MAX_REPORTED_USES: usize = 32;
/// Upper bound on the users of a GPU's memory that a report names: more would not help an operator to see who uses most of it.
pub const MAX_REPORTED_USERS: usize = 3;
/// Maximum bytes of the name of a user in a report; a longer name is cut. With 64 GPUs all names take 27 KiB of a message.
pub const MAX_USER_NAME: usize = 128;
/// Upper bound on the withdrawn devices of a report: as many as a node can have, because pods hold at most all of them.
pub const MAX_WITHDRAWN: usize = MAX_REPORTED_GPUS;
/// Smallest change of an amount of memory that is sent. 64 MiB is less than a CUDA context takes, and a process that allocates
/// in small steps does not cause a message for each step.
pub const MEMORY_DEAD_BAND: Bytes = Bytes(64 << 20);
/// Shortest time between two messages of an agent.
pub const REPORT_LEAST: Duration = Duration::from_secs(1);
/// Longest time between two messages, so that the leader sees that the agent runs.
pub const REPORT_MOST: Duration = Duration::from_secs(10);

/// Whether new pods may be bound to the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentPhase {
    /// The agent is not registered with the kubelet: a pod that is bound now would fail admission.
    #[default]
    Starting,
    /// The agent is registered with the kubelet.
    Serving,
    /// An agent of an earlier release is registered with the kubelet. Its runtime has no CDI, so the agent gives devices in the
    /// answer to `Allocate`, which names no pod. This release binds no pod to such a node.
    ServingEarly,
    /// The agent is about to stop, and waits until the kubelet has called `Allocate` for the pods that are already bound.
    Leaving,
}

/// How far the start of a pod has come, as its agent reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodStage {
    /// The kubelet has called `Allocate` for all of its containers, but the agent refuses to start them, because the pod has no
    /// claim, its request cannot be read, or its claim names a device that the node does not have. The pod holds no device.
    Refused,
    /// The kubelet has not called `Allocate` for all of its containers.
    Waiting,
    /// The kubelet has called `Allocate` for all of its containers that request GPUs.
    Allocated,
    /// A container of the pod has its devices.
    Started,
    /// The pod has ended or is not known, but its containers or its processes on a GPU still exist.
    Ended,
}

/// One GPU in a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedGpu {
    /// Whether the GPU is fit for new containers.
    pub healthy: bool,
    /// The GPU's memory.
    pub memory_total: ReportedReading<Bytes>,
    /// Memory in use by processes.
    pub memory_used: ReportedReading<Bytes>,
    /// Memory that was in use when the newest process list was made: the memory of the pods' processes is a part of it.
    pub memory_listed: ReportedReading<Bytes>,
    /// Memory in use that is not attributed to a process of a pod.
    pub memory_unattributed: ReportedReading<Bytes>,
    /// Number of processes; absent while the agent has no process list. 0 without an age if the driver never lists processes,
    /// because the agent then sees no processes.
    pub processes: ReportedReading<u32>,
    /// The GPU's utilisation in percent. A report is never sent because of it.
    pub utilization: ReportedReading<u32>,
    /// The users of most GPU memory without a claim, at most [`MAX_REPORTED_USERS`]; for people, and never a reason for a report.
    pub users: Box<[MemoryUser]>,
}

/// A process of the host or a pod that requests no GPU, and the memory that it uses of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUser {
    /// `pod NAMESPACE/NAME`, or `process PID COMMAND`.
    pub name: Box<str>,
    /// The memory.
    pub memory: Bytes,
}

/// What the processes of a pod use of one GPU or MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedUse {
    /// Number of processes.
    pub processes: u32,
    /// Memory that the processes hold.
    pub memory_used: ReportedReading<Bytes>,
}

/// What the processes of one pod use, by GPU or MIG instance. A leader keeps one such list for each pod of the cluster, and most
/// lists have one entry. So it is a sorted list: a map would take half a KiB for each pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedUses(Box<[(GpuUuid, ReportedUse)]>);

impl FromIterator<(GpuUuid, ReportedUse)> for ReportedUses {
    fn from_iter<I: IntoIterator<Item = (GpuUuid, ReportedUse)>>(uses: I) -> ReportedUses {
        BTreeMap::from_iter(uses).into()
    }
}

impl From<BTreeMap<GpuUuid, ReportedUse>> for ReportedUses {
    fn from(uses: BTreeMap<GpuUuid, ReportedUse>) -> ReportedUses {
        ReportedUses(uses.into_iter().collect())
    }
}

impl ReportedUses {
    /// All uses, ordered by device.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&GpuUuid, &ReportedUse)> {
        self.0.iter().map(|(device, used)| (device, used))
    }

    /// Replaces each UUID with the equal UUID in `gpus`, so that both share one allocation.
    fn share(&mut self, gpus: &BTreeMap<GpuUuid, ReportedGpu>) {
        for (device, _) in &mut self.0 {
            if let Some((same, _)) = gpus.get_key_value(device) {
                device.clone_from(same);
            }
        }
    }

    /// The use of this device.
    #[must_use]
    pub fn get(&self, device: &GpuUuid) -> Option<&ReportedUse> {
        let place = self.0.binary_search_by(|(one, _)| one.cmp(device)).ok()?;
        self.0.get(place).map(|(_, used)| used)
    }
}

/// One pod in a report: it requests GPUs, or has processes on a GPU. Processes and containers of a pod of which no container got a
/// GPU are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedPod {
    /// How far the pod's start has come.
    pub stage: PodStage,
    /// Whether a container of the pod exists or is starting: then it may start a process on a GPU at any moment.
    pub has_containers: bool,
    /// What the pod's processes use. A pod that is gone also has an entry, maybe without a process, for each device that it claimed.
    pub uses: ReportedUses,
}

/// Everything that an agent reports about its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReport {
    /// The node.
    pub node: NodeName,
    /// Whether new pods may be bound to the node.
    pub phase: AgentPhase,
    /// Whether the agent refuses to start pods that have no claim.
    pub refuses_unclaimed: bool,
    /// What the agent's settings say about the real-time check.
    pub check: NodeCheck,
    /// The node's GPUs and MIG instances, at most [`MAX_REPORTED_GPUS`].
    pub gpus: BTreeMap<GpuUuid, ReportedGpu>,
    /// The node's pods, at most [`MAX_REPORTED_PODS`].
    pub pods: BTreeMap<PodUid, ReportedPod>,
    /// GPUs and MIG instances that the node had, or has and does not offer, at most [`MAX_WITHDRAWN`]. A claim on such a device does
    /// not count on any device that the node offers.
    pub withdrawn: BTreeSet<GpuUuid>,
}

/// What differs between two reports of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportChange {
    /// The phase now.
    pub phase: AgentPhase,
    /// Whether the agent refuses to start pods that have no claim.
    pub refuses_unclaimed: bool,
    /// What the agent's settings say about the real-time check.
    pub check: NodeCheck,
    /// GPUs that are new or differ.
    pub gpus: BTreeMap<GpuUuid, ReportedGpu>,
    /// GPUs that are gone.
    pub gpus_gone: Vec<GpuUuid>,
    /// Pods that are new or differ.
    pub pods: BTreeMap<PodUid, ReportedPod>,
    /// Pods that have ended.
    pub pods_gone: Vec<PodUid>,
    /// All withdrawn devices now.
    pub withdrawn: BTreeSet<GpuUuid>,
}

/// One message of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage {
    /// Everything.
    Full(AgentReport),
    /// What has changed since the message before.
    Change(ReportChange),
    /// Nothing has changed.
    Beat,
}

/// What the leader answers to an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderView {
    /// The epoch of the leader's claims; 0 from an extender that does not lead.
    pub epoch: u64,
    /// The address of the leader, from an extender that does not lead.
    pub leader: Option<Arc<str>>,
    /// Why the node takes no new claims; `None` if it takes new claims.
    pub closed: Option<Arc<str>>,
    /// Whether the leader knows that the agent is about to stop.
    pub leaving: bool,
    /// Pods that are or may be bound to the node and for which the kubelet has not called `Allocate` yet. Empty unless the
    /// agent is about to stop.
    pub awaited: Vec<PodUid>,
}

/// More GPUs or pods than a node can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the report would have {found} {what}, and at most {most} are kept")]
pub struct ReportTooLarge {
    /// `GPUs` or `pods`.
    pub what: &'static str,
    /// Number that the report would have.
    pub found: usize,
    /// The bound.
    pub most: usize,
}

impl AgentReport {
    /// A report without GPUs and pods.
    #[must_use]
    pub fn of(node: NodeName) -> AgentReport {
        let (gpus, pods, withdrawn) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let check = NodeCheck::default();
        AgentReport { node, phase: AgentPhase::Starting, refuses_unclaimed: false, check, gpus, pods, withdrawn }
    }

    /// The differences from `sent`, the report that the leader has. An amount of memory that differs by less than
    /// [`MEMORY_DEAD_BAND`] does not count, nor does the age of a reading. A GPU and the pods on it are sent together, so that the
    /// leader compares amounts of one moment: ten pods that each grew by less than the dead band must not look like a stranger.
    #[must_use]
    pub fn changes_since(&self, sent: &AgentReport) -> ReportChange {
        let gpu_differs = |uuid: &GpuUuid, gpu: &ReportedGpu| sent.gpus.get(uuid).is_none_or(|sent| gpu.differs(sent));
        let pod_differs = |uid: &PodUid, pod: &ReportedPod| sent.pods.get(uid).is_none_or(|sent| pod.differs(sent));
        let differing = self.pods.iter().filter(|(uid, pod)| pod_differs(uid, pod));
        let mut moved: BTreeSet<&GpuUuid> =
            differing.flat_map(|(uid, pod)| pod.uses_beyond_band(sent.pods.get(uid))).collect();
        moved.extend(self.gpus.iter().filter(|(uuid, gpu)| gpu_differs(uuid, gpu)).map(|(uuid, _)| uuid));
        let changed_there = |uid: &PodUid, pod: &ReportedPod| {
            let before = sent.pods.get(uid);
            pod.uses.iter().filter(|(device, _)| moved.contains(device)).any(|(device, now)| {
                let before = before.and_then(|pod| pod.uses.get(device));
                before.is_none_or(|before| before.memory_used.get() != now.memory_used.get())
            })
        };
        let gpus = self.gpus.iter().filter(|(uuid, _)| moved.contains(uuid));
        let pods = self.pods.iter().filter(|(uid, pod)| pod_differs(uid, pod) || changed_there(uid, pod));
        ReportChange {
            phase: self.phase,
            refuses_unclaimed: self.refuses_unclaimed,
            check: self.check,
            gpus: gpus.map(|(uuid, gpu)| (uuid.clone(), gpu.clone())).collect(),
            gpus_gone: sent.gpus.keys().filter(|uuid| !self.gpus.contains_key(*uuid)).cloned().collect(),
            pods: pods.map(|(uid, pod)| (uid.clone(), pod.clone())).collect(),
            pods_gone: sent.pods.keys().filter(|uid| !self.pods.contains_key(*uid)).cloned().collect(),
            withdrawn: self.withdrawn.clone(),
        }
    }

    /// The same report, with the UUID of each GPU in memory once instead of once for each pod that uses it: a leader keeps the
    /// reports of thousands of nodes.
    #[must_use]
    pub fn compact(mut self) -> AgentReport {
        self.pods.values_mut().for_each(|pod| pod.uses.share(&self.gpus));
        self
    }

    /// Applies a change.
    ///
    /// # Errors
    /// [`ReportTooLarge`]; then the report is unchanged.
    pub fn apply(&mut self, mut change: ReportChange) -> Result<(), ReportTooLarge> {
        let more = |all: usize, new: usize, gone: usize| (all + new).saturating_sub(gone);
        let new_gpus = change.gpus.keys().filter(|uuid| !self.gpus.contains_key(*uuid)).count();
        let new_pods = change.pods.keys().filter(|uid| !self.pods.contains_key(*uid)).count();
        let gone_gpus = change.gpus_gone.iter().filter(|uuid| self.gpus.contains_key(*uuid)).count();
        let gone_pods = change.pods_gone.iter().filter(|uid| self.pods.contains_key(*uid)).count();
        let gpus = more(self.gpus.len(), new_gpus, gone_gpus);
        let pods = more(self.pods.len(), new_pods, gone_pods);
        for (what, found, most) in [("GPUs", gpus, MAX_REPORTED_GPUS), ("pods", pods, MAX_REPORTED_PODS)] {
            if found > most {
                return Err(ReportTooLarge { what, found, most });
            }
        }
        for uuid in &change.gpus_gone {
            self.gpus.remove(uuid);
        }
        for uid in &change.pods_gone {
            self.pods.remove(uid);
        }
        self.gpus.extend(change.gpus);
        change.pods.values_mut().for_each(|pod| pod.uses.share(&self.gpus));
        self.pods.extend(change.pods);
        (self.phase, self.refuses_unclaimed) = (change.phase, change.refuses_unclaimed);
        (self.check, self.withdrawn) = (change.check, change.withdrawn);
        Ok(())
    }
}

impl ReportedGpu {
    fn differs(&self, sent: &ReportedGpu) -> bool {
        self.healthy != sent.healthy
            || self.processes.differs(&sent.processes, |now, sent| now != sent)
            || self.memory_total.differs(&sent.memory_total, |now, sent| now != sent)
            || self.memory_used.differs(&sent.memory_used, beyond_band)
            || self.memory_listed.differs(&sent.memory_listed, beyond_band)
            || self.memory_unattributed.differs(&sent.memory_unattributed, beyond_band)
    }
}

impl ReportedPod {
    /// Number of the pod's processes on all GPUs together.
    #[must_use]
    pub fn processes(&self) -> u32 {
        self.uses.iter().fold(0, |sum, (_, one)| sum.saturating_add(one.processes))
    }

    /// The devices of which the pod uses another amount of memory than `sent` says.
    fn uses_beyond_band<'a>(&'a self, sent: Option<&ReportedPod>) -> impl Iterator<Item = &'a GpuUuid> {
        let before = move |device: &GpuUuid| sent.and_then(|sent| sent.uses.get(device));
        let differs = move |(device, now): &(&GpuUuid, &ReportedUse)| {
            before(device).is_none_or(|sent| now.memory_used.differs(&sent.memory_used, beyond_band))
        };
        self.uses.iter().filter(differs).map(|(device, _)| device)
    }

    fn differs(&self, sent: &ReportedPod) -> bool {
        self.stage != sent.stage
            || self.has_containers != sent.has_containers
            || self.uses.iter().len() != sent.uses.iter().len()
            || self.uses.iter().any(|(device, now)| {
                sent.uses.get(device).is_none_or(|sent| {
                    now.processes != sent.processes || now.memory_used.differs(&sent.memory_used, beyond_band)
                })
            })
    }
}

impl ReportChange {
    /// Whether the change leaves `sent` as it is.
    #[must_use]
    pub fn is_empty(&self, sent: &AgentReport) -> bool {
        self.phase == sent.phase
            && self.refuses_unclaimed == sent.refuses_unclaimed
            && self.check == sent.check
            && self.withdrawn == sent.withdrawn
            && self.gpus.is_empty()
            && self.gpus_gone.is_empty()
            && self.pods.is_empty()
            && self.pods_gone.is_empty()
    }
}

/// Whether two amounts differ so much that the new amount must be sent.
fn beyond_band(now: Bytes, sent: Bytes) -> bool {
    now.0.abs_diff(sent.0) >= MEMORY_DEAD_BAND.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Absence;
    use crate::reported_reading::ReadingAge;

    const MIB: u64 = 1 << 20;

    fn gpu(used: u64) -> ReportedGpu {
        ReportedGpu {
            healthy: true,
            memory_total: ReportedReading::Measured(Bytes(80 << 30), Some(ReadingAge(5))),
            memory_used: ReportedReading::Measured(Bytes(used), Some(ReadingAge(5))),
            memory_listed: ReportedReading::UNKNOWN,
            memory_unattributed: ReportedReading::Absent(Some(Absence::NotYet)),
            processes: ReportedReading::Measured(1, Some(ReadingAge(5))),
            ..ReportedGpu::default()
        }
    }

    fn uuid(n: usize) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-{n}")).unwrap()
    }

    fn uid(n: usize) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    fn pod(stage: PodStage, uses: ReportedUses) -> ReportedPod {
        ReportedPod { stage, has_containers: false, uses }
    }

    fn report(used: u64) -> AgentReport {
        let mut report = AgentReport::of(NodeName::parse("n1").unwrap());
        report.gpus.insert(uuid(0), gpu(used));
        report.pods.insert(uid(0), pod(PodStage::Waiting, ReportedUses::default()));
        report
    }

    #[test]
    fn memory_counts_from_64_mib_on_and_an_absent_value_always() {
        let sent = report(0);
        assert!(report(64 * MIB - 1).changes_since(&sent).gpus.is_empty());
        assert_eq!(report(64 * MIB).changes_since(&sent).gpus.len(), 1);
        let mut absent = report(0);
        absent.gpus.get_mut(&uuid(0)).unwrap().memory_used = ReportedReading::UNKNOWN;
        assert_eq!(absent.changes_since(&sent).gpus.len(), 1);
        let mut more = report(0);
        more.gpus.get_mut(&uuid(0)).unwrap().processes = ReportedReading::Measured(2, None);
        assert_eq!(more.changes_since(&sent).gpus.len(), 1);
        let mut older = report(0);
        let gpu = older.gpus.get_mut(&uuid(0)).unwrap();
        (gpu.processes, gpu.memory_used) =
            (ReportedReading::Measured(1, None), ReportedReading::Measured(Bytes(0), Some(ReadingAge(60_000))));
        assert!(older.changes_since(&sent).gpus.is_empty(), "only the ages differ");
        let gpu = older.gpus.get_mut(&uuid(0)).unwrap();
        gpu.utilization = ReportedReading::Measured(90, None);
        gpu.users = [MemoryUser { name: "process 7 python".into(), memory: Bytes(7) }].into();
        assert!(older.changes_since(&sent).gpus.is_empty(), "neither the use of its SMs nor the names of its users");
        older.gpus.get_mut(&uuid(0)).unwrap().memory_unattributed = ReportedReading::Absent(Some(Absence::CallHangs));
        assert_eq!(older.changes_since(&sent).gpus.len(), 1, "absent for another reason");
    }

    /// Ten pods that each use this much memory of GPU 0.
    fn ten_pods(each: u64) -> AgentReport {
        let mut report = report(10 * each);
        report.gpus.get_mut(&uuid(0)).unwrap().memory_listed = ReportedReading::Measured(Bytes(10 * each), None);
        for n in 0..10 {
            let used = ReportedUse { processes: 1, memory_used: ReportedReading::Measured(Bytes(each), None) };
            let uses = [(uuid(0), used)].into_iter().collect();
            report.pods.insert(uid(n), pod(PodStage::Started, uses));
        }
        report
    }

    #[test]
    fn pods_that_each_grew_by_less_than_the_dead_band_are_sent_with_their_gpu() {
        let (sent, now) = (ten_pods(1 << 30), ten_pods((1 << 30) + 60 * MIB));
        let change = now.changes_since(&sent);
        assert_eq!((change.gpus.len(), change.pods.len()), (1, 10));
        let mut one = sent.clone();
        let grown = ReportedUse { processes: 1, memory_used: ReportedReading::Measured(Bytes(2 << 30), None) };
        one.pods.get_mut(&uid(3)).unwrap().uses = [(uuid(0), grown)].into_iter().collect();
        let change = one.changes_since(&sent);
        assert_eq!((change.gpus.len(), change.pods.len()), (1, 1), "a pod is sent with its GPU");
        assert!(sent.changes_since(&sent).is_empty(&sent));
    }

    #[test]
    fn a_report_with_the_changes_is_the_new_report() {
        let (sent, mut now) = (report(0), report(1 << 30));
        now.phase = AgentPhase::Leaving;
        now.pods.clear();
        let uses =
            [(uuid(0), ReportedUse { processes: 1, memory_used: ReportedReading::UNKNOWN })].into_iter().collect();
        now.pods.insert(uid(1), pod(PodStage::Started, uses));
        now.gpus.insert(uuid(1), gpu(0));
        now.withdrawn.insert(uuid(2));
        let change = now.changes_since(&sent);
        assert!(!change.is_empty(&sent));
        let mut applied = sent.clone();
        applied.apply(change).unwrap();
        assert_eq!(applied, now);
        assert!(now.changes_since(&applied).is_empty(&applied));
        now.pods.get_mut(&uid(1)).unwrap().has_containers = true;
        applied.apply(now.changes_since(&applied)).unwrap();
        assert_eq!(applied, now, "the end of the last container alone is sent");
        now.refuses_unclaimed = true;
        let change = now.changes_since(&applied);
        assert!(!change.is_empty(&applied));
        applied.apply(change).unwrap();
        assert_eq!(applied, now);
        let other = AgentReport { withdrawn: BTreeSet::new(), ..now.clone() };
        assert!(!other.changes_since(&now).is_empty(&now), "a change of the withdrawn devices alone is sent");
    }

    #[test]
    fn a_change_that_makes_a_report_too_large_is_refused_and_nothing_of_it_is_kept() {
        let mut kept = report(0);
        let before = kept.clone();
        let change = ReportChange {
            gpus: (0..=MAX_REPORTED_GPUS).map(|n| (uuid(n), gpu(0))).collect(),
            pods_gone: vec![uid(0)],
            ..ReportChange::default()
        };
        let why = kept.apply(change).unwrap_err();
        assert_eq!((why.what, why.found, &kept), ("GPUs", MAX_REPORTED_GPUS + 1, &before));
    }
}
