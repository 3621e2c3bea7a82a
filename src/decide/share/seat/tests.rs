//! Moves: only where every promise can be kept, and only devices change.

use crate::share::tests::{card, device, filled, ids, portion, row, share, single};
use crate::share::{Card, Share};
use model::id::GpuUuid;
use model::share::{Portion, Slot};
use model::unit::Bytes;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A card on a NUMA node of its own.
fn apart(n: u32) -> Card {
    Card { numa: Some(n), ..card(n, 10) }
}

fn following(tenants: Vec<model::share::Tenant>) -> Share {
    let mut share = share(tenants);
    share.cards_are(vec![apart(0), apart(1)]);
    share.follow_topology(true);
    share
}

#[test]
fn a_claim_moves_to_the_devices_that_kubelet_chose_if_it_fits_there() {
    let mut share = following(vec![single(1, portion(1, 8, 30)), single(2, portion(0, 70, 30))]);
    for (n, pod, slots) in [(7, 1, [(0, 3)]), (8, 2, [(1, 4)])] {
        share.issue(model::id::Ticket::of_random([n; 16]), &ids(&slots), None);
        let bound =
            filled(share.start(&ids(&slots), Some(&[row(1, "main", &[(0, 3)], 7), row(pod, "main", &slots, n)])));
        let changes = share.take_changes();
        assert_eq!((bound[0].portions[0].device.clone(), changes.reseated), (device(slots[0].0), 1), "{n}");
        assert_eq!(changes.claims[0].1, vec![bound[0].portions.clone()]);
        assert!(!bound[0].differs);
    }
}

#[test]
fn a_claim_stays_where_kubelets_choice_could_not_keep_it() {
    let one = [(0, 3)];
    for (tenants, why) in [
        (vec![single(1, portion(1, 20, 30)), single(2, portion(0, 70, 30))], "memory, of a pod that has not started"),
        (vec![single(1, portion(1, 20, 80)), single(2, portion(0, 7, 30))], "SM time"),
        (vec![single(1, portion(1, 20, 30)), single(2, portion(0, 7, 100))], "a pod that has the device alone"),
        (vec![single(1, portion(1, 20, 100)), single(2, portion(0, 7, 0))], "it would have the device alone"),
    ] {
        let mut share = following(tenants);
        share.issue(model::id::Ticket::of_random([7; 16]), &ids(&one), None);
        let bound = filled(share.start(&ids(&one), Some(&[row(1, "main", &one, 7)])));
        assert_eq!(bound[0].portions[0].device, device(1), "{why}");
        assert_eq!(share.take_changes().claims, [], "{why}");
    }
    let mut share = following(vec![single(1, portion(1, 8, 30))]);
    share.cards_are(vec![Card { healthy: false, ..apart(0) }, apart(1)]);
    share.issue(model::id::Ticket::of_random([7; 16]), &ids(&one), None);
    assert_eq!(filled(share.start(&ids(&one), Some(&[row(1, "main", &one, 7)])))[0].portions[0].device, device(1));
}

#[test]
fn a_claim_stays_on_the_numa_node_that_kubelet_chose() {
    let one = [(0, 3)];
    for (numa, place) in [(Some(4), 1), (None, 0)] {
        let mut share = following(vec![single(1, portion(1, 8, 30))]);
        share.cards_are(vec![Card { numa, ..card(0, 10) }, Card { numa, ..card(1, 10) }]);
        share.issue(model::id::Ticket::of_random([7; 16]), &ids(&one), None);
        let bound = filled(share.start(&ids(&one), Some(&[row(1, "main", &one, 7)])));
        assert_eq!(bound[0].portions[0].device, device(place), "{numa:?}");
    }
}

#[test]
fn a_container_that_has_started_does_not_move() {
    let one = [(0, 3)];
    let books = [row(1, "main", &one, 7)];
    let mut share = share(vec![single(1, portion(1, 8, 30))]);
    share.issue(model::id::Ticket::of_random([7; 16]), &ids(&one), None);
    filled(share.start(&ids(&one), Some(&books)));
    share.follow_topology(true);
    assert_eq!(filled(share.start(&ids(&one), Some(&books)))[0].portions[0].device, device(1));
}

#[test]
fn what_has_moved_is_known_after_a_restart_though_it_was_never_written() {
    let one = [(0, 3)];
    let books = [row(1, "main", &one, 7)];
    let mut before = following(vec![single(1, portion(1, 8, 30))]);
    before.issue(model::id::Ticket::of_random([7; 16]), &ids(&one), None);
    filled(before.start(&ids(&one), Some(&books)));
    let kept = before.take_changes().tickets;
    let mut share = Share::new(crate::share::WithoutClaim::Refuse, true);
    share.cards_are(vec![card(0, 10), card(1, 10)]);
    share.recall_tickets(kept);
    share.tenants_are(vec![single(1, portion(1, 8, 30))]);
    assert_eq!(filled(share.start(&ids(&one), Some(&books)))[0].portions[0].device, device(0));
    assert_eq!(share.take_changes().claims.len(), 1, "and is written now");
    share.tenants_are(vec![single(1, portion(0, 8, 30))]);
    filled(share.start(&ids(&one), Some(&books)));
    assert_eq!(share.take_changes().claims, [], "once");
}

proptest! {
    #[test]
    fn a_move_changes_devices_only_and_to_kubelets_numa_nodes(
        own in prop::collection::vec((0_u32..4, 1_u64..9, 0_u32..9), 1..4),
        slots in prop::collection::btree_set((0_u32..4, 0_u16..4), 1..4),
    ) {
        let own: Vec<Portion> = own.into_iter().map(|(n, gib, cores)| portion(n, gib, cores)).collect();
        let slots: Vec<(u32, u16)> = slots.into_iter().collect();
        let mut share = share(Vec::new());
        let cards: Vec<Card> = (0..4).map(|n| card(n, 10)).collect();
        let numa = |device: &GpuUuid| cards.iter().find(|card| card.device == *device).unwrap().numa;
        share.cards_are(cards.clone());
        let nodes = |of: &mut dyn Iterator<Item = &GpuUuid>| {
            let mut nodes: Vec<_> = of.map(numa).collect();
            nodes.sort();
            nodes
        };
        let chosen: Vec<_> = ids(&slots).iter().map(|id| Slot::parse(id).unwrap().device).collect();
        let devices = |of: &[Portion]| of.iter().map(|portion| portion.device.clone()).collect::<Vec<_>>();
        match share.where_kubelet_is(&own, &ids(&slots)) {
            Some(moved) => {
                prop_assert_eq!(nodes(&mut devices(&moved).iter()), nodes(&mut chosen.iter()));
                for (now, before) in devices(&moved).iter().zip(devices(&own)) {
                    prop_assert!(*now == before || chosen.contains(now));
                }
                let numbers = |of: &[Portion]| of.iter().map(|p| (p.memory, p.cores)).collect::<Vec<(Option<Bytes>, _)>>();
                prop_assert_eq!(numbers(&moved), numbers(&own));
            }
            None => prop_assert!(
                chosen.len() != own.len() || nodes(&mut chosen.iter()) == nodes(&mut devices(&own).iter())
                    || chosen.iter().collect::<BTreeSet<_>>().len() < own.iter().map(|p| &p.device).collect::<BTreeSet<_>>().len()
            ),
        }
    }
}
