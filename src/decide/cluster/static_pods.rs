//! The names by which reports know the static pods of one node.
//!
//! An agent knows a pod by the UID in its cgroup. For a static pod this UID is the hash of its manifest, while its
//! mirror pod at the API server has another UID. The leader keys everything by the API server's UID, which is unique. A
//! hash is not unique: static pods of one manifest have the same hash on several nodes, and any user who may create
//! pods can give a pod the hash of another pod. So a hash counts only on the pod's own node.
//!
//! What must never happen here: a pod releases, through its hash, the GPUs that another pod holds.

use model::id::PodUid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The static pods of one node, and all pods that look like static pods. Anyone who may create pods can create very many, so copies
/// of a node share them.
#[derive(Clone, Debug, Default)]
pub(super) struct StaticPods(Arc<Hashes>);

#[derive(Clone, Debug, Default)]
struct Hashes {
    /// The hash of each pod, by its UID at the API server. The map has at most one entry for each pod on the node.
    of: BTreeMap<PodUid, PodUid>,
    /// The pods with each hash.
    pods: BTreeMap<PodUid, BTreeSet<PodUid>>,
    /// The pods with each hash that request GPUs, have no claim and have not started.
    unclaimed: BTreeMap<PodUid, BTreeSet<PodUid>>,
}

impl StaticPods {
    /// Sets the hash of a pod of the node; `None` if it is not a static pod, or is gone. Returns whether that changes anything.
    pub(super) fn set(&mut self, uid: &PodUid, hash: Option<&PodUid>) -> bool {
        if self.0.of.get(uid) == hash {
            return false;
        }
        let Hashes { of, pods, unclaimed } = Arc::make_mut(&mut self.0);
        if let Some(before) = of.remove(uid) {
            take_out(pods, &before, uid);
            take_out(unclaimed, &before, uid);
        }
        if let Some(hash) = hash {
            of.insert(uid.clone(), hash.clone());
            pods.entry(hash.clone()).or_default().insert(uid.clone());
        }
        true
    }

    /// Sets whether a pod requests GPUs, has no claim and has not started. Does nothing for a pod without a hash.
    pub(super) fn unclaimed_is(&mut self, uid: &PodUid, unclaimed: bool) {
        let Some(hash) = self.0.of.get(uid).cloned() else { return };
        let was = self.0.unclaimed.get(&hash).is_some_and(|pods| pods.contains(uid));
        if was == unclaimed {
            return;
        }
        let pods = &mut Arc::make_mut(&mut self.0).unclaimed;
        if unclaimed {
            pods.entry(hash).or_default().insert(uid.clone());
        } else {
            take_out(pods, &hash, uid);
        }
    }

    /// Whether the node has no static pod.
    pub(super) fn is_empty(&self) -> bool {
        self.0.of.is_empty()
    }

    /// The names that reports may use for a pod: its UID and its hash. If a report has no process under these names, no
    /// process of the pod runs, even if two pods have the same hash or a pod has the hash of another pod.
    pub(super) fn names<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a PodUid> {
        std::iter::once(uid).chain(self.0.of.get(uid))
    }

    /// The name by which the agent knows a pod.
    pub(super) fn name<'a>(&'a self, uid: &'a PodUid) -> &'a PodUid {
        self.0.of.get(uid).unwrap_or(uid)
    }

    /// The pods with this hash. There may be very many.
    fn hashed<'a>(&'a self, hash: &'a PodUid) -> impl Iterator<Item = &'a PodUid> {
        self.0.pods.get(hash).into_iter().flatten()
    }

    /// The pods with this hash that request GPUs, have no claim and have not started.
    pub(super) fn unclaimed<'a>(&'a self, hash: &'a PodUid) -> impl Iterator<Item = &'a PodUid> {
        self.0.unclaimed.get(hash).into_iter().flatten()
    }

    /// The pods that a name in a report may stand for.
    pub(super) fn meant<'a>(&'a self, name: &'a PodUid) -> impl Iterator<Item = &'a PodUid> {
        std::iter::once(name).chain(self.hashed(name))
    }

    /// Whether these are two pods with the same hash.
    pub(super) fn are_siblings(&self, one: &PodUid, other: &PodUid) -> bool {
        let hash = self.0.of.get(one);
        hash.is_some() && hash == self.0.of.get(other) && one != other
    }
}

/// Removes a pod from the pods with this hash.
fn take_out(pods: &mut BTreeMap<PodUid, BTreeSet<PodUid>>, hash: &PodUid, uid: &PodUid) {
    let Some(others) = pods.get_mut(hash) else { return };
    others.remove(uid);
    if others.is_empty() {
        pods.remove(hash);
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::tests::{NOW, bound, cluster, name, slice};
    use crate::cluster::{ClusterState, StreamId};
    use crate::ledger::ClaimState;
    use crate::placement::tests::uuid;
    use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportedGpu, ReportedPod, ReportedUse};
    use model::claim::{Claim, DeviceShare, PodClaim};
    use model::gpu_pod::{BoundPod, GpuPod};
    use model::id::PodUid;
    use model::reported_reading::ReportedReading;
    use model::unit::Mib;

    const STREAM: StreamId = StreamId(1);

    fn hash() -> PodUid {
        PodUid::parse(&"a".repeat(32)).unwrap()
    }

    fn uid(n: u32) -> PodUid {
        slice(n, 1).uid
    }

    /// The mirror with this number of a static pod, which claims 1,000 MiB of the first GPU of this node.
    fn mirror(n: u32, node: u32) -> BoundPod {
        let share = DeviceShare { device: uuid(node * 100), memory: Some(Mib(1000).bytes()), cores: None };
        let pod = bound(&slice(n, 1000), &name(node), PodClaim::Given(Claim(vec![vec![share]])));
        BoundPod { hash: Some(hash()), ..pod }
    }

    fn finished(pod: BoundPod) -> BoundPod {
        let gpu_pod = pod.gpu_pod.map(|pod| GpuPod { finished: true, ..pod });
        BoundPod { gpu_pod, ended: true, ..pod }
    }

    /// The agent of node 0 reports the pod of the hash at this stage, with this number of processes on the first GPU.
    fn reports(cluster: &mut ClusterState, phase: AgentPhase, pod: Option<(PodStage, u32)>) {
        let gpu = ReportedGpu {
            healthy: true,
            memory_total: ReportedReading::UNKNOWN,
            memory_used: ReportedReading::UNKNOWN,
            memory_listed: ReportedReading::UNKNOWN,
            memory_unattributed: ReportedReading::UNKNOWN,
            processes: ReportedReading::Measured(0, None),
            ..ReportedGpu::default()
        };
        let mut report = AgentReport { phase, ..AgentReport::of(name(0)) };
        report.gpus = [(uuid(0), gpu)].into();
        if let Some((stage, processes)) = pod {
            let used = (uuid(0), ReportedUse { processes, memory_used: ReportedReading::UNKNOWN });
            let uses = Some(used).filter(|_| processes > 0).into_iter().collect();
            report.pods.insert(hash(), ReportedPod { stage, has_containers: false, uses });
        }
        cluster.agent_reports(STREAM, report, NOW).unwrap();
    }

    fn state(cluster: &ClusterState, n: u32) -> Option<ClaimState> {
        cluster.claim_of(&uid(n)).map(|(_, state)| state)
    }

    /// The memory that is claimed of the first GPU of node 0.
    fn claimed_mib(cluster: &ClusterState) -> u64 {
        cluster.node(&name(0)).unwrap().devices().devices[0].claimed.memory >> 20
    }

    #[test]
    fn no_pod_releases_the_claim_of_another_one_whose_hash_it_has() {
        for node in [0, 1] {
            for asks in [true, false] {
                let mut cluster = cluster(2, 1);
                reports(&mut cluster, AgentPhase::Serving, Some((PodStage::Started, 1)));
                cluster.pod_is(&uid(1), Some(&mirror(1, 0)));
                let gpu_pod = mirror(2, node).gpu_pod.filter(|_| asks);
                let other = BoundPod { gpu_pod, ..mirror(2, node) };
                // The pod appears, ends, appears again without a node, and is gone.
                cluster.pod_is(&uid(2), Some(&other));
                assert!(state(&cluster, 1).is_some(), "{node} {asks}");
                cluster.pod_is(&uid(2), Some(&finished(other.clone())));
                assert!(state(&cluster, 1).is_some(), "{node} {asks}");
                cluster.pod_is(&uid(2), Some(&other));
                cluster.pod_is_unbound(&uid(2));
                cluster.pod_is(&uid(2), None);
                cluster.pod_gone(&uid(2));
                assert!(state(&cluster, 1).is_some(), "{node} {asks}");
                // The end of the static pod is still judged by its own processes.
                cluster.pod_gone(&uid(1));
                assert!(state(&cluster, 1).is_some(), "{node} {asks}");
                reports(&mut cluster, AgentPhase::Serving, None);
                assert_eq!((state(&cluster, 1), state(&cluster, 2)), (None, None), "{node} {asks}");
                assert_eq!(claimed_mib(&cluster), 0);
            }
        }
    }

    #[test]
    fn a_hash_in_a_report_means_the_static_pod_of_that_node() {
        let mut cluster = cluster(2, 1);
        cluster.pod_is(&uid(1), Some(&mirror(1, 0)));
        cluster.pod_is(&uid(2), Some(&mirror(2, 1)));
        assert_eq!((state(&cluster, 1), state(&cluster, 2)), (Some(ClaimState::Bound), Some(ClaimState::Bound)));
        // The agent knows its static pods by their hashes, including the pods that it waits for.
        reports(&mut cluster, AgentPhase::Leaving, Some((PodStage::Waiting, 0)));
        assert_eq!(cluster.leader_view(&name(0)).awaited, [hash()]);
        reports(&mut cluster, AgentPhase::Leaving, Some((PodStage::Started, 1)));
        assert!(cluster.leader_view(&name(0)).awaited.is_empty());
        assert_eq!((state(&cluster, 1), state(&cluster, 2)), (Some(ClaimState::Started), Some(ClaimState::Bound)));
        // No agent reports on the other node.
        cluster.pod_gone(&uid(2));
        cluster.pod_gone(&uid(1));
        assert_eq!((state(&cluster, 1), state(&cluster, 2)), (Some(ClaimState::Started), None));
    }

    /// After `kubectl delete` of a mirror pod, the containers keep running, and the kubelet makes another mirror pod.
    #[test]
    fn a_new_mirror_of_the_same_processes_takes_over_what_the_one_before_it_held() {
        let mut cluster = cluster(1, 1);
        cluster.pod_is(&uid(1), Some(&mirror(1, 0)));
        reports(&mut cluster, AgentPhase::Serving, Some((PodStage::Started, 1)));
        cluster.pod_gone(&uid(1));
        assert_eq!(claimed_mib(&cluster), 1000);
        let unknown = mirror(2, 0).gpu_pod.map(|pod| GpuPod { claim: PodClaim::None, ..pod });
        cluster.pod_is(&uid(2), Some(&BoundPod { gpu_pod: unknown, ..mirror(2, 0) }));
        assert!(state(&cluster, 1).is_some(), "it is not known what the new mirror pod holds");
        cluster.pod_is(&uid(2), Some(&mirror(2, 0)));
        assert_eq!((state(&cluster, 1), state(&cluster, 2)), (None, Some(ClaimState::Started)));
        assert_eq!(claimed_mib(&cluster), 1000, "once");
        // Another pod with the hash and a smaller claim takes over nothing.
        cluster.pod_gone(&uid(2));
        let mut less = mirror(3, 0);
        if let Some(GpuPod { claim: PodClaim::Given(claim), .. }) = &mut less.gpu_pod {
            claim[0][0].memory = Some(Mib(500).bytes());
        }
        cluster.pod_is(&uid(3), Some(&less));
        assert_eq!(claimed_mib(&cluster), 1500);
        cluster.pod_gone(&uid(3));
        reports(&mut cluster, AgentPhase::Serving, None);
        assert_eq!(claimed_mib(&cluster), 0, "no process under the hash: both claims are released");
    }
}
