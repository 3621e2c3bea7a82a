//! A container gets each GPU once. Two slots of one GPU are one GPU to a CUDA program: who asks for two would compute on half of
//! what was asked for and not know it.

use super::refusal::Refusal;
use super::start::Bound;
use super::state::Share;
use model::id::GpuUuid;
use model::share::Portion;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Share {
    /// Whether a container may get the same GPU twice. Without it the start of such a container is refused.
    pub fn allow_same_gpu_twice(&mut self, allow: bool) {
        self.same_gpu_twice = allow;
    }

    /// Refuses a container that would get the same GPU twice. One that has started with it keeps it.
    pub(super) fn distinct(&self, bound: Vec<Bound>) -> Result<Vec<Bound>, (Arc<str>, Refusal)> {
        for one in &bound {
            if let Some((device, slots)) = self.repeated(&one.portions)
                && !self.has_started_with(one)
            {
                let why = Refusal::SameGpuTwice { device: device.clone(), slots, gpus: self.cards.len() };
                return Err((one.holder.container.clone(), why));
            }
        }
        Ok(bound)
    }

    /// A GPU that stands more than once among these, and how often, if that is not allowed.
    pub(super) fn repeated<'a>(&self, portions: &'a [Portion]) -> Option<(&'a GpuUuid, usize)> {
        if self.same_gpu_twice {
            return None;
        }
        let mut counts: BTreeMap<&GpuUuid, usize> = BTreeMap::new();
        for portion in portions {
            *counts.entry(&portion.device).or_default() += 1;
        }
        counts.into_iter().find(|(_, count)| *count > 1)
    }

    fn has_started_with(&self, bound: &Bound) -> bool {
        let tenant = self.tenants.get(&bound.holder.pod);
        let at = tenant.and_then(|tenant| tenant.asks.iter().position(|ask| ask.container == bound.holder.container));
        let kept = self.kept.get(&bound.holder.pod).zip(at).and_then(|(kept, at)| kept.get(at));
        kept == Some(&bound.portions)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ask, card, device, filled, ids, portion, refused, row, share, tenant, uid};
    use super::super::*;
    use model::id::Ticket;
    use model::share::{Assignment, Held, Role, Slot, Tenant};

    fn twice(n: u32) -> Tenant {
        let claim = Assignment::Given(vec![vec![portion(0, 8, 30), portion(0, 8, 30)]]);
        tenant(n, vec![ask("main", Role::App, 2)], claim)
    }

    #[test]
    fn a_claim_that_names_one_gpu_twice_for_a_container_does_not_start() {
        let mut share = share(vec![twice(1)]);
        let books = [row(1, "main", &[(0, 0), (0, 1)], 1)];
        let why = refused(share.start(&ids(&[(0, 0), (0, 1)]), Some(&books)));
        assert_eq!(why, Refusal::SameGpuTwice { device: device(0), slots: 2, gpus: 2 });
        assert_eq!(why.code(), "SameGpuTwice");
        assert!(!why.for_good(), "who evicts it gets the same again");
        let text = why.to_string();
        assert!(text.contains(device(0).as_str()) && text.contains("--same-gpu-twice=allow"), "{text}");
        share.allow_same_gpu_twice(true);
        assert_eq!(filled(share.start(&ids(&[(0, 0), (0, 1)]), Some(&books))).len(), 1);
    }

    #[test]
    fn two_slots_of_the_only_gpu_are_not_shared_to_one_container() {
        let mut share = Share::new(WithoutClaim::Share, false);
        share.cards_are(vec![card(0, 10)]);
        share.tenants_are(vec![tenant(1, vec![ask("main", Role::App, 2)], Assignment::None)]);
        let books = [row(1, "main", &[(0, 0), (0, 1)], 1)];
        let why = refused(share.start(&ids(&[(0, 0), (0, 1)]), Some(&books)));
        assert_eq!(why, Refusal::SameGpuTwice { device: device(0), slots: 2, gpus: 1 });
    }

    #[test]
    fn the_same_gpu_in_two_containers_of_a_pod_is_fine_and_a_claim_of_two_gpus_wins_over_slots_of_one() {
        let asks = vec![ask("one", Role::App, 1), ask("two", Role::App, 1)];
        let claim = Assignment::Given(vec![vec![portion(0, 8, 30)], vec![portion(0, 8, 30)]]);
        let both = Assignment::Given(vec![vec![portion(0, 8, 30), portion(1, 8, 30)]]);
        let mut share = share(vec![tenant(1, asks, claim), tenant(2, vec![ask("main", Role::App, 2)], both)]);
        let books = [row(1, "one", &[(0, 0)], 1), row(1, "two", &[(0, 1)], 2), row(2, "main", &[(0, 2), (0, 3)], 3)];
        assert_eq!(filled(share.start(&ids(&[(0, 0)]), Some(&books))).len(), 1);
        assert_eq!(filled(share.start(&ids(&[(0, 1)]), Some(&books))).len(), 1);
        assert_eq!(filled(share.start(&ids(&[(0, 2), (0, 3)]), Some(&books)))[0].portions.len(), 2);
    }

    /// An agent of before the rule had started it; its container is restarted after an upgrade.
    #[test]
    fn a_container_that_has_started_with_it_keeps_it() {
        let mut share = share(vec![Tenant { started: true, ..twice(1) }]);
        let books = [row(1, "main", &[(0, 0), (0, 1)], 1)];
        assert_eq!(filled(share.start(&ids(&[(0, 0), (0, 1)]), Some(&books))).len(), 1);
    }

    /// Given at `Allocate`: nothing, and the start says why. An error there would be the end of the pod, and its ReplicaSet would
    /// make one after the other.
    #[test]
    fn where_all_is_given_at_allocate_it_is_given_nothing_and_refused_at_the_start() {
        let shared = tenant(2, vec![ask("main", Role::App, 2)], Assignment::None);
        for tenant in [twice(1), shared] {
            let pod = if tenant.uid == uid(1) { 1 } else { 2 };
            let mut share = Share::new(WithoutClaim::Share, false);
            share.bind_early(true);
            share.cards_are(vec![card(0, 10)]);
            share.tenants_are(vec![tenant]);
            let slots = ids(&[(0, 0), (0, 1)]);
            let meant = share.allocate(&slots, Some(&[]), false).unwrap();
            assert_eq!((&meant.holder.pod, &*meant.portions), (&uid(pod), &[][..]));
            share.issue(Ticket::of_random([1; 16]), &slots, Some(meant));
            let books = [Held { early: true, ..row(pod, "main", &[(0, 0), (0, 1)], 1) }];
            let why = refused(share.start(&slots, Some(&books)));
            assert!(matches!(why, Refusal::SameGpuTwice { slots: 2, gpus: 1, .. }), "{why:?}");
            share.allow_same_gpu_twice(true);
            assert_eq!(
                share.allocate(&ids(&[(0, 2), (0, 3)]), Some(&[]), false).map(|meant| meant.portions.len()),
                Some(2)
            );
        }
    }

    #[test]
    fn kubelet_is_advised_to_take_slots_of_different_gpus_while_there_are_any() {
        let mut share = share(vec![]);
        // The second GPU has fewer free slots than the first.
        let slots: Vec<Slot> =
            [(0, 0), (0, 1), (0, 2), (1, 9)].map(|(n, number)| Slot { device: device(n), number }).into();
        let devices = |share: &Share, size| -> Vec<_> {
            share.prefer(&slots, &[], size).into_iter().map(|slot| slot.device).collect()
        };
        assert_eq!(devices(&share, 2), [device(0), device(1)]);
        share.tenants_are(vec![tenant(1, vec![ask("main", Role::App, 2)], Assignment::None)]);
        assert_eq!(devices(&share, 2), [device(0), device(1)]);
    }
}
