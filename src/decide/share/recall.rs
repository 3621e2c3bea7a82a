//! What an earlier life of the program answered holds in this one.

use super::state::Share;
use model::id::PodUid;
use model::promise::ContainerPromise;
use model::share::{Assignment, ContainerKey, Portion, Tenant};
use model::unit::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Share {
    /// Pods whose start an earlier life of the program has answered: what they were promised, they hold.
    pub fn recall(&mut self, started: BTreeSet<PodUid>) {
        self.started.extend(started);
    }

    /// What containers of such pods were told that they may use, for those whose claim cannot be read any more. Without a limit
    /// that is all there is.
    pub fn recall_promises(&mut self, promises: Vec<ContainerPromise>) {
        for promise in promises {
            let portions = promise.devices.into_iter().map(|device| Portion {
                device: device.uuid,
                memory: Some(device.memory).filter(|memory| *memory > Bytes(0)),
                cores: device.cores.map(|cores| cores.0).filter(|cores| *cores > 0),
            });
            let key = ContainerKey { pod: promise.uid, container: promise.container };
            self.told.insert(key, portions.collect());
        }
    }

    /// A pod that has started holds what it was promised; where that cannot be read, what it was told.
    pub(super) fn keep_what_started(&mut self, tenant: &Tenant) {
        match self.assignment(tenant) {
            Assignment::Given(claim) => self.keep(tenant, &claim, &|_| false),
            Assignment::Unreadable(_) => {
                let own = |container: &Arc<str>| {
                    let key = ContainerKey { pod: tenant.uid.clone(), container: container.clone() };
                    self.told.get(&key).cloned().unwrap_or_default()
                };
                let claim: Vec<Vec<Portion>> = tenant.asks.iter().map(|ask| own(&ask.container)).collect();
                if claim.iter().any(|own| !own.is_empty()) {
                    self.keep(tenant, &claim, &|_| false);
                }
            }
            Assignment::None => {}
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

    #[test]
    fn so_is_what_was_promised_by_a_claim_that_cannot_be_read_any_more() {
        let promise = ContainerPromise {
            uid: uid(1),
            pod: PodRef { namespace: "ml".into(), name: "pod-1".into() },
            container: "main".into(),
            devices: vec![DevicePromise {
                uuid: device(0),
                index: 0,
                model: "NVIDIA H100".into(),
                memory: Bytes(50 * GIB),
                cores: Some(CorePercent(30)),
            }],
            priority: None,
        };
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
