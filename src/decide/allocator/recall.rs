//! Restores the allocator after a restart of the agent: containers keep the devices that an earlier process gave them.

use super::effective_claim::EffectiveClaim;
use super::state::NodeAllocator;
use model::claim::{Claim, DeviceShare};
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, PodUid};
use model::limits::ContainerLimits;
use model::request::ContainerRequest;
use model::unit::Bytes;
use std::collections::BTreeSet;

impl NodeAllocator {
    /// Restores the started pods of an earlier process: they hold the devices that they claim.
    pub fn recall(&mut self, started: BTreeSet<PodUid>) {
        for uid in started {
            self.pods.started.insert(uid.clone());
            self.enter(&uid);
        }
    }

    /// Restores the limits files of the containers of started pods. The device shares in them count even if the claim
    /// on the pod has changed since.
    pub fn recall_limits(&mut self, limits: Vec<ContainerLimits>) {
        for one in limits {
            let mut device_shares = one.device_shares();
            for share in &mut device_shares {
                share.memory = share.memory.filter(|memory| *memory > Bytes(0));
                share.cores = share.cores.filter(|cores| cores.0 > 0);
            }
            self.claims.in_limits_files.insert(one.holder, device_shares);
        }
    }

    /// Stores what a started pod holds: the device shares in the limits files of its containers, or the claim on the
    /// pod for a container without a limits file. If a pod has no claim, but the checkpoint has this agent's answers
    /// for it, an earlier process made its claim; that claim must still be written on the pod.
    pub(super) fn keep_started(&mut self, gpu_pod: &GpuPod) {
        match self.effective_claim(gpu_pod) {
            EffectiveClaim::Given(claim) => {
                let own = gpu_pod.requests.iter().zip(claim).map(|(request, now)| self.held_by(gpu_pod, request, now));
                let held: Claim = own.collect();
                self.keep(gpu_pod, &held, &|_| false);
            }
            EffectiveClaim::Unreadable(_) | EffectiveClaim::BadRequest(_) => {
                let claim: Claim =
                    gpu_pod.requests.iter().map(|request| self.in_limits_file(gpu_pod, request).to_vec()).collect();
                if claim.iter().any(|own| !own.is_empty()) {
                    self.keep(gpu_pod, &claim, &|_| false);
                }
            }
            EffectiveClaim::None if !gpu_pod.finished => {
                if let Some(share) = self.claim_of_own_answers(gpu_pod) {
                    self.keep(gpu_pod, &share, &|_| false);
                    self.due.shared.insert(gpu_pod.uid.clone());
                }
            }
            EffectiveClaim::None => {}
        }
    }

    fn in_limits_file(&self, gpu_pod: &GpuPod, request: &ContainerRequest) -> &[DeviceShare] {
        let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
        self.claims.in_limits_files.get(&key).map_or(&[], Vec::as_slice)
    }

    /// The device shares in a container's limits file. Without one, `now`: the shares in the claim on the pod.
    fn held_by(&self, gpu_pod: &GpuPod, request: &ContainerRequest, now: &[DeviceShare]) -> Vec<DeviceShare> {
        let in_file = self.in_limits_file(gpu_pod, request);
        if in_file.is_empty() { now.to_vec() } else { in_file.to_vec() }
    }

    /// Restores the claim that an earlier process made for a pod without a claim, from the slots in the agent's own
    /// answers. If the setting now gives such pods no devices, each container must also have a limits file. The file
    /// proves that the container was given devices, or that its pod had a claim that was removed since.
    fn claim_of_own_answers(&self, gpu_pod: &GpuPod) -> Option<Claim> {
        let own = gpu_pod.requests.iter().map(|request| {
            if request.slots == 0 {
                return Some(Vec::new());
            }
            let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
            let row = self.held.get(&key).filter(|row| row.ticket.is_some())?;
            if !self.may_share() && self.in_limits_file(gpu_pod, request).is_empty() {
                return None;
            }
            let share = self.share_of(request, &row.ids).ok()?;
            Some(self.held_by(gpu_pod, request, &share))
        });
        own.collect::<Option<Claim>>().filter(|share| gpu_pod.is_whole(share))
    }

    /// Calls `keep_started` again for started pods without a claim: some were seen before the devices were known.
    pub(super) fn keep_claims_of_own_answers(&mut self) {
        let lacks = |gpu_pod: &&GpuPod| {
            self.pods.started.contains(&gpu_pod.uid) && matches!(self.effective_claim(gpu_pod), EffectiveClaim::None)
        };
        let lacking: Vec<GpuPod> = self.pods.by_uid.values().filter(lacks).cloned().collect();
        for gpu_pod in lacking {
            self.keep_started(&gpu_pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{
        GIB, device, device_share, filled, gpu_pod, ids, refused, request, row, shared_gpu, single, uid,
    };
    use super::super::{Refusal, WithoutClaim};
    use super::*;
    use model::claim::PodClaim;
    use model::id::PodRef;
    use model::limits::DeviceLimits;
    use model::request::ContainerRole;
    use model::unit::CorePercent;

    fn next_process(started: &[u32]) -> NodeAllocator {
        let mut allocator = NodeAllocator::new(WithoutClaim::Auto, false);
        allocator.set_devices(vec![shared_gpu(0, 10)]);
        allocator.recall(started.iter().map(|n| uid(*n)).collect());
        allocator
    }

    #[test]
    fn devices_from_an_earlier_process_are_still_held() {
        let mut allocator = next_process(&[1, 9]);
        allocator.set_gpu_pods(vec![single(1, device_share(0, 50, 30)), single(2, device_share(0, 50, 30))]);
        let checkpoint = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
        assert!(matches!(refused(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint))), Refusal::DoesNotFit { .. }));
        filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
    }

    fn limits(memory: u64, cores: Option<u32>) -> ContainerLimits {
        ContainerLimits {
            holder: ContainerKey { pod: uid(1), container: "main".into() },
            pod: PodRef { namespace: "ml".into(), name: "pod-1".into() },
            devices: vec![DeviceLimits {
                uuid: device(0),
                index: 0,
                model: "NVIDIA H100".into(),
                memory: Bytes(memory * GIB),
                unlimited: memory == 80,
                cores: cores.map(CorePercent),
            }],
            priority: None,
        }
    }

    #[test]
    fn delivered_devices_stay_when_the_claim_on_the_pod_changes() {
        let rewritten = |memory| single(1, DeviceShare { memory, ..device_share(0, 0, 30) });
        let checkpoint = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
        for (claim, limits_file, fits) in [
            (rewritten(Some(Bytes(GIB))), Some(60), false),
            (rewritten(Some(Bytes(GIB))), None, true),
            (rewritten(Some(Bytes(70 * GIB))), Some(20), true),
            // The limits file of a container without a limit names all memory of the device.
            (rewritten(None), Some(80), true),
            (rewritten(None), Some(60), false),
        ] {
            let mut allocator = next_process(&[1]);
            allocator.recall_limits(limits_file.map(|memory| limits(memory, Some(30))).into_iter().collect());
            allocator.set_gpu_pods(vec![claim.clone(), single(2, device_share(0, 50, 30))]);
            let other = allocator.start(&ids(&[(0, 1)]), Some(&checkpoint));
            assert_eq!(matches!(other, super::super::StartVerdict::Fill { .. }), fits, "{claim:?} {limits_file:?}");
        }
    }

    #[test]
    fn a_claim_that_an_earlier_process_could_not_write_is_due_again() {
        let bare = gpu_pod(
            1,
            vec![request("main", ContainerRole::App, 1), request("side", ContainerRole::Sidecar, 0)],
            PodClaim::None,
        );
        let placed = single(2, device_share(0, 8, 30));
        let ours = vec![row(1, "main", &[(0, 0)], 1)];
        let all = DeviceShare { device: device(0), memory: None, cores: None };
        for (rule, started, limits_file, checkpoint, due) in [
            (WithoutClaim::Share, &[1][..], Some(80), ours.clone(), Some(all.clone())),
            (WithoutClaim::Share, &[1], None, ours.clone(), Some(all.clone())),
            // A scheduler has placed another pod here since.
            (WithoutClaim::Auto, &[1], Some(80), ours.clone(), Some(all.clone())),
            (WithoutClaim::Auto, &[1], None, ours.clone(), None),
            // The claim was removed from the pod.
            (
                WithoutClaim::Refuse,
                &[1],
                Some(60),
                ours.clone(),
                Some(DeviceShare { cores: None, ..device_share(0, 60, 0) }),
            ),
            (WithoutClaim::Refuse, &[1], None, ours.clone(), None),
            (WithoutClaim::Share, &[], Some(80), ours.clone(), None),
            (WithoutClaim::Share, &[1], Some(80), vec![row(1, "main", &[(0, 0)], 0)], None),
            (WithoutClaim::Share, &[1], Some(80), vec![], None),
        ] {
            for cards_first in [true, false] {
                let mut allocator = NodeAllocator::new(rule, true);
                allocator.recall(started.iter().map(|n| uid(*n)).collect());
                allocator.recall_limits(limits_file.map(|memory| limits(memory, None)).into_iter().collect());
                allocator.set_checkpoint(&checkpoint);
                if cards_first {
                    allocator.set_devices(vec![shared_gpu(0, 10)]);
                }
                allocator.set_gpu_pods(vec![bare.clone(), placed.clone()]);
                allocator.set_devices(vec![shared_gpu(0, 10)]);
                let shares = allocator.take_changes().shares;
                let expect = due.clone().map(|device_share| (bare.clone(), Claim(vec![vec![device_share], vec![]])));
                assert_eq!(
                    shares,
                    expect.into_iter().collect::<Vec<_>>(),
                    "{rule:?} {started:?} {limits_file:?} {checkpoint:?}"
                );
                allocator.set_gpu_pods(vec![bare.clone(), placed.clone()]);
                assert!(allocator.take_changes().shares.is_empty(), "once");
                if due.is_some() {
                    filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint)));
                }
            }
        }
    }

    #[test]
    fn devices_of_a_claim_that_became_unreadable_stay() {
        let limits_of_one = limits(50, Some(30));
        let torn = gpu_pod(1, vec![request("main", ContainerRole::App, 1)], PodClaim::Unreadable("torn".into()));
        let checkpoint = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
        for (started, limits_file, fits) in [(&[1][..], true, false), (&[1], false, true), (&[], true, true)] {
            let mut allocator = next_process(started);
            allocator.recall_limits(if limits_file { vec![limits_of_one.clone()] } else { Vec::new() });
            allocator.set_gpu_pods(vec![torn.clone(), single(2, device_share(0, 50, 30))]);
            let own = allocator.start(&ids(&[(0, 0)]), Some(&checkpoint));
            match (started.is_empty(), limits_file) {
                (false, true) => {
                    assert_eq!(
                        filled(own)[0].limits.device_shares(),
                        [device_share(0, 50, 30)],
                        "started again as it was"
                    )
                }
                _ => assert!(matches!(refused(own), Refusal::Unreadable(_))),
            }
            let other = allocator.start(&ids(&[(0, 1)]), Some(&checkpoint));
            assert_eq!(matches!(other, super::super::StartVerdict::Fill { .. }), fits, "{started:?} {limits_file}");
        }
    }
}
