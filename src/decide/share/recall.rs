//! What an earlier life of the program answered holds in this one.

use super::state::Share;
use model::id::PodUid;
use model::promise::ContainerPromise;
use model::share::{Ask, Assignment, ContainerKey, Portion, Tenant};
use model::unit::Bytes;
use std::collections::BTreeSet;

impl Share {
    /// Pods whose start an earlier life of the program has answered: what they were promised, they hold.
    pub fn recall(&mut self, started: BTreeSet<PodUid>) {
        self.started.extend(started);
    }

    /// What containers of such pods were told that they may use: it holds whatever is written on the pod since.
    pub fn recall_promises(&mut self, promises: Vec<ContainerPromise>) {
        for promise in promises {
            let portions = promise.devices.into_iter().map(|device| Portion {
                device: device.uuid,
                memory: Some(device.memory).filter(|memory| !device.unlimited && *memory > Bytes(0)),
                cores: device.cores.map(|cores| cores.0).filter(|cores| *cores > 0),
            });
            let key = ContainerKey { pod: promise.uid, container: promise.container };
            self.told.insert(key, portions.collect());
        }
    }

    /// A pod that has started holds what its containers were told; where that is not known, what is written on it. One that
    /// nobody placed and on which nothing is written, though it has answers of ours, was given a share: that is due to be
    /// written.
    pub(super) fn keep_what_started(&mut self, tenant: &Tenant) {
        match self.assignment(tenant) {
            Assignment::Given(claim) => {
                let own = tenant.asks.iter().zip(&claim).map(|(ask, now)| self.held_by(tenant, ask, now));
                let held: Vec<Vec<Portion>> = own.collect();
                self.keep(tenant, &held, &|_| false);
            }
            Assignment::Unreadable(_) | Assignment::BadRequest(_) => {
                let claim: Vec<Vec<Portion>> =
                    tenant.asks.iter().map(|ask| self.told_to(tenant, ask).to_vec()).collect();
                if claim.iter().any(|own| !own.is_empty()) {
                    self.keep(tenant, &claim, &|_| false);
                }
            }
            Assignment::None if !tenant.finished => {
                if let Some(share) = self.share_that_was_given(tenant) {
                    self.keep(tenant, &share, &|_| false);
                    self.due.shared.insert(tenant.uid.clone());
                }
            }
            Assignment::None => {}
        }
    }

    fn told_to(&self, tenant: &Tenant, ask: &Ask) -> &[Portion] {
        let key = ContainerKey { pod: tenant.uid.clone(), container: ask.container.clone() };
        self.told.get(&key).map_or(&[], Vec::as_slice)
    }

    /// What a container was told, else what is written now.
    fn held_by(&self, tenant: &Tenant, ask: &Ask, now: &[Portion]) -> Vec<Portion> {
        let told = self.told_to(tenant, ask);
        if told.is_empty() { now.to_vec() } else { told.to_vec() }
    }

    /// By the slots that our own answers stand for. Where nobody gets a share of what is not placed, only by what was told: then
    /// one was given, or there was a claim that is gone.
    fn share_that_was_given(&self, tenant: &Tenant) -> Option<Vec<Vec<Portion>>> {
        let own = tenant.asks.iter().map(|ask| {
            if ask.slots == 0 {
                return Some(Vec::new());
            }
            let key = ContainerKey { pod: tenant.uid.clone(), container: ask.container.clone() };
            let row = self.held.get(&key).filter(|row| row.ticket.is_some())?;
            if !self.may_share() && self.told_to(tenant, ask).is_empty() {
                return None;
            }
            let share = self.share_of(ask, &row.ids).ok()?;
            Some(self.held_by(tenant, ask, &share))
        });
        own.collect::<Option<Vec<_>>>().filter(|share| tenant.is_whole(share))
    }

    /// The same once devices are known, for pods that were seen before that.
    pub(super) fn keep_shares_that_were_given(&mut self) {
        let lacks = |tenant: &&Tenant| {
            self.started.contains(&tenant.uid) && matches!(self.assignment(tenant), Assignment::None)
        };
        let lacking: Vec<Tenant> = self.tenants.values().filter(lacks).cloned().collect();
        for tenant in lacking {
            self.keep_what_started(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GIB, ask, card, device, filled, ids, portion, refused, row, single, tenant, uid};
    use super::super::{Refusal, WithoutClaim};
    use super::*;
    use model::id::PodRef;
    use model::promise::DevicePromise;
    use model::share::Role;
    use model::unit::CorePercent;

    fn next_life(started: &[u32]) -> Share {
        let mut share = Share::new(WithoutClaim::Auto, false);
        share.cards_are(vec![card(0, 10)]);
        share.recall(started.iter().map(|n| uid(*n)).collect());
        share
    }

    #[test]
    fn what_an_earlier_life_gave_out_is_still_held() {
        let mut share = next_life(&[1, 9]);
        share.tenants_are(vec![single(1, portion(0, 50, 30)), single(2, portion(0, 50, 30))]);
        let books = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
        assert!(matches!(refused(share.start(&ids(&[(0, 1)]), Some(&books))), Refusal::DoesNotFit { .. }));
        filled(share.start(&ids(&[(0, 0)]), Some(&books)));
    }

    fn promise(memory: u64, cores: Option<u32>) -> ContainerPromise {
        ContainerPromise {
            uid: uid(1),
            pod: PodRef { namespace: "ml".into(), name: "pod-1".into() },
            container: "main".into(),
            devices: vec![DevicePromise {
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
    fn so_is_what_was_told_whatever_is_written_since() {
        let rewritten = |memory| single(1, Portion { memory, ..portion(0, 0, 30) });
        let books = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
        for (claim, told, fits) in [
            (rewritten(Some(Bytes(GIB))), Some(60), false),
            (rewritten(Some(Bytes(GIB))), None, true),
            (rewritten(Some(Bytes(70 * GIB))), Some(20), true),
            // All there is of a device is what a container without a limit is told.
            (rewritten(None), Some(80), true),
            (rewritten(None), Some(60), false),
        ] {
            let mut share = next_life(&[1]);
            share.recall_promises(told.map(|told| promise(told, Some(30))).into_iter().collect());
            share.tenants_are(vec![claim.clone(), single(2, portion(0, 50, 30))]);
            let other = share.start(&ids(&[(0, 1)]), Some(&books));
            assert_eq!(matches!(other, super::super::Verdict::Fill { .. }), fits, "{claim:?} {told:?}");
        }
    }

    #[test]
    fn a_share_that_could_not_be_written_is_written_by_the_next_life() {
        let bare = tenant(1, vec![ask("main", Role::App, 1), ask("side", Role::Sidecar, 0)], Assignment::None);
        let placed = single(2, portion(0, 8, 30));
        let ours = vec![row(1, "main", &[(0, 0)], 1)];
        let all = Portion { device: device(0), memory: None, cores: None };
        for (rule, started, told, books, due) in [
            (WithoutClaim::Share, &[1][..], Some(80), ours.clone(), Some(all.clone())),
            (WithoutClaim::Share, &[1], None, ours.clone(), Some(all.clone())),
            // A scheduler has come since.
            (WithoutClaim::Auto, &[1], Some(80), ours.clone(), Some(all.clone())),
            (WithoutClaim::Auto, &[1], None, ours.clone(), None),
            // A claim that somebody took away.
            (WithoutClaim::Refuse, &[1], Some(60), ours.clone(), Some(Portion { cores: None, ..portion(0, 60, 0) })),
            (WithoutClaim::Refuse, &[1], None, ours.clone(), None),
            (WithoutClaim::Share, &[], Some(80), ours.clone(), None),
            (WithoutClaim::Share, &[1], Some(80), vec![row(1, "main", &[(0, 0)], 0)], None),
            (WithoutClaim::Share, &[1], Some(80), vec![], None),
        ] {
            for cards_first in [true, false] {
                let mut share = Share::new(rule, true);
                share.recall(started.iter().map(|n| uid(*n)).collect());
                share.recall_promises(told.map(|told| promise(told, None)).into_iter().collect());
                share.books_are(&books);
                if cards_first {
                    share.cards_are(vec![card(0, 10)]);
                }
                share.tenants_are(vec![bare.clone(), placed.clone()]);
                share.cards_are(vec![card(0, 10)]);
                let shares = share.take_changes().shares;
                let expect = due.clone().map(|portion| (bare.clone(), vec![vec![portion], vec![]]));
                assert_eq!(shares, expect.into_iter().collect::<Vec<_>>(), "{rule:?} {started:?} {told:?} {books:?}");
                share.tenants_are(vec![bare.clone(), placed.clone()]);
                assert!(share.take_changes().shares.is_empty(), "once");
                if due.is_some() {
                    filled(share.start(&ids(&[(0, 0)]), Some(&books)));
                }
            }
        }
    }

    #[test]
    fn so_is_what_was_promised_by_a_claim_that_cannot_be_read_any_more() {
        let promise = promise(50, Some(30));
        let torn = tenant(1, vec![ask("main", Role::App, 1)], Assignment::Unreadable("torn".into()));
        let books = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
        for (started, told, fits) in [(&[1][..], true, false), (&[1], false, true), (&[], true, true)] {
            let mut share = next_life(started);
            share.recall_promises(if told { vec![promise.clone()] } else { Vec::new() });
            share.tenants_are(vec![torn.clone(), single(2, portion(0, 50, 30))]);
            let own = share.start(&ids(&[(0, 0)]), Some(&books));
            match (started.is_empty(), told) {
                (false, true) => assert_eq!(filled(own)[0].portions, [portion(0, 50, 30)], "started again as it was"),
                _ => assert!(matches!(refused(own), Refusal::Unreadable(_))),
            }
            let other = share.start(&ids(&[(0, 1)]), Some(&books));
            assert_eq!(matches!(other, super::super::Verdict::Fill { .. }), fits, "{started:?} {told}");
        }
    }
}
