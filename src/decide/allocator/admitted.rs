//! Whether the kubelet has allocated slots to all containers of a pod. From then on the scheduler need not hold the
//! node lock for it, even if the pod's images take minutes to pull.

use super::effective_claim::EffectiveClaim;
use super::state::NodeAllocator;
use model::agent_stream::PodStage;
use model::checkpoint::CheckpointEntry;
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodUid};
use std::collections::{BTreeMap, BTreeSet};

impl NodeAllocator {
    /// Whether each container that requests GPUs has an entry in the kubelet's checkpoint, and no reason is known to
    /// refuse its start.
    #[must_use]
    pub fn admitted(&self, uid: &PodUid) -> bool {
        let Some(gpu_pod) = self.pods.by_uid.get(uid).filter(|gpu_pod| !gpu_pod.finished) else { return false };
        let EffectiveClaim::Given(claim) = self.effective_claim(gpu_pod) else { return false };
        let row = |container| {
            let key = ContainerKey { pod: uid.clone(), container };
            self.held.get(&key).filter(|row| row.ticket.is_some())
        };
        let requesting = gpu_pod.requests.iter().filter(|request| request.slots > 0);
        let rows: Option<Vec<&CheckpointEntry>> = requesting.map(|request| row(request.container.clone())).collect();
        let Some(rows) = rows.filter(|rows| !rows.is_empty()) else { return false };
        let Ok(bound) = self.bind(gpu_pod, claim, &rows) else { return false };
        let its_own = bound.iter().all(|bound| !bound.early || self.was_given_its_claim(bound));
        its_own && self.fits(gpu_pod, claim).is_ok()
    }

    /// The start stage of each GPU pod that has not finished, by the kubelet's checkpoint as last read.
    #[must_use]
    pub fn stages(&self) -> BTreeMap<PodUid, PodStage> {
        let stage = |gpu_pod: &GpuPod| match self.pods.started.contains(&gpu_pod.uid) {
            true => PodStage::Started,
            false if self.is_refused(gpu_pod) => PodStage::Refused,
            false if self.has_asked(gpu_pod) => PodStage::Allocated,
            false => PodStage::Waiting,
        };
        let pods = self.pods.by_uid.values().filter(|gpu_pod| !gpu_pod.finished);
        pods.map(|gpu_pod| (gpu_pod.uid.clone(), stage(gpu_pod))).collect()
    }

    /// The devices in the claim of a pod of which a container got devices; `None` if no container did.
    #[must_use]
    pub fn devices_of_started(&self, uid: &PodUid) -> Option<BTreeSet<GpuUuid>> {
        let shares = self.ledger.get(uid).into_iter().flat_map(|claim| claim.claim.shares());
        self.pods.started.contains(uid).then(|| shares.map(|share| share.device.clone()).collect())
    }

    /// Whether every start of a pod is refused: it has no claim and gets no device without one, its request cannot be read, or
    /// its claim names a device that the node does not have. `false` until the kubelet has called `Allocate` for all containers
    /// that request GPUs: if another plugin answers such a call, the container starts without this agent.
    fn is_refused(&self, gpu_pod: &GpuPod) -> bool {
        let refused = match self.effective_claim(gpu_pod) {
            EffectiveClaim::None => !self.shares(&gpu_pod.uid),
            EffectiveClaim::BadRequest(_) => true,
            // While the driver shows no device, nothing is known about the claim.
            EffectiveClaim::Given(claim) => {
                !self.devices.is_empty() && claim.shares().any(|share| !self.devices.contains_key(&share.device))
            }
            EffectiveClaim::Unreadable(_) => false,
        };
        let ours = |(_, row): (&ContainerKey, &CheckpointEntry)| !row.is_foreign();
        let mut rows = self.held.iter().filter(|(key, _)| key.pod == gpu_pod.uid);
        refused && self.has_asked(gpu_pod) && rows.all(ours)
    }

    /// Whether a pod waits for its start.
    #[must_use]
    pub fn any_waits(&self) -> bool {
        self.pods.by_uid.keys().any(|uid| self.waits(uid))
    }

    /// Whether the kubelet has called `Allocate`, of this or an earlier plugin, for each container that requests GPUs.
    fn has_asked(&self, gpu_pod: &GpuPod) -> bool {
        let mut requesting = gpu_pod.requests.iter().filter(|request| request.slots > 0);
        requesting.all(|request| {
            let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
            self.held.contains_key(&key)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::tests::{allocator, device_share, gpu_pod, ids, request, row, uid};
    use model::claim::PodClaim;
    use model::gpu_pod::GpuPod;
    use model::request::ContainerRole;

    fn two(n: u32, gib: u64) -> GpuPod {
        let requests = vec![
            request("warm", ContainerRole::Init, 1),
            request("plain", ContainerRole::App, 0),
            request("main", ContainerRole::App, 1),
        ];
        let claim = vec![vec![device_share(0, gib, 10)], vec![], vec![device_share(1, gib, 10)]];
        gpu_pod(n, requests, PodClaim::Given(claim.into()))
    }

    #[test]
    fn a_pod_is_admitted_once_each_requesting_container_has_an_entry() {
        let mut allocator = allocator(vec![two(1, 8), two(2, 8)]);
        let checkpoint = [row(1, "warm", &[(0, 1)], 1), row(2, "warm", &[(0, 2)], 2), row(1, "main", &[(1, 1)], 3)];
        allocator.set_checkpoint(&checkpoint[..2]);
        assert_eq!([allocator.admitted(&uid(1)), allocator.admitted(&uid(2))], [false, false]);
        allocator.set_checkpoint(&checkpoint);
        assert_eq!(
            [allocator.admitted(&uid(1)), allocator.admitted(&uid(2)), allocator.admitted(&uid(3))],
            [true, false, false]
        );
    }

    #[test]
    fn the_stage_of_a_pod_follows_the_checkpoint_and_its_start() {
        use model::agent_stream::PodStage;
        let finished = GpuPod { finished: true, ..two(3, 8) };
        let mut allocator = allocator(vec![two(1, 8), two(2, 8), finished]);
        let stages = |allocator: &crate::allocator::NodeAllocator| -> Vec<PodStage> {
            allocator.stages().into_values().collect()
        };
        let mut checkpoint = vec![row(1, "warm", &[(0, 1)], 1)];
        allocator.set_checkpoint(&checkpoint);
        assert_eq!(stages(&allocator), [PodStage::Waiting, PodStage::Waiting], "one container is missing");
        checkpoint.push(row(1, "main", &[(1, 1)], 3));
        // An earlier plugin has answered for this container.
        checkpoint[0].ticket = None;
        allocator.set_checkpoint(&checkpoint);
        assert_eq!(stages(&allocator), [PodStage::Allocated, PodStage::Waiting]);
        assert!(allocator.any_waits());
        allocator.set_gpu_pod(GpuPod { started: true, ..two(2, 8) });
        assert_eq!(stages(&allocator), [PodStage::Allocated, PodStage::Started]);
    }

    /// A leader may give the GPUs of the node to other pods while such a pod is there.
    #[test]
    fn a_pod_is_refused_once_the_kubelet_has_asked_unless_it_shares_or_has_started() {
        use crate::allocator::WithoutClaim;
        use model::agent_stream::PodStage;
        let rows = [row(1, "warm", &[(0, 1)], 1), row(1, "main", &[(1, 1)], 2)];
        let mut other_plugin = rows.clone();
        (other_plugin[1].ticket, other_plugin[1].foreign) = (None, true);
        let bad = || PodClaim::BadRequest("too much".into());
        let torn = || PodClaim::Unreadable("torn".into());
        for (policy, claim, checkpoint, expect) in [
            (WithoutClaim::Refuse, PodClaim::None, &rows[..], PodStage::Refused),
            (WithoutClaim::Auto, PodClaim::None, &rows, PodStage::Refused),
            (WithoutClaim::Share, PodClaim::None, &rows, PodStage::Allocated),
            (WithoutClaim::Share, bad(), &rows, PodStage::Refused),
            // A later release of the agent may be able to read the claim.
            (WithoutClaim::Refuse, torn(), &rows, PodStage::Allocated),
            // The kubelet may have called another plugin, whose answer starts the container.
            (WithoutClaim::Refuse, PodClaim::None, &rows[..1], PodStage::Waiting),
            (WithoutClaim::Refuse, bad(), &[], PodStage::Waiting),
            (WithoutClaim::Refuse, PodClaim::None, &other_plugin, PodStage::Allocated),
            (WithoutClaim::Refuse, two(1, 8).claim, &rows, PodStage::Allocated),
        ] {
            let case = format!("{policy:?} {claim:?} {checkpoint:?}");
            let mut allocator = crate::allocator::NodeAllocator::new(policy, true);
            let gpu_pod = GpuPod { claim, ..two(1, 8) };
            allocator.set_gpu_pod(gpu_pod.clone());
            allocator.set_checkpoint(checkpoint);
            assert_eq!(allocator.stages().into_values().collect::<Vec<_>>(), [expect], "{case}");
            allocator.set_gpu_pod(GpuPod { started: true, ..gpu_pod });
            assert_eq!(allocator.stages().into_values().collect::<Vec<_>>(), [PodStage::Started], "{case}");
        }
    }

    #[test]
    fn a_pod_whose_claim_names_a_device_that_the_node_does_not_have_is_refused() {
        use model::agent_stream::PodStage;
        let claim = |device| PodClaim::Given(vec![vec![device_share(device, 8, 10)], vec![], vec![]].into());
        let mut rows = [row(1, "warm", &[(0, 1)], 1), row(1, "main", &[(1, 1)], 2)];
        let stage = |device, rows: &[model::checkpoint::CheckpointEntry]| {
            let mut allocator = allocator(vec![GpuPod { claim: claim(device), ..two(1, 8) }]);
            allocator.set_checkpoint(rows);
            allocator.stages().into_values().collect::<Vec<_>>()
        };
        assert_eq!((stage(0, &rows), stage(77, &rows)), (vec![PodStage::Allocated], vec![PodStage::Refused]));
        assert_eq!(stage(77, &rows[..1]), [PodStage::Waiting], "the kubelet has not asked for all containers");
        (rows[1].ticket, rows[1].foreign) = (None, true);
        assert_eq!(stage(77, &rows), [PodStage::Allocated], "another plugin has answered for a container");
    }

    #[test]
    fn a_pod_whose_start_will_be_refused_is_not_admitted() {
        let checkpoint = [row(1, "warm", &[(0, 1)], 1), row(1, "main", &[(1, 1)], 2)];
        let other = GpuPod { finished: true, ..two(1, 8) };
        let unreadable = GpuPod { claim: PodClaim::Unreadable("torn".into()), ..two(1, 8) };
        for (bad, why) in [(other, "finished"), (unreadable, "unreadable"), (two(1, 8000), "more than there is")] {
            let mut allocator = allocator(vec![bad]);
            allocator.set_checkpoint(&checkpoint);
            assert!(!allocator.admitted(&uid(1)), "{why}");
        }
        let mut foreign = checkpoint.clone();
        foreign[0].ticket = None;
        let mut short = checkpoint.clone();
        short[1].ids = ids(&[(1, 1), (1, 2)]);
        for (checkpoint, why) in [(foreign, "of an earlier plugin"), (short, "another number of devices")] {
            let mut allocator = allocator(vec![two(1, 8)]);
            allocator.set_checkpoint(&checkpoint);
            assert!(!allocator.admitted(&uid(1)), "{why}");
        }
    }
}
