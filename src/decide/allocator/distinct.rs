//! Refuses containers that would get the same GPU twice. A CUDA program sees two slots of one GPU as one GPU, so a
//! container that requests two GPUs would compute on one GPU without an error.

use super::refusal::Refusal;
use super::start::BoundContainer;
use super::state::NodeAllocator;
use model::id::GpuUuid;
use model::limits::DeviceLimits;
use std::collections::BTreeMap;
use std::sync::Arc;

impl NodeAllocator {
    /// Sets whether a container may get the same GPU twice. If not, the start of such a container is refused.
    pub fn allow_same_gpu_twice(&mut self, allow: bool) {
        self.policy.same_gpu_twice = allow;
    }

    /// Refuses a container that would get the same GPU twice. A container that has started with these device shares
    /// keeps them.
    pub(super) fn distinct(&self, bound: Vec<BoundContainer>) -> Result<Vec<BoundContainer>, (Arc<str>, Refusal)> {
        for one in &bound {
            if let Some((device, slots)) = self.repeated(&one.limits.devices)
                && !self.has_started_with(one)
            {
                let why = Refusal::SameGpuTwice { device: device.clone(), slots, gpus: self.devices.len() };
                return Err((one.limits.holder.container.clone(), why));
            }
        }
        Ok(bound)
    }

    /// A GPU that `devices` names more than once, and how often; `None` if there is no such GPU or if it is allowed.
    fn repeated<'a>(&self, devices: &'a [DeviceLimits]) -> Option<(&'a GpuUuid, usize)> {
        if self.policy.same_gpu_twice {
            return None;
        }
        let mut counts: BTreeMap<&GpuUuid, usize> = BTreeMap::new();
        for device in devices {
            *counts.entry(&device.uuid).or_default() += 1;
        }
        counts.into_iter().find(|(_, count)| *count > 1)
    }

    fn has_started_with(&self, bound: &BoundContainer) -> bool {
        let holder = &bound.limits.holder;
        let gpu_pod = self.pods.by_uid.get(&holder.pod);
        let at = gpu_pod
            .and_then(|gpu_pod| gpu_pod.requests.iter().position(|request| request.container == holder.container));
        let kept = self.claims.given.get(&holder.pod).zip(at).and_then(|(kept, at)| kept.get(at));
        kept == Some(&bound.limits.device_shares())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{
        allocator, device, device_share, filled, gpu_pod, ids, refused, request, row, shared_gpu,
    };
    use super::super::*;
    use model::claim::PodClaim;
    use model::gpu_pod::GpuPod;
    use model::request::ContainerRole;
    use model::slot::Slot;

    fn twice(n: u32) -> GpuPod {
        let claim = PodClaim::Given(vec![vec![device_share(0, 8, 30), device_share(0, 8, 30)]].into());
        gpu_pod(n, vec![request("main", ContainerRole::App, 2)], claim)
    }

    #[test]
    fn a_container_whose_claim_names_one_gpu_twice_does_not_start() {
        let mut allocator = allocator(vec![twice(1)]);
        let checkpoint = [row(1, "main", &[(0, 0), (0, 1)], 1)];
        let why = refused(allocator.start(&ids(&[(0, 0), (0, 1)]), Some(&checkpoint)));
        assert_eq!(why, Refusal::SameGpuTwice { device: device(0), slots: 2, gpus: 2 });
        assert_eq!(why.code(), "SameGpuTwice");
        assert!(!why.for_good(), "a new pod would get the same GPU twice, too");
        let text = why.to_string();
        assert!(text.contains(device(0).as_str()) && text.contains("--same-gpu-twice=allow"), "{text}");
        allocator.allow_same_gpu_twice(true);
        assert_eq!(filled(allocator.start(&ids(&[(0, 0), (0, 1)]), Some(&checkpoint))).len(), 1);
    }

    #[test]
    fn a_container_does_not_get_two_slots_of_the_only_gpu() {
        let mut allocator = NodeAllocator::new(WithoutClaim::Share, false);
        allocator.set_devices(vec![shared_gpu(0, 10)]);
        allocator.set_gpu_pods(vec![gpu_pod(1, vec![request("main", ContainerRole::App, 2)], PodClaim::None)]);
        let checkpoint = [row(1, "main", &[(0, 0), (0, 1)], 1)];
        let why = refused(allocator.start(&ids(&[(0, 0), (0, 1)]), Some(&checkpoint)));
        assert_eq!(why, Refusal::SameGpuTwice { device: device(0), slots: 2, gpus: 1 });
    }

    #[test]
    fn two_containers_of_a_pod_may_share_a_gpu_and_a_claim_of_two_gpus_overrides_slots_of_one() {
        let requests = vec![request("one", ContainerRole::App, 1), request("two", ContainerRole::App, 1)];
        let claim = PodClaim::Given(vec![vec![device_share(0, 8, 30)], vec![device_share(0, 8, 30)]].into());
        let both = PodClaim::Given(vec![vec![device_share(0, 8, 30), device_share(1, 8, 30)]].into());
        let mut allocator = allocator(vec![
            gpu_pod(1, requests, claim),
            gpu_pod(2, vec![request("main", ContainerRole::App, 2)], both),
        ]);
        let checkpoint =
            [row(1, "one", &[(0, 0)], 1), row(1, "two", &[(0, 1)], 2), row(2, "main", &[(0, 2), (0, 3)], 3)];
        assert_eq!(filled(allocator.start(&ids(&[(0, 0)]), Some(&checkpoint))).len(), 1);
        assert_eq!(filled(allocator.start(&ids(&[(0, 1)]), Some(&checkpoint))).len(), 1);
        assert_eq!(filled(allocator.start(&ids(&[(0, 2), (0, 3)]), Some(&checkpoint)))[0].limits.devices.len(), 2);
    }

    /// An agent without this rule started the container; the container restarts after an upgrade of the agent.
    #[test]
    fn a_container_that_has_started_with_one_gpu_twice_keeps_it() {
        let mut allocator = allocator(vec![GpuPod { started: true, ..twice(1) }]);
        let checkpoint = [row(1, "main", &[(0, 0), (0, 1)], 1)];
        assert_eq!(filled(allocator.start(&ids(&[(0, 0), (0, 1)]), Some(&checkpoint))).len(), 1);
    }

    #[test]
    fn slots_of_different_gpus_are_preferred_while_there_are_any() {
        let mut allocator = allocator(vec![]);
        // The second GPU has fewer free slots than the first.
        let slots: Vec<Slot> =
            [(0, 0), (0, 1), (0, 2), (1, 9)].map(|(n, number)| Slot { device: device(n), number }).into();
        let devices = |allocator: &NodeAllocator, size| -> Vec<_> {
            allocator.prefer(&slots, &[], size).into_iter().map(|slot| slot.device).collect()
        };
        assert_eq!(devices(&allocator, 2), [device(0), device(1)]);
        allocator.set_gpu_pods(vec![gpu_pod(1, vec![request("main", ContainerRole::App, 2)], PodClaim::None)]);
        assert_eq!(devices(&allocator, 2), [device(0), device(1)]);
    }
}
